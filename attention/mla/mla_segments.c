/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "attention/mla/mla.h"
#include "attention/mla/mla_segments.h"

int mla_segments_init(
	struct mla_segments *s, const struct mla_prompt_kernels *kernels, uint32_t max_rows)
{
	*s = (struct mla_segments){
		.max_rows = max_rows,
		.segments = calloc(2 * (size_t)max_rows + 1, sizeof(*s->segments)),
		.prompts = calloc(max_rows, sizeof(*s->prompts)),
		.kernels = kernels,
	};
	if (s->segments && s->prompts)
		return 0;
	mla_segments_deinit(s);
	return -ENOMEM;
}

void mla_segments_deinit(struct mla_segments *s)
{
	free(s->segments);
	free(s->prompts);
	*s = (struct mla_segments){ 0 };
}

/* The tokens up to `end` are of this sort: the last segment grows, or a new one begins. */
static void mla_segments_extend(struct mla_segments *s, uint32_t end, bool prompt)
{
	struct mla_segment *last = s->n ? &s->segments[s->n - 1] : NULL;

	if (!last || prompt != (last->n_prompts != 0)) {
		assert(s->n < 2 * s->max_rows + 1);
		s->segments[s->n++] = (struct mla_segment){
			.first = last ? last->end : 0,
			.first_prompt = s->n_prompts,
		};
		last = &s->segments[s->n - 1];
	}
	assert(end >= last->first);
	last->end = end;
	last->n_prompts += prompt;
}

void mla_segments_cut(struct mla_segments *s, const struct attention_batch *batch)
{
	uint32_t token = 0;

	assert(batch->n_rows <= s->max_rows);
	s->n = s->n_prompts = 0;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		uint32_t n = batch->query_lens[r];
		bool prompt = n > MLA_MAX_UNIFORM_QUERY &&
			      mla_prompt_pays(s->kernels, n, batch->seq_lens[r]);

		if (n)
			mla_segments_extend(s, token + n, prompt);
		if (prompt)
			s->prompts[s->n_prompts++] = (struct mla_prompt_row){
				.row = r,
				.first_token = token,
				.n_query = n,
				.seq_len = batch->seq_lens[r],
			};
		token += n;
	}
	if (!s->n || token < batch->padded_tokens)
		mla_segments_extend(s, batch->padded_tokens, false);
	assert(s->segments[s->n - 1].end == batch->padded_tokens || !batch->padded_tokens);
}
