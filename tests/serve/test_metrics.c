/* SPDX-License-Identifier: MIT */
/* The daemon's metrics: their text, their rows, and their page. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/serve/admin_wire.h"
#include "daemon/serve/exposition_process.h"
#include "daemon/serve/exposition_users.h"
#include "daemon/serve/session.h"

static void assert_has_all(const char *text, const char *const *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!strstr(text, parts[i]))
			fail_msg("no %s", parts[i]);
	}
}

static void test_metrics_are_an_exposition(void **state)
{
	static const char *const parts[] = {
		"# TYPE mimeo_replays_total counter\n",
		"\nmimeo_shared_replays_total 0\n",
		"\nmimeo_slots_free 7\n",
		"\nmimeo_slots 48\n",
		"\nmimeo_pages_free{model=\"tinycalc\"} 90\n",
		"\nmimeo_graph_captures_total{model=\"tinycalc\"} 5\n",
		"\nmimeo_weights_bytes{model=\"tinycalc\"} 4600000\n",
		"\n# TYPE mimeo_evicted_sequences_total counter\nmimeo_evicted_sequences_total{model=\"tinycalc\"} 0\n",
		"\n# TYPE mimeo_preempted_requests_total counter\nmimeo_preempted_requests_total{model=\"tinycalc\"} 0\n",
		"\n# TYPE mimeo_not_finite_rows_total counter\nmimeo_not_finite_rows_total{model=\"tinycalc\"} 0\n",
		"\nmimeo_weights_read_bytes{model=\"tinycalc\"} 4500000\n",
		"\nmimeo_weights_load_seconds{model=\"tinycalc\"} 0.5\n",
		"\nmimeo_graph_capture_seconds{model=\"tinycalc\"} 0.25\n",
		"\nmimeo_sessions 0\n",
	};
	struct answer *answer = operator_ask(*state, "metrics", NULL);

	assert_int_equal(answer->status, 0);
	assert_has_all(answer->text, parts, ARRAY_SIZE(parts));
	assert_true(answer->n_rows > 20);
	answer_free(answer);
}

static void test_speculation_is_in_models_and_metrics(void **state)
{
	static const char *const parts[] = {
		"\nmimeo_verified_rows_total{model=\"tinycalc\"} 200\n",
		"\nmimeo_verified_tokens_total{model=\"tinycalc\"} 550\n",
		"\nmimeo_drafts_accepted_total{model=\"tinycalc\",position=\"1\"} 190\n",
		"\nmimeo_drafts_accepted_total{model=\"tinycalc\",position=\"3\"} 25\n",
		"\nmimeo_drafts_offered_total{model=\"tinycalc\",position=\"3\"} 100\n",
		"\nmimeo_draft_eager_passes_total{model=\"tinycalc\"} 19\n",
		"\nmimeo_draft_steps_total{model=\"tinycalc\"} 80\n",
		"\nmimeo_draft_seconds_total{model=\"tinycalc\"} 0.02\n",
		"\nmimeo_undrafted_rows_total{model=\"tinycalc\",reason=\"asked\"} 7\n"
			"mimeo_undrafted_rows_total{model=\"tinycalc\",reason=\"mask\"} 0\n"
			"mimeo_undrafted_rows_total{model=\"tinycalc\",reason=\"sequence\"} 9\n"
			"mimeo_undrafted_rows_total{model=\"tinycalc\",reason=\"step\"} 0\n",
	};
	struct answer *answer = operator_ask(*state, "models", NULL);
	const msgpack_object *value = answer_cell(answer, 0, "tokens_per_verification");

	expect_text(answer, 0, "draft", "LlamaForCausalLMEagle");
	assert_int_equal(answer_count(answer, 0, "draft_tokens", 0), 3);
	assert_int_equal(value->type, MSGPACK_OBJECT_FLOAT64);
	assert_true(value->via.f64 == 2.75);
	expect_text(answer, 0, "acceptance", "0.95 0.75 0.25");
	value = answer_cell(answer, 0, "draft_seconds");
	assert_int_equal(value->type, MSGPACK_OBJECT_FLOAT64);
	assert_true(value->via.f64 > 249e-6 && value->via.f64 < 251e-6);
	assert_int_equal(answer_count(answer, 0, "draft_steps", 0), 80);
	assert_int_equal(answer_count(answer, 0, "verified_rows", 0), 200);
	assert_int_equal(answer_count(answer, 0, "verified_tokens", 0), 550);
	answer_free(answer);
	answer = operator_ask(*state, "metrics", NULL);
	assert_has_all(answer->text, parts, ARRAY_SIZE(parts));
	assert_null(strstr(answer->text, "position=\"4\""));
	answer_free(answer);
}

static void test_metrics_have_whole_counters_and_real_gauges(void **state)
{
	struct answer *answer = operator_ask(*state, "metrics", NULL);
	char type[16], name[96];

	for (size_t i = 0; i < answer->n_rows; i++) {
		const msgpack_object *value = answer_cell(answer, i, "value");

		answer_text(answer, i, "type", type, sizeof(type));
		if (strcmp(type, "histogram") == 0)
			continue;
		answer_text(answer, i, "name", name, sizeof(name));
		if (strcmp(type, "counter") == 0 && !strstr(name, "_seconds_total"))
			assert_int_equal(value->type, MSGPACK_OBJECT_POSITIVE_INTEGER);
		else
			assert_int_equal(value->type, MSGPACK_OBJECT_FLOAT64);
	}
	answer_free(answer);
}

/* The sample's row, and that there is one alone. */
static size_t row_of(const struct answer *answer, const char *name, const char *model, const char *position)
{
	char text[4][96];
	size_t n = 0, ret = 0;

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "name", text[0], sizeof(text[0]));
		answer_text(answer, i, "label_value", text[1], sizeof(text[1]));
		answer_text(answer, i, "label_2", text[2], sizeof(text[2]));
		answer_text(answer, i, "label_2_value", text[3], sizeof(text[3]));
		if (strcmp(text[0], name) || strcmp(text[1], model) || strcmp(text[2], "position") ||
			strcmp(text[3], position))
			continue;
		ret = i;
		n++;
	}
	assert_int_equal(n, 1);
	return ret;
}

/* The row's line is in the text, whole. */
static void assert_line_of(const struct answer *answer, size_t row)
{
	char name[96], label[2][16], value[2][96], line[512];
	size_t used;

	answer_text(answer, row, "name", name, sizeof(name));
	answer_text(answer, row, "label", label[0], sizeof(label[0]));
	answer_text(answer, row, "label_value", value[0], sizeof(value[0]));
	answer_text(answer, row, "label_2", label[1], sizeof(label[1]));
	answer_text(answer, row, "label_2_value", value[1], sizeof(value[1]));
	used = (size_t)snprintf(line, sizeof(line), "\n%s", name);
	for (int i = 0; i < 2 && label[i][0]; i++)
		used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%s=\"%s\"",
			i ? "," : "{", label[i], value[i]);
	snprintf(line + used, sizeof(line) - used, "%s %llu\n", label[0][0] ? "}" : "",
		(unsigned long long)answer_count(answer, row, "value", 0));
	if (!strstr(answer->text, line))
		fail_msg("no line%s", line);
}

static void test_metrics_of_32_models_that_draft_8_tokens_fit(void **state)
{
	char type[16];
	struct answer *answer = operator_ask(*state, "metrics", NULL);
	size_t n_lines = 0;

	assert_int_equal(answer->status, 0);
	assert_true(answer->n_messages > 2 && answer->n_text > ADMIN_REPLY_MAX);
	for (uint32_t m = 0; m < ENGINE_MODELS_MAX; m++) {
		struct engine_model_facts facts;

		engine_model_facts(((struct harness *)*state)->engine, m, &facts);
		for (char p = '1'; p <= '8'; p++) {
			size_t row = row_of(answer, "mimeo_drafts_accepted_total", facts.name,
				(char[]){p, '\0'});

			assert_int_equal(answer_count(answer, row, "value", 0),
				facts.speculation.n_accepted[p - '1']);
		}
		assert_int_equal(strlen(facts.name), m ? 63 : 8);
	}
	/* no line is lost between messages */
	assert_int_equal(strlen(answer->text), answer->n_text);
	for (char *line = answer->text; *line; line = strchr(line, '\n') + 1)
		n_lines += *line != '#';
	assert_int_equal(n_lines, answer->n_rows);
	/* nor is there no room for the ten of each user */
	assert_true(answer->n_rows + (USER_TOTALS_MAX + 1) * 10 <= METRICS_MAX);
	for (size_t i = 0; i < answer->n_rows; i++) {
		if (strcmp(answer_text(answer, i, "type", type, sizeof(type)), "counter") == 0 &&
			answer_count(answer, i, "value", UINT64_MAX) != UINT64_MAX)
			assert_line_of(answer, i);
	}
	assert_non_null(strstr(answer->text, "-may-have-x\",position=\"8\"} 9007199254740991\n"));
	answer_free(answer);
}

static void test_histogram_counts_each_value_in_every_bucket_above_it(void **state)
{
	static const char *const parts[] = {
		"\n# TYPE mimeo_first_token_seconds histogram\n"
			"mimeo_first_token_seconds_bucket{model=\"tinycalc\",le=\"1e-05\"} 0\n",
		"{model=\"tinycalc\",le=\"0.0025\"} 0\n"
			"mimeo_first_token_seconds_bucket{model=\"tinycalc\",le=\"0.005\"} 2\n",
		"{model=\"tinycalc\",le=\"50\"} 2\n"
			"mimeo_first_token_seconds_bucket{model=\"tinycalc\",le=\"100\"} 3\n"
			"mimeo_first_token_seconds_bucket{model=\"tinycalc\",le=\"+Inf\"} 4\n"
			"mimeo_first_token_seconds_sum{model=\"tinycalc\"} 300.008\n"
			"mimeo_first_token_seconds_count{model=\"tinycalc\"} 4\n",
		"mimeo_step_rows_bucket{model=\"tinycalc\",le=\"2\"} 0\n"
			"mimeo_step_rows_bucket{model=\"tinycalc\",le=\"4\"} 1\n",
		"mimeo_step_rows_sum{model=\"tinycalc\"} 3\n",
		"mimeo_wake_seconds_bucket{le=\"+Inf\"} 0\n",
	};
	struct histogram *first = fake_engine_distribution(((struct harness *)*state)->engine, ENGINE_FIRST_TOKEN);

	histogram_add_time(first, 3000000, 1);
	histogram_add_time(first, 5000000, 1); /* the bound itself */
	histogram_add_time(first, 100000000000, 1);
	histogram_add_time(first, 200000000000, 1);
	histogram_add_count(fake_engine_distribution(((struct harness *)*state)->engine, ENGINE_ROWS), 3);
	struct answer *answer = operator_ask(*state, "metrics", NULL);
	assert_has_all(answer->text, parts, ARRAY_SIZE(parts));
	answer_free(answer);
}

static void test_failures_are_counted_by_status(void **state)
{
	static const char *const parts[] = {
		"\nmimeo_requests_failed_total{status=\"deadline\"} 2\n",
		"\nmimeo_requests_failed_total{status=\"quota\"} 1\n",
		"\nmimeo_requests_failed_total{status=\"other\"} 4\n",
		"\nmimeo_quota_refusals_total{of=\"request\"} 1\n",
	};
	struct engine_stats *stats = fake_engine_stats(((struct harness *)*state)->engine);

	counter_add(&stats->n_failed_with[-MIMEO_E_DEADLINE], 2);
	counter_add(&stats->n_failed_with[-MIMEO_E_QUOTA], 1);
	counter_add(&stats->n_failed_with[-MIMEO_E_PROTOCOL], 4);
	struct answer *answer = operator_ask(*state, "metrics", NULL);
	assert_has_all(answer->text, parts, ARRAY_SIZE(parts));
	answer_free(answer);
}

static void test_counters_of_a_user_keep_what_ended_sessions_had(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;
	char sample[96];

	snprintf(sample, sizeof(sample), "\nmimeo_user_tokens_generated_total{user=\"%u\"} 84\n", (unsigned)geteuid());
	/* The fake engine gives each session 42 tokens. */
	assert_int_equal(client_attach(harness, &client, &hello), 0);
	client_close(&client);
	await_sessions(harness, 0);
	assert_int_equal(client_attach(harness, &client, &hello), 0);
	await_sessions(harness, 1);
	struct answer *answer = operator_ask(harness, "metrics", NULL);
	assert_has_all(answer->text, (const char *const[]){sample}, 1);
	answer_free(answer);
	client_close(&client);
}

static double value_of(const struct metrics *metrics, const char *name)
{
	for (uint32_t i = 0; i < metrics->n_samples; i++) {
		if (strcmp(metrics->samples[i].name, name) == 0)
			return metrics->samples[i].value;
	}
	fail_msg("no %s", name);
	return 0;
}

static void test_the_process_start_stays_the_same(void **state)
{
	static struct metrics first, again;

	exposition_process(&first);
	exposition_process(&again);
	assert_true(value_of(&first, "process_start_time_seconds") > 1e9);
	assert_true(value_of(&first, "process_start_time_seconds") == value_of(&again, "process_start_time_seconds"));
}

/* The samples of a metric of users; *ret: their values by place. */
static uint32_t requests_of_users(const struct serve *serve, double ret[USER_TOTALS_MAX + 1])
{
	static struct metrics metrics;
	struct exposition_names names;
	uint32_t n = 0;

	metrics.n_samples = metrics.n_dropped = 0;
	exposition_users(serve, &names, &metrics);
	for (uint32_t i = 0; i < metrics.n_samples; i++) {
		if (strcmp(metrics.samples[i].name, "mimeo_user_requests_total") == 0)
			ret[n++] = metrics.samples[i].value;
	}
	assert_int_equal(metrics.n_samples, n * 10);
	return n;
}

static void test_places_are_of_the_first_users_who_attach(void **state)
{
	enum { N = USER_TOTALS_MAX + 1 };
	static struct session sessions[N];
	static struct serve serve;
	double before[N], after[N];

	for (uint32_t i = 0; i < N; i++) {
		sessions[i].serve = &serve;
		sessions[i].port.uid = 1000 + i;
		atomic_store(&sessions[i].port.n_requests, i + 1);
		session_join(&sessions[i]);
	}
	assert_int_equal(requests_of_users(&serve, before), N);
	assert_true(before[0] == 1 && before[N - 1] == N);
	for (uint32_t i = N; i-- > 0;) {
		session_leave(&sessions[i]);
		assert_int_equal(requests_of_users(&serve, after), N);
		assert_memory_equal(after, before, sizeof(after));
	}
	assert_null(serve.sessions);
}

/* ---- the page ---- */

/* mimeo-metrics(7) without scdoc's backslashes. */
static char *page_read(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/man/mimeo-metrics.7.scd", getenv("MIMEO_SOURCE"));
	FILE *file = fopen(path, "re");
	assert_non_null(file);
	char *text = calloc(1, 1 << 17);
	assert_non_null(text);
	size_t n = 0;
	for (int c; (c = fgetc(file)) != EOF && n < (1 << 17) - 1;) {
		if (c != '\\')
			text[n++] = (char)c;
	}
	fclose(file);
	return text;
}

static void test_page_has_every_metric_with_type_and_help_and_no_other(void **state)
{
	struct harness *harness = *state;
	struct msg_hello hello = client_hello();
	struct client client;
	char *page = page_read();
	size_t n = 0, n_page = 0;

	assert_int_equal(client_attach(harness, &client, &hello), 0);
	struct answer *answer = operator_ask(harness, "metrics", NULL);
	for (const char *at = answer->text; (at = strstr(at, "# HELP ")); n++) {
		char name[96], help[256], type[16], entry[512];

		assert_int_equal(sscanf(at, "# HELP %95s %255[^\n]\n# TYPE %*s %15s", name, help, type), 3);
		snprintf(entry, sizeof(entry), "\n*%s* (%s", name, type);
		const char *found = strstr(page, entry);
		if (!found)
			fail_msg("mimeo-metrics(7) lacks %s, or its type %s", name, type);
		found = strchr(found + 1, '\n');
		snprintf(entry, sizeof(entry), "\n\t%s\n", help);
		if (strncmp(found, entry, strlen(entry)) != 0)
			fail_msg("mimeo-metrics(7) says something else of %s than: %s", name, help);
		at += 7;
	}
	for (const char *at = page; (at = strpbrk(at, "\n")); at++)
		n_page += strncmp(at, "\n*mimeo_", 8) == 0 || strncmp(at, "\n*process_", 10) == 0;
	assert_int_equal(n_page, n);
	answer_free(answer);
	free(page);
	client_close(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_metrics_are_an_exposition),
		harness_test(test_speculation_is_in_models_and_metrics),
		harness_test(test_metrics_have_whole_counters_and_real_gauges),
		harness_test_with(test_metrics_of_32_models_that_draft_8_tokens_fit, harness_configure_large),
		harness_test(test_histogram_counts_each_value_in_every_bucket_above_it),
		harness_test(test_failures_are_counted_by_status),
		harness_test(test_counters_of_a_user_keep_what_ended_sessions_had),
		cmocka_unit_test(test_the_process_start_stays_the_same),
		cmocka_unit_test(test_places_are_of_the_first_users_who_attach),
		harness_test(test_page_has_every_metric_with_type_and_help_and_no_other),
	};

	return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
