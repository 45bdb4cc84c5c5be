/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_CHAOS_H
#define MIMEO_TESTS_E2E_CHAOS_H

/*
 * What test_chaos.c's processes share: streams of tokens that a quiet daemon has answered, which every
 * honest client knows the right tokens from, and counts of what they met.
 *
 * A stream is a prompt and what follows it, end tokens passed over. On the cpu device the token behind any
 * beginning of it that reaches beyond the prompt is the stream's next one: also in a sequence that was
 * forked, cut, and computed by requests of other lengths; sampled tokens too, which depend on seed and
 * position.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <mimeo/mimeo.h>

#include "tests/random.h"

#define CHAOS_STREAMS 96u
#define CHAOS_PROMPT_MAX 240u
#define CHAOS_OUTPUT 40u
#define CHAOS_PATIENCE_MS 240000 /* of a client without any event at the end, when nobody is held up */

struct chaos_stream {
	uint32_t n_prompt, n;
	struct mimeo_sampling sampling;
	struct mimeo_mask mask; /* of all requests that compute its tokens */
	int32_t tokens[CHAOS_PROMPT_MAX + CHAOS_OUTPUT];
};

/* Mapped by all. Each count has many writers. */
struct chaos {
	char socket[96];
	bool masks;         /* some streams have masks, which the daemon's attention must support */
	const float *table; /* embeddings [VOCAB, HIDDEN], mapped in every child; NULL: ids only */
	atomic_bool stop; /* no new requests: honest clients wait for theirs, and end */
	struct chaos_stream streams[CHAOS_STREAMS];
	_Atomic uint64_t n_wrong; /* each with a line on standard error */
	_Atomic uint64_t n_generates, n_steps, n_tokens, n_logits; /* ended well and compared */
	_Atomic uint64_t n_of_class[MIMEO_CLASS_BATCH + 1]; /* of the generates */
	_Atomic uint64_t n_forked; /* of those requests, the ones on a fork */
	_Atomic uint64_t n_masked, n_embedded; /* under a mask; steps of embeddings */
	_Atomic uint64_t n_cancelled, n_late, n_no_memory;
	_Atomic uint64_t n_attached, n_not_attached; /* honest */
	_Atomic uint64_t n_hostile_sessions, n_hostile_entries;
};

/* What sampling draws depends on which tokens a draft proposed, and so on how steps were cut. */
static inline uint32_t chaos_draft_tokens(const struct chaos_stream *stream)
{
	return stream->sampling.temperature > 0 ? MIMEO_DRAFT_NONE : 0;
}

/* Ask for all streams one after the other. cmocka: fails the running test, or the group's setup. */
void chaos_make_streams(struct chaos *chaos, struct mimeo *m, uint64_t seed);

/* In a child: a client until chaos->stop, then 0; or 1. */
int chaos_honest(struct chaos *chaos, uint64_t seed);
/* In a child: a client that misbehaves for ever. */
int chaos_hostile(struct chaos *chaos, uint64_t seed);

#endif
