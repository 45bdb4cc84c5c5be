/* SPDX-License-Identifier: MIT */
/* mimeoctl trace over a fake engine's events. */
#include "harness.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/engine/trace.h"

static struct answer *trace(struct harness *harness, const char *what, uint64_t from)
{
	const struct ask ask = {.op = "trace", .setting = what, .request = from, .has_request = true};
	struct answer *answer;
	int fd = operator_connect(harness);

	assert_int_equal(ask_once(fd, &ask, &answer), 0);
	close(fd);
	return answer;
}

static int trace_status(struct harness *harness, const char *what, uint64_t from)
{
	struct answer *answer = trace(harness, what, from);
	int status = answer->status;

	answer_free(answer);
	return status;
}

/* The events of the answer to "read". */
static json_t *events_of(const struct answer *answer)
{
	static char text[1 << 21];
	json_error_t error;

	snprintf(text, sizeof(text), "[%s]", answer->text + (answer->text[0] == ','));
	json_t *events = json_loads(text, 0, &error);
	if (!events)
		fail_msg("no JSON: %s, line %d", error.text, error.line);
	return events;
}

/* The slice of that name; there is one alone. */
static const json_t *slice(const json_t *events, const char *name)
{
	const json_t *event, *found = NULL;
	size_t i;

	json_array_foreach(events, i, event)
	{
		if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0 ||
			strcmp(json_string_value(json_object_get(event, "name")), name) != 0)
			continue;
		assert_null(found);
		found = event;
	}
	if (!found)
		fail_msg("no %s", name);
	return found;
}

static double number(const json_t *event, const char *name)
{
	return json_number_value(json_object_get(event, name));
}

/* Two slices of a thread are nested or apart. */
static void assert_nested(const json_t *a, const json_t *b)
{
	const double begin = number(a, "ts"), end = begin + number(a, "dur");
	const double other = number(b, "ts"), other_end = other + number(b, "dur");

	if (number(a, "pid") != number(b, "pid") || number(a, "tid") != number(b, "tid"))
		return;
	if (end <= other || other_end <= begin)
		return;
	if (!(begin <= other && other_end <= end) && !(other <= begin && end <= other_end))
		fail_msg("slices of thread %.0f overlap: %f to %f, %f to %f", number(a, "tid"), begin, end, other,
			other_end);
}

static void assert_all_nested(const json_t *events)
{
	for (size_t i = 0; i < json_array_size(events); i++) {
		for (size_t j = 0; j < i; j++)
			assert_nested(json_array_get(events, i), json_array_get(events, j));
	}
}

static void assert_lasts(const json_t *event, double begin_us, double us)
{
	assert_true(json_number_value(json_object_get(event, "ts")) == begin_us);
	assert_true(json_number_value(json_object_get(event, "dur")) == us);
}

static json_int_t argument(const json_t *event, const char *name)
{
	return json_integer_value(json_object_get(json_object_get(event, "args"), name));
}

static void test_trace_has_steps_rows_and_lives_of_requests(void **state)
{
	struct harness *harness = *state;
	struct trace *events = engine_trace(harness->engine);

	assert_int_equal(trace_status(harness, "start", 0), 0);
	trace_put(events, &(struct trace_event){.kind = TRACE_STEP, .begin_ns = 5000, .end_ns = 9000,
		.middle_ns = {8000}, .id = 3, .name = "FULL", .model = 7, .values = {2, 7, 5, 1, 8, 4}});
	trace_put(events, &(struct trace_event){.kind = TRACE_ROW, .session = 4, .begin_ns = 5000, .end_ns = 11000,
		.id = 17, .name = "prompt", .values = {5, 3}});
	trace_put(events, &(struct trace_event){.kind = TRACE_SLEEP, .begin_ns = 5500, .end_ns = 8500});
	trace_put(events, &(struct trace_event){.kind = TRACE_REQUEST, .session = 4, .begin_ns = 1000, .end_ns = 20000,
		.middle_ns = {4000, 9500}, .id = 17, .name = "generate",
		.values = {5, 2, 6, (uint32_t)-MIMEO_E_DEADLINE, 0}});
	assert_int_equal(trace_status(harness, "stop", 0), 0);
	struct answer *answer = trace(harness, "read", 0);
	assert_int_equal(answer_count(answer, 0, "next", 0), 4);
	json_t *json = events_of(answer);
	assert_lasts(slice(json, "step"), 5, 4);
	assert_int_equal(argument(slice(json, "step"), "rows"), 2);
	assert_int_equal(argument(slice(json, "step"), "graph_tokens"), 8);
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(slice(json, "step"), "args"), "model")), "a\"b");
	assert_lasts(slice(json, "behind the results"), 8, 1);
	assert_all_nested(json); /* the row crosses the first token */
	assert_lasts(slice(json, "prompt"), 5, 6);
	assert_int_equal(json_integer_value(json_object_get(slice(json, "prompt"), "tid")), 35);
	assert_lasts(slice(json, "sleep"), 5.5, 3);
	assert_lasts(slice(json, "generate"), 1, 19);
	assert_int_equal(argument(slice(json, "generate"), "generated_tokens"), 6);
	assert_lasts(slice(json, "queue"), 1, 3);
	assert_lasts(slice(json, "first token"), 4, 5.5);
	assert_lasts(slice(json, "further tokens"), 9.5, 10.5);
	json_decref(json);
	answer_free(answer);
}

static void test_trace_keeps_the_last_events_and_counts_the_others(void **state)
{
	struct harness *harness = *state;
	struct trace *events = engine_trace(harness->engine);
	uint64_t at = 101, n = 0;

	assert_int_equal(trace_status(harness, "start", 0), 0);
	for (uint64_t i = 0; i < TRACE_EVENTS + 100; i++)
		trace_put(events, &(struct trace_event){.kind = TRACE_LAUNCH, .begin_ns = i, .end_ns = i, .id = i + 1});
	struct answer *answer = trace(harness, "stop", 0);
	assert_int_equal(answer_count(answer, 0, "first", 0), 101);
	assert_int_equal(answer_count(answer, 0, "lost", 0), 101);
	assert_int_equal(answer_count(answer, 0, "end", 0), TRACE_EVENTS + 100);
	answer_free(answer);
	while (at < TRACE_EVENTS + 100) {
		answer = trace(harness, "read", at);
		json_t *json = events_of(answer);
		const size_t size = json_array_size(json) - (at == 101 ? 3 : 0); /* less the names */

		assert_int_equal(argument(json_array_get(json, json_array_size(json) - 1), "step"), at + size);
		at = answer_count(answer, 0, "next", 0);
		n += size;
		json_decref(json);
		answer_free(answer);
	}
	assert_int_equal(n, TRACE_EVENTS - 1);
	/* Another trace begins where that one ended. */
	assert_int_equal(trace_status(harness, "start", 0), 0);
	assert_int_equal(trace_status(harness, "read", at), MIMEO_E_INVALID);
	assert_int_equal(trace_status(harness, "stop", 0), 0);
	assert_int_equal(trace_status(harness, "read", 101), MIMEO_E_INVALID);
	assert_int_equal(trace_status(harness, "read", at), 0);
}

/* The engine's thread may have seen the trace on just before. */
static void test_trace_ends_with_its_stop(void **state)
{
	struct harness *harness = *state;
	struct trace *events = engine_trace(harness->engine);
	const struct trace_event event = {.kind = TRACE_SLEEP, .begin_ns = 1, .end_ns = 2};
	uint64_t first, end;

	assert_int_equal(trace_status(harness, "start", 0), 0);
	trace_put(events, &event);
	assert_int_equal(trace_status(harness, "stop", 0), 0);
	trace_put(events, &event);
	assert_int_equal(atomic_load(&events->n), 1);
	atomic_store(&events->n, 2); /* one that was on its way */
	trace_range(events, &first, &end);
	assert_int_equal(first, 0);
	assert_int_equal(end, 1);
}

static void test_trace_starts_and_stops_once(void **state)
{
	assert_int_equal(trace_status(*state, "stop", 0), MIMEO_E_INVALID);
	assert_int_equal(trace_status(*state, "read", 0), MIMEO_E_INVALID);
	assert_int_equal(trace_status(*state, "start", 0), 0);
	assert_int_equal(trace_status(*state, "start", 0), MIMEO_E_INVALID);
	assert_int_equal(trace_status(*state, "pause", 0), MIMEO_E_INVALID);
	assert_int_equal(trace_status(*state, "stop", 0), 0);
	assert_int_equal(trace_status(*state, "stop", 0), MIMEO_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_trace_has_steps_rows_and_lives_of_requests),
		harness_test(test_trace_keeps_the_last_events_and_counts_the_others),
		harness_test(test_trace_ends_with_its_stop),
		harness_test(test_trace_starts_and_stops_once),
	};

	return cmocka_run_group_tests_name("tracing", tests, NULL, NULL);
}
