/* SPDX-License-Identifier: MIT */
/* How a daemon begins and ends: its options, its sockets, its lengths, drain, device loss. */
#include <signal.h>
#include <sys/stat.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/startup.h"

#define EXIT_DEVICE_LOST 70

/* ---- bad options ---- */

static void test_bad_options_are_refused_by_name(void **state)
{
	static const char *const bad[][2] = {
		{"--graph-mode", "sometimes"},
		{"--capture-sizes", "1,two"},
		{"--kv-pages", "0"},
		{"--max-requests", "-1"},
		{"--attention", "flash"},
		{"--log-level", "loud"},
		{"--memory", "12Q"},
		{"--device", "abacus"},
		{"--frobnicate", "1"},
	};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct program_output output;
		const struct daemon *daemon = *state;
		const char *const argv[] = {daemon->argv[0], "--socket", daemon->socket, "--model",
			"m=/nowhere", bad[i][0], bad[i][1], NULL};

		program_run(argv, &output);
		assert_int_equal(output.status, EXIT_USAGE);
		if (!strstr(output.text, bad[i][0]))
			fail_msg("\"%s\" does not name %s", output.text, bad[i][0]);
	}
}

static void test_capture_size_beyond_the_batch_is_an_error(void **state)
{
	daemon_option(*state, "--capture-sizes", "1,4096");
	daemon_option(*state, "--max-batch-tokens", "64");
	ASSERT_REFUSES(*state, EXIT_USAGE, "capture_sizes", "4096", "64");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_daemon_without_a_model_is_refused(void **state)
{
	static struct program_output output;
	const struct daemon *daemon = *state;
	const char *const argv[] = {daemon->argv[0], "--socket", daemon->socket, NULL};

	program_run(argv, &output);
	assert_int_equal(output.status, EXIT_USAGE);
	assert_non_null(strstr(output.text, "--model"));
}

/* ---- README's client ---- */

static void test_readme_shows_hello_c_as_it_is(void **state)
{
	char *readme = file_text(source_path("README.md"), NULL);
	char *hello = file_text(source_path("examples/hello.c"), NULL);

	assert_true(readme && hello && *hello);
	assert_non_null(strstr(readme, hello));
	free(hello);
	free(readme);
}

static void test_hello_prints_the_answer(void **state)
{
	static struct program_output output;
	struct daemon *daemon = *state;
	const char *const argv[] = {build_path("examples/hello"), NULL};

	daemon_model(daemon, "tinycalc");
	daemon_start(daemon);
	setenv("MIMEO_SOCKET", daemon->socket, 1);
	program_run(argv, &output);
	unsetenv("MIMEO_SOCKET");
	assert_int_equal(output.status, 0);
	assert_string_equal(output.text, "46\n");
}

/* ---- sockets ---- */

static mode_t mode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	return st.st_mode & 07777;
}

static void test_sockets_are_for_owner_and_group_only(void **state)
{
	struct daemon *daemon = *state;
	char admin[128];

	umask(0);
	daemon_start(daemon);
	snprintf(admin, sizeof(admin), "%s/m-admin.sock", daemon->folder);
	assert_int_equal(mode_of(daemon->socket), 0660);
	assert_int_equal(mode_of(admin), 0660);
	daemon_stop(daemon);
	assert_int_equal(access(daemon->socket, F_OK), -1);
	assert_int_equal(access(admin, F_OK), -1);
}

/* A daemon that takes connections and does not answer them would hang its clients. */
static void test_socket_accepts_only_when_the_daemon_serves(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;
	int rc;

	config.socket_path = daemon->socket;
	daemon_launch(daemon);
	assert_true(EVENTUALLY((rc = mimeo_connect(&m, &config)) != MIMEO_E_UNREACHABLE));
	assert_int_equal(rc, 0);
	assert_true(daemon_log_has(daemon, "graphs captured in"));
	assert_int_equal(endless_submit(m, 1, 0, NULL), 0);
	mimeo_close(m);
}

static void test_second_daemon_on_a_live_socket_is_refused(void **state)
{
	struct daemon *first = *state, second = *first;

	daemon_start(first);
	struct mimeo *m = daemon_connect(first, 0, 0);
	snprintf(second.log, sizeof(second.log), "%s/log2", first->folder);
	second.pid = 0;
	second.admin = -1;
	ASSERT_REFUSES(&second, EXIT_ERROR, first->socket, "another daemon");

	assert_serves(m, 5);
	mimeo_close(m);
	daemon_stop(first);
}

static void test_dead_daemons_socket_is_taken_over_at_once(void **state)
{
	struct daemon *daemon = *state;

	for (unsigned i = 0; i < 5; i++) {
		daemon_start(daemon);
		struct mimeo *m = daemon_connect(daemon, 0, 0);
		daemon_kill(daemon);
		assert_int_equal(access(daemon->socket, F_OK), 0);
		mimeo_close(m);
	}
	daemon_start(daemon);
	mimeo_close(daemon_connect(daemon, 0, 0));
}

static void test_file_in_the_sockets_place_is_left_alone(void **state)
{
	struct daemon *daemon = *state;
	size_t size;

	file_write(daemon->socket, "precious", 8);
	ASSERT_REFUSES(daemon, EXIT_ERROR, daemon->socket);
	char *text = file_text(daemon->socket, &size);
	assert_int_equal(size, 8);
	assert_memory_equal(text, "precious", 8);
	free(text);
}

static void test_socket_in_a_missing_folder_is_refused_and_makes_none(void **state)
{
	struct daemon *daemon = *state;
	static char path[128];

	snprintf(path, sizeof(path), "%s/none/m.sock", daemon->folder);
	daemon_option(daemon, "--socket", path);
	ASSERT_REFUSES(daemon, EXIT_ERROR, path, "its directory does not exist");
	snprintf(path, sizeof(path), "%s/none", daemon->folder);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_clean_end_leaves_no_lock_files(void **state)
{
	struct daemon *daemon = *state;
	char name[128];

	daemon_start(daemon);
	snprintf(name, sizeof(name), "%s.lock", daemon->socket);
	assert_int_equal(access(name, F_OK), 0);
	daemon_stop(daemon);
	assert_int_equal(access(name, F_OK), -1);
	snprintf(name, sizeof(name), "%s/m-admin.sock.lock", daemon->folder);
	assert_int_equal(access(name, F_OK), -1);
}

/* ---- lengths ---- */

static void test_length_beyond_the_model_is_warned_of_and_not_used(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--max-seq-len", "1000000");
	daemon_start(daemon);
	assert_true(daemon_log_has(daemon, "model tinycalc: max_seq_len 1000000 is more than"));
	int64_t most = daemon_number(daemon, "models", 0, "max_seq_len");
	assert_true(most > 0 && most < 1000000);
}

static void test_length_beyond_all_pages_is_warned_of_and_not_offered(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--kv-pages", "10");
	daemon_start(daemon);
	assert_true(daemon_log_has(daemon, "10 pages holds sequences of at most 160 tokens"));
	assert_true(daemon_log_has(daemon, " or more for those, or --max-seq-len 160"));
	assert_int_equal(daemon_number(daemon, "models", 0, "max_seq_len"), 160);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	assert_int_equal(mimeo_model_get(m, 0)->max_seq_len, 160);
	mimeo_close(m);
}

/* Pages of 16 tokens, which are given back when they have left the window of 9. */
static void test_length_that_pages_of_a_window_suffice_for_is_offered(void **state)
{
	static const int32_t tokens[] = {1};
	struct daemon *daemon = *state;
	struct mimeo_generate generate = generate_of(tokens, 1, 255);
	char option[512];
	struct mimeo *m;

	snprintf(option, sizeof(option), "windows=%s", source_path("tests/data/checkpoints/mistral-window"));
	daemon_option(daemon, "--model", option);
	daemon_option(daemon, "--kv-pages", "windows=10");
	daemon_option(daemon, "--max-batch-tokens", "8");
	daemon_option(daemon, "--max-requests", "4");
	daemon_start(daemon);
	m = daemon_connect(daemon, 0, 0);
	assert_true(mimeo_model_find(m, "windows") > 0);
	generate.model = (uint32_t)mimeo_model_find(m, "windows");
	assert_int_equal(mimeo_model_get(m, generate.model)->max_seq_len, 256);
	submit_generate(m, &generate);
	assert_int_equal(wait_final(m).status, 0);
	mimeo_close(m);
}

/* ---- drain ---- */

/* Tokens flow, and then SIGTERM. */
static void terminate(struct daemon *daemon, struct mimeo *m)
{
	take_event(m);
	kill(daemon->pid, SIGTERM);
}

static void drain(struct daemon *daemon, struct mimeo *m)
{
	terminate(daemon, m);
	assert_true(EVENTUALLY(daemon_log_has(daemon, "draining")));
}

#define N_DRAINED 3
#define N_DRAINED_TOKENS 1000

static void test_drain_finishes_what_runs_and_takes_nothing_new(void **state)
{
	struct daemon *daemon = *state;
	uint32_t n_done = 0, n_refused = 0;
	struct mimeo_event event;

	daemon_start(daemon);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	for (uint32_t i = 0; i < N_DRAINED; i++)
		assert_int_equal(endless_submit(m, N_DRAINED_TOKENS, i, NULL), 0);
	drain(daemon, m);
	int late = endless_submit(m, 5, 99, NULL);
	assert_true(late == 0 || late == MIMEO_E_GONE);
	while (n_done + n_refused < N_DRAINED + (late == 0)) {
		event = wait_event(m);
		if (event.kind == MIMEO_EVENT_FINAL && event.user_data == 99) {
			assert_true(
				event.status == MIMEO_E_DRAINING || event.status == MIMEO_E_GONE);
			n_refused++;
		} else if (event.kind == MIMEO_EVENT_FINAL) {
			assert_int_equal(event.status, 0);
			assert_int_equal(event.n_generated, N_DRAINED_TOKENS);
			n_done++;
		}
		mimeo_event_seen(m, &event);
	}
	assert_int_equal(n_done, N_DRAINED);
	assert_int_equal(daemon_wait(daemon), 0);
	assert_int_equal(mimeo_event_wait(m, &event, (int)PATIENCE_MS), MIMEO_E_GONE);
	mimeo_close(m);
}

static void test_draining_daemon_turns_new_clients_away(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *other;

	daemon_start(daemon);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	assert_int_equal(endless_submit(m, 2000, 0, NULL), 0);
	drain(daemon, m);
	config.socket_path = daemon->socket;
	int rc = mimeo_connect(&other, &config);
	assert_true(rc == MIMEO_E_DRAINING || rc == MIMEO_E_UNREACHABLE);
	mimeo_close(m);
	assert_int_equal(daemon_wait(daemon), 0);
}

static void test_second_signal_ends_at_once(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo_event event;
	uint32_t n_finals = 0;
	int rc;

	daemon_option(daemon, "--drain-timeout-s", "3600");
	daemon_start(daemon);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	/* Streams that follow each other would keep the daemon draining for long. */
	for (uint32_t i = 0; i < 30; i++)
		assert_int_equal(endless_submit(m, 2000, i, NULL), 0);
	drain(daemon, m);
	kill(daemon->pid, SIGTERM);
	assert_int_equal(daemon_wait(daemon), EXIT_ERROR);
	while ((rc = mimeo_event_wait(m, &event, (int)PATIENCE_MS)) == 1) {
		n_finals += event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	assert_int_equal(rc, MIMEO_E_GONE);
	assert_int_equal(n_finals, 30);
	mimeo_close(m);
}

static void test_requests_cut_off_by_the_timeout_are_counted_and_the_status_is_3(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--drain-timeout-s", "1");
	daemon_option(daemon, "--max-requests", "1");
	daemon_start(daemon);
	struct mimeo *m = daemon_connect(daemon, 64, 0);
	/* One after another: far longer than the second that they are given. */
	for (uint32_t i = 0; i < 60; i++)
		assert_int_equal(endless_submit(m, 2000, i, NULL), 0);
	terminate(daemon, m);
	assert_int_equal(daemon_wait(daemon), EXIT_CUT_OFF);
	assert_true(daemon_log_has(daemon, "requests cut off by the drain timeout of 1 s: "));
	assert_false(daemon_log_has(daemon, " drained"));
	mimeo_close(m);
}

/* ---- device loss ---- */

static void test_lost_device_ends_requests_with_its_status_and_the_process_with_70(void **state)
{
	struct daemon *daemon = *state;
	struct mimeo_event event;
	uint32_t n_lost = 0;
	int rc;

	setenv(test_fault_variable(), "op:outbox:40", 1);
	daemon_start(daemon);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(endless_submit(m, 1000, i, NULL), 0);
	while ((rc = mimeo_event_wait(m, &event, (int)PATIENCE_MS)) == 1) {
		if (event.kind == MIMEO_EVENT_FINAL) {
			assert_int_equal(event.status, MIMEO_E_DEVICE_LOST);
			assert_int_equal(event.finish, MIMEO_FINISH_ERROR);
			n_lost++;
		}
		mimeo_event_seen(m, &event);
	}
	assert_int_equal(rc, MIMEO_E_GONE);
	assert_int_equal(n_lost, 4);
	assert_int_equal(daemon_wait(daemon), EXIT_DEVICE_LOST);
	assert_true(daemon_log_has(daemon, "device lost"));
	mimeo_close(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		OWN(test_bad_options_are_refused_by_name),
		OWN(test_capture_size_beyond_the_batch_is_an_error),
		OWN(test_daemon_without_a_model_is_refused),
		OWN(test_readme_shows_hello_c_as_it_is),
		OWN(test_hello_prints_the_answer),
		OWN(test_sockets_are_for_owner_and_group_only),
		OWN(test_socket_accepts_only_when_the_daemon_serves),
		OWN(test_second_daemon_on_a_live_socket_is_refused),
		OWN(test_dead_daemons_socket_is_taken_over_at_once),
		OWN(test_file_in_the_sockets_place_is_left_alone),
		OWN(test_socket_in_a_missing_folder_is_refused_and_makes_none),
		OWN(test_clean_end_leaves_no_lock_files),
		OWN(test_length_beyond_the_model_is_warned_of_and_not_used),
		OWN(test_length_beyond_all_pages_is_warned_of_and_not_offered),
		OWN(test_length_that_pages_of_a_window_suffice_for_is_offered),
		OWN(test_drain_finishes_what_runs_and_takes_nothing_new),
		OWN(test_draining_daemon_turns_new_clients_away),
		OWN(test_second_signal_ends_at_once),
		OWN(test_requests_cut_off_by_the_timeout_are_counted_and_the_status_is_3),
		OWN(test_lost_device_ends_requests_with_its_status_and_the_process_with_70),
	};

	const struct test_cpu_only only[] = {
		{test_can_lose_device() ? NULL : "test_lost_device", TEST_CANNOT_LOSE},
	};

	watchdog(WATCHDOG_SECONDS);
	return TEST_RUN_GROUP("startup", tests, only, NULL, NULL);
}
