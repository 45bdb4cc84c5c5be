/* SPDX-License-Identifier: MIT */
#include "tests/e2e/chaos.h"

#include "tests/e2e/calls.h"

static void noise(struct chaos_stream *stream, uint64_t *state)
{
	static const uint32_t lengths[] = {1, 2, 15, 16, 17, 64, 100, CHAOS_PROMPT_MAX};

	stream->n_prompt = lengths[random_below(state, 8)];
	stream->tokens[0] = 1;
	for (uint32_t i = 1; i < stream->n_prompt; i++)
		stream->tokens[i] = (int32_t)(3 + random_below(state, 253));
}

static void draw_sampling(struct mimeo_sampling *sampling, uint64_t *state)
{
	static const float top_p[] = {0, 0.9f, 0.5f};
	static const uint32_t top_k[] = {0, 5, 40};

	sampling->temperature = 0.5f + (float)random_below(state, 10) / 10;
	sampling->top_p = top_p[random_below(state, 3)];
	sampling->top_k = top_k[random_below(state, 3)];
	sampling->min_p = random_below(state, 4) ? 0 : 0.05f;
	sampling->seed = random_u64(state);
	sampling->flags = MIMEO_SAMPLING_SEEDED;
}

static void answer(struct chaos_stream *stream, struct mimeo *m)
{
	struct mimeo_generate generate = generate_of(stream->tokens, stream->n_prompt, CHAOS_OUTPUT);
	struct mimeo_event event;

	generate.sampling = stream->sampling;
	generate.mask = stream->mask;
	generate.draft_tokens = chaos_draft_tokens(stream);
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	submit_generate(m, &generate);
	stream->n = stream->n_prompt;
	do {
		event = wait_event(m);
		assert_true(stream->n + event.n_tokens <= stream->n_prompt + CHAOS_OUTPUT);
		memcpy(stream->tokens + stream->n, event.tokens, event.n_tokens * sizeof(int32_t));
		stream->n += event.n_tokens;
		mimeo_event_seen(m, &event);
	} while (event.kind != MIMEO_EVENT_FINAL);
	assert_int_equal(event.status, 0);
	assert_int_equal(stream->n, stream->n_prompt + CHAOS_OUTPUT);
}

static bool is_answer(const struct chaos_stream *stream, const struct question *question)
{
	uint32_t n = question->n_answer < CHAOS_OUTPUT ? question->n_answer : CHAOS_OUTPUT;

	return memcmp(stream->tokens + stream->n_prompt, question->answer, n * sizeof(int32_t)) == 0;
}

void chaos_make_streams(struct chaos *chaos, struct mimeo *m, uint64_t seed)
{
	static struct question questions[CHAOS_STREAMS];
	uint64_t state = seed;
	uint32_t n_asked = 0, n_wrong = 0;

	questions_make(questions, CHAOS_STREAMS, seed);
	for (uint32_t i = 0; i < CHAOS_STREAMS; i++) {
		struct chaos_stream *stream = &chaos->streams[i];

		if (i % 4 == 3) {
			noise(stream, &state);
		} else {
			stream->n_prompt = questions[i].n_prompt;
			memcpy(stream->tokens, questions[i].prompt, stream->n_prompt * sizeof(int32_t));
		}
		if (i % 8 >= 6)
			draw_sampling(&stream->sampling, &state);
		if (chaos->masks && i % 8 == 4)
			stream->mask = (struct mimeo_mask){
				.kind = MIMEO_MASK_WINDOW, .window = 3 + random_below(&state, 20), .sinks = 1};
		answer(stream, m);
		if (i % 8 >= 6 || i % 4 == 3 || stream->mask.kind)
			continue;
		n_asked++;
		n_wrong += !is_answer(stream, &questions[i]);
	}
	/* The quiet daemon itself is right, but for what the model does not know. */
	assert_true(n_wrong * 10 <= n_asked);
}
