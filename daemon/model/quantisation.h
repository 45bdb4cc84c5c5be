/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_QUANTISATION_H
#define MIMEO_DAEMON_MODEL_QUANTISATION_H

/* What config.json says of quantised weights: their schemes, and which modules have them. The
 * tensors themselves are quantised.h's. */

#include "daemon/model/error.h"
#include "daemon/model/modules.h"

enum quantisation_method {
	QUANTISATION_FP8,    /* fp8, and compressed-tensors' float-quantized */
	QUANTISATION_PACKED, /* compressed-tensors' pack-quantized, 4 bits */
	QUANTISATION_GPTQ,   /* 4 bits */
	QUANTISATION_AWQ,    /* gemm, 4 bits */
};

struct quantisation_scheme {
	enum quantisation_method method;
	uint32_t block_rows, block_cols; /* of one factor; 0: all of the matrix */
	bool symmetric;                  /* PACKED: no zeros are stored */
	bool needs_groups;               /* the columns' groups are stored */
	bool zeros_less_one;             /* GPTQ: zeros are stored as one less */
	bool targets_all;                /* all linear modules that no other scheme names */
	struct modules targets;          /* compressed-tensors: these */
};

#define QUANTISATION_SCHEMES_MAX 16u
struct quantisation {
	struct quantisation_scheme schemes[QUANTISATION_SCHEMES_MAX];
	uint32_t n_schemes;
	const char *excluded_key; /* the field of `excluded`, as errors name it; static storage */
	struct modules excluded;
	/* Of keys and values; counts only for a cache in fp8. kv_rc not 0: what the file asks for is not that, with a
	 * sentence. */
	bool kv_factors; /* each layer has a factor of its own */
	int kv_rc;
	struct model_error kv_error;
};

/* `inner`, unless NULL: another name of the module, which the lists may have instead. */

/* The scheme of a linear module, whether it is excluded or not: of those that name it, else of those with a pattern
 * that matches, else of those for all, the first. NULL: none targets it. */
const struct quantisation_scheme *quantisation_scheme_of(
	const struct quantisation *quantisation, const char *module, const char *inner);

enum quantisation_rule {
	QUANTISATION_NEVER,
	QUANTISATION_MAYBE, /* what the file has, holds */
	QUANTISATION_ALWAYS,
};
/* Of a linear module. NEVER: *ret_why is the part of a sentence behind "but ". */
#define QUANTISATION_WHY_MAX 160
enum quantisation_rule quantisation_rule_of(const struct quantisation *quantisation,
	const char *module, const char *inner, char ret_why[QUANTISATION_WHY_MAX]);

/* "fp8 in blocks of 128 x 128"; of several schemes those that differ, cut. */
#define QUANTISATION_TEXT_MAX 128
void quantisation_describe(
	const struct quantisation *quantisation, char ret[QUANTISATION_TEXT_MAX]);

void quantisation_free(struct quantisation *quantisation);

#endif
