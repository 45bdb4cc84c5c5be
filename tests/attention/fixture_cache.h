/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_FIXTURE_CACHE_H
#define MIMEO_TESTS_ATTENTION_FIXTURE_CACHE_H

/* The fixture's own: from its images to the device's memory, and pages that lie far from each other. */

#include "tests/attention/fixture.h"

static inline bool fixture_is_fp8(const struct fixture *f)
{
	return f->config.kv_dtype == DTYPE_E4M3;
}

/* Of an element, unless it is a code. */
static inline size_t fixture_act_bytes(const struct fixture *f)
{
	return f->is_cuda ? 2 : sizeof(float);
}

/* Elements of a page: keys and values, or the latent rows alone. */
static inline size_t fixture_page_elements(const struct fixture *f)
{
	const struct attention_config *c = &f->config;

	return (size_t)(c->latent.rank ? 1 : 2) * c->page_tokens * c->n_kv_heads * c->head_dim;
}

/* Contents to the device, in its format. */
void fixture_put(struct fixture *f, void *dst, const float *src, size_t n);
/* Elements of the cache from `first` on, to element `to` of the device's memory for it. */
void fixture_put_kv(struct fixture *f, void *dst, size_t to, size_t first, size_t n);
/* Every second page of the row goes behind element 2^32, the others behind its half. */
void fixture_move_far(struct fixture *f, uint32_t r, const struct row *row);
void fixture_far_free(struct fixture *f);

#endif
