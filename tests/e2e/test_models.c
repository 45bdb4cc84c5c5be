/* SPDX-License-Identifier: MIT */
/* Models that an operator loads and unloads while a daemon serves others. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/ctl.h"

#define ROUNDS 20 /* MIMEO_LOADS: another number */

static void assert_done(const struct program_output *output)
{
	if (output->status != 0)
		fail_msg("mimeoctl: %d: %s", output->status, output->text);
}

/* The status; the tokens, padded with zeros. */
static int ask(struct mimeo *m, const struct mimeo_generate *generate, int32_t *ret, uint32_t n)
{
	struct mimeo_event event;
	uint32_t used = 0;

	memset(ret, 0, n * sizeof(*ret));
	submit_generate(m, generate);
	do {
		event = wait_event(m);
		assert_true(used + event.n_tokens <= n);
		if (event.n_tokens)
			memcpy(ret + used, event.tokens, event.n_tokens * sizeof(*ret));
		used += event.n_tokens;
		mimeo_event_seen(m, &event);
	} while (event.kind == MIMEO_EVENT_TOKENS);
	return event.status;
}

static void load(const char *name)
{
	char model[600];

	snprintf(model, sizeof(model), "%s=%s", name, source_path("examples/models/tinycalc"));
	assert_done(MIMEOCTL("models", "load", model, "kv_pages=64"));
}

static void test_a_loaded_model_serves_new_clients_until_it_is_unloaded(void **state)
{
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo *before = daemon_connect(*state, 0, 0), *m;
	struct mimeo_generate generate = generate_of(tokens, 5, 8);
	struct mimeo_event event;
	int32_t answer[8];
	uint32_t sequence;

	load("second");
	assert_int_equal(mimeo_model_find(before, "second"), MIMEO_E_UNKNOWN_MODEL);
	m = daemon_connect(*state, 0, 0);
	assert_true(mimeo_model_find(m, "second") > 0);
	generate.model = (uint32_t)mimeo_model_find(m, "second");
	assert_int_equal(ask(m, &generate, answer, 8), 0);
	assert_int_equal(answer[0], '3');
	assert_int_equal(mimeo_sequence_open(m, generate.model, &sequence), 0);
	assert_done(MIMEOCTL("models", "unload", "second"));
	submit_generate(m, &generate);
	event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_UNKNOWN_MODEL);
	assert_message_has(&event, "an operator of the daemon unloaded the model");
	assert_int_equal(mimeo_sequence_close(m, sequence), 0);
	assert_serves(m, 1);
	assert_serves(before, 2);
	mimeo_close(m);
	mimeo_close(before);
}

/* The numbers of models behind a client's indices are those of its WELCOME, whatever came and went before. */
static void test_a_client_after_unloads_reaches_the_model_that_it_names(void **state)
{
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo_generate generate = generate_of(tokens, 5, 8);
	int32_t answer[8];
	struct mimeo *m;

	load("first");
	load("second");
	assert_done(MIMEOCTL("models", "unload", "first"));
	load("third");
	m = daemon_connect(*state, 0, 0);
	assert_int_equal(mimeo_model_count(m), 3);
	assert_int_equal(mimeo_model_find(m, "first"), MIMEO_E_UNKNOWN_MODEL);
	for (generate.model = 0; generate.model < 3; generate.model++) {
		assert_int_equal(ask(m, &generate, answer, 8), 0);
		assert_int_equal(answer[0], '3');
	}
	mimeo_close(m);
	assert_done(MIMEOCTL("models", "unload", "second"));
	assert_done(MIMEOCTL("models", "unload", "third"));
}

static void test_a_load_that_cannot_be_says_why_and_changes_nothing(void **state)
{
	static const char *const expected[][4] = {
		{"x", NULL, "the configuration has no model x: name its directory, x=DIR"},
		{"x=/nowhere", NULL, "/nowhere: cannot be opened as a directory"},
		{"x=/nowhere", "speed=1", "\"speed=1\" is no setting of a model"},
		{"x=/nowhere", "kv_pages=0", "kv-pages"},
	};
	const struct program_output *output;
	char model[600];

	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		output = MIMEOCTL("models", "load", expected[i][0], expected[i][1]);
		assert_int_equal(output->status, 1);
		if (!strstr(output->text, expected[i][2]))
			fail_msg("%s: %s", expected[i][0], output->text);
	}
	snprintf(model, sizeof(model), "x=%s", source_path("examples/models/tinycalc"));
	output = MIMEOCTL("models", "load", model, "kv_pages=2000000000");
	assert_int_equal(output->status, 1);
	assert_non_null(strstr(output->text, "its pages of KV cache need"));
	snprintf(model, sizeof(model), "x=%s", source_path("tests/data/checkpoints/gemma3"));
	output = MIMEOCTL("models", "load", model, "kv_pages=1");
	assert_int_equal(output->status, 1);
	assert_non_null(strstr(output->text, "1 page of KV cache holds no token"));
	snprintf(model, sizeof(model), "%s=%s", test_model(), source_path("examples/models/tinycalc"));
	assert_non_null(strstr(MIMEOCTL("models", "load", model)->text, "is served: unload it"));
	assert_non_null(strstr(MIMEOCTL("models", "unload", "none")->text, "no model is called none"));
	assert_int_equal(daemon_count(*state, "models"), 1);
}

/* ---- again and again ---- */

#define N_TOKENS 300
static atomic_bool ended;

static void generate_once(struct mimeo *m, int32_t *ret)
{
	const int32_t tokens[] = {1, 'c', 'o', 'u', 'n', 't', ' ', 'F', 'R', 'O', 'M', ' ', '7', '\n'};
	const struct mimeo_generate generate = generate_of(tokens, 14, N_TOKENS);

	assert_int_equal(ask(m, &generate, ret, N_TOKENS), 0);
}

/* In a thread; the client's own. */
static void *generate_until_the_end(void *arg)
{
	int32_t first[N_TOKENS], again[N_TOKENS];
	uintptr_t n = 0;

	generate_once(arg, first);
	do {
		generate_once(arg, again);
		if (memcmp(first, again, sizeof(first)) != 0)
			return NULL;
		n++;
	} while (!atomic_load(&ended));
	return (void *)n;
}

static void test_models_come_and_go_and_everything_is_given_back(void **state)
{
	const char *rounds = getenv("MIMEO_LOADS");
	const unsigned n = rounds ? (unsigned)strtoul(rounds, NULL, 10) : ROUNDS;
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int64_t fds, resident, pages;
	pthread_t thread;
	void *same;

	atomic_store(&ended, false);
	assert_int_equal(pthread_create(&thread, NULL, generate_until_the_end, m), 0);
	fds = daemon_count(*state, "open_fds");
	resident = daemon_count(*state, "resident_bytes");
	pages = daemon_count(*state, "pages_total");
	for (unsigned i = 0; i < n; i++) {
		load("again");
		assert_done(MIMEOCTL("models", "unload", "again"));
	}
	atomic_store(&ended, true);
	assert_int_equal(pthread_join(thread, &same), 0);
	assert_non_null(same);
	assert_int_equal(daemon_count(*state, "open_fds"), fds);
	assert_int_equal(daemon_count(*state, "pages_total"), pages);
	/* a model has 10 MiB */
	assert_true(daemon_count(*state, "resident_bytes") < resident + (20 << 20));
	mimeo_close(m);
}

/* With what is made once, by the first order: the loader's thread, workspaces, the heap's arenas. */
static int start(void **state)
{
	int rc = group_daemon_start(state);

	for (unsigned i = 0; i < 5; i++) {
		load("again");
		assert_done(MIMEOCTL("models", "unload", "again"));
	}
	return rc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUP_TEST(test_a_loaded_model_serves_new_clients_until_it_is_unloaded),
		GROUP_TEST(test_a_client_after_unloads_reaches_the_model_that_it_names),
		GROUP_TEST(test_a_load_that_cannot_be_says_why_and_changes_nothing),
		GROUP_TEST(test_models_come_and_go_and_everything_is_given_back),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("models", tests, start, group_daemon_end);
}
