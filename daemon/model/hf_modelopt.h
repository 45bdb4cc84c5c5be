/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_MODELOPT_H
#define MIMEO_DAEMON_MODEL_HF_MODELOPT_H

/* What NVIDIA's Model Optimizer says of a model that it has quantised: in quantization_config, with quant_method
 * modelopt, and in a file of its own, hf_quant_config.json, which older versions write alone. */

#include "daemon/model/field.h"
#include "daemon/model/quantisation.h"

/* quantization_config. Errors are the file's (field.h). */
void hf_modelopt_parse(const struct field_object *object, struct quantisation *ret);
/* Parse the text of hf_quant_config.json; `path` is for errors. The caller frees *ret (quantisation_free). 0, or -errno
 * with a sentence. */
int hf_modelopt_parse_file(const char *path, const char *text, size_t bytes, struct quantisation **ret,
	struct model_error *error);

#endif
