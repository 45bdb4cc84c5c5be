/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_QUANTISATION_H
#define MIMEO_DAEMON_MODEL_HF_QUANTISATION_H

/* quantization_config of config.json. Errors are the file's (field.h) and name field and value. */

#include "daemon/model/field.h"
#include "daemon/model/quantisation.h"

/* Parse root's quantization_config. *ret is the caller's (quantisation_free); NULL: there is none,
 * or the file has failed. */
void hf_quantisation_parse(const struct field_object *root, struct quantisation **ret);

#endif
