/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_KV_H
#define MIMEO_DAEMON_MODEL_HF_KV_H

#include "daemon/model/field.h"
#include "daemon/model/quantisation.h"

/*
 * Parse the field `key`, which describes the cache of keys and values: an object with the scheme, or the scheme's name
 * ("static": AutoFP8, "FP8": ModelOpt). Supported is fp8 with a factor for each tensor, from the files. Another scheme is
 * an error only if the caller of model_load asks for an fp8 cache (kv_rc).
 */
void hf_kv_parse(const struct field_object *object, const char *key, struct quantisation *ret);

#endif
