/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_MODEL_FLOOR_H
#define MIMEO_DAEMON_BENCH_MODEL_FLOOR_H

#include "daemon/bench/bench.h"
#include "daemon/model/model.h"

/* Bytes that a step must read: each weight once, without the embedding, and of experts those of one token;
 * and for n rows that attend to `seen` tokens each, their keys and values once, within the layers' windows.
 * */
uint64_t model_floor_weights(const struct model *model);
uint64_t model_floor_cache(const struct model_config *config, const struct device_info *info,
	uint32_t n_rows, uint32_t seen);

/* The bytes that a step of the model must read, and the bandwidth of this device. */
struct model_floor {
	double copy_rate;
	uint64_t weight_bytes; /* of a step */
	uint64_t token_bytes;  /* keys and values of a token */
	/* of the draft model, 0 without one */
	uint64_t draft_bytes;      /* weights of each of its passes */
	uint64_t draft_once_bytes; /* weights that its first pass alone reads */
	uint64_t draft_token_bytes;
};

/* Measured in a child; call it while no daemon uses the device's memory. 0, or -errno with a sentence on
 * standard error. */
int model_floor(const struct bench_options *options, struct model_floor *ret);
/* Seconds of a step with n rows that attend to so many tokens each, with n_drafts passes of the draft model.
 * */
double model_floor_seconds(
	const struct model_floor *floor, uint32_t n_drafts, uint32_t n_rows, uint32_t seen);

#endif
