/* SPDX-License-Identifier: MIT */
/* Models that are loaded and unloaded while the engine serves. */
#include "tests/daemon/rig.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

/* ---- what the device has given out ---- */

static struct {
	const struct device_ops *real;
	struct device_ops ops;
	_Atomic int64_t n_blocks, mapped_bytes, n_graphs, n_objects;
	_Atomic int64_t alloc_fails_at; /* the allocation that fails; 0: none */
} count;

#define COUNT_ALLOC(name)                                                                          \
	static int count_##name(struct device *device, size_t bytes, void **ret)                   \
	{                                                                                          \
		int rc = atomic_load(&count.alloc_fails_at) &&                                     \
				 atomic_fetch_sub(&count.alloc_fails_at, 1) == 1                  \
			? DEVICE_E_MEMORY : count.real->name(device, bytes, ret);                  \
		count.n_blocks += !rc;                                                             \
		return rc;                                                                         \
	}
#define COUNT_FREE(name)                                                                           \
	static void count_##name(struct device *device, void *memory)                              \
	{                                                                                          \
		count.n_blocks -= memory != NULL;                                                  \
		count.real->name(device, memory);                                                  \
	}
COUNT_ALLOC(mem_alloc)
COUNT_FREE(mem_free)
COUNT_ALLOC(host_alloc)
COUNT_FREE(host_free)

static int count_map(struct device *device, void *range, size_t offset, size_t bytes)
{
	int rc = count.real->map(device, range, offset, bytes);

	count.mapped_bytes += rc ? 0 : (int64_t)bytes;
	return rc;
}

static int count_unmap(struct device *device, void *range, size_t offset, size_t bytes)
{
	count.mapped_bytes -= (int64_t)bytes;
	return count.real->unmap(device, range, offset, bytes);
}

static int count_reserve(struct device *device, size_t bytes, void **ret, size_t *ret_granularity)
{
	int rc = count.real->reserve(device, bytes, ret, ret_granularity);

	count.n_objects += !rc;
	return rc;
}

static void count_release(struct device *device, void *range, size_t bytes)
{
	count.n_objects--;
	count.real->release(device, range, bytes);
}

static int count_stream_new(struct device *device, struct stream **ret)
{
	int rc = count.real->stream_new(device, ret);

	count.n_objects += !rc;
	return rc;
}

static void count_stream_free(struct stream *stream)
{
	count.n_objects--;
	count.real->stream_free(stream);
}

static int count_event_new(struct device *device, struct event **ret)
{
	int rc = count.real->event_new(device, ret);

	count.n_objects += !rc;
	return rc;
}

static void count_event_free(struct event *event)
{
	count.n_objects--;
	count.real->event_free(event);
}

static int count_graph_instantiate(struct device *device, struct graph *graph, struct graph_exec **ret)
{
	int rc = count.real->graph_instantiate(device, graph, ret);

	count.n_graphs += !rc;
	return rc;
}

static void count_graph_exec_free(struct graph_exec *exec)
{
	count.n_graphs--;
	count.real->graph_exec_free(exec);
}

static void count_device(struct device *device)
{
	memset(&count, 0, sizeof(count));
	count.real = device->ops;
	count.ops = *device->ops;
	count.ops.mem_alloc = count_mem_alloc;
	count.ops.mem_free = count_mem_free;
	count.ops.host_alloc = count_host_alloc;
	count.ops.host_free = count_host_free;
	count.ops.map = count_map;
	count.ops.unmap = count_unmap;
	count.ops.reserve = count_reserve;
	count.ops.release = count_release;
	count.ops.stream_new = count_stream_new;
	count.ops.stream_free = count_stream_free;
	count.ops.event_new = count_event_new;
	count.ops.event_free = count_event_free;
	count.ops.graph_instantiate = count_graph_instantiate;
	count.ops.graph_exec_free = count_graph_exec_free;
	device->ops = &count.ops;
}

struct held {
	int64_t n_blocks, mapped_bytes, n_graphs, n_objects;
	uint32_t n_fds;
};

static uint32_t entries_of(const char *folder)
{
	DIR *dir = opendir(folder);
	uint32_t n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static struct held held_now(void)
{
	return (struct held){
		count.n_blocks, count.mapped_bytes, count.n_graphs, count.n_objects, entries_of("/proc/self/fd")};
}

static void assert_held(struct held expected)
{
	const struct held now = held_now();

	assert_int_equal(now.n_blocks, expected.n_blocks);
	assert_int_equal(now.mapped_bytes, expected.mapped_bytes);
	assert_int_equal(now.n_graphs, expected.n_graphs);
	assert_int_equal(now.n_objects, expected.n_objects);
	assert_int_equal(now.n_fds, expected.n_fds);
}

/* ---- requests ---- */

static struct rig_request ask_of(
	struct rig_client *client, uint32_t index, uint32_t model, const char *text, uint32_t max_tokens)
{
	int32_t tokens[64];
	const uint32_t n = rig_prompt(text, tokens);
	struct msg_generate msg = rig_greedy(n, max_tokens);

	msg.model = model;
	return rig_generate(client, index, tokens, n, &msg);
}

static void assert_answers(struct rig_client *client, uint32_t model)
{
	struct rig_request request = ask_of(client, 0, model, "347+586=", 40);
	struct rig_result result = rig_must(client, request);

	rig_assert_text(client, &request, &result, "933");
}

/* ---- loading ---- */

static void test_a_loaded_model_answers_by_its_own_graphs_beside_the_first(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct engine_model_facts facts;
	struct engine_graph_facts graph;
	uint64_t n_replays = 0;

	assert_answers(client, id);
	assert_answers(client, 0);
	engine_model_facts(rig->engine, engine_find_model(rig->engine, id), &facts);
	assert_true(facts.n_tokens_out > 0);
	assert_int_equal(facts.n_ready, facts.n_graphs);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, engine_find_model(rig->engine, id), i, &graph); i++)
		n_replays += graph.n_replays;
	assert_true(n_replays > 0);
	rig_unload(rig, id);
}

static void test_a_session_from_before_the_load_is_refused_the_new_model(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_request request = ask_of(&rig->client, 0, id, "1+1=", 4);

	rig_expect(&rig->client, &request,
		(struct rig_expected){MIMEO_E_UNKNOWN_MODEL, RING_DETAIL_MODEL, (int32_t)id, (int32_t)id});
	rig_unload(rig, id);
}

static void test_memory_is_refused_to_others_while_a_model_is_set_up(void **state)
{
	struct rig *rig = *state;
	const struct device_ops *ops = rig->device->ops;
	void *memory;

	assert_int_equal(ops->mem_alloc(rig->device, 256, &memory), DEVICE_E_LOCKED);
	ops->lift_lock(rig->device, true);
	assert_int_equal(ops->mem_alloc(rig->device, 256, &memory), 0);
	ops->mem_free(rig->device, memory);
	ops->lift_lock(rig->device, false);
	assert_int_equal(ops->mem_alloc(rig->device, 256, &memory), DEVICE_E_LOCKED);
}

static void order(struct rig *rig, enum engine_graph_order what, uint32_t model, uint32_t n_ready)
{
	const struct engine_graphs_order order = {.order = what, .model = model, .graph = ENGINE_ALL};
	struct engine_model_facts facts;

	assert_int_equal(engine_post_graphs(rig->engine, &order), 0);
	do {
		engine_model_facts(rig->engine, engine_find_model(rig->engine, model), &facts);
		rig_pause();
	} while (facts.n_ready != n_ready || atomic_load(&engine_stats(rig->engine)->n_graph_orders));
}

/* The lane has the workspaces of its eager steps and captures. */
static void test_a_loaded_models_graphs_are_dropped_and_captured_like_others(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct engine_model_facts facts;

	engine_model_facts(rig->engine, engine_find_model(rig->engine, id), &facts);
	order(rig, ENGINE_GRAPH_DROP, id, 0);
	assert_answers(client, id);
	order(rig, ENGINE_GRAPH_CAPTURE, id, facts.n_graphs);
	assert_answers(client, id);
	rig_unload(rig, id);
}

static void test_a_model_is_unloaded_while_its_graphs_are_captured(void **state)
{
	struct rig *rig = *state;

	for (unsigned i = 0; i < 8; i++) {
		const uint32_t id = rig_load(rig);
		const struct engine_graphs_order order = {
			.order = i % 2 ? ENGINE_GRAPH_DROP : ENGINE_GRAPH_CAPTURE, .model = id, .graph = ENGINE_ALL};

		assert_int_equal(engine_post_graphs(rig->engine, &order), 0);
		if (i > 3)
			rig_pause();
		rig_unload(rig, id);
	}
	assert_answers(&rig->client, 0);
}

static void test_a_model_is_loaded_with_its_draft(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct engine_model_facts facts;

	for (unsigned i = 0; i < 4; i++)
		assert_answers(client, id);
	engine_model_facts(rig->engine, engine_find_model(rig->engine, id), &facts);
	assert_int_equal(facts.n_drafts, 3);
	assert_true(facts.speculation.n_rows > 0);
	assert_int_equal(facts.n_ready, facts.n_graphs);
	rig_unload(rig, id);
}

/* Every allocation of a load fails once. */
static void test_a_load_that_fails_leaves_nothing(void **state)
{
	struct rig *rig = *state;
	const struct device_ops *ops = rig->device->ops;
	struct held before;
	uint32_t n_failed = 0;
	int rc;

	rig_unload(rig, rig_load(rig)); /* workspaces grow once */
	before = held_now();
	do {
		struct engine_model_options options = rig->engine->options.models[0];
		struct model_error error = {0};
		struct model_config config;
		struct runner *runner = NULL;

		assert_int_equal(model_config_load(rig_source("examples/models/tinycalc"), &config, &error), 0);
		ops->lift_lock(rig->device, true);
		count.alloc_fails_at = n_failed + 1;
		options.model = NULL;
		rc = model_load(rig->device, rig_source("examples/models/tinycalc"), &config, options.max_seq_len, NULL,
			NULL, &options.model, &error);
		if (!rc)
			rc = engine_model_new(rig->engine, &options, &runner, &error);
		count.alloc_fails_at = 0;
		ops->lift_lock(rig->device, false);
		model_config_deinit(&config);
		engine_model_free(runner);
		assert_true(!rc || error.text[0]);
		assert_held(before);
		n_failed++;
	} while (rc);
	assert_true(n_failed > 4);
	assert_answers(&rig->client, 0);
}

/* ---- unloading ---- */

static void test_requests_on_an_unloaded_model_end_once_and_others_go_on(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct rig_result results[RIG_ENTRIES] = {{0}};
	struct rig_request requests[24];

	rig_gate_close(rig);
	for (uint32_t i = 0; i < 24; i++) {
		requests[i] = ask_of(client, i, i % 2 ? 0 : id, "347+586=", 40);
		rig_submit(client, requests[i]);
		if (!i)
			rig_wait_steps(rig, 1);
	}
	RIG_AWAIT(engine_stats(rig->engine)->n_running == 24);
	assert_int_equal(engine_post_unload(rig->engine, id), 0);
	rig->options.n_models--;
	for (uint32_t i = 0; i < 24; i += 2) {
		rig_wait(client, results, i);
		assert_int_equal(results[i].status, MIMEO_E_UNKNOWN_MODEL);
		assert_int_equal(results[i].detail, RING_DETAIL_UNLOADED);
		assert_int_equal(results[i].finish, MIMEO_FINISH_ERROR);
	}
	/* launched steps still name it */
	assert_null(engine_model_take(rig->engine));
	rig_gate_open(rig);
	for (uint32_t i = 1; i < 24; i += 2) {
		rig_wait(client, results, i);
		rig_assert_text(client, &requests[i], &results[i], "933");
	}
	struct runner *model;
	RIG_AWAIT((model = engine_model_take(rig->engine)));
	engine_model_free(model);
	rig_expect(client, &requests[0],
		(struct rig_expected){MIMEO_E_UNKNOWN_MODEL, RING_DETAIL_UNLOADED, (int32_t)id});
}

static uint32_t unload_under_requests(struct rig *rig)
{
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct rig_result results[RIG_ENTRIES] = {{0}};

	for (uint32_t i = 0; i < 4; i++)
		rig_submit(client, ask_of(client, i, id, "count FROM 1\n", 200));
	rig_wait_steps(rig, atomic_load(&engine_stats(rig->engine)->n_steps) + 1);
	rig_unload(rig, id);
	for (uint32_t i = 0; i < 4; i++)
		rig_wait(client, results, i);
	return id;
}

/* A scribbled or freed name is what a sanitizer or the comparison finds. */
static void test_log_and_trace_name_a_model_that_is_gone(void **state)
{
	struct rig *rig = *state;
	struct request_log *log = engine_request_log(rig->engine);
	struct trace *trace = engine_trace(rig->engine);
	struct request_record record;
	uint64_t first, end;
	uint32_t id, n_records = 0, n_requests = 0, n_steps = 0;

	atomic_store(&log->on, true);
	assert_int_equal(trace_start(trace), 0);
	id = unload_under_requests(rig);
	trace_stop(trace);
	while (request_log_take(log, &record)) {
		assert_memory_equal(record.model, "loaded-", 7);
		assert_string_equal(record.model, engine_model_name(rig->engine, id));
		n_records++;
	}
	assert_int_equal(n_records, 4);
	trace_range(trace, &first, &end);
	for (uint64_t i = first; i < end; i++) {
		const struct trace_event *event = &trace->events[i % TRACE_EVENTS];

		n_requests += event->kind == TRACE_REQUEST && event->model == id;
		n_steps += event->kind == TRACE_STEP && event->model == id;
	}
	assert_int_equal(n_requests, 4);
	assert_true(n_steps > 0);
}

static void test_sequences_of_an_unloaded_model_can_be_closed_alone(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *client = rig_other(rig, RIG_ENTRIES);
	struct rig_request request;
	int32_t tokens[64];
	const uint32_t n = rig_prompt("347+586=", tokens);
	struct msg_generate msg = rig_greedy(n, 40);

	rig_ok(client, 0, RING_OP_OPEN, 1, id);
	rig_ok(client, 0, RING_OP_OPEN, 2, 0);
	msg.model = id;
	msg.sequence = 1;
	rig_must(client, rig_generate(client, 1, tokens, n, &msg));
	rig_unload(rig, id);
	request = rig_call(client, 2, RING_OP_FORK, 1, 3);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_UNKNOWN_MODEL);
	request = rig_call(client, 2, RING_OP_TRUNCATE, 1, 0);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_UNKNOWN_MODEL);
	request = rig_call(client, 2, RING_OP_OPEN, 3, id);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_UNKNOWN_MODEL);
	msg.model = 0;
	request = rig_generate(client, 2, tokens, n, &msg);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_INVALID);
	rig_ok(client, 2, RING_OP_CLOSE, 1, 0);
	rig_ok(client, 2, RING_OP_OPEN, 1, 0);
	assert_answers(client, 0);
}

/* More than one turn does. */
static void test_all_sessions_forget_an_unloaded_model(void **state)
{
	struct rig *rig = *state;
	const uint32_t id = rig_load(rig);
	struct rig_client *clients[4];
	int32_t tokens[64];
	const uint32_t n = rig_prompt("347+586=", tokens);
	struct msg_generate msg = rig_greedy(n, 40);

	msg.model = id;
	msg.sequence = 32;
	for (unsigned i = 0; i < 4; i++) {
		clients[i] = rig_other(rig, RIG_ENTRIES);
		rig_ok(clients[i], 0, RING_OP_OPEN, 32, id);
		rig_must(clients[i], rig_generate(clients[i], 1, tokens, n, &msg));
	}
	rig_unload(rig, id);
	for (unsigned i = 0; i < 4; i++) {
		const struct engine_session *session = clients[i]->port->engine_private;

		for (uint32_t j = 0; j < engine_session_n_sequences(session); j++)
			assert_true(!session->sequences[j].runner || session->sequences[j].runner == rig->runner);
		for (uint32_t j = 0; j < session->n_requests; j++)
			assert_true(!session->requests[j].runner || session->requests[j].runner == rig->runner);
		rig_ok(clients[i], 2, RING_OP_CLOSE, 32, 0);
		assert_answers(clients[i], 0);
	}
}

static void test_the_last_model_may_go_and_another_come(void **state)
{
	struct rig *rig = *state;
	static struct runner gone; /* what rig_requests.c asks for its length */
	struct rig_client *client;
	struct rig_request request;

	gone.options.max_seq_len = rig->runner->options.max_seq_len;
	rig->runner = &gone;
	rig_unload(rig, 0);
	assert_int_equal(engine_n_models(rig->engine), 0);
	client = rig_other(rig, RIG_ENTRIES);
	request = ask_of(client, 0, 0, "1+1=", 4);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_UNKNOWN_MODEL);
	request = rig_call(client, 0, RING_OP_OPEN, 1, 0);
	assert_int_equal(rig_do(client, request).status, MIMEO_E_UNKNOWN_MODEL);
	const uint32_t id = rig_load(rig);
	client = rig_other(rig, RIG_ENTRIES);
	assert_answers(client, id);
}

/* Ids are not used twice: a session that knows an old one never reaches another model by it. */
static void test_an_id_is_never_given_to_a_second_model(void **state)
{
	struct rig *rig = *state;
	const uint32_t first = rig_load(rig);

	rig_unload(rig, first);
	const uint32_t second = rig_load(rig);
	assert_true(second > first);
	assert_int_equal(engine_post_unload(rig->engine, first), -ENOENT);
	rig_unload(rig, second);
}

/* ---- again and again ---- */

struct stream_of {
	struct rig_request request;
	int32_t tokens[256];
};

static void generate_all(struct rig_client *client, struct stream_of *ret)
{
	ret->request = rig_endless(client, 40, 0, 200);
	rig_must(client, ret->request);
	memcpy(ret->tokens, rig_tokens(client, &ret->request), 200 * sizeof(ret->tokens[0]));
}

static void test_models_come_and_go_beside_tokens_that_stay_the_same(void **state)
{
	struct rig *rig = *state;
	const char *rounds = getenv("MIMEO_LOADS");
	const uint32_t n = rounds ? (uint32_t)strtoul(rounds, NULL, 10) : 20;
	static struct stream_of alone, beside;
	struct rig_result results[RIG_ENTRIES] = {{0}};
	struct held before;
	uint32_t pages;

	generate_all(&rig->client, &alone);
	rig_unload(rig, rig_load(rig)); /* workspaces grow once */
	pages = rig_pages_free(rig, 0);
	before = held_now();
	for (uint32_t i = 0; i < n; i++) {
		beside.request = rig_endless(&rig->client, 40, 0, 200);
		rig_submit(&rig->client, beside.request);
		struct runner *model = rig_make_model(rig);
		assert_int_equal(engine_post_load(rig->engine, model), 0);
		rig->options.n_models++;
		if (i % 4 == 0) {
			struct rig_client *client = &rig->others[0];

			rig_attach(rig, client, 16);
			assert_answers(client, model->id);
			rig_submit(client, ask_of(client, 1, model->id, "count FROM 1\n", 100));
			rig_unload(rig, model->id);
			rig_detach(client);
			client->port = NULL;
		} else {
			rig_unload(rig, model->id);
		}
		results[40] = (struct rig_result){0};
		rig_wait(&rig->client, results, 40);
		assert_int_equal(results[40].status, 0);
		assert_memory_equal(
			rig_tokens(&rig->client, &beside.request), alone.tokens, 200 * sizeof(alone.tokens[0]));
		assert_held(before);
	}
	assert_int_equal(rig_pages_free(rig, 0), pages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define LOAD_TEST(test) RIG_TEST(test, .mode = GRAPH_FULL_AND_PIECEWISE, .on_device = count_device)
		LOAD_TEST(test_a_loaded_model_answers_by_its_own_graphs_beside_the_first),
		LOAD_TEST(test_a_session_from_before_the_load_is_refused_the_new_model),
		LOAD_TEST(test_memory_is_refused_to_others_while_a_model_is_set_up),
		LOAD_TEST(test_a_loaded_models_graphs_are_dropped_and_captured_like_others),
		LOAD_TEST(test_a_model_is_unloaded_while_its_graphs_are_captured),
		RIG_TEST(test_a_model_is_unloaded_while_its_graphs_are_captured, .mode = GRAPH_FULL_AND_PIECEWISE,
			.lazy_capture = true),
		RIG_TEST(test_a_model_is_loaded_with_its_draft, .mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = 3),
		LOAD_TEST(test_a_load_that_fails_leaves_nothing),
		LOAD_TEST(test_requests_on_an_unloaded_model_end_once_and_others_go_on),
		LOAD_TEST(test_log_and_trace_name_a_model_that_is_gone),
		LOAD_TEST(test_sequences_of_an_unloaded_model_can_be_closed_alone),
		LOAD_TEST(test_all_sessions_forget_an_unloaded_model),
		LOAD_TEST(test_the_last_model_may_go_and_another_come),
		LOAD_TEST(test_an_id_is_never_given_to_a_second_model),
		LOAD_TEST(test_models_come_and_go_beside_tokens_that_stay_the_same),
	};
	static const struct test_cpu_only only[] = {
		{NULL, NULL},
	};

	return TEST_RUN_GROUP("engine load", tests, only, NULL, NULL);
}
