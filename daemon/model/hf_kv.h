/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_KV_H
#define MIMEO_DAEMON_MODEL_HF_KV_H

#include "daemon/model/field.h"
#include "daemon/model/quantisation.h"

/*
 * What the field `key` of an object says of a cache of keys and values: an object with the scheme, or its name ("static":
 * AutoFP8, "FP8": ModelOpt). Supported is fp8 with a factor a tensor, which the files have. It is the caller of
 * model_load who asks for such a cache, so anything else is an error only then (kv_rc).
 */
void hf_kv_parse(const struct field_object *object, const char *key, struct quantisation *ret);

#endif
