/* SPDX-License-Identifier: MIT */
/* Embeddings out of device buffers in place of ids, on the cpu device. */
#include <stdlib.h>

#include <jansson.h>
#include <mimeo/mimeo.h>

#include "tests/e2e/buffer_rows.h"

/* A step of one id: its status. */
static int step_wait_ids(struct mimeo *m, uint32_t sequence, const int32_t *id)
{
	return step(m, sequence, id, 1, NULL);
}

/* Tinycalc's own table, as the cpu device wants it: [VOCAB, HIDDEN] float32. */
static float *embedding_table(void)
{
	size_t size, length;
	uint8_t *file = (uint8_t *)file_text(
		source_path("examples/models/tinycalc/model.safetensors"), &size);
	uint64_t header_bytes, from;

	assert_non_null(file);
	memcpy(&header_bytes, file, sizeof(header_bytes));
	json_t *header = json_loadb((char *)file + 8, header_bytes, 0, NULL);
	json_t *tensor = json_object_get(header, "model.embed_tokens.weight");
	assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "BF16");
	from = (uint64_t)json_integer_value(
		json_array_get(json_object_get(tensor, "data_offsets"), 0));
	length = VOCAB * HIDDEN;
	float *table = malloc(length * sizeof(*table));
	assert_non_null(table);
	for (size_t i = 0; i < length; i++) {
		uint16_t half;

		memcpy(&half, file + 8 + header_bytes + from + i * 2, sizeof(half));
		uint32_t bits = (uint32_t)half << 16;
		memcpy(&table[i], &bits, sizeof(bits));
	}
	json_decref(header);
	free(file);
	return table;
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
	float *table = embedding_table(), *memory;

	assert_int_equal(mimeo_model_get(m, 0)->activation, MIMEO_ACTIVATION_F32);
	results_make(m, &expected);
	make_rows(m, rows);
	for (unsigned i = 0; i < N_ROWS; i++)
		rows[i].tokens = NULL;
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	step.embeddings.buffer = buffer_of(m, 1 << 20, &memory);
	step.embeddings.offset = 640;
	embed(table, memory + 640 / sizeof(float));
	int64_t eager = daemon_count(*state, "eager_embeddings");
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	assert_true(daemon_count(*state, "eager_embeddings") > eager);
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
	float *table = embedding_table(), expected[2][VOCAB], *memory;
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
	assert_int_equal(mimeo_request_prep_cancel(mimeo_request_get(m), cancelled), 0);
	assert_true(mimeo_submit(m) >= 1);
	assert_int_equal(wait_final(m).status, 0); /* the cancel's own */
	lane_go(*state);
	assert_int_equal(wait_final(m).status, MIMEO_E_CANCELLED);
	assert_int_equal(mimeo_sequence_truncate(m, row.sequence, 1025), 0);
	assert_int_equal(mimeo_submit(m), 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_SEQUENCE);
	assert_message_has(&event, "1025 tokens were to be kept and there are 1024");
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
	float *table = embedding_table(), logits[2][2 * VOCAB];

	for (int turn = 0; turn < 2; turn++) {
		struct mimeo_generate generate = MIMEO_GENERATE_INIT;
		uint32_t sequence = sequence_of(m);

		generate.sequence = sequence;
		generate.tokens = tokens;
		generate.n_tokens = 4;
		generate.max_tokens = 3;
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
	float *table = embedding_table(), logits[2][2 * VOCAB];
	static int32_t ids[N];

	for (int i = 0; i < N; i++)
		ids[i] = i ? 32 + i * 7 % 90 : 1;
	for (int turn = 0; turn < 2; turn++) {
		struct mimeo_generate generate = MIMEO_GENERATE_INIT;
		struct mimeo_request *request = mimeo_request_get(m);
		struct mimeo_request *cancel = mimeo_request_get(m);
		uint32_t sequence = sequence_of(m);

		generate.sequence = sequence;
		generate.tokens = ids;
		generate.n_tokens = N;
		generate.max_tokens = 1;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_embeddings_of_the_table_are_the_ids),
		T(test_embeddings_are_taken_chunk_by_chunk),
		T(test_embeddings_that_were_not_computed_are_dropped_with_their_request),
		T(test_embeddings_go_on_behind_a_generated_token),
		T(test_embeddings_go_on_behind_a_cancelled_prompt),
	};

	RUN("embeddings", tests);
}
