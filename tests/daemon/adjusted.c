/* SPDX-License-Identifier: MIT */
#include "tests/daemon/adjusted.h"

struct rig_request adjusted_ask(struct rig_client *client, uint32_t index, const struct adjusted *a,
	const int32_t *prompt)
{
	return rig_generate_adjusted(client, index, prompt, &a->msg, a->bias, a->allowed);
}

const float *adjusted_logits(struct rig_client *client, const int32_t *tokens, uint32_t n)
{
	const struct msg_generate msg = {
		.n_tokens = n, .max_tokens = 1, .flags = MIMEO_GENERATE_PROMPT_LOGITS};
	const struct msg_output layout = rig_generate_layout(client, &msg);
	struct rig_request request = rig_generate(client, 0, tokens, n, &msg);

	rig_must(client, request);
	return rig_logits(client, &request, &layout);
}

void adjusted_apply(const struct adjusted *a, const float *logits, const int32_t *tokens, uint32_t target, uint32_t n,
	float *ret)
{
	const struct msg_generate *m = &a->msg;
	const uint32_t start = m->penalty_start && m->penalty_start < target ? m->penalty_start : target;
	struct slot_adjust adjust = {.repetition = m->repetition_penalty > 0 ? m->repetition_penalty : 1,
		.presence = m->presence_penalty, .frequency = m->frequency_penalty,
		.min_position = target + m->min_tokens};
	bool in_prompt[ADJUSTED_VOCAB] = {0}, banned[ADJUSTED_VOCAB] = {0};
	uint32_t outputs[ADJUSTED_VOCAB] = {0};
	float bias[ADJUSTED_VOCAB] = {0};
	const struct book_state book = {&adjust, bias, banned, in_prompt, outputs, n};

	if (!(m->flags & MIMEO_GENERATE_IGNORE_EOS))
		adjust.ends[adjust.n_ends++] = 2;
	for (uint32_t i = 0; i < m->n_stop; i++)
		adjust.ends[adjust.n_ends++] = m->stop[i];
	for (uint32_t i = 0; i < m->n_bias; i++)
		bias[a->bias[i].token] = a->bias[i].bias;
	for (uint32_t i = 0; i < n; i++) {
		in_prompt[tokens[i]] |= i < start;
		outputs[tokens[i]] += i >= start;
	}
	for (uint32_t id = 0; id < ADJUSTED_VOCAB; id++) {
		banned[id] = m->n_allowed && !(a->allowed[id / 32] >> id % 32 & 1);
		ret[id] = (float)book_adjusted(&book, logits[id], id);
	}
}

static int32_t best_of(const float *logits)
{
	int32_t best = 0;

	for (int32_t id = 1; id < ADJUSTED_VOCAB; id++)
		best = logits[id] > logits[best] ? id : best;
	return best;
}

static bool ends(const struct adjusted *a, int32_t token)
{
	bool ends = token == 2 && !(a->msg.flags & MIMEO_GENERATE_IGNORE_EOS);

	for (uint32_t i = 0; i < a->msg.n_stop; i++)
		ends |= token == a->msg.stop[i];
	return ends;
}

uint32_t adjusted_greedy(struct rig_client *plain, const struct adjusted *a, uint32_t n_history, int32_t *tokens)
{
	const uint32_t target = n_history + a->msg.n_tokens;
	float logits[ADJUSTED_VOCAB];
	uint32_t n = 0;

	while (n < a->msg.max_tokens && (n == 0 || !ends(a, tokens[target + n - 1]))) {
		adjusted_apply(a, adjusted_logits(plain, tokens, target + n), tokens, target, target + n, logits);
		tokens[target + n] = best_of(logits);
		n++;
	}
	return n;
}

void adjusted_assert_same(struct rig_client *plain, const struct adjusted *a, uint32_t n_history, const int32_t *want,
	const int32_t *have, uint32_t n)
{
	const uint32_t target = n_history + a->msg.n_tokens;
	float logits[ADJUSTED_VOCAB];

	for (uint32_t i = 0; i < n; i++) {
		if (have[i] == want[target + i])
			continue;
		adjusted_apply(a, adjusted_logits(plain, want, target + i), want, target, target + i, logits);
		for (uint32_t id = 0; id < ADJUSTED_VOCAB; id++)
			logits[id] = fmaxf(logits[id], -1e4f); /* banned ones have no say in the tolerance */
		if (!test_same_choice(logits, ADJUSTED_VOCAB, have[i], want[target + i], true))
			fail_msg("token %u is %d, not %d", i, (int)have[i], (int)want[target + i]);
		return; /* from here on it is another text */
	}
}

void adjusted_assert_logprobs(
	const struct mimeo_logprob *entries, int32_t token, const float *logits, uint32_t n_top)
{
	const double log_sum = book_log_sum(logits, ADJUSTED_VOCAB);
	double largest = 0, tolerance = 2e-4;

	/* On a GPU, products of other numbers of rows differ: here of the logit and of the sum. The model was not trained
	 * on texts such as these. */
	for (uint32_t id = 0; id < ADJUSTED_VOCAB; id++)
		largest = fmax(largest, fabs((double)logits[id]));
	if (test_on_cuda())
		tolerance = 2 * test_logits_tolerance(false) * largest;
	assert_int_equal(entries[0].token, token);
	if (fabs((double)entries[0].logprob - ((double)logits[token] - log_sum)) > tolerance)
		fail_msg("token %d: %g, not %g", (int)token, (double)entries[0].logprob, (double)logits[token] - log_sum);
	for (uint32_t i = 1; i <= n_top; i++) {
		uint32_t rank = 0;

		for (int32_t id = 0; id < ADJUSTED_VOCAB; id++)
			rank += (double)logits[id] - log_sum > (double)entries[i].logprob + tolerance;
		assert_in_range(entries[i].token, 0, ADJUSTED_VOCAB - 1);
		if (!(fabs((double)logits[entries[i].token] - log_sum - (double)entries[i].logprob) <= tolerance))
			fail_msg("place %u, token %d: %g, not %g within %g", i, (int)entries[i].token,
				(double)entries[i].logprob, (double)logits[entries[i].token] - log_sum, tolerance);
		assert_true(rank < i); /* not more come before it */
		assert_true(i == 1 || entries[i].logprob <= entries[i - 1].logprob);
		for (uint32_t j = 1; j < i; j++)
			assert_int_not_equal(entries[j].token, entries[i].token);
	}
}
