/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_D2T_H
#define MIMEO_DAEMON_MODEL_D2T_H

/*
 * `d2t` of an EAGLE-3 draft model: the target's id is the draft's plus d2t of it. I64 in the file,
 * int32_t on the device.
 */

#include "daemon/model/model_config.h"
#include "daemon/model/safetensors.h"

/* Read and check it: every id within the target's vocabulary (config->vocab_size), no two the same,
 * since verification identifies probabilities by the target's ids. *ret, unless ret is NULL,
 * becomes [draft.vocab_size] (free), or NULL: there is no tensor, and the vocabularies are the
 * same. For models other than EAGLE-3 this does nothing and does not set *ret. 0, or -errno with a
 * sentence. */
int d2t_read(const struct safetensors *checkpoint, const char *directory,
	const struct model_config *config, int32_t **ret, struct model_error *error);

#endif
