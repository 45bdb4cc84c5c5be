/* SPDX-License-Identifier: MIT */
/*
 * Results of all positions of a step's rows: logits, hidden states, their mean, log-probabilities of the rows' own
 * tokens; in the event and in device buffers, in one step and in several. The reference is a step of each prefix.
 */
#include "tests/daemon/adjusted.h"
#include "tests/daemon/plain.h"

enum { VOCAB = 256, HIDDEN = 160, K = 4, LONG = 70, ROWS = 3 };

/* Rows of a step, one behind the other. */
static const uint32_t lengths[ROWS] = {5, LONG, 1};
enum { POSITIONS = 5 + LONG + 1 };

static struct {
	int32_t tokens[POSITIONS];
	float logits[POSITIONS][VOCAB], hidden[POSITIONS][HIDDEN];
} want;

/* Row r's first position. */
static uint32_t first_of(uint32_t r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r; i++)
		n += lengths[i];
	return n;
}

static void make_reference(void)
{
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN};
	const struct msg_output layout = rig_step_layout(&msg, 1);

	for (uint32_t r = 0; r < ROWS; r++) {
		int32_t *tokens = want.tokens + first_of(r);

		rig_nonsense(tokens, lengths[r], r + 1);
		for (uint32_t n = 1; n <= lengths[r]; n++) {
			const struct msg_row row = {1, n};
			struct rig_request request;

			rig_ok(&plain, 0, RING_OP_OPEN, 1, 0);
			request = rig_step(&plain, 0, &msg, &row, tokens);
			rig_must(&plain, request);
			memcpy(want.logits[first_of(r) + n - 1], rig_output(&plain, &request, layout.logits),
				sizeof(want.logits[0]));
			memcpy(want.hidden[first_of(r) + n - 1], rig_output(&plain, &request, layout.hidden),
				sizeof(want.hidden[0]));
			rig_ok(&plain, 0, RING_OP_CLOSE, 1, 0);
		}
	}
}

static void assert_near(const float *have, const float *expected, size_t n, const char *what)
{
	/* On a GPU, products of other numbers of rows differ. The model was not trained on texts such as these. */
	if (!test_same_logits(have, expected, n, false))
		fail_msg("%s differ", what);
}

/* As near as two attention backends come. */
static void assert_close_to(const float *have, const float *expected, size_t n)
{
	const double tolerance = test_logits_tolerance(false);
	double largest = 0;

	for (size_t i = 0; i < n; i++)
		largest = fmax(largest, fabs((double)expected[i]));
	for (size_t i = 0; i < n; i++)
		assert_true(fabs((double)have[i] - (double)expected[i]) <= tolerance * largest);
}

static struct rig_request submit(struct rig *rig, struct msg_step *msg)
{
	struct msg_row rows[ROWS];
	struct rig_request request;

	msg->n_rows = ROWS;
	for (uint32_t r = 0; r < ROWS; r++) {
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1 + r, 0);
		rows[r] = (struct msg_row){1 + r, lengths[r]};
	}
	request = rig_step(&rig->client, 0, msg, rows, want.tokens);
	rig_must(&rig->client, request);
	return request;
}

/* ---- in the event ---- */

static void test_all_positions_have_their_logits_and_hidden_states(void **state)
{
	struct rig *rig = *state;
	struct msg_step msg = {.outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_TOKENS};
	const struct rig_request request = submit(rig, &msg);
	const struct msg_output layout = rig_step_layout(&msg, POSITIONS);

	assert_near(rig_output(&rig->client, &request, layout.logits), want.logits[0], POSITIONS * VOCAB, "logits");
	assert_near(rig_output(&rig->client, &request, layout.hidden), want.hidden[0], POSITIONS * HIDDEN, "hidden");
	assert_true(rig->runner->n_positions >= POSITIONS);
	rig_close_histories(&rig->client, ROWS);
}

static void test_all_logits_go_with_each_rows_last_hidden_state(void **state)
{
	struct rig *rig = *state;
	struct msg_step msg = {.outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_HIDDEN};
	const struct rig_request request = submit(rig, &msg);
	const struct msg_output layout = rig_step_layout(&msg, POSITIONS);
	const float *hidden = rig_output(&rig->client, &request, layout.hidden);

	assert_near(rig_output(&rig->client, &request, layout.logits), want.logits[0], POSITIONS * VOCAB, "logits");
	for (uint32_t r = 0; r < ROWS; r++)
		assert_near(hidden + r * HIDDEN, want.hidden[first_of(r) + lengths[r] - 1], HIDDEN, "hidden");
	rig_close_histories(&rig->client, ROWS);
}

static void assert_means(const float *means)
{
	for (uint32_t r = 0; r < ROWS; r++) {
		float mean[HIDDEN];

		for (uint32_t c = 0; c < HIDDEN; c++) {
			double sum = 0;

			for (uint32_t i = 0; i < lengths[r]; i++)
				sum += (double)want.hidden[first_of(r) + i][c];
			mean[c] = (float)(sum / lengths[r]);
		}
		assert_near(means + r * HIDDEN, mean, HIDDEN, "means");
	}
}

static void test_a_mean_is_over_all_positions_of_its_row(void **state)
{
	struct rig *rig = *state;
	struct msg_step msg = {.outputs = MIMEO_STEP_MEAN_HIDDEN | MIMEO_STEP_LOGITS};
	const struct rig_request request = submit(rig, &msg);
	const struct msg_output layout = rig_step_layout(&msg, POSITIONS);
	const float *logits = rig_output(&rig->client, &request, layout.logits);

	assert_means(rig_output(&rig->client, &request, layout.hidden));
	for (uint32_t r = 0; r < ROWS; r++)
		assert_near(logits + r * VOCAB, want.logits[first_of(r) + lengths[r] - 1], VOCAB, "logits");
	rig_close_histories(&rig->client, ROWS);
}

static void test_rows_own_tokens_have_their_log_probabilities(void **state)
{
	enum { N_TOP = 4 };
	struct rig *rig = *state;
	struct msg_step msg = {.outputs = MIMEO_STEP_LOGPROBS, .top_logprobs = N_TOP};
	const struct rig_request request = submit(rig, &msg);
	const struct mimeo_logprob *entries =
		rig_output(&rig->client, &request, rig_step_layout(&msg, POSITIONS).prompt_logprobs);

	for (uint32_t r = 0; r < ROWS; r++) {
		for (uint32_t i = 0; i < lengths[r]; i++) {
			const uint32_t at = first_of(r) + i;

			if (i == 0)
				assert_int_equal(entries[at * (1 + N_TOP)].token, -1);
			else
				adjusted_assert_logprobs(entries + at * (1 + N_TOP), want.tokens[at],
					want.logits[at - 1], N_TOP);
		}
	}
	rig_close_histories(&rig->client, ROWS);
}

/* ---- on a history ---- */

/* Evicted, in one of both cases: earlier tokens are computed again and have no results. */
static void test_a_history_has_no_results(void **state)
{
	struct rig *rig = *state;
	const uint32_t before = 30;
	const int32_t *tokens = want.tokens + first_of(1);
	const struct msg_step first = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS},
			      msg = {.n_rows = 1, .outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_MEAN_HIDDEN};
	const struct msg_output layout = rig_step_layout(&msg, LONG - before);
	int32_t other[140];

	rig_nonsense(other, 140, 9);
	for (int evict = 0; evict < 2; evict++) {
		struct rig_request request;
		float mean[HIDDEN];

		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		rig_must(&rig->client, rig_step(&rig->client, 0, &first, &(struct msg_row){1, before}, tokens));
		if (evict)
			rig_must(&rig->client, rig_ask(&rig->client, 0, 0, other, 140, 2, MIMEO_GENERATE_IGNORE_EOS));
		assert_int_equal(rig->runner->n_evicted > 0, evict);
		request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, LONG - before}, tokens + before);
		rig_must(&rig->client, request);
		assert_near(rig_output(&rig->client, &request, layout.logits), want.logits[first_of(1) + before],
			(LONG - before) * VOCAB, "logits");
		for (uint32_t c = 0; c < HIDDEN; c++) {
			double sum = 0;

			for (uint32_t i = before; i < LONG; i++)
				sum += (double)want.hidden[first_of(1) + i][c];
			mean[c] = (float)(sum / (LONG - before));
		}
		assert_near(rig_output(&rig->client, &request, layout.hidden), mean, HIDDEN, "mean");
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
}

/* ---- in device buffers ---- */

enum { LOGITS_BYTES = POSITIONS * VOCAB * 4, HIDDEN_BYTES = POSITIONS * HIDDEN * 4 };

static void *buffer_memory;

/* Later the device gives no more. */
static void alloc_buffer(struct device *device)
{
	assert_int_equal(device->ops->mem_alloc(device, LOGITS_BYTES + HIDDEN_BYTES, &buffer_memory), 0);
}

static void test_results_go_to_device_buffers(void **state)
{
	struct rig *rig = *state;
	const struct device_ops *ops = rig->device->ops;
	const size_t logits_bytes = LOGITS_BYTES, hidden_bytes = HIDDEN_BYTES;
	struct engine_buffer buffer = {
		.address = buffer_memory, .bytes = logits_bytes + hidden_bytes, .open = true};
	struct msg_step msg = {.outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_ALL_HIDDEN,
		.logits = {.buffer = 1}, .hidden = {.buffer = 1, .offset = logits_bytes}};
	float *have = malloc(buffer.bytes);

	assert_non_null(have);
	assert_int_equal(logits_bytes % MIMEO_PLACE_ALIGN, 0);
	rig->client.port->buffers = &buffer;
	rig->client.port->n_buffers = 1;
	submit(rig, &msg);
	assert_int_equal(ops->copy(rig->device, have, buffer.address, buffer.bytes), 0);
	assert_near(have, want.logits[0], POSITIONS * VOCAB, "logits");
	assert_near(have + POSITIONS * VOCAB, want.hidden[0], POSITIONS * HIDDEN, "hidden");
	rig_close_histories(&rig->client, ROWS);
	msg.outputs = MIMEO_STEP_MEAN_HIDDEN;
	msg.logits.buffer = 0;
	submit(rig, &msg);
	assert_int_equal(ops->copy(rig->device, have, buffer.address, buffer.bytes), 0);
	assert_means(have + POSITIONS * VOCAB);
	rig_close_histories(&rig->client, ROWS);
	/* One position more than the buffer holds. */
	buffer.bytes -= 64;
	msg = (struct msg_step){.n_rows = 1, .outputs = MIMEO_STEP_ALL_HIDDEN,
		.hidden = {.buffer = 1, .offset = logits_bytes}};
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	struct rig_request request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, POSITIONS}, want.tokens);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_INVALID, RING_DETAIL_BUFFER_RANGE, 1,
		(int32_t)logits_bytes, (int32_t)hidden_bytes, (int32_t)buffer.bytes});
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig->client.port->n_buffers = 0;
	ops->mem_free(rig->device, buffer_memory);
	free(have);
}

/* ---- masks ---- */

/* Each node of a tree has the logits of the path to it. */
static void test_every_node_of_a_tree_has_its_logits(void **state)
{
	struct rig *rig = *state;
	const int32_t *tokens = want.tokens + first_of(1);
	/* 0 and 1 are in line; 2 and 3 follow 1 both, of which 2 is the next token of the reference. */
	const uint64_t words[] = {0, 1, 3, 3};
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_ALL_LOGITS, .mask = {.kind = MIMEO_MASK_TREE}};
	const struct msg_output layout = rig_step_layout(&msg, 4);
	int32_t payload[4 + 8];
	struct rig_request request;
	const float *logits;

	memcpy(payload, tokens, 3 * sizeof(*tokens));
	payload[3] = tokens[2];
	memcpy(payload + 4, words, sizeof(words));
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, 4}, payload);
	rig_must(&rig->client, request);
	logits = rig_output(&rig->client, &request, layout.logits);
	for (uint32_t i = 0; i < 4; i++)
		assert_close_to(logits + i * VOCAB, want.logits[first_of(1) + (i < 3 ? i : 2)], VOCAB);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* Tokens that see one another are computed in one step, with all their results. */
static void test_a_whole_prefix_has_all_its_results(void **state)
{
	struct rig *rig = *state;
	const struct msg_step whole = {.n_rows = 1, .outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_LOGPROBS,
		.mask = {.kind = MIMEO_MASK_PREFIX, .prefix = 60}};
	const struct msg_output layout = rig_step_layout(&whole, 60);
	struct rig_request request, endless = rig_endless(&rig->client, 1, 0, 50);

	rig->results[1] = (struct rig_result){0};
	rig_submit(&rig->client, endless);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_step(&rig->client, 0, &whole, &(struct msg_row){1, 60}, want.tokens + first_of(1));
	rig_must(&rig->client, request);
	/* The last one sees all, as it does under the causal mask, but through others that see more. */
	assert_true(isfinite(((const float *)rig_output(&rig->client, &request, layout.logits))[60 * VOCAB - 1]));
	rig_wait(&rig->client, rig->results, 1);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* More than go through one step's outbox; to a device buffer they go. */
static void test_a_prefix_with_too_many_results_is_refused(void **state)
{
	struct rig *rig = *state;
	const uint32_t most = rig->runner->inputs.limits.max_results - 1;
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_ALL_LOGITS,
		.mask = {.kind = MIMEO_MASK_PREFIX, .prefix = most + 1}};
	int32_t tokens[600] = {0};
	struct rig_request request;

	assert_in_range(most, 100, 590);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, most + 1}, tokens);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_TOO_LONG, RING_DETAIL_POSITIONS, 0,
		(int32_t)most + 1, (int32_t)most});
	msg.mask.prefix = most;
	request = rig_step(&rig->client, 0, &msg, &(struct msg_row){1, most + 1}, tokens);
	rig_must(&rig->client, request);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* ---- */

static int open_reference(void **state)
{
	int rc = open_plain(state);

	make_reference();
	return rc;
}

#define MODE_TEST(test, name, ...)                                                                 \
	{#test "_" name, test, rig_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}
#define FULL .mode = GRAPH_FULL_AND_PIECEWISE
#define MODES(test, ...)                                                                           \
	MODE_TEST(test, "eager", .mode = GRAPH_NONE, __VA_ARGS__),                                  \
		MODE_TEST(test, "full", FULL, __VA_ARGS__),                                         \
		MODE_TEST(test, "in_chunks", FULL, .max_batch_tokens = 16, .max_requests = 4,       \
			__VA_ARGS__),                                                               \
		MODE_TEST(test, "with_drafts", FULL, .n_drafts = K, __VA_ARGS__)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MODES(test_all_positions_have_their_logits_and_hidden_states, .spin_us = 0),
		MODES(test_all_logits_go_with_each_rows_last_hidden_state, .spin_us = 0),
		MODES(test_a_mean_is_over_all_positions_of_its_row, .spin_us = 0),
		MODES(test_rows_own_tokens_have_their_log_probabilities, .spin_us = 0),
		MODE_TEST(test_all_positions_have_their_logits_and_hidden_states, "flex", .mode = GRAPH_FULL,
			.attention = "flex"),
		MODE_TEST(test_all_positions_have_their_logits_and_hidden_states, "sharing", FULL,
			.prefix_sharing = ENGINE_PREFIX_USER),
		MODE_TEST(test_a_history_has_no_results, "full", FULL, .kv_pages = 10),
		MODES(test_results_go_to_device_buffers, .on_device = alloc_buffer),
		MODE_TEST(test_every_node_of_a_tree_has_its_logits, "flex", .mode = GRAPH_FULL, .attention = "flex"),
		MODE_TEST(test_a_prefix_with_too_many_results_is_refused, "flex", .mode = GRAPH_NONE,
			.attention = "flex", .max_seq_len = 1024, .max_batch_tokens = 600),
		MODE_TEST(test_a_whole_prefix_has_all_its_results, "flex", .mode = GRAPH_FULL, .attention = "flex"),
	};
	static const struct test_cpu_only only[] = {{NULL, NULL}};

	return TEST_RUN_GROUP("engine: results of positions", tests, only, open_reference, close_plain);
}
