/* SPDX-License-Identifier: MIT */
/* Malformed entries: each is refused with its status and detail, and other clients go on. */
#include "tests/daemon/rig.h"

#include <errno.h>
#include <unistd.h>

#include "tests/random.h"

#define ARENA (1 << 20)

#define refused(rig, r, ...) rig_expect(&(rig)->client, r, (struct rig_expected){__VA_ARGS__})

/* Another client, with a request that must not be disturbed. */
static struct {
	struct rig_client *client;
	struct rig_request steady;
	struct rig_result results[8];
} bystander;
static bool draining;

static int setup(void **state)
{
	struct rig *rig;

	rig_setup(state);
	rig = *state;
	draining = false;
	memset(&bystander, 0, sizeof(bystander));
	bystander.client = rig_other(rig, 8);
	bystander.steady = rig_ask_text(bystander.client, 0, 0, "sort 52 17 33\n");
	rig_submit(bystander.client, bystander.steady);
	return 0;
}

static void wait_for_bystander(void)
{
	rig_wait(bystander.client, bystander.results, 0);
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	rig_gate_open(rig);
	wait_for_bystander();
	rig_assert_text(bystander.client, &bystander.steady, &bystander.results[0], "17 33 52");
	if (!draining)
		rig_assert_answer(&rig->client, 1, "9+8=", "17");
	return rig_teardown(state);
}

/* A good request, to be spoilt. */
static struct rig_request good(struct rig *rig)
{
	return rig_ask_text(&rig->client, 0, 0, "9+8=");
}

static struct rig_request good_step(struct rig *rig, const struct msg_row *rows, uint32_t n_rows,
	const int32_t *tokens)
{
	struct msg_step msg = {.n_rows = n_rows, .outputs = MIMEO_STEP_TOKENS};

	return rig_step(&rig->client, 0, &msg, rows, tokens);
}

/* A good request is refused if that is done to it: the status, detail and values follow. */
#define SPOILT(change, ...)                                                                        \
	do {                                                                                       \
		r = good(rig);                                                                     \
		change;                                                                            \
		refused(rig, &r, __VA_ARGS__);                                                     \
	} while (0)

static void test_headers_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	uint8_t *arena = rig->client.region.arena;
	static const struct {
		uint32_t model, draft_tokens;
		struct rig_expected expected;
	} cases[] = {
		{2, 0, {MIMEO_E_UNKNOWN_MODEL, RING_DETAIL_MODEL, 2, 2}},
		{UINT32_MAX, 0, {MIMEO_E_UNKNOWN_MODEL, RING_DETAIL_MODEL, INT32_MAX, 2}},
		{0, MIMEO_DRAFT_MAX + 1, {MIMEO_E_INVALID, RING_DETAIL_RANGE, MSG_DRAFT_TOKENS}},
		{0, MIMEO_DRAFT_NONE - 1, {MIMEO_E_INVALID, RING_DETAIL_RANGE, MSG_DRAFT_TOKENS}},
	};
	struct rig_request r;

	SPOILT(r.sqe.header_length = MSG_HEADER_MAX + 1, MIMEO_E_INVALID, RING_DETAIL_HEADER, MSG_HEADER_MAX);
	SPOILT((r.sqe.header_offset = ARENA - 4, r.sqe.header_length = 5),
		MIMEO_E_INVALID, RING_DETAIL_EXTENT, ARENA - 4, 5, ARENA);
	SPOILT((r.sqe.header_offset = UINT32_MAX, r.sqe.header_length = 5),
		MIMEO_E_INVALID, RING_DETAIL_EXTENT, INT32_MAX, 5, ARENA);
	SPOILT(arena[r.sqe.header_offset] = 0xc1, MIMEO_E_INVALID, RING_DETAIL_HEADER, 0);
	SPOILT((memcpy(arena + r.sqe.header_offset, "\xdd\xff\xff\xff\xff", 5), r.sqe.header_length = 5),
		MIMEO_E_INVALID, RING_DETAIL_HEADER, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct msg_generate msg = rig_greedy(1, 4);

		msg.model = cases[i].model;
		msg.draft_tokens = cases[i].draft_tokens;
		r = rig_generate(&rig->client, 0, (const int32_t[]){1}, 1, &msg);
		rig_expect(&rig->client, &r, cases[i].expected);
	}
}

static void test_payloads_and_outputs_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	const int32_t high[] = {1, '9', 256}, low[] = {1, -1};
	struct rig_request r;

	SPOILT(r.sqe.payload_offset += 2,
		MIMEO_E_INVALID, RING_DETAIL_EXTENT, (int32_t)r.sqe.payload_offset, 20, ARENA);
	SPOILT(r.sqe.payload_offset = ARENA - 16, MIMEO_E_INVALID, RING_DETAIL_EXTENT, ARENA - 16, 20, ARENA);
	SPOILT(r.sqe.payload_length -= 4, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 16, 20);
	SPOILT(r.sqe.payload_length += 1, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 21, 20);
	SPOILT(r = rig_ask(&rig->client, 0, 0, high, 3, 4, 0), MIMEO_E_INVALID, RING_DETAIL_TOKEN, 2, 256, 256);
	SPOILT(r = rig_ask(&rig->client, 0, 0, low, 2, 4, 0), MIMEO_E_INVALID, RING_DETAIL_TOKEN, 1, -1, 256);
	SPOILT(r.sqe.output_length = 128, MIMEO_E_INVALID, RING_DETAIL_OUTPUT, 128, 192);
	SPOILT(r.sqe.output_offset = ARENA - 64, MIMEO_E_INVALID, RING_DETAIL_EXTENT, ARENA - 64, 192, ARENA);
	SPOILT(r.sqe.output_offset += 4,
		MIMEO_E_INVALID, RING_DETAIL_EXTENT, (int32_t)r.sqe.output_offset, 192, ARENA);
}

static void test_steps_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	static const struct {
		struct msg_row rows[2];
		uint32_t n_rows;
		int32_t last; /* token */
		struct rig_expected expected;
	} cases[] = {
		{{{1, 2}, {2, 0}}, 2, '8', {MIMEO_E_INVALID, RING_DETAIL_EMPTY}},
		{{{1, 2}, {2, 1}}, 2, 300, {MIMEO_E_INVALID, RING_DETAIL_TOKEN, 0, 300, 256}},
		{{{1, 2}, {1, 1}}, 2, '8', {MIMEO_E_INVALID, RING_DETAIL_ROW_TWICE, 1, 1}},
		{{{1, 2}, {3, 1}}, 2, '8', {MIMEO_E_INVALID, RING_DETAIL_ROW_MODEL, 1, 3}},
		{{{1, 2}, {4, 1}}, 2, '8', {MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 4}},
		{{{1, 2}, {33, 1}}, 2, '8', {MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 33}},
		{{{1, 513}}, 1, '8', {MIMEO_E_TOO_LONG, RING_DETAIL_LENGTH, 513, 512}},
	};
	struct msg_row rows[17] = {{1, 2}, {2, 1}};
	int32_t tokens[600] = {1, '9', '8'};
	struct rig_request r;

	for (uint32_t i = 1; i <= 3; i++)
		rig_ok(&rig->client, 0, RING_OP_OPEN, i, i == 3);
	r = good_step(rig, rows, 2, tokens);
	r.sqe.payload_length = 12;
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 12, 16);
	r.sqe.payload_length = 24;
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 24, 28);
	r.sqe.payload_length = 32;
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 32, 28);
	r.sqe.payload_length = 24;
	rows[1].n_tokens = UINT32_MAX;
	memcpy(rig->client.region.arena + r.sqe.payload_offset, rows, 16);
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, 24, INT32_MAX);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tokens[2] = cases[i].last;
		r = good_step(rig, cases[i].rows, cases[i].n_rows, tokens);
		rig_expect(&rig->client, &r, cases[i].expected);
	}
	for (uint32_t i = 0; i < 17; i++)
		rows[i] = (struct msg_row){1, 1};
	r = good_step(rig, rows, 17, tokens);
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_REQUESTS, 17, 16);
	/* Nothing of all that has left anything in the sequences. */
	assert_int_equal(rig_do(&rig->client, rig_ask_text(&rig->client, 0, 1, "\n")).n_prompt, 1);
	assert_int_equal(rig->client.port->n_in_flight, 0);
}

static void test_sequence_calls_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	struct msg_generate msg = rig_greedy(1, 4);
	const int32_t token = 1;
	struct rig_request r;

#define CALL(op, sequence, argument, ...)                                                           \
	do {                                                                                        \
		r = rig_call(&rig->client, 0, op, sequence, argument);                                 \
		refused(rig, &r, __VA_ARGS__);                                                    \
	} while (0)
	CALL(RING_OP_OPEN, 1, 2, MIMEO_E_UNKNOWN_MODEL, RING_DETAIL_MODEL, 2, 2);
	CALL(RING_OP_OPEN, 33, 0, MIMEO_E_QUOTA, RING_DETAIL_BUDGET, RING_BUDGET_SEQUENCES, 33, 32);
	CALL(RING_OP_OPEN, 0, 0, MIMEO_E_INVALID, RING_DETAIL_SEQUENCE, 0);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 32, 1);
	CALL(RING_OP_OPEN, 1, 0, MIMEO_E_INVALID, RING_DETAIL_OPEN_TWICE, 1);
	CALL(RING_OP_FORK, 2, 3, MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 2);
	CALL(RING_OP_FORK, 1, 33, MIMEO_E_QUOTA, RING_DETAIL_BUDGET, RING_BUDGET_SEQUENCES, 31, 30);
	CALL(RING_OP_FORK, 1, 32, MIMEO_E_INVALID, RING_DETAIL_OPEN_TWICE, 32);
	CALL(RING_OP_FORK, 1, 1, MIMEO_E_INVALID, RING_DETAIL_OPEN_TWICE, 1);
	CALL(RING_OP_TRUNCATE, 2, 0, MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 2);
	CALL(RING_OP_TRUNCATE, 1, 1, MIMEO_E_INVALID, RING_DETAIL_KEEP, 1, 0);
	CALL(RING_OP_CLOSE, 2, 0, MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 2);
	CALL(RING_OP_CANCEL, 0, 3, MIMEO_E_UNKNOWN_REQUEST);
	CALL(RING_OP_CANCEL, 0, 16, MIMEO_E_UNKNOWN_REQUEST);
	CALL(99, 0, 0, MIMEO_E_INVALID, RING_DETAIL_OP, 99);
	CALL(RING_OP_NOP, 0, 0, MIMEO_OK);
#undef CALL
	msg.sequence = 2;
	r = rig_generate(&rig->client, 0, &token, 1, &msg);
	refused(rig, &r, MIMEO_E_UNKNOWN_SEQUENCE, RING_DETAIL_SEQUENCE, 2);
	msg.sequence = 32;
	r = rig_generate(&rig->client, 0, &token, 1, &msg);
	refused(rig, &r, MIMEO_E_INVALID, RING_DETAIL_ROW_MODEL, 0, 32);
}

static void test_refusals_are_counted_apart_from_requests(void **state)
{
	struct rig *rig = *state;
	const struct engine_stats *stats;
	struct rig_request r;

	wait_for_bystander();
	stats = engine_stats(rig->engine);
	r = good(rig);
	r.sqe.payload_length = 0;
	rig_do(&rig->client, r);
	assert_int_equal(stats->n_refused, 1);
	assert_int_equal(stats->n_requests, 1);
	assert_int_equal(stats->n_finished, 1);
	rig_do(&rig->client, rig_call(&rig->client, 0, RING_OP_CLOSE, 1, 0));
	assert_int_equal(stats->n_requests, 2);
	assert_int_equal(stats->n_failed, 1);
}

static void test_two_requests_over_the_same_bytes_cannot_slip_a_token_in(void **state)
{
	struct rig *rig = *state;
	struct rig_request first, second, r;

	wait_for_bystander();
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_gate_close(rig);
	r = rig_ask_text(&rig->client, 0, 1, "rev hello\n");
	first = rig_ask_text(&rig->client, 1, 1, "9+8=");
	rig_submit(&rig->client, r);
	rig_submit(&rig->client, first); /* waits for the sequence; its tokens are its own */
	rig_wait_waiting(rig, 1);
	second = first;
	second.index = second.sqe.request = 2;
	second.sqe.user_data = 1002;
	((int32_t *)(rig->client.region.arena + first.sqe.payload_offset))[3] = 4000;
	rig_submit(&rig->client, second);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[2].status, MIMEO_E_INVALID);
	assert_int_equal(rig->results[2].detail, RING_DETAIL_TOKEN);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].status, 0);
	rig_wait(&rig->client, rig->results, 0);
}

/* ---- broken rings ---- */

static void assert_protocol(struct rig *rig)
{
	struct engine_report report = rig_report(rig, ENGINE_PROTOCOL), more;

	assert_ptr_equal(report.port, rig->client.port);
	assert_true(strlen(report.text) > 0);
	rig_detach(&rig->client);
	assert_false(engine_report_take(rig->engine, &more));
	assert_int_equal(rig->n_reports, 0);
	rig_attach(rig, &rig->client, 16);
}

static void jump(_Atomic uint32_t *index, uint32_t by, struct rig *rig)
{
	atomic_fetch_add(index, by);
	/* Whether the engine sleeps or not. */
	(void)!write(rig->client.port->sq_bell, &(uint64_t){1}, 8);
}

static void test_submission_tail_that_jumps_is_one_report(void **state)
{
	struct rig *rig = *state;

	for (uint32_t by = 17; by; by = by == 17 ? 0xffffff00 : 0) {
		struct rig_request r = good(rig);

		rig_must(&rig->client, r);
		jump(&rig->client.region.ring.control->sq_tail, by, rig);
		if (by == 17)
			jump(&rig->client.region.ring.control->sq_tail, 1000, rig);
		assert_protocol(rig);
	}
}

/* Linked in calloc's place. */
static _Atomic bool no_memory;
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
	return no_memory ? NULL : __real_calloc(n, size);
}

static void test_reports_need_no_memory(void **state)
{
	struct rig *rig = *state;
	struct engine_report report;

	struct rig_request r = good(rig);

	rig_must(&rig->client, r);
	no_memory = true;
	jump(&rig->client.region.ring.control->sq_tail, 17, rig);
	report = rig_report(rig, ENGINE_PROTOCOL);
	rig_detach(&rig->client);
	no_memory = false;
	assert_int_equal(report.kind, ENGINE_PROTOCOL);
	rig_attach(rig, &rig->client, 16);
}

static void test_completion_head_that_jumps_is_one_report(void **state)
{
	struct rig *rig = *state;
	struct rig_request r;

	r = good(rig);
	jump(&rig->client.region.ring.control->cq_head, 5, rig);
	rig_submit(&rig->client, r);
	assert_protocol(rig);
}

static void test_index_in_flight_or_out_of_range_is_one_report(void **state)
{
	struct rig *rig = *state;
	struct rig_request r;

	wait_for_bystander();
	for (uint32_t index = 0; index <= 16; index += 16) {
		uint64_t n_steps = engine_stats(rig->engine)->n_steps;

		rig_gate_close(rig);
		r = good(rig);
		rig_submit(&rig->client, r);
		r.sqe.request = index;
		rig_submit(&rig->client, r);
		rig_submit(&rig->client, r);
		rig_wait_steps(rig, n_steps + 1);
		rig_gate_open(rig);
		assert_protocol(rig);
	}
}

static void test_slow_reader_with_a_small_ring_is_no_offender(void **state)
{
	struct rig *rig = *state;
	struct engine_report report;

	rig_submit(&rig->client,
		rig_ask(&rig->client, 0, 0, (int32_t[]){1}, 1, 400, MIMEO_GENERATE_IGNORE_EOS));
	/* Progress fills what the final completion leaves. */
	RIG_AWAIT(atomic_load(&rig->client.region.ring.control->cq_tail));
	rig_submit(&rig->client, rig_call(&rig->client, 1, RING_OP_NOP, 0, 0));
	RIG_AWAIT(engine_stats(rig->engine)->n_finished);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[0].status, 0);
	assert_int_equal(rig->results[0].n_generated, 400);
	assert_int_equal(rig->results[1].status, 0);
	assert_false(engine_report_take(rig->engine, &report));
}

/* ---- bytes that change while they are read ---- */

struct vandal {
	pthread_t thread;
	struct region region;
	uint32_t bytes; /* of the arena, from its start */
	_Atomic bool stop;
};

static void *vandalise(void *arg)
{
	struct vandal *v = arg;
	uint64_t random = 1;

	while (!atomic_load(&v->stop))
		v->region.arena[random_below(&random, v->bytes)] = (uint8_t)random_u32(&random);
	return NULL;
}

static void test_bytes_rewritten_while_they_are_read_change_no_other_client(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[8];
	static uint8_t good_bytes[1 << 16];
	struct vandal v = {0};
	uint32_t n_ended = 0;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig->client.used = 0;
	for (uint32_t i = 0; i < 8; i++) {
		int32_t tokens[] = {1, '9', '+', '8', '='};
		struct msg_row row = {1, 5};
		struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};

		requests[i] = i % 4 ? rig_ask(&rig->client, i, 0, tokens, 5, 4, 0)
				    : rig_step(&rig->client, i, &step, &row, tokens);
	}
	v.bytes = rig->client.used;
	assert_true(v.bytes <= sizeof(good_bytes));
	memcpy(good_bytes, rig->client.region.arena, v.bytes);
	assert_int_equal(region_map(&v.region, dup(rig->client.region.fd)), 0);
	assert_int_equal(pthread_create(&v.thread, NULL, vandalise, &v), 0);
	for (uint32_t round = 0; round < 300; round++) {
		for (uint32_t i = 0; i < 8; i++) {
			rig->results[i] = (struct rig_result){0};
			/* Most begin as good ones. */
			if (round % 4)
				memcpy(rig->client.region.arena + requests[i].sqe.header_offset,
					good_bytes + requests[i].sqe.header_offset,
					requests[i].sqe.header_length);
			requests[i].sqe.generation++;
			rig_submit(&rig->client, requests[i]);
		}
		for (uint32_t i = 0; i < 8; i++) {
			rig_wait(&rig->client, rig->results, i);
			n_ended += rig->results[i].done;
		}
	}
	atomic_store(&v.stop, true);
	pthread_join(v.thread, NULL);
	region_deinit(&v.region);
	assert_int_equal(n_ended, 8 * 300);
}

/* ---- draining, aborting, many sessions ---- */

static void test_drain_refuses_new_work_and_reports_when_the_old_is_done(void **state)
{
	struct rig *rig = *state;
	struct rig_request r;

	RIG_AWAIT(engine_stats(rig->engine)->n_requests == 1); /* the bystander's */
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	assert_int_equal(engine_post_drain(rig->engine), 0);
	rig_report(rig, ENGINE_DRAINED);
	r = good(rig);
	refused(rig, &r, MIMEO_E_DRAINING);
	r = rig_call(&rig->client, 0, RING_OP_FORK, 1, 2);
	refused(rig, &r, MIMEO_E_DRAINING);
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig_poll(bystander.client, bystander.results);
	assert_true(bystander.results[0].done);
	draining = true;
}

static void test_abort_ends_all_as_cut_off_by_the_drain(void **state)
{
	struct rig *rig = *state;

	wait_for_bystander();
	rig_gate_close(rig);
	for (uint32_t i = 0; i < 16; i++)
		rig_submit(&rig->client, rig_ask_text(&rig->client, i, 0, "count 4 30\n"));
	rig_wait_steps(rig, 2);
	RIG_AWAIT(rig->client.port->n_in_flight == 16);
	assert_int_equal(engine_post_abort(rig->engine), 0);
	for (uint32_t i = 0; i < 16; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, MIMEO_E_DRAINING);
		assert_int_equal(rig->results[i].detail, RING_DETAIL_DRAIN);
	}
	rig_gate_open(rig);
}

static void test_session_beyond_the_last_place_is_not_taken(void **state)
{
	struct rig *rig = *state;
	struct engine_port port = {0};

	rig->engine->mailbox.n_ports += ENGINE_SESSIONS_MAX - 2;
	assert_int_equal(engine_post_attach(rig->engine, &port), -EMFILE);
	rig->engine->mailbox.n_ports -= ENGINE_SESSIONS_MAX - 2;
}

#define TEST(test)                                                                                 \
	{#test, test, setup, teardown, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,   \
		.n_models = 2, .kv_pages = 40, .entries = 16}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_headers_are_refused_by_what_is_wrong),
		TEST(test_payloads_and_outputs_are_refused_by_what_is_wrong),
		TEST(test_steps_are_refused_by_what_is_wrong),
		TEST(test_sequence_calls_are_refused_by_what_is_wrong),
		TEST(test_refusals_are_counted_apart_from_requests),
		TEST(test_two_requests_over_the_same_bytes_cannot_slip_a_token_in),
		TEST(test_submission_tail_that_jumps_is_one_report),
		TEST(test_reports_need_no_memory),
		TEST(test_completion_head_that_jumps_is_one_report),
		TEST(test_index_in_flight_or_out_of_range_is_one_report),
		RIG_TEST(test_slow_reader_with_a_small_ring_is_no_offender,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 40, .entries = 2),
		TEST(test_bytes_rewritten_while_they_are_read_change_no_other_client),
		TEST(test_drain_refuses_new_work_and_reports_when_the_old_is_done),
		TEST(test_abort_ends_all_as_cut_off_by_the_drain),
		TEST(test_session_beyond_the_last_place_is_not_taken),
	};

	return cmocka_run_group_tests_name("engine bad", tests, NULL, NULL);
}
