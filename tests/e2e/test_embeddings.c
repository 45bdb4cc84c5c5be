/* SPDX-License-Identifier: MIT */
/* Embeddings out of device buffers in place of ids, on the cpu device. */
#include <mimeo/mimeo.h>

#include "tests/e2e/buffer_rows.h"

/* A step of one id: its status. */
static int step_wait_ids(struct mimeo *m, uint32_t sequence, const int32_t *id)
{
	return step(m, sequence, id, 1, NULL);
}

static void embed(const float *table, float *memory)
{
	for (unsigned t = 0; t < sizeof(tokens) / sizeof(tokens[0]); t++)
		memcpy(memory + t * HIDDEN, table + (size_t)tokens[t] * HIDDEN,
			HIDDEN * sizeof(float));
}

static void test_embeddings_of_the_table_are_the_ids(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	struct results expected;
	float *table = embedding_table_f32(), *memory;

	assert_int_equal(mimeo_model_get(m, 0)->activation, MIMEO_ACTIVATION_F32);
	results_make(m, &expected);
	make_rows(m, rows);
	for (unsigned i = 0; i < N_ROWS; i++)
		rows[i].tokens = NULL;
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	step.embeddings.buffer = buffer_of(m, 1 << 20, &memory);
	step.embeddings.offset = 640;
	embed(table, memory + 640 / sizeof(float));
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	assert_memory_equal(event.logits, expected.logits, sizeof(expected.logits));
	assert_memory_equal(event.hidden, expected.hidden, sizeof(expected.hidden));
	mimeo_event_seen(m, &event);
	free(table);
	mimeo_close(m);
}

/* More tokens than a step carries: chunk after chunk finds its own rows, and ids go on from them. */
static void test_embeddings_are_taken_chunk_by_chunk(void **state)
{
	enum { N = 1100 };
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = N};
	static int32_t ids[N];
	float *table = embedding_table_f32(), expected[2][VOCAB], *memory;
	struct mimeo_event event;

	for (int i = 0; i < N; i++)
		ids[i] = i ? 32 + i * 7 % 90 : 1;
	step.outputs = MIMEO_STEP_LOGITS;
	for (int turn = 0; turn < 2; turn++) {
		step.embeddings.buffer = 0;
		row = (struct mimeo_step_row){sequence_of(m), N, ids};
		if (turn == 1) {
			step.embeddings.buffer = buffer_of(m, N * HIDDEN * sizeof(float), &memory);
			for (int i = 0; i < N; i++)
				memcpy(memory + i * HIDDEN, table + (size_t)ids[i] * HIDDEN,
					HIDDEN * sizeof(float));
			row.tokens = NULL;
		}
		event = step_wait(m, &step, &row, 1);
		assert_int_equal(event.status, 0);
		if (turn == 0)
			memcpy(expected[0], event.logits, sizeof(expected[0]));
		else
			assert_memory_equal(event.logits, expected[0], sizeof(expected[0]));
		mimeo_event_seen(m, &event);
		/* One token more, by its id. */
		step.embeddings.buffer = 0;
		row = (struct mimeo_step_row){row.sequence, 1, &ids[7]};
		event = step_wait(m, &step, &row, 1);
		assert_int_equal(event.status, 0);
		if (turn == 0)
			memcpy(expected[1], event.logits, sizeof(expected[1]));
		else
			assert_memory_equal(event.logits, expected[1], sizeof(expected[1]));
		mimeo_event_seen(m, &event);
	}
	free(table);
	mimeo_close(m);
}

/* Two chunks of 512 are launched when the request ends; the third can never be made of ids. */
static void test_embeddings_that_were_not_computed_are_dropped_with_their_request(void **state)
{
	enum { N = 1100 };
	static const int32_t id = 7;
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.sequence = sequence_of(m), .n_tokens = N};
	int64_t steps = daemon_count(*state, "steps");

	step.outputs = MIMEO_STEP_LOGITS;
	step.embeddings.buffer = buffer_of(m, N * HIDDEN * sizeof(float), NULL);
	uint64_t cancelled = mimeo_request_id(step_prepare(m, &step, &row, 1));
	lane_hold(*state);
	assert_true(mimeo_submit(m) >= 1);
	assert_true(EVENTUALLY(daemon_count(*state, "steps") == steps + 2));
	submit_cancel(m, cancelled, 0);
	assert_int_equal(wait_final(m).status, 0); /* the cancel's own */
	lane_go(*state);
	assert_int_equal(wait_final(m).status, MIMEO_E_CANCELLED);
	assert_int_equal(mimeo_sequence_truncate(m, row.sequence, 1025), 0);
	assert_int_equal(mimeo_submit(m), 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_SEQUENCE);
	assert_message_has(&event, "tokens to keep: 1025, and the sequence has 1024");
	mimeo_event_seen(m, &event);
	assert_int_equal(step_wait_ids(m, row.sequence, &id), 0);
	mimeo_close(m);
}

/* The sequence's last token and one more by its embedding, beside a row of another sequence. */
static void step_beside(struct mimeo *m, uint32_t sequence, const float *table, bool embedded,
	float ret_logits[static 2 * VOCAB])
{
	static const int32_t ids[] = {'7', '1', '2'};
	const struct mimeo_step_row rows[] = {
		{sequence, 1, embedded ? NULL : ids},
		{sequence_of(m), 2, embedded ? NULL : ids + 1},
	};
	struct mimeo_step step = MIMEO_STEP_INIT;
	float *memory;

	step.outputs = MIMEO_STEP_LOGITS;
	if (embedded) {
		step.embeddings.buffer = buffer_of(m, 3 * HIDDEN * sizeof(float), &memory);
		for (int i = 0; i < 3; i++)
			memcpy(memory + i * HIDDEN, table + (size_t)ids[i] * HIDDEN,
				HIDDEN * sizeof(float));
	}
	struct mimeo_event event = step_wait(m, &step, rows, 2);
	assert_int_equal(event.status, 0);
	memcpy(ret_logits, event.logits, 2 * VOCAB * sizeof(float));
	mimeo_event_seen(m, &event);
}

/* The token sampled last is the sequence's, and not computed: it has an id and no embedding. */
static void test_embeddings_go_on_behind_a_generated_token(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), logits[2][2 * VOCAB];

	for (int turn = 0; turn < 2; turn++) {
		struct mimeo_generate generate = generate_of(tokens, 4, 3);
		uint32_t sequence = sequence_of(m);

		generate.sequence = sequence;
		generate.flags = MIMEO_GENERATE_IGNORE_EOS;
		submit_generate(m, &generate);
		assert_int_equal(wait_final(m).status, 0);
		step_beside(m, sequence, table, turn == 1, logits[turn]);
	}
	assert_memory_equal(logits[1], logits[0], sizeof(logits[0]));
	free(table);
	mimeo_close(m);
}

/* What a cancelled request left uncomputed is more than a step carries: chunks without an embedding. */
static void test_embeddings_go_on_behind_a_cancelled_prompt(void **state)
{
	enum { N = 1800 };
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), logits[2][2 * VOCAB];
	static int32_t ids[N];

	for (int i = 0; i < N; i++)
		ids[i] = i ? 32 + i * 7 % 90 : 1;
	for (int turn = 0; turn < 2; turn++) {
		struct mimeo_generate generate = generate_of(ids, N, 1);
		struct mimeo_request *request = mimeo_request_get(m);
		struct mimeo_request *cancel = mimeo_request_get(m);
		uint32_t sequence = sequence_of(m);

		generate.sequence = sequence;
		lane_hold(*state);
		assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
		mimeo_submit(m);
		assert_true(EVENTUALLY(daemon_count(*state, "running") == 1));
		assert_int_equal(mimeo_request_prep_cancel(cancel, mimeo_request_id(request)), 0);
		mimeo_submit(m);
		assert_int_equal(wait_final(m).status, MIMEO_E_CANCELLED);
		assert_int_equal(wait_final(m).status, 0);
		lane_go(*state);
		step_beside(m, sequence, table, turn == 1, logits[turn]);
	}
	assert_memory_equal(logits[1], logits[0], sizeof(logits[0]));
	free(table);
	mimeo_close(m);
}

/* ---- in graphs: tokens appended to histories ---- */

enum { HISTORIES = 4 };

static const int32_t appended[] = {'7', '1', '2', ' '};

/* Memory with the embeddings of the appended ones. */
static uint32_t appended_buffer(struct mimeo *m, const float *table)
{
	float *memory;
	uint32_t buffer = buffer_of(m, sizeof(appended) / sizeof(appended[0]) * HIDDEN * sizeof(float),
		&memory);

	for (size_t i = 0; i < sizeof(appended) / sizeof(appended[0]); i++)
		memcpy(memory + i * HIDDEN, table + (size_t)appended[i] * HIDDEN,
			HIDDEN * sizeof(float));
	return buffer;
}

/* Fresh sequences of some tokens each, all computed. */
static void histories_make(struct mimeo *m, uint32_t ret[static HISTORIES])
{
	for (uint32_t i = 0; i < HISTORIES; i++) {
		ret[i] = sequence_of(m);
		assert_int_equal(step(m, ret[i], tokens + i, 5, NULL), 0);
	}
}

/* Prepared: a row of each of n sequences, which appends appended[first], appended[first + 1], ...;
 * out of the buffer, or by ids. */
static struct mimeo_request *append_prepare(
	struct mimeo *m, const uint32_t *sequences, uint32_t n, uint32_t first, uint32_t buffer)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[HISTORIES];

	for (uint32_t i = 0; i < n; i++)
		rows[i] = (struct mimeo_step_row){
			sequences[i], 1, buffer ? NULL : &appended[first + i]};
	step.outputs = MIMEO_STEP_LOGITS;
	step.embeddings.buffer = buffer;
	step.embeddings.offset = buffer ? first * HIDDEN * sizeof(float) : 0;
	return step_prepare(m, &step, rows, n);
}

/* The final event of a request of n rows: its status; its logits to ret. */
static int append_wait(struct mimeo *m, uint32_t n, float *ret)
{
	struct mimeo_event event = wait_event(m);
	int status = event.status;

	assert_int_equal(event.kind, MIMEO_EVENT_FINAL);
	if (status == 0)
		memcpy(ret, event.logits, n * VOCAB * sizeof(float));
	mimeo_event_seen(m, &event);
	return status;
}

static void append(struct mimeo *m, const uint32_t *sequences, uint32_t n, uint32_t first,
	uint32_t buffer, float *ret)
{
	append_prepare(m, sequences, n, first, buffer);
	assert_true(mimeo_submit(m) >= 1);
	assert_int_equal(append_wait(m, n, ret), 0);
}

struct served {
	int64_t steps, replays;
};

static struct served served(struct daemon *daemon)
{
	return (struct served){daemon_count(daemon, "steps"), daemon_count(daemon, "replays")};
}

/* So many steps since, and each of them a graph's. */
static void assert_replayed(struct daemon *daemon, const struct served *since, int64_t n)
{
	const struct served now = served(daemon);

	assert_int_equal(now.steps - since->steps, n);
	assert_int_equal(now.replays - since->replays, n);
}

/* And ids go on in the same graph, at the same place of the batch. */
static void test_embedding_appended_to_a_history_replays_a_graph(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), logits[2][3][VOCAB];
	uint32_t buffer = appended_buffer(m, table), histories[HISTORIES];

	for (int turn = 0; turn < 2; turn++) {
		histories_make(m, histories);
		struct served before = served(*state);
		for (uint32_t i = 0; i < 3; i++)
			append(m, histories, 1, i, turn == 1 && i < 2 ? buffer : 0,
				logits[turn][i]);
		assert_replayed(*state, &before, 3);
	}
	assert_memory_equal(logits[1], logits[0], sizeof(logits[0]));
	free(table);
	mimeo_close(m);
}

/* Two held steps fill the lane; then a row by its embedding and one by its id, of two requests. */
static void append_side_by_side(struct daemon *daemon, struct mimeo *m, const uint32_t *histories,
	uint32_t buffer, float ret[static 2 * VOCAB])
{
	struct served before = served(daemon);
	float held[VOCAB];

	lane_hold(daemon);
	for (uint32_t i = 0; i < 2; i++) {
		append_prepare(m, &histories[2 + i], 1, 3, 0);
		assert_true(mimeo_submit(m) >= 1);
		assert_true(EVENTUALLY(daemon_count(daemon, "steps") == before.steps + 1 + i));
	}
	for (uint32_t i = 0; i < 2; i++)
		mimeo_request_set_data(
			append_prepare(m, &histories[i], 1, i, i == 0 ? buffer : 0), i);
	assert_true(mimeo_submit(m) >= 1);
	assert_true(EVENTUALLY(daemon_count(daemon, "running") == 4));
	lane_go(daemon);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(append_wait(m, 1, held), 0);
	for (uint32_t i = 0; i < 2; i++) { /* in any order */
		struct mimeo_event event = wait_event(m);

		assert_int_equal(event.status, 0);
		memcpy(ret + event.user_data * VOCAB, event.logits, VOCAB * sizeof(float));
		mimeo_event_seen(m, &event);
	}
	assert_replayed(daemon, &before, 3);
}

static void test_neighbours_of_an_embedding_in_a_graph_are_their_ids(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), logits[2][2 * VOCAB];
	uint32_t buffer = appended_buffer(m, table), histories[HISTORIES];

	for (int turn = 0; turn < 2; turn++) {
		histories_make(m, histories);
		append_side_by_side(*state, m, histories, turn == 1 ? buffer : 0, logits[turn]);
	}
	assert_memory_equal(logits[1], logits[0], sizeof(logits[0]));
	free(table);
	mimeo_close(m);
}

/* Three rows run in the graph of four, whose fourth token was an embedding: the memory is gone. */
static void test_padding_behind_embeddings_reads_nothing_of_their_buffer(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), logits[2][HISTORIES * VOCAB], four[HISTORIES * VOCAB];
	uint32_t histories[HISTORIES];

	for (int turn = 0; turn < 2; turn++) {
		uint32_t buffer = turn == 1 ? appended_buffer(m, table) : 0;

		histories_make(m, histories);
		struct served before = served(*state);
		append(m, histories, 4, 0, buffer, four);
		if (buffer)
			assert_int_equal(mimeo_buffer_close(m, buffer), 0);
		assert_no_buffers(*state);
		append(m, histories, 3, 1, 0, logits[turn]);
		assert_replayed(*state, &before, 2);
	}
	assert_memory_equal(logits[1], logits[0], 3 * VOCAB * sizeof(float));
	free(table);
	mimeo_close(m);
}

/* A held step is ahead of it in the lane: its embedding has not been read yet. */
static void test_closed_buffer_lives_until_the_graph_has_read_it(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *table = embedding_table_f32(), expected[VOCAB], logits[VOCAB];
	uint32_t histories[HISTORIES];

	histories_make(m, histories);
	append(m, histories, 1, 0, 0, expected);
	for (int cancel = 0; cancel < 2; cancel++) {
		uint32_t buffer = appended_buffer(m, table);

		histories_make(m, histories);
		struct served before = served(*state);
		lane_hold(*state);
		append_prepare(m, &histories[1], 1, 3, 0);
		assert_true(mimeo_submit(m) >= 1);
		assert_true(EVENTUALLY(daemon_count(*state, "steps") == before.steps + 1));
		uint64_t id = mimeo_request_id(append_prepare(m, histories, 1, 0, buffer));
		assert_true(mimeo_submit(m) >= 1);
		assert_true(EVENTUALLY(daemon_count(*state, "steps") == before.steps + 2));
		if (cancel) {
			submit_cancel(m, id, 0);
			assert_int_equal(wait_final(m).status, 0); /* the cancel's own */
		}
		assert_int_equal(mimeo_buffer_close(m, buffer), 0);
		pause_ms(20);
		assert_int_equal(daemon_count(*state, "buffers"), 1);
		assert_int_equal(daemon_count(*state, "buffers_closing"), 1);
		lane_go(*state);
		assert_int_equal(wait_final(m).status, 0); /* the held one's */
		assert_int_equal(append_wait(m, 1, logits), cancel ? MIMEO_E_CANCELLED : 0);
		if (!cancel)
			assert_memory_equal(logits, expected, sizeof(expected));
		assert_replayed(*state, &before, 2);
		assert_no_buffers(*state);
	}
	free(table);
	mimeo_close(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_embeddings_of_the_table_are_the_ids),
		T(test_embeddings_are_taken_chunk_by_chunk),
		T(test_embeddings_that_were_not_computed_are_dropped_with_their_request),
		T(test_embeddings_go_on_behind_a_generated_token),
		T(test_embeddings_go_on_behind_a_cancelled_prompt),
		T(test_embedding_appended_to_a_history_replays_a_graph),
		T(test_neighbours_of_an_embedding_in_a_graph_are_their_ids),
		T(test_padding_behind_embeddings_reads_nothing_of_their_buffer),
		T(test_closed_buffer_lives_until_the_graph_has_read_it),
	};

	RUN("embeddings", tests);
}
