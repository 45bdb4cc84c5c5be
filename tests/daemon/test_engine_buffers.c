/* SPDX-License-Identifier: MIT */
/* Device buffers that requests name, while launched steps still write to them. */
#include "tests/daemon/rig.h"

#include <errno.h>

#include "daemon/engine/query.h"

enum { BUFFER = 1, BUFFER_BYTES = 4096, N_GATES = 2, FIRST_HELD = 2 };

/* ---- a lane that waits ahead of the steps 2 and 3 ---- */

static struct {
	const struct kernel_ops *real;
	struct kernel_ops kernels;
	struct device *device;
	void *memory; /* the buffer's */
	uint32_t n_steps;
	_Atomic bool open[N_GATES];
} held;

static void wait_at_gate(void *arg)
{
	const _Atomic bool *open = arg;

	while (!atomic_load(open))
		rig_pause();
}

static int held_prepare(struct stream *stream, const struct op_prepare *args)
{
	uint32_t gate = ++held.n_steps - FIRST_HELD;

	if (gate < N_GATES && held.device->ops->stream_host_func(
				      stream, wait_at_gate, &held.open[gate]))
		return DEVICE_E_INVALID;
	return held.real->prepare(stream, args);
}

static void hold_lane(struct device *device)
{
	held.device = device;
	held.real = device->kernels;
	held.kernels = *held.real;
	held.kernels.prepare = held_prepare;
	device->kernels = &held.kernels;
	assert_int_equal(device->ops->mem_alloc(device, BUFFER_BYTES, &held.memory), 0);
	for (int i = 0; i < N_GATES; i++)
		atomic_store(&held.open[i], false);
	held.n_steps = N_GATES + FIRST_HELD; /* set-up waits at no gate */
}

static int open_gates(void **state)
{
	struct rig *rig = *state;

	for (int i = 0; i < N_GATES; i++)
		atomic_store(&held.open[i], true);
	rig_detach(&rig->client);
	held.device->ops->mem_free(held.device, held.memory);
	return rig_teardown(state);
}

/* ---- the buffer ---- */

static struct engine_buffer buffer;

static void open_buffer(struct rig *rig)
{
	buffer = (struct engine_buffer){.address = held.memory, .bytes = BUFFER_BYTES, .open = true};
	rig->client.port->buffers = &buffer;
	rig->client.port->n_buffers = 1;
	held.n_steps = 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool take_buffer(struct rig *rig)
{
	struct engine_port *port;
	uint32_t id;

	if (!engine_buffer_take(rig->engine, &port, &id))
		return false;
	assert_ptr_equal(port, rig->client.port);
	assert_int_equal(id, BUFFER);
	return true;
}

/* The request is over, its buffer closed and free, as a whole or not at all. */
static void assert_ended(struct rig *rig, bool ended)
{
	for (int i = 0; i < 20; i++, nap())
		rig_poll(&rig->client, rig->results);
	assert_int_equal(rig->results[0].done, ended);
	assert_int_equal(take_buffer(rig), ended);
}

/* A request of three steps, cancelled when as many of its steps as there are open gates have ended
 * behind the first: all that are left in the lane may write to its buffer. */
static void check_fence(struct rig *rig, int n_open)
{
	int32_t tokens[32];
	struct msg_generate msg = rig_greedy(rig_prompt("count 4 30\n", tokens), 3);
	struct rig_request request;

	open_buffer(rig);
	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS;
	msg.logits = (struct mimeo_place){.buffer = BUFFER};
	request = rig_generate(&rig->client, 0, tokens, msg.n_tokens, &msg);
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 3); /* the first has ended */
	for (int i = 0; i < N_GATES; i++) {
		if (i == n_open) {
			rig_cancel(&rig->client, 1, &request);
			rig_wait(&rig->client, rig->results, 1);
			assert_int_equal(engine_post_buffer_close(rig->engine, rig->client.port, BUFFER), 0);
		}
		assert_ended(rig, false);
		atomic_store(&held.open[i], true);
		RIG_AWAIT(engine_stats(rig->engine)->n_in_lane == 1 - (uint32_t)i);
	}
	assert_ended(rig, true);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
}

static struct engine_query *asked(struct rig *rig, enum engine_query_kind kind, uint64_t id)
{
	struct engine_query *query = calloc(1, sizeof(*query)), *answer = NULL;

	assert_non_null(query);
	query->kind = kind;
	query->id = id;
	assert_int_equal(engine_post_query(rig->engine, query), 0);
	RIG_AWAIT((answer = engine_query_take(rig->engine)));
	return answer;
}

/* Its launched steps still name its buffer. */
static void test_operator_is_told_that_a_request_ends_already(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[32];
	struct msg_generate msg = rig_greedy(rig_prompt("count 4 30\n", tokens), 3);

	open_buffer(rig);
	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS | MIMEO_GENERATE_IGNORE_EOS;
	msg.logits = (struct mimeo_place){.buffer = BUFFER};
	struct rig_request request = rig_generate(&rig->client, 0, tokens, msg.n_tokens, &msg);
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 3);
	rig_cancel(&rig->client, 1, &request);
	rig_wait(&rig->client, rig->results, 1);
	struct engine_query *answer = asked(rig, ENGINE_QUERY_REQUESTS, 0);
	assert_int_equal(answer->n, 1);
	assert_int_equal(answer->requests[0].state, ENGINE_REQUEST_ENDING);
	const uint64_t id = answer->requests[0].id;
	engine_query_free(answer);
	answer = asked(rig, ENGINE_QUERY_CANCEL, id);
	assert_int_equal(answer->rc, -EALREADY);
	engine_query_free(answer);
	for (int i = 0; i < N_GATES; i++)
		atomic_store(&held.open[i], true);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
}

static struct rig_request name_buffer(struct rig *rig, uint32_t index)
{
	int32_t tokens[32];
	struct msg_generate msg = rig_greedy(rig_prompt("1+2=", tokens), 1);

	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS;
	msg.logits = (struct mimeo_place){.buffer = BUFFER};
	return rig_generate(&rig->client, index, tokens, msg.n_tokens, &msg);
}

/* A full completion ring keeps the engine from taking the entries before it hears of the close. */
static void test_close_takes_effect_behind_what_was_submitted_before(void **state)
{
	struct rig *rig = *state;
	struct ring *ring = &rig->client.region.ring;
	struct ring_cqe cqe;

	open_buffer(rig);
	for (int i = 0; i < N_GATES; i++)
		atomic_store(&held.open[i], true);
	for (uint32_t i = 0; i < RING_CQ_ENTRIES(RIG_ENTRIES); i++) {
		rig_submit(&rig->client, rig_call(&rig->client, 0, RING_OP_NOP, 0, 0));
		RIG_AWAIT(atomic_load(&ring->control->cq_tail) == i + 1);
	}
	rig_submit(&rig->client, name_buffer(rig, 1));
	assert_int_equal(engine_post_buffer_close(rig->engine, rig->client.port, BUFFER), 0);
	rig_submit(&rig->client, name_buffer(rig, 2));
	RIG_AWAIT(!atomic_load(&rig->engine->mailbox.waits));
	assert_false(take_buffer(rig));
	for (uint32_t i = 0; i < RING_CQ_ENTRIES(RIG_ENTRIES); i++) {
		assert_true(ring_cq_peek(ring, &cqe));
		ring_cq_advance(ring);
	}
	rig_wait(&rig->client, rig->results, 1);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[1].status, 0);
	assert_int_equal(rig->results[2].status, MIMEO_E_UNKNOWN_BUFFER);
	RIG_AWAIT(take_buffer(rig));
}

static void test_buffer_is_busy_until_two_launched_steps_that_name_it_have_ended(void **state)
{
	check_fence(*state, 0);
}

static void test_buffer_is_busy_until_the_last_launched_step_that_names_it_has_ended(void **state)
{
	check_fence(*state, 1);
}

#define BUFFER_TEST(test)                                                                          \
	{#test, test, rig_setup, open_gates,                                                       \
		&(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .on_device = hold_lane}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BUFFER_TEST(test_close_takes_effect_behind_what_was_submitted_before),
		BUFFER_TEST(test_buffer_is_busy_until_two_launched_steps_that_name_it_have_ended),
		BUFFER_TEST(test_buffer_is_busy_until_the_last_launched_step_that_names_it_has_ended),
		BUFFER_TEST(test_operator_is_told_that_a_request_ends_already),
	};

	return cmocka_run_group_tests_name("engine buffers", tests, NULL, NULL);
}
