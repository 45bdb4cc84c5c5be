/* SPDX-License-Identifier: MIT */
/*
 * Device buffers on the cuda device: clients with contexts of their own, each a process, because a
 * context does not survive a fork; this one has none.
 */
#include <stdatomic.h>

#include "tests/device.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/cuda_client.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/embedding_table.h"

#define N 64u
#define N_KILLS 12u

static int32_t tokens[N];

static int start(void **state)
{
	for (uint32_t i = 0; i < N; i++)
		tokens[i] = i ? 32 + (int32_t)(i * 7 % 90) : 1;
	/* Results are compared bit by bit with those of the same prompt. */
	return group_daemon_start_with(state, (const char *const[]){"--prefix-sharing", "none", NULL});
}

static bool no_buffers(void)
{
	return daemon_count(&group_daemon, "buffers") == 0 &&
	       daemon_count(&group_daemon, "buffer_bytes") == 0 &&
	       daemon_count(&group_daemon, "buffers_closing") == 0;
}

/* ---- logits; in a client's process, as all that is called be_... ---- */

static int be_a_reader(void *arg)
{
	const uint32_t kind = *(const uint32_t *)arg;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.tokens = tokens};
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct mimeo_event event;
	struct client client;
	float expected[VOCAB], got[VOCAB];

	client_start(&client, group_daemon.socket);
	CHILD_EXPECT(mimeo_buffer_alloc(client.m, kind, 8192, &step.logits.buffer) == 0);
	CHILD_EXPECT(mimeo_buffer_handle(client.m, step.logits.buffer, &handle) == 0);
	CHILD_EXPECT(handle.kind == kind && (handle.fd >= 0) == (kind == MIMEO_HANDLE_VMM_FD));
	CUDA(mimeo_cuda_map(&handle, &memory));
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.offset = 4096;
	for (uint32_t n = 1; n <= N; n += 7) {
		reference(&client, tokens, n, expected);
		CUDA(cudaMemset(memory.address, 0, 8192));
		CUDA(cudaDeviceSynchronize());
		row.n_tokens = n;
		CHILD_EXPECT(mimeo_sequence_open(client.m, 0, &row.sequence) == 0);
		step_with_fence(&client, &step, &row);
		CUDA(cudaMemcpyAsync(got, (char *)memory.address + 4096, sizeof(got),
			cudaMemcpyDeviceToHost, client.stream));
		CUDA(cudaStreamSynchronize(client.stream));
		CHILD_EXPECT(memcmp(got, expected, sizeof(got)) == 0);
		await_final(&client, &event);
		mimeo_event_seen(client.m, &event);
		CHILD_EXPECT(mimeo_sequence_close(client.m, row.sequence) == 0);
	}
	CUDA(mimeo_cuda_unmap(&memory));
	CHILD_EXPECT(mimeo_buffer_close(client.m, step.logits.buffer) == 0);
	mimeo_close(client.m);
	return 0;
}

static void assert_reads(uint32_t kind)
{
	assert_int_equal(
		process_exit_status(process_run(be_a_reader, &kind), PATIENCE_MS), 0);
	assert_true(EVENTUALLY(no_buffers()));
}

static void test_client_s_stream_reads_logits_from_a_descriptor_s_memory(void **state)
{
	assert_reads(MIMEO_HANDLE_VMM_FD);
}

static void test_client_s_stream_reads_logits_from_cuda_ipc_memory(void **state)
{
	assert_reads(MIMEO_HANDLE_CUDA_IPC);
}

/* ---- embeddings ---- */

/* Memory of this process's with the tokens' embeddings in it, imported. */
static uint32_t embeddings_of(struct client *client, bool ipc)
{
	uint16_t *table = embedding_table_bf16(), rows[N * HIDDEN];
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	char *address;
	uint32_t buffer;

	CHILD_EXPECT(table);
	for (uint32_t i = 0; i < N; i++)
		memcpy(rows + i * HIDDEN, table + (size_t)tokens[i] * HIDDEN, HIDDEN * 2);
	if (ipc) {
		/* In the middle of a block, as an allocator's pool would have it. */
		CUDA(cudaMalloc((void **)&address, 8 << 20));
		address += 3 << 20;
		CUDA(mimeo_cuda_export(address, sizeof(rows), &handle));
		CHILD_EXPECT(handle.offset >= 3 << 20);
	} else {
		CUDA(mimeo_cuda_alloc(sizeof(rows), &memory, &handle));
		address = memory.address;
	}
	CUDA(cudaMemcpy(address, rows, sizeof(rows), cudaMemcpyHostToDevice));
	CUDA(cudaDeviceSynchronize());
	int rc = mimeo_buffer_import(client->m, &handle, &buffer);
	if (rc != 0)
		fprintf(stderr, "import: %s: %s\n", mimeo_status_name(rc),
			mimeo_buffer_message(client->m));
	CHILD_EXPECT(rc == 0);
	if (handle.fd >= 0)
		close(handle.fd);
	free(table);
	return buffer;
}

/* One token more, tokens[5], by its id or its embedding. */
static void append_one(
	struct client *client, uint32_t sequence, uint32_t buffer, float logits[static VOCAB])
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence, 1, buffer ? NULL : &tokens[5]};
	struct mimeo_event event;

	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_LOGITS;
	step.embeddings.buffer = buffer;
	step.embeddings.offset = buffer ? 5 * HIDDEN * sizeof(uint16_t) : 0;
	CHILD_EXPECT(mimeo_request_prep_step(mimeo_request_get(client->m), &step) == 0);
	CHILD_EXPECT(mimeo_submit(client->m) >= 1);
	await_final(client, &event);
	memcpy(logits, event.logits, VOCAB * sizeof(float));
	mimeo_event_seen(client->m, &event);
}

/* Two steps of a prompt, eager, and four that append. */
static int be_an_embedder(void *arg)
{
	const bool ipc = *(const uint32_t *)arg == MIMEO_HANDLE_CUDA_IPC;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = N};
	struct mimeo_event event;
	struct client client;
	float expected[VOCAB], logits[VOCAB];
	uint32_t by_id;

	client_start(&client, group_daemon.socket);
	CHILD_EXPECT(mimeo_model_get(client.m, 0)->activation == MIMEO_ACTIVATION_BF16);
	by_id = reference_kept(&client, tokens, N, expected);
	step.embeddings.buffer = embeddings_of(&client, ipc);
	step.outputs = MIMEO_STEP_LOGITS;
	CHILD_EXPECT(mimeo_sequence_open(client.m, 0, &row.sequence) == 0);
	step_with_fence(&client, &step, &row);
	await_final(&client, &event);
	CHILD_EXPECT(memcmp(event.logits, expected, sizeof(expected)) == 0);
	mimeo_event_seen(client.m, &event);
	append_one(&client, by_id, 0, expected);
	append_one(&client, row.sequence, step.embeddings.buffer, logits);
	CHILD_EXPECT(memcmp(logits, expected, sizeof(expected)) == 0);
	CHILD_EXPECT(mimeo_buffer_close(client.m, step.embeddings.buffer) == 0);
	append_one(&client, by_id, 0, expected);
	append_one(&client, row.sequence, 0, logits);
	CHILD_EXPECT(memcmp(logits, expected, sizeof(expected)) == 0);
	mimeo_close(client.m);
	return 0;
}

static void test_embeddings_of_the_table_are_the_ids_for_both_kinds(void **state)
{
	uint32_t kinds[] = {MIMEO_HANDLE_VMM_FD, MIMEO_HANDLE_CUDA_IPC};

	for (unsigned i = 0; i < 2; i++) {
		int64_t steps = daemon_count(&group_daemon, "steps");
		int64_t replays = daemon_count(&group_daemon, "replays");

		assert_int_equal(process_exit_status(
			process_run(be_an_embedder, &kinds[i]), PATIENCE_MS), 0);
		assert_true(EVENTUALLY(no_buffers()));
		assert_int_equal(daemon_count(&group_daemon, "steps") - steps, 6);
		assert_int_equal(daemon_count(&group_daemon, "replays") - replays, 4);
	}
}

/* ---- death ---- */

struct victim {
	uint32_t kind;
	_Atomic uint32_t n_steps;
};

/* The lane reads this process's memory and writes the daemon's without end. */
static int be_a_victim(void *arg)
{
	struct victim *victim = arg;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = N};
	struct mimeo_event event;
	struct client client;

	client_start(&client, group_daemon.socket);
	step.embeddings.buffer = embeddings_of(&client, victim->kind == MIMEO_HANDLE_CUDA_IPC);
	CHILD_EXPECT(
		mimeo_buffer_alloc(client.m, victim->kind, 65536, &step.logits.buffer) == 0);
	step.outputs = MIMEO_STEP_LOGITS;
	for (;;) {
		CHILD_EXPECT(mimeo_sequence_open(client.m, 0, &row.sequence) == 0);
		step_with_fence(&client, &step, &row);
		await_final(&client, &event);
		mimeo_event_seen(client.m, &event);
		CHILD_EXPECT(mimeo_sequence_close(client.m, row.sequence) == 0);
		atomic_fetch_add(&victim->n_steps, 1);
	}
}

static void test_client_killed_while_the_device_reads_its_memory(void **state)
{
	struct victim *victim = shared_new(sizeof(*victim));
	struct question questions[4];
	struct reply replies[4];
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const struct holdings before = daemon_holdings(*state);

	for (unsigned round = 0; round < N_KILLS; round++) {
		victim->kind = round % 2 ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_VMM_FD;
		atomic_store(&victim->n_steps, 0);
		pid_t pid = process_run(be_a_victim, victim);
		assert_true(EVENTUALLY(atomic_load(&victim->n_steps) > 20 + round ||
				       process_exit_status(pid, 0) >= 0));
		assert_true(atomic_load(&victim->n_steps) > 0);
		process_kill(pid);
		questions_make(questions, 4, round);
		memset(replies, 0, sizeof(replies));
		assert_int_equal(questions_ask(m, questions, 4, 4, replies), 0);
		assert_int_equal(replies_wrong(questions, replies, 4), 0);
		assert_true(EVENTUALLY(no_buffers()));
		daemon_assert_settles(*state, &before);
	}
	mimeo_close(m);
	shared_free(victim, sizeof(*victim));
	daemon_stop(*state);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_client_s_stream_reads_logits_from_a_descriptor_s_memory),
		cmocka_unit_test(test_client_s_stream_reads_logits_from_cuda_ipc_memory),
		cmocka_unit_test(test_embeddings_of_the_table_are_the_ids_for_both_kinds),
		cmocka_unit_test(test_client_killed_while_the_device_reads_its_memory),
	};

	if (!test_on_cuda()) {
		printf("1..0 # SKIP MIMEO_DEVICE is not cuda\n");
		return 0;
	}
	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("buffers_cuda", tests, start, group_daemon_end);
}
