/* SPDX-License-Identifier: MIT */
/*
 * Requests with masks, step requests with embeddings and results in device buffers have no draft tokens.
 * Each shares steps with a request that speculates, and gets what the model without a draft model gives,
 * to the last bit.
 */
#include "tests/daemon/rig.h"

#include "tests/random.h"

enum { K = 4, N_PROMPT = 40, N_TOKENS = 24, N_ENDLESS = 60, VOCAB = 256, HIDDEN = 160 };
enum { RESULTS = 1, EMBEDDINGS = 2 }; /* buffers */

static const struct mimeo_mask masks[] = {
	{.kind = MIMEO_MASK_DEFAULT},
	{.kind = MIMEO_MASK_WINDOW, .window = 7},
	{.kind = MIMEO_MASK_WINDOW, .window = 6, .sinks = 3},
	{.kind = MIMEO_MASK_PREFIX, .prefix = 33},
	{.kind = MIMEO_MASK_DOCUMENTS},
};
enum { N_MASKS = sizeof(masks) / sizeof(masks[0]), N_STEPS = 3 };

/* All that a run gives. */
struct outcome {
	int32_t endless[N_ENDLESS];
	int32_t tokens[N_MASKS][N_TOKENS], after[N_TOKENS];
	float logits[N_MASKS][VOCAB];
	float step_logits[N_STEPS][VOCAB], step_hidden[N_STEPS][HIDDEN];
};

struct world {
	struct rig *rig;
	struct rig_client other;
	struct rig_result other_results[8];
	struct engine_buffer buffers[2];
	_Alignas(64) float rows[VOCAB + HIDDEN + 64];
	_Alignas(64) float embeddings[8 * HIDDEN];
	uint64_t endless_rows; /* that one verifies */
};

static void add_buffer(struct world *w, uint32_t id, void *address, uint64_t bytes)
{
	struct engine_buffer *buffer = &w->buffers[id - 1];

	buffer->address = address;
	buffer->bytes = bytes;
	atomic_store(&buffer->open, true);
}

static void open_world(struct world *w, struct rig *rig)
{
	uint64_t seed = 1;

	*w = (struct world){.rig = rig};
	rig_attach(rig, &w->other, 8);
	random_fill_floats(&seed, w->embeddings, 8 * HIDDEN);
	add_buffer(w, RESULTS, w->rows, sizeof(w->rows));
	add_buffer(w, EMBEDDINGS, w->embeddings, sizeof(w->embeddings));
	rig->client.port->buffers = w->buffers;
	rig->client.port->n_buffers = 2;
}

static void close_world(struct world *w)
{
	/* Before its buffers go. */
	rig_detach(&w->rig->client);
	rig_detach(&w->other);
}

static uint64_t verified(const struct world *w)
{
	return rig_facts(w->rig).speculation.n_rows;
}

/* Rows that decoded without draft tokens because of their mask. */
static uint64_t masked(const struct world *w)
{
	return rig_facts(w->rig).speculation.n_undrafted[UNDRAFTED_MASK];
}

/* The client's request 0 and the other client's endless one, in shared steps; the rows that the
 * client's request verified. */
static uint64_t run_beside(struct world *w, const struct rig_request *request, struct outcome *o)
{
	const struct engine_stats *stats = engine_stats(w->rig->engine);
	uint64_t before = verified(w), n_steps, n_rows;
	struct rig_request endless = rig_endless(&w->other, 1, 0, N_ENDLESS);

	rig_gate_close(w->rig);
	n_steps = stats->n_steps;
	n_rows = stats->n_rows;
	w->rig->results[0] = w->other_results[1] = (struct rig_result){0};
	rig_submit(&w->other, endless);
	if (request)
		rig_submit(&w->rig->client, *request);
	rig_gate_open(w->rig);
	rig_wait(&w->other, w->other_results, 1);
	assert_int_equal(w->other_results[1].n_generated, N_ENDLESS);
	memcpy(o->endless, rig_tokens(&w->other, &endless), sizeof(o->endless));
	if (request) {
		rig_wait(&w->rig->client, w->rig->results, 0);
		assert_int_equal(w->rig->results[0].status, 0);
		assert_true(stats->n_rows - n_rows > stats->n_steps - n_steps);
	}
	return verified(w) - before - w->endless_rows;
}

static void run_mask(struct world *w, uint32_t i, struct outcome *o, bool in_buffer)
{
	struct msg_output layout = msg_output_layout(N_TOKENS, 1, VOCAB, 0, HIDDEN);
	struct msg_generate msg = rig_greedy(N_PROMPT, N_TOKENS);
	int32_t payload[3 * N_PROMPT];
	struct rig_request request;
	uint64_t words[N_PROMPT], n_verified, n_masked = masked(w);
	bool has_words = msg_mask_has_words(&masks[i]);

	rig_nonsense(payload, N_PROMPT, i);
	for (uint32_t t = 0; t < N_PROMPT; t++)
		words[t] = t / 9;
	memcpy(payload + N_PROMPT, words, sizeof(words));
	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS;
	msg.mask = masks[i];
	if (in_buffer)
		msg.logits = (struct mimeo_place){.buffer = RESULTS, .offset = 64};
	request = rig_generate(&w->rig->client, 0, payload, has_words ? 3 * N_PROMPT : N_PROMPT, &msg);
	memset(w->rows, 0xff, sizeof(w->rows));
	n_verified = run_beside(w, &request, o);
	assert_int_equal(w->rig->results[0].n_generated, N_TOKENS);
	memcpy(o->tokens[i], rig_tokens(&w->rig->client, &request), sizeof(o->tokens[i]));
	memcpy(o->logits[i], in_buffer ? w->rows + 16 : rig_logits(&w->rig->client, &request, &layout),
		sizeof(o->logits[i]));
	if (!w->endless_rows || masks[i].kind != MIMEO_MASK_DEFAULT)
		assert_int_equal(n_verified, 0);
	else
		assert_true(n_verified > 0);
	/* all its tokens but the first, and the row that was launched before the last was read */
	if (w->endless_rows && masks[i].kind != MIMEO_MASK_DEFAULT)
		assert_in_range(masked(w) - n_masked, N_TOKENS - 1, N_TOKENS);
	else
		assert_int_equal(masked(w), n_masked);
}

/* Five tokens, then one and one more, by embeddings; results in a buffer. */
static void run_steps(struct world *w, struct outcome *o)
{
	static const int32_t none[5];
	uint32_t at = 0;

	rig_ok(&w->rig->client, 1, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < N_STEPS; i++) {
		const struct msg_row row = {1, i ? 1 : 5};
		const struct msg_step msg = {.n_rows = 1,
			.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN,
			.logits = {.buffer = RESULTS, .offset = 64},
			.hidden = {.buffer = RESULTS, .offset = 64 + VOCAB * sizeof(float)},
			.embeddings = {.buffer = EMBEDDINGS, .offset = at * HIDDEN * sizeof(float)}};
		struct rig_request request = rig_step(&w->rig->client, 0, &msg, &row, none);

		memset(w->rows, 0xff, sizeof(w->rows));
		assert_int_equal(run_beside(w, &request, o), 0);
		for (uint32_t j = 0; j < VOCAB + HIDDEN; j++)
			assert_true(isfinite(w->rows[16 + j])); /* written */
		memcpy(o->step_logits[i], w->rows + 16, sizeof(o->step_logits[i]));
		memcpy(o->step_hidden[i], w->rows + 16 + VOCAB, sizeof(o->step_hidden[i]));
		at += row.n_tokens;
	}
}

/* The draft has not seen what steps appended. */
static void run_after(struct world *w, struct outcome *o)
{
	struct msg_generate msg = rig_greedy(3, N_TOKENS);
	static const int32_t tokens[] = {'1', '+', '2'};
	struct rig_request request;

	msg.sequence = 1;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	request = rig_generate(&w->rig->client, 0, tokens, 3, &msg);
	assert_int_equal(run_beside(w, &request, o), 0);
	memcpy(o->after, rig_tokens(&w->rig->client, &request), sizeof(o->after));
	rig_ok(&w->rig->client, 1, RING_OP_CLOSE, 1, 0);
}

static void run(struct rig *rig, struct outcome *ret)
{
	struct outcome again;
	struct world w;

	open_world(&w, rig);
	w.endless_rows = run_beside(&w, NULL, ret);
	assert_true(rig->options.n_drafts ? w.endless_rows > 0 : !w.endless_rows);
	for (uint32_t i = 0; i < N_MASKS; i++) {
		run_mask(&w, i, ret, false);
		run_mask(&w, i, &again, true);
		assert_memory_equal(again.tokens[i], ret->tokens[i], sizeof(ret->tokens[i]));
		assert_memory_equal(again.logits[i], ret->logits[i], sizeof(ret->logits[i]));
	}
	run_steps(&w, ret);
	run_after(&w, ret);
	close_world(&w);
}

static struct outcome expected; /* without a draft */

static int make_expected(void **state)
{
	static struct rig rig;

	if (test_on_cuda())
		return 0;
	rig_open_client(&rig, &(struct rig_options){.attention = "flex"});
	run(&rig, &expected);
	rig_close(&rig);
	return 0;
}

static void test_what_has_no_drafts_is_the_same_beside_what_has(void **state)
{
	struct outcome o;

	run(*state, &o);
	assert_memory_equal(o.endless, expected.endless, sizeof(o.endless));
	for (uint32_t i = 0; i < N_MASKS; i++) {
		assert_memory_equal(o.tokens[i], expected.tokens[i], sizeof(o.tokens[i]));
		assert_memory_equal(o.logits[i], expected.logits[i], sizeof(o.logits[i]));
	}
	for (uint32_t i = 0; i < N_STEPS; i++) {
		assert_memory_equal(
			o.step_logits[i], expected.step_logits[i], sizeof(o.step_logits[i]));
		assert_memory_equal(
			o.step_hidden[i], expected.step_hidden[i], sizeof(o.step_hidden[i]));
	}
	assert_memory_equal(o.after, expected.after, sizeof(o.after));
}

#define BESIDE_TEST(graphs)                                                                        \
	{"test_what_has_no_drafts_is_the_same_beside_what_has_" #graphs,                           \
		test_what_has_no_drafts_is_the_same_beside_what_has, rig_setup, rig_teardown,      \
		&(struct rig_options){.mode = graphs, .attention = "flex", .n_drafts = K}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BESIDE_TEST(GRAPH_NONE),
		BESIDE_TEST(GRAPH_PIECEWISE),
		BESIDE_TEST(GRAPH_FULL_AND_PIECEWISE),
		BESIDE_TEST(GRAPH_FULL),
	};
	static const struct test_cpu_only only[] = {
		{"test_what_has_no_drafts", "prompts without sense turn on the last bits of logits"},
	};

	return TEST_RUN_GROUP(
		"engine speculation, beside others", tests, only, make_expected, NULL);
}
