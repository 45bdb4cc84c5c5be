/* SPDX-License-Identifier: MIT */
/* No allocation, no lock; the only system call is a model's single warning. */
#include "daemon/engine/lane/speculation.h"

#include <assert.h>
#include <inttypes.h>

#include "daemon/engine/requests/request.h"
#include "daemon/engine/requests/sequence.h"
#include "daemon/output/log.h"

/* A draft model is of use if in so many rows one first draft token in HELD_LEAST is accepted. */
#define JUDGED_ROWS 1000
#define HELD_LEAST 20

void speculation_begin(struct sequence *s)
{
	const struct request *request = s->request;

	s->n_drafts = 0;
	if (request->op != RING_OP_GENERATE)
		s->undrafted = UNDRAFTED_STEP;
	else if (!request->n_drafts)
		s->undrafted = UNDRAFTED_ASKED;
	else if (request->mask.kind != MIMEO_MASK_DEFAULT)
		s->undrafted = UNDRAFTED_MASK;
	else if (s->n_drafted < s->n_computed)
		s->undrafted = UNDRAFTED_SEQUENCE;
	else
		s->n_drafts = request->n_drafts;
	assert(s->n_drafts <= s->runner->options.n_drafts);
}

void speculation_count_decode(const struct sequence *s)
{
	if (s->runner->options.n_drafts && !s->n_drafts)
		counter_add(&s->runner->speculation.n_undrafted[s->undrafted], 1);
}

static void speculation_judge(const struct runner *runner)
{
	uint64_t n_offered = counter_read(&runner->speculation.n_offered[0]);
	uint64_t n_held = counter_read(&runner->speculation.n_accepted[0]);

	if (n_held * HELD_LEAST < n_offered)
		log_warn("model %s: few draft tokens are accepted (%" PRIu64 " of %" PRIu64 " first ones): "
			"was the draft model trained for this model?", runner->options.name, n_held, n_offered);
}

void speculation_count_verified(
	struct runner *runner, uint32_t n_drafts, uint32_t n_held, uint32_t taken, bool ended)
{
	uint32_t n_offered = ended && taken < n_drafts ? taken : n_drafts;

	assert(n_drafts > 0 && n_drafts <= SPECULATE_MAX && n_held <= n_drafts && taken <= n_held + 1);
	counter_add(&runner->speculation.n_verified_tokens, taken);
	for (uint32_t i = 0; i < n_offered; i++) {
		counter_add(&runner->speculation.n_offered[i], 1);
		/* Release: a reader that sees it sees the offer, too. */
		atomic_fetch_add_explicit(&runner->speculation.n_accepted[i], i < n_held, memory_order_release);
	}
	if (atomic_fetch_add_explicit(&runner->speculation.n_verified, 1, memory_order_relaxed) + 1 == JUDGED_ROWS)
		speculation_judge(runner);
}

struct engine_speculation speculation_facts(const struct runner *runner)
{
	struct engine_speculation ret = {
		.n_rows = counter_read(&runner->speculation.n_verified),
		.n_tokens = counter_read(&runner->speculation.n_verified_tokens),
		.n_draft_steps = counter_read(&runner->speculation.n_draft_steps),
		.draft_ns = counter_read(&runner->speculation.draft_ns),
	};

	for (unsigned i = 0; i < SPECULATE_MAX; i++) {
		ret.n_accepted[i] = atomic_load_explicit(&runner->speculation.n_accepted[i], memory_order_acquire);
		ret.n_offered[i] = counter_read(&runner->speculation.n_offered[i]);
	}
	for (unsigned i = 0; i < N_UNDRAFTED; i++)
		ret.n_undrafted[i] = counter_read(&runner->speculation.n_undrafted[i]);
	return ret;
}
