/* SPDX-License-Identifier: MIT */
/*
 * Clients that send garbage, half of things, too much, or nothing; that write what they like into
 * their region; that die at any point. Each costs them their request or their session and nobody
 * else anything: while each misbehaves a bystander's questions run, and they are all answered
 * right; afterwards the daemon lives, and all that the bad one held is back.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <mimeo/types.h>

#include "ipc/doorbell.h"
#include "tests/e2e/questions.h"
#include "tests/e2e/raw.h"

#define N_ASKED 16
#define N_FLOOD 300
#define N_GREETINGS_A_USER 32 /* connections without a HELLO that the daemon keeps */

struct scene {
	struct mimeo *bystander;
	struct question questions[N_ASKED];
	struct reply replies[N_ASKED];
	struct holdings before;
};

/* The bystander attaches and asks; its answers are looked at in the end. */
static int begin_scene(void **state)
{
	static uint64_t seed;
	struct scene *scene = calloc(1, sizeof(*scene));

	/* The last scene's bystander has left. */
	assert_true(EVENTUALLY(daemon_count(&group_daemon, "sessions") == 0));
	scene->bystander = daemon_connect(&group_daemon, 0, 0);
	scene->before = daemon_holdings(&group_daemon);
	questions_make(scene->questions, N_ASKED, ++seed);
	for (uint32_t i = 0; i < N_ASKED; i++)
		assert_int_equal(question_prepare(scene->bystander, &scene->questions[i], i), 0);
	assert_int_equal(mimeo_submit(scene->bystander), N_ASKED);
	*state = scene;
	return 0;
}

static int end_scene(void **state)
{
	struct scene *scene = *state;

	assert_int_equal(replies_collect(scene->bystander, scene->replies, N_ASKED), 0);
	assert_int_equal(replies_wrong(scene->questions, scene->replies, N_ASKED), 0);
	daemon_assert_settles(&group_daemon, &scene->before);
	mimeo_close(scene->bystander);
	free(scene);
	return 0;
}

static bool can_connect(struct daemon *daemon)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;

	config.socket_path = daemon->socket;
	if (mimeo_connect(&m, &config) != 0)
		return false;
	mimeo_close(m);
	return true;
}

static struct raw attach(void)
{
	struct raw raw;

	raw_attach(&raw, &group_daemon, 8);
	return raw;
}

/* ---- on the socket ---- */

static void test_garbage_on_the_socket_is_closed(void **state)
{
	uint8_t bytes[2048];
	uint32_t noise = 12345;

	for (unsigned round = 0; round < 50; round++) {
		int fd = raw_connect(&group_daemon);

		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)((noise = noise * 1664525u + 1013904223u) >> 24);
		/* A length that is taken, so that the garbage behind it is looked at. */
		if (round % 2)
			memcpy(bytes, (uint8_t[]){60, 0, 0, 0}, 4);
		(void)!send(fd, bytes, round % 2 ? 64 : sizeof(bytes), MSG_NOSIGNAL);
		raw_assert_ends(fd);
	}
}

static void test_hello_that_claims_billions_of_elements_is_refused(void **state)
{
	static const uint8_t bytes[] = {5, 0, 0, 0, 0xdf, 0xff, 0xff, 0xff, 0xff};
	int fd = raw_connect(&group_daemon);

	assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
	raw_assert_ends(fd);
}

static void test_half_a_hello_and_silence_ends_by_itself_and_stops_nobody(void **state)
{
	uint8_t hello[MSG_HEADER_MAX];
	int fd = raw_connect(&group_daemon);
	size_t n = raw_hello(hello, sizeof(hello), 8);

	assert_int_equal(send(fd, hello, n / 2, MSG_NOSIGNAL), n / 2);
	struct mimeo *m = daemon_connect(&group_daemon, 0, 0);
	mimeo_close(m);
	raw_assert_ends(fd);
}

static void test_connections_without_a_hello_are_bounded_and_counted_down_again(void **state)
{
	int fds[2 * N_GREETINGS_A_USER];

	for (unsigned i = 0; i < 2 * N_GREETINGS_A_USER; i++)
		fds[i] = raw_connect(&group_daemon);
	/* Those beyond the bound are turned away at once, while the others still wait. */
	raw_assert_closed(fds[2 * N_GREETINGS_A_USER - 1]);
	for (unsigned i = 0; i < 2 * N_GREETINGS_A_USER; i++)
		close(fds[i]);
	assert_true(EVENTUALLY(can_connect(&group_daemon)));
}

static void test_flood_of_hellos_on_one_connection_is_closed(void **state)
{
	uint8_t hello[MSG_HEADER_MAX], flood[16 * MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 8), used = 0;
	int fd = raw_connect(&group_daemon);

	while (used + n <= sizeof(flood)) {
		memcpy(flood + used, hello, n);
		used += n;
	}
	(void)!send(fd, flood, used, MSG_NOSIGNAL);
	raw_assert_ends(fd);
}

static void test_flood_of_sessions_that_leave_before_the_welcome_is_survived(void **state)
{
	uint8_t hello[MSG_HEADER_MAX];
	size_t n = raw_hello(hello, sizeof(hello), 8);

	for (unsigned i = 0; i < N_FLOOD; i++) {
		int fd = raw_connect(&group_daemon);

		(void)!send(fd, hello, n, MSG_NOSIGNAL);
		close(fd);
	}
	assert_true(EVENTUALLY(can_connect(&group_daemon)));
}

static int say_hello_and_hang(void *arg)
{
	uint8_t hello[MSG_HEADER_MAX];
	int fd = raw_connect(arg);
	size_t n = raw_hello(hello, sizeof(hello), 8);

	CHILD_EXPECT(send(fd, hello, n, MSG_NOSIGNAL) == (ssize_t)n);
	kill(getpid(), SIGKILL);
	return 1;
}

static void test_process_killed_between_hello_and_welcome_leaves_nothing(void **state)
{
	for (unsigned i = 0; i < 20; i++) {
		pid_t pid = process_run(say_hello_and_hang, &group_daemon);

		assert_int_equal(process_exit_status(pid, PATIENCE_MS), 128 + SIGKILL);
	}
}

static void test_bytes_after_the_welcome_end_the_session(void **state)
{
	struct raw raw = attach();

	raw_assert_alive(&raw);
	assert_int_equal(send(raw.socket, "more", 4, MSG_NOSIGNAL), 4);
	raw_assert_closed(raw.socket);
	raw_detach(&raw);
}

/* ---- in the region: what costs the session ---- */

static void expect_session_ends(struct raw *raw)
{
	doorbell_ring(raw->sq_bell);
	raw_assert_closed(raw->socket);
	raw_detach(raw);
}

static void test_submission_tail_that_jumps_ends_the_session(void **state)
{
	static const uint32_t jumps[] = {9, 1000, 0x80000000u, 0xffffff00u};

	for (unsigned i = 0; i < sizeof(jumps) / sizeof(jumps[0]); i++) {
		struct raw raw = attach();

		raw_assert_alive(&raw);
		atomic_fetch_add(&raw.region.ring.control->sq_tail, jumps[i]);
		expect_session_ends(&raw);
	}
}

static void test_completion_head_that_jumps_ends_the_session(void **state)
{
	struct raw raw = attach();

	raw_assert_alive(&raw);
	atomic_fetch_add(&raw.region.ring.control->cq_head, 1u << 20);
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 4);
	raw_submit(&raw, &sqe);
	expect_session_ends(&raw);
}

static void test_request_index_out_of_range_ends_the_session(void **state)
{
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 4);
	sqe.request = 8;
	raw_submit(&raw, &sqe);
	expect_session_ends(&raw);
}

static void test_request_index_in_flight_twice_ends_the_session(void **state)
{
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 1000);
	raw_submit(&raw, &sqe);
	raw_submit(&raw, &sqe);
	expect_session_ends(&raw);
}

/* ---- in the region: what costs the request ---- */

static void expect_refused(struct raw *raw, const struct ring_sqe *sqe, int status, unsigned detail)
{
	raw_submit(raw, sqe);
	struct ring_cqe cqe = raw_final(raw, sqe->request);
	assert_int_equal(cqe.status, status);
	assert_int_equal(cqe.detail, detail);
	raw_assert_alive(raw);
}

static void test_offsets_out_of_the_arena_are_refused(void **state)
{
	struct raw raw = attach();
	const struct ring_sqe good = raw_generate(&raw, 3, 1, 4);
	struct ring_sqe bad = good;
	bad.header_offset = 0xffffffffu;
	expect_refused(&raw, &bad, MIMEO_E_INVALID, RING_DETAIL_EXTENT);
	bad = good;
	bad.payload_offset = (uint32_t)raw.region.arena_bytes - 8;
	expect_refused(&raw, &bad, MIMEO_E_INVALID, RING_DETAIL_EXTENT);
	bad = good;
	bad.output_offset = (uint32_t)raw.region.arena_bytes - 32;
	expect_refused(&raw, &bad, MIMEO_E_INVALID, RING_DETAIL_EXTENT);
	bad = good;
	bad.output_offset = 0xffffffc0u;
	bad.output_length = 0xffffffffu;
	expect_refused(&raw, &bad, MIMEO_E_INVALID, RING_DETAIL_EXTENT);
	raw_detach(&raw);
}

static void test_header_that_lies_about_the_tokens_is_refused(void **state)
{
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 900, 1, 4);
	sqe.payload_length = 12;
	expect_refused(&raw, &sqe, MIMEO_E_INVALID, RING_DETAIL_PAYLOAD);
	sqe = raw_generate(&raw, 3, 1, 900);
	sqe.output_length = 64;
	expect_refused(&raw, &sqe, MIMEO_E_INVALID, RING_DETAIL_OUTPUT);
	raw_detach(&raw);
}

static void test_header_that_claims_billions_of_elements_is_refused(void **state)
{
	static const uint8_t bytes[] = {0xdd, 0xff, 0xff, 0xff, 0xff};
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 4);
	memcpy(raw.region.arena + sqe.header_offset, bytes, sizeof(bytes));
	sqe.header_length = sizeof(bytes);
	expect_refused(&raw, &sqe, MIMEO_E_INVALID, RING_DETAIL_HEADER);
	sqe.header_length = 64 << 10;
	expect_refused(&raw, &sqe, MIMEO_E_INVALID, RING_DETAIL_HEADER);
	raw_detach(&raw);
}

static void test_unknown_operation_is_refused(void **state)
{
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 4);
	sqe.op = 999;
	expect_refused(&raw, &sqe, MIMEO_E_INVALID, RING_DETAIL_OP);
	raw_detach(&raw);
}

static void test_results_over_ones_own_prompt_hurt_only_oneself(void **state)
{
	struct raw raw = attach();
	struct ring_sqe sqe = raw_generate(&raw, 16, 1, 200);
	sqe.output_offset = sqe.header_offset;
	raw_submit(&raw, &sqe);
	assert_int_equal(raw_final(&raw, sqe.request).status, 0);
	raw_assert_alive(&raw);
	raw_detach(&raw);
}

static void test_control_page_overwritten_confuses_nobody(void **state)
{
	struct raw raw = attach();
	struct ring_control *control = raw.region.ring.control;
	memset(control, 0xee, offsetof(struct ring_control, sq_tail));
	control->n_cancels = 0xeeeeeeee;
	atomic_store(&control->sq_head, 0xeeeeeeeeu);
	raw_assert_alive(&raw);
	raw_detach(&raw);
}

static void test_doorbells_that_are_full_and_block_hold_up_nobody(void **state)
{
	const eventfd_t full = UINT64_MAX - 1;
	struct scene *scene = *state;
	struct raw raw = attach();
	const int bells[] = {raw.sq_bell, raw.cq_bell};
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(fcntl(bells[i], F_SETFL, 0), 0);
		assert_int_equal(eventfd_write(bells[i], full), 0);
	}
	atomic_store(&raw.region.ring.control->client_need_wakeup, 1);
	struct ring_sqe sqe = raw_generate(&raw, 3, 1, 100);
	uint32_t n;
	assert_int_equal(ring_sq_push(&raw.region.ring, &sqe), 1);
	ring_sq_publish(&raw.region.ring, &n);
	/* Whether it is seen or not, the bystander is served. */
	assert_int_equal(replies_collect(scene->bystander, scene->replies, N_ASKED), 0);
	for (uint32_t i = 0; i < N_ASKED; i++)
		assert_int_equal(question_prepare(scene->bystander, &scene->questions[i], i), 0);
	memset(scene->replies, 0, sizeof(scene->replies));
	assert_int_equal(mimeo_submit(scene->bystander), N_ASKED);
	raw_detach(&raw);
}

/* ---- entries that change while they are read ---- */

/* Two threads would do; two processes cannot stop each other. */
static int rewrite_for_ever(void *arg)
{
	struct raw *raw = arg;
	uint32_t noise = (uint32_t)getpid();

	for (;;) {
		noise = noise * 1664525u + 1013904223u;
		uint32_t at = noise >> 8;
		uint8_t value = (uint8_t)(noise >> 3);

		if (noise & 1)
			((volatile uint8_t *)raw->region.ring.sqes)[at % (8 * 64)] = value;
		else
			((volatile uint8_t *)raw->region.arena)[at % 2048] = value;
	}
	return 0;
}

/* Submit until the session is over or enough was taken. */
static void submit_under_fire(struct raw *raw)
{
	struct ring_cqe cqe;
	struct ring_sqe sqe = raw_generate(raw, 8, 1, 4);
	char byte;

	for (unsigned i = 0; i < 3000; i++) {
		uint32_t n;

		if (recv(raw->socket, &byte, 1, MSG_DONTWAIT) == 0)
			return;
		if (i % 8 == 0)
			raw_generate(raw, 8, 1, 4);
		sqe.request = i % 8;
		if (ring_sq_push(&raw->region.ring, &sqe) == 1) {
			ring_sq_publish(&raw->region.ring, &n);
			doorbell_ring(raw->sq_bell);
		}
		while (ring_cq_peek(&raw->region.ring, &cqe))
			ring_cq_advance(&raw->region.ring);
	}
}

static void test_entries_rewritten_while_they_are_read_hurt_only_their_session(void **state)
{
	for (unsigned round = 0; round < 20; round++) {
		struct raw raw = attach();

		pid_t pid = process_run(rewrite_for_ever, &raw);
		submit_under_fire(&raw);
		process_kill(pid);
		raw_detach(&raw);
		assert_true(daemon_is_alive(&group_daemon));
	}
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, begin_scene, end_scene)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		SCENE(test_garbage_on_the_socket_is_closed),
		SCENE(test_hello_that_claims_billions_of_elements_is_refused),
		SCENE(test_half_a_hello_and_silence_ends_by_itself_and_stops_nobody),
		SCENE(test_connections_without_a_hello_are_bounded_and_counted_down_again),
		SCENE(test_flood_of_hellos_on_one_connection_is_closed),
		SCENE(test_flood_of_sessions_that_leave_before_the_welcome_is_survived),
		SCENE(test_process_killed_between_hello_and_welcome_leaves_nothing),
		SCENE(test_bytes_after_the_welcome_end_the_session),
		SCENE(test_submission_tail_that_jumps_ends_the_session),
		SCENE(test_completion_head_that_jumps_ends_the_session),
		SCENE(test_request_index_out_of_range_ends_the_session),
		SCENE(test_request_index_in_flight_twice_ends_the_session),
		SCENE(test_offsets_out_of_the_arena_are_refused),
		SCENE(test_header_that_lies_about_the_tokens_is_refused),
		SCENE(test_header_that_claims_billions_of_elements_is_refused),
		SCENE(test_unknown_operation_is_refused),
		SCENE(test_results_over_ones_own_prompt_hurt_only_oneself),
		SCENE(test_control_page_overwritten_confuses_nobody),
		SCENE(test_doorbells_that_are_full_and_block_hold_up_nobody),
		SCENE(test_entries_rewritten_while_they_are_read_hurt_only_their_session),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name(
		"bad_clients", tests, group_daemon_start, group_daemon_end);
}
