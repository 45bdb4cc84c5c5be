/* SPDX-License-Identifier: MIT */
/* Graphs that are captured and dropped while requests run. */
#include "tests/daemon/rig.h"

#include <unistd.h>

#define VOCAB 256
#define PATIENCE_MS 20000

static const struct rig_options lazy = {.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true};

/* ---- what is there ---- */

static uint32_t count_graphs(struct rig *rig, const char *state)
{
	struct engine_graph_facts facts;
	uint32_t n = 0;

	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		n += !state || strcmp(facts.state, state) == 0;
	return n;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void await_graphs(struct rig *rig, const char *state, uint32_t n)
{
	RIG_AWAIT(count_graphs(rig, state) == n);
}

/* Nothing is being captured or dropped. */
static void await_rest(struct rig *rig)
{
	await_graphs(rig, "wanted", 0);
	await_graphs(rig, "building", 0);
	await_graphs(rig, "dropping", 0);
}

static uint64_t n_uncaptured(struct rig *rig)
{
	return atomic_load(&engine_stats(rig->engine)->n_eager[EAGER_NOT_CAPTURED]);
}

static uint64_t n_replays(struct rig *rig)
{
	return atomic_load(&engine_stats(rig->engine)->n_replays);
}

static void order(struct rig *rig, enum engine_graph_order what, uint32_t graph)
{
	const struct engine_graphs_order o = {what, ENGINE_ALL, graph};

	assert_int_equal(engine_post_graphs(rig->engine, &o), 0);
}

static uint32_t index_of(struct rig *rig, const char *name, struct engine_graph_facts *ret)
{
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, ret); i++) {
		if (strcmp(ret->name, name) == 0)
			return i;
	}
	fail_msg("no graph is called %s", name);
	return 0;
}

/* ---- lazy capture ---- */

static void test_lazily_a_batch_runs_eager_until_its_graph_is_there(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	uint64_t uncaptured, replays;

	assert_int_equal(count_graphs(rig, "empty"), count_graphs(rig, NULL));
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	assert_true(n_uncaptured(rig) > 0);
	await_rest(rig);
	/* the prompt's and the decodes' */
	assert_int_equal(count_graphs(rig, "ready"), 2);
	uncaptured = n_uncaptured(rig);
	replays = n_replays(rig);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	assert_int_equal(n_uncaptured(rig), uncaptured);
	assert_true(n_replays(rig) > replays);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		assert_int_equal(facts.n_captures, strcmp(facts.state, "ready") == 0);
	assert_int_equal(engine_stats(rig->engine)->n_late_captures, 2);
}

/* ---- memory ---- */

static void test_graph_dropped_for_memory_is_captured_again_when_a_step_wants_it(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	uint32_t n;

	n = count_graphs(rig, NULL);
	assert_int_equal(count_graphs(rig, "ready"), n);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	/* What was replayed a moment ago stays, however often memory is short ... */
	for (int i = 0; i < 3; i++)
		assert_int_equal(engine_post_relieve(rig->engine), 0);
	await_graphs(rig, "ready", 2);
	await_rest(rig);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	assert_int_equal(n_uncaptured(rig), 0);
	/* ... and goes when it is a generation old. */
	rig->engine->lane.late.generation_ns = 1000000;
	for (int i = 0; i < 5; i++)
		nap();
	assert_int_equal(engine_post_relieve(rig->engine), 0);
	await_graphs(rig, "empty", n);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	assert_true(n_uncaptured(rig) > 0);
	await_graphs(rig, "ready", 2);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	index_of(rig, "FULL 1x1", &facts);
	assert_int_equal(facts.n_captures, 2);
	assert_int_equal(facts.n_drops, 1);
	index_of(rig, "FULL 16x1", &facts);
	assert_int_equal(facts.n_captures, 1);
	assert_int_equal(facts.bytes, 0);
}

/* Generations are so long that now is in the fourth. */
static void test_graph_stays_for_the_generation_after_its_last_replay(void **state)
{
	struct rig *rig = *state;
	struct graph_set *graphs;
	uint64_t now;

	graphs = &rig->engine->runners.all[0]->graphs;
	now = clock_ns();
	rig->engine->lane.late.generation_ns = now / 4;
	for (uint32_t i = 0; i < graphs->n; i++)
		graphs->entries[i].used_ns = now - (1 + i % 2) * (now / 4);
	assert_int_equal(engine_post_relieve(rig->engine), 0);
	await_graphs(rig, "empty", graphs->n / 2);
	await_rest(rig);
	for (uint32_t i = 0; i < graphs->n; i++)
		assert_int_equal(graph_entry_state(&graphs->entries[i]),
			i % 2 ? GRAPH_EMPTY : GRAPH_READY);
}

static int (*real_export)(struct device *, size_t, void **, struct device_handle *);
static _Atomic uint32_t n_refusals;

static int export_without_memory(
	struct device *device, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	if (atomic_fetch_add(&n_refusals, 1) == 0)
		return DEVICE_E_MEMORY;
	return real_export(device, bytes, ret, ret_handle);
}

static void test_memory_for_a_buffer_is_had_by_dropping_idle_graphs(void **state)
{
	struct rig *rig = *state;
	struct builder_job job = {.thing = NULL}, *done;
	struct builder_thing *thing = calloc(1, sizeof(*thing));
	const struct device_ops *ops;
	struct device_ops scarce;

	assert_non_null(thing);
	ops = rig->device->ops;
	scarce = *ops;
	real_export = ops->export_alloc;
	scarce.export_alloc = export_without_memory;
	rig->device->ops = &scarce;
	atomic_store(&n_refusals, 0);
	*thing = (struct builder_thing){.kind = BUILDER_EXPORT, .bytes = 4096};
	job.thing = thing;
	builder_post(rig->builder, &job);
	RIG_AWAIT((done = builder_take(rig->builder)) != NULL);
	assert_ptr_equal(done, &job);
	assert_int_equal(job.rc, 0);
	assert_int_equal(atomic_load(&n_refusals), 2);
	/* None had been replayed: when the memory was there, all of them had gone. */
	assert_int_equal(count_graphs(rig, "empty"), count_graphs(rig, NULL));
	rig->device->ops = ops;
	if (job.handle.fd >= 0)
		close(job.handle.fd);
	builder_close(rig->builder, thing);
}

/* ---- captures that fail ---- */

static const struct device_ops *real;
static struct device_ops failing;
static _Atomic int failure;      /* what instantiating answers; 0: what the device does */
static _Atomic int begin_failure; /* the same of the beginning of a recording */
static _Atomic uint32_t n_tries;

static int failing_instantiate(
	struct device *device, struct graph *graph, struct graph_exec **ret)
{
	int rc = atomic_load(&failure);

	atomic_fetch_add(&n_tries, 1);
	return rc ? rc : real->graph_instantiate(device, graph, ret);
}

static int failing_begin(struct stream *stream)
{
	int rc = atomic_load(&begin_failure);

	return rc ? rc : real->capture_begin(stream);
}

static int failing_status(struct device *device)
{
	if (atomic_load(&failure) == DEVICE_E_LOST || atomic_load(&begin_failure) == DEVICE_E_LOST)
		return DEVICE_E_LOST;
	return real->status(device);
}

static void make_failing(struct device *device)
{
	real = device->ops;
	failing = *real;
	failing.graph_instantiate = failing_instantiate;
	failing.capture_begin = failing_begin;
	failing.status = failing_status;
	device->ops = &failing;
	atomic_store(&failure, 0);
	atomic_store(&begin_failure, 0);
	atomic_store(&n_tries, 0);
}

#define FAILING .mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true, .on_device = make_failing

static const struct rig_options failing_options = {FAILING};

static void test_capture_without_memory_is_tried_again_by_a_later_step(void **state)
{
	struct rig *rig = *state;

	atomic_store(&failure, DEVICE_E_MEMORY);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	await_rest(rig);
	assert_int_equal(count_graphs(rig, "empty"), count_graphs(rig, NULL));
	assert_int_equal(atomic_load(&n_tries), 2);
	/* not at once */
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	await_rest(rig);
	assert_int_equal(atomic_load(&n_tries), 2);
	atomic_store(&failure, 0);
	for (int ms = 0; count_graphs(rig, "ready") < 2; ms += 10) {
		assert_true(ms < PATIENCE_MS);
		rig_assert_answer(&rig->client, 0, "9+8=", "17");
		await_rest(rig);
		nap();
	}
}

static void test_capture_that_the_device_refuses_is_failed_until_it_is_ordered(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	uint32_t index;

	atomic_store(&failure, DEVICE_E_INVALID);
	for (int i = 0; i < 3; i++) {
		rig_assert_answer(&rig->client, 0, "9+8=", "17");
		await_rest(rig);
		assert_int_equal(count_graphs(rig, "failed"), 2);
		assert_int_equal(atomic_load(&n_tries), 2);
	}
	index = index_of(rig, "FULL 1x1", &facts);
	assert_int_equal(facts.n_captures, 0);
	assert_int_equal(facts.n_drops, 0);
	atomic_store(&failure, 0);
	order(rig, ENGINE_GRAPH_CAPTURE, index);
	await_graphs(rig, "ready", 1);
	order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
	await_graphs(rig, "empty", count_graphs(rig, NULL));
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	await_graphs(rig, "ready", 2);
}

static void test_ordered_capture_without_memory_is_failed(void **state)
{
	struct rig *rig = *state;

	atomic_store(&failure, DEVICE_E_MEMORY);
	for (int i = 0; i < 3; i++) {
		order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
		await_graphs(rig, "failed", count_graphs(rig, NULL));
		await_rest(rig);
	}
	atomic_store(&failure, 0);
	order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
	await_graphs(rig, "ready", count_graphs(rig, NULL));
}

/* ---- captures that lose the device ---- */

static void assert_lost(struct rig *rig)
{
	struct engine_report report = rig_report(rig, ENGINE_DEVICE_LOST);
	struct rig_result result;

	assert_null(report.port);
	assert_non_null(strstr(report.text, device_strerror(DEVICE_E_LOST)));
	assert_int_equal(engine_stats(rig->engine)->device_condition, DEVICE_E_LOST);
	/* The report may come before the end of the turn. */
	await_graphs(rig, "building", 0);
	assert_int_equal(count_graphs(rig, "ready"), 0);
	result = rig_do(&rig->client, rig_ask_text(&rig->client, 0, 0, "9+8="));
	assert_int_equal(result.status, MIMEO_E_DEVICE_LOST);
	assert_false(engine_report_take(rig->engine, &report));
	assert_int_equal(rig->n_reports, 0);
}

/* The first step wants a graph. More than one round where the builder is not scheduled in the time of
 * one. */
static void lose_under_requests(struct rig *rig, _Atomic int *at)
{
	struct rig_client *clients[] = {&rig->client, rig_other(rig, 16)};
	struct rig_result results[2][2];
	uint32_t n_lost = 0;

	atomic_store(at, DEVICE_E_LOST);
	for (int round = 0; n_lost == 0; round++) {
		assert_true(round < 100);
		memset(results, 0, sizeof(results));
		for (uint32_t i = 0; i < 4; i++)
			rig_submit(clients[i / 2], rig_endless(clients[i / 2], i % 2, 0, 300));
		for (uint32_t i = 0; i < 4; i++) {
			rig_wait(clients[i / 2], results[i / 2], i % 2);
			n_lost += results[i / 2][i % 2].status == MIMEO_E_DEVICE_LOST;
			if (n_lost == 0)
				assert_int_equal(results[i / 2][i % 2].status, 0);
		}
	}
	/* They run together, and none ends before its limit but by the loss. */
	for (uint32_t i = 0; i < 4; i++) {
		const struct rig_result *result = &results[i / 2][i % 2];

		assert_int_equal(result->status, MIMEO_E_DEVICE_LOST);
		assert_int_equal(result->finish, MIMEO_FINISH_ERROR);
		assert_true(result->n_generated < 300);
	}
	assert_lost(rig);
}

static void test_device_lost_in_recording_ends_each_request_once_as_failed(void **state)
{
	lose_under_requests(*state, &begin_failure);
}

static void test_device_lost_in_instantiating_ends_each_request_once_as_failed(void **state)
{
	lose_under_requests(*state, &failure);
}

static void test_device_lost_in_an_ordered_capture_is_reported_while_nobody_asks(void **state)
{
	_Atomic int *const places[] = {&begin_failure, &failure};
	struct rig rig;

	/* With no step in flight, only the capture meets the loss. */
	for (int i = 0; i < 2; i++) {
		rig_open_client(&rig, &failing_options);
		atomic_store(places[i], DEVICE_E_LOST);
		order(&rig, ENGINE_GRAPH_CAPTURE, 0);
		assert_lost(&rig);
		rig_close(&rig);
	}
}

/* ---- dropping ---- */

/* Logits of one step over sequences 1 ... n, each one token longer than before. */
static void step_logits(struct rig_client *client, uint32_t n, float *ret)
{
	const struct msg_output layout = msg_output_layout(0, n, VOCAB, 0, 128);
	struct rig_request request = rig_decode(client, n, MIMEO_STEP_LOGITS);

	rig_must(client, request);
	memcpy(ret, rig_logits(client, &request, &layout), n * VOCAB * sizeof(float));
}

static void test_dropping_graphs_leaves_what_they_shared_intact(void **state)
{
	struct rig *rig = *state;
	static float before[3][2 * VOCAB], after[3][2 * VOCAB];
	static const char *const dropped[] = {"FULL 16x1", "FULL 1x1", "PIECEWISE 64"};
	struct engine_graph_facts facts;

	for (int round = 0; round < 2; round++) {
		rig_open_histories(&rig->client, 2, "count 3 ");
		for (int i = 0; i < 3; i++) {
			if (round)
				order(rig, ENGINE_GRAPH_DROP, index_of(rig, dropped[i], &facts));
			if (round)
				await_graphs(rig, "empty", (uint32_t)i + 1);
			step_logits(&rig->client, 2, round ? after[i] : before[i]);
		}
		rig_close_histories(&rig->client, 2);
	}
	assert_memory_equal(before, after, sizeof(before));
	index_of(rig, "FULL 2x1", &facts);
	assert_int_equal(facts.n_replays, 6);
	assert_int_equal(facts.n_captures, 1);
}

static void test_graph_in_the_lane_is_dropped_when_its_step_has_ended(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	struct rig_request request;

	rig_gate_close(rig);
	request = rig_ask_text(&rig->client, 0, 0, "9+8=");
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 2); /* the prompt's, and a decode's */
	order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
	await_graphs(rig, "dropping", 2);
	for (int i = 0; i < 20; i++)
		nap();
	assert_int_equal(count_graphs(rig, "dropping"), 2);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	rig_assert_text(&rig->client, &request, &rig->results[0], "17");
	rig_detach(&rig->client);
	await_rest(rig);
	index_of(rig, "FULL 1x1", &facts);
	assert_int_equal(facts.n_drops, 1);
}

/* ---- capturing beside requests ---- */

static void test_captures_beside_a_running_request_change_none_of_its_tokens(void **state)
{
	struct rig *rig = *state;
	static int32_t alone[300];
	struct rig_request request;
	uint32_t n;

	n = count_graphs(rig, NULL);
	/* More than one request where the builder is not scheduled in the time of one. */
	for (int round = 0; engine_stats(rig->engine)->n_late_captures < 2; round++) {
		assert_true(round < 100);
		request = rig_endless(&rig->client, 0, 0, 300);
		rig->results[0] = (struct rig_result){0};
		rig_submit(&rig->client, request);
		if (round == 1) {
			rig_wait_steps(rig, engine_stats(rig->engine)->n_steps + 3);
			order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
			order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
		}
		rig_wait(&rig->client, rig->results, 0);
		assert_int_equal(rig->results[0].n_generated, 300);
		if (!round)
			memcpy(alone, rig_tokens(&rig->client, &request), sizeof(alone));
		assert_memory_equal(alone, rig_tokens(&rig->client, &request), sizeof(alone));
	}
	/* The order came while they were being dropped: it holds. */
	await_graphs(rig, "ready", n);
	assert_true(engine_stats(rig->engine)->n_late_captures >= n);
	assert_true(engine_stats(rig->engine)->late_capture_ns > 0);
}

/* F1 */
static void test_graph_is_warmed_up_before_it_is_captured_again(void **state)
{
	struct rig *rig = *state;
	struct graph_set *graphs;

	graphs = &rig->engine->runners.all[0]->graphs;
	order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
	await_graphs(rig, "empty", graphs->n);
	order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
	await_graphs(rig, "ready", graphs->n);
	for (uint32_t i = 0; i < graphs->n; i++) {
		const struct graph_entry *entry = &graphs->entries[i];

		assert_int_equal(entry->warm_up.phase, ATTENTION_WARM_UP);
		assert_int_equal(entry->capture.phase, ATTENTION_CAPTURE);
		assert_non_null(entry->warm_up.metadata);
		assert_ptr_not_equal(entry->warm_up.metadata, entry->capture.metadata);
	}
}

static void test_drop_of_what_is_being_built_takes_effect_when_it_is_built(void **state)
{
	struct rig *rig = *state;
	uint32_t n;

	n = count_graphs(rig, NULL);
	for (int i = 0; i < 3; i++) {
		order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
		/* Or more: a test that is not scheduled may miss the moment. */
		RIG_AWAIT(count_graphs(rig, "ready") >= (n > 4 ? 4 : n));
		order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
		await_graphs(rig, "empty", n);
		await_rest(rig);
	}
}

/* A loop of the client's own: between its steps nothing runs. */
static void test_captures_take_a_share_of_the_time_while_requests_come(void **state)
{
	struct rig *rig = *state;
	uint64_t begin, taken = 0, last = 0;

	rig->engine->lane.late.quiet_ns = UINT64_MAX; /* however slow the loop is here */
	rig_open_histories(&rig->client, 1, "count 3 ");
	begin = clock_ns();
	order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
	for (uint32_t i = 0; count_graphs(rig, "ready") < count_graphs(rig, NULL); i++) {
		uint64_t now = atomic_load(&engine_stats(rig->engine)->late_capture_ns);
		static float logits[VOCAB];

		last = now == taken ? last : now - taken;
		taken = now;
		step_logits(&rig->client, 1, logits);
		if (i % 200 == 199) {
			rig_close_histories(&rig->client, 1);
			rig_open_histories(&rig->client, 1, "count 3 ");
		}
	}
	/* All but those seen last were paid back four times over. */
	assert_true(taken > last);
	assert_true(5 * (taken - last) <= clock_ns() - begin);
	rig_close_histories(&rig->client, 1);
}

static void test_order_taken_back_captures_nothing(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	rig_gate_close(rig);
	request = rig_ask_text(&rig->client, 0, 0, "9+8=");
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 1);
	order(rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
	await_graphs(rig, "wanted", count_graphs(rig, NULL));
	order(rig, ENGINE_GRAPH_DROP, ENGINE_ALL);
	await_graphs(rig, "wanted", 0);
	assert_int_equal(engine_stats(rig->engine)->n_late_captures, 0);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	rig_assert_text(&rig->client, &request, &rig->results[0], "17");
	rig_detach(&rig->client);
	await_rest(rig);
}

static void test_engine_can_end_while_graphs_are_wanted(void **state)
{
	struct rig rig;

	for (int i = 0; i < 5; i++) {
		rig_open(&rig, &lazy);
		order(&rig, ENGINE_GRAPH_CAPTURE, ENGINE_ALL);
		while (count_graphs(&rig, "ready") < (uint32_t)i)
			nap();
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(test_lazily_a_batch_runs_eager_until_its_graph_is_there,
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
		RIG_FULL_TEST(test_graph_dropped_for_memory_is_captured_again_when_a_step_wants_it),
		RIG_ENGINE_TEST(test_graph_stays_for_the_generation_after_its_last_replay,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_ENGINE_TEST(test_memory_for_a_buffer_is_had_by_dropping_idle_graphs,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_TEST(test_capture_without_memory_is_tried_again_by_a_later_step, FAILING),
		RIG_TEST(test_capture_that_the_device_refuses_is_failed_until_it_is_ordered, FAILING),
		RIG_TEST(test_ordered_capture_without_memory_is_failed, FAILING),
		RIG_TEST(test_device_lost_in_recording_ends_each_request_once_as_failed, FAILING),
		RIG_TEST(test_device_lost_in_instantiating_ends_each_request_once_as_failed, FAILING),
		cmocka_unit_test(test_device_lost_in_an_ordered_capture_is_reported_while_nobody_asks),
		RIG_FULL_TEST(test_dropping_graphs_leaves_what_they_shared_intact),
		RIG_FULL_TEST(test_graph_in_the_lane_is_dropped_when_its_step_has_ended),
		RIG_FULL_TEST(test_captures_beside_a_running_request_change_none_of_its_tokens),
		RIG_ENGINE_TEST(test_graph_is_warmed_up_before_it_is_captured_again,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_ENGINE_TEST(test_drop_of_what_is_being_built_takes_effect_when_it_is_built,
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
		RIG_TEST(test_captures_take_a_share_of_the_time_while_requests_come,
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
		RIG_TEST(test_order_taken_back_captures_nothing,
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
		cmocka_unit_test(test_engine_can_end_while_graphs_are_wanted),
	};

	return cmocka_run_group_tests_name("engine_late", tests, NULL, NULL);
}
