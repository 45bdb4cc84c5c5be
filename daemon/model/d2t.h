/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_D2T_H
#define MIMEO_DAEMON_MODEL_D2T_H

/*
 * `d2t` of an EAGLE-3 draft: what added to an id of the draft's vocabulary gives the target's. The
 * file says I64; the device has int32_t.
 */

#include "daemon/model/model.h"
#include "daemon/model/safetensors.h"

/* Read and check it: every id within the target's vocabulary (config->vocab_size), no two the same,
 * since a draft's probabilities are told apart by the target's ids. *ret, if ret is not NULL,
 * becomes [draft.vocab_size] (free), or NULL: there is no tensor, and the vocabularies are the
 * same. Does nothing for a model that is no draft, whose *ret is not written. -errno with a
 * sentence. Reads the file. */
int d2t_read(const struct safetensors *checkpoint, const char *directory,
	const struct model_config *config, int32_t **ret, struct model_error *error);

#endif
