/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_COMPRESSED_H
#define MIMEO_DAEMON_MODEL_HF_COMPRESSED_H

#include "daemon/model/field.h"
#include "daemon/model/quantisation.h"

/* quantization_config with quant_method compressed-tensors. Errors are the file's (field.h). */
void hf_compressed_parse(const struct field_object *object, struct quantisation *ret);

#endif
