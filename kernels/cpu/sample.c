/* SPDX-License-Identifier: MIT */

/*
 * Sampling. A row is either the lowest id of its greatest logit (temperature 0), or the arg-max of
 * logit / temperature + Gumbel noise over the tokens that the filters keep, which is a draw from
 * their renormalised softmax. A row that is not finite has none.
 */

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/sampling.h"

static int32_t sample_draw_listed(const struct filter *f, struct draw draw)
{
	for (uint32_t i = 0; i < f->n_kept; i++) {
		const struct candidate *c = f->kept - i;

		draw_consider(&draw, filter_scaled(f, c->logit), c->id);
	}
	return draw.id;
}

static int32_t sample_draw_unordered(const struct filter *f, struct draw draw)
{
	draw_consider(&draw, 0, f->first);
	for (uint32_t i = 0; i < f->vocab; i++) {
		double scaled = filter_scaled(f, f->logits[i]);

		if (isfinite(f->logits[i]) && scaled >= f->least)
			draw_consider(&draw, scaled, (int32_t)i);
	}
	return draw.id;
}

int32_t sample_row(const float *logits, uint32_t vocab, const struct slot_sampling *s, uint64_t key,
	struct candidate *heap)
{
	const struct draw draw = {.id = -1, .key = key};
	int32_t first = filter_arg_max(logits, vocab);
	struct filter filter;

	if (first < 0 || sampling_is_greedy(s))
		return first;
	filter_init(&filter, logits, vocab, first, s, heap);
	return filter.n_kept ? sample_draw_listed(&filter, draw)
			     : sample_draw_unordered(&filter, draw);
}

static void sample_run(const void *args, void *workspace)
{
	const struct op_sample *a = args;
	const struct step_inputs *in = &a->inputs;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t slot = sampled_slot(in, r);
		const float *logits = a->logits + (size_t)r * a->vocab;
		const struct slot_sampling *s;

		a->sampled[r] = -1;
		if (slot < 0)
			continue;
		s = &in->slot_sampling[slot];
		a->sampled[r] = sample_row(logits, a->vocab, s,
			noise_key(s->seed, (uint32_t)in->seq_lens[r], a->purpose), workspace);
		in->slot_last_token[slot] = last_token(a->sampled[r]);
		adjust_settle(in, r, 0, logits, a->sampled[r]);
	}
}

CPU_OP(sample, (size_t)a->vocab * sizeof(struct candidate))
