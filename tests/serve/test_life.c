/* SPDX-License-Identifier: MIT */
#include "daemon/serve/life.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/clock.h"
#include "ipc/socket.h"

#define PATIENCE_MS 60000
#define N_KILLS 15
#define HELD_BYTES (1ull << 30)
#define RATIO 4 /* it is 20 and more, on a machine that has nothing else to do */

static int is_readable(int fd, int ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, ms);
}

static unsigned count_entries(const char *folder)
{
	unsigned n = 0;
	DIR *dir = opendir(folder);

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* ---- a process that is killed while it has much memory ---- */

struct victim {
	pid_t pid;
	int socket, pidfd, lives[MSG_LIFE_FDS];
};

struct delays {
	uint64_t life_ns, each_ns[MSG_LIFE_FDS], pidfd_ns, socket_ns;
};

static void must(bool condition)
{
	if (!condition)
		_exit(1);
}

/* Pages of 4 KiB, because huge ones are taken apart in no time. */
static _Noreturn void be_a_victim(int socket)
{
	struct life *life;
	int fds[MSG_LIFE_FDS];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	must(life_new(&life) == 0 && life_open(life, fds) == MSG_LIFE_FDS);
	void *held =
		mmap(NULL, HELD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(held != MAP_FAILED);
	madvise(held, HELD_BYTES, MADV_NOHUGEPAGE);
	must(madvise(held, HELD_BYTES, MADV_POPULATE_WRITE) == 0);
	must(socket_send(socket, "ready", 5, fds, MSG_LIFE_FDS) == 0);
	for (;;)
		pause();
}

static struct victim victim_start(void)
{
	struct victim victim;
	char bytes[8];
	size_t n_fds;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	victim.pid = fork();
	assert_true(victim.pid >= 0);
	if (victim.pid == 0) {
		close(pair[0]);
		be_a_victim(pair[1]);
	}
	close(pair[1]);
	victim.socket = pair[0];
	victim.pidfd = (int)syscall(SYS_pidfd_open, victim.pid, 0);
	assert_true(victim.pidfd >= 0);
	assert_int_equal(socket_receive(victim.socket, bytes, sizeof(bytes), victim.lives,
				 MSG_LIFE_FDS, &n_fds, PATIENCE_MS),
		5);
	assert_int_equal(n_fds, MSG_LIFE_FDS);
	return victim;
}

/* Kill it, and measure when each descriptor reports it. */
static struct delays victim_kill(struct victim *victim)
{
	struct delays delays = {0};
	uint64_t *const times[] = {
		&delays.each_ns[0], &delays.each_ns[1], &delays.pidfd_ns, &delays.socket_ns};
	struct pollfd fds[] = {{.fd = victim->lives[0], .events = POLLIN},
		{.fd = victim->lives[1], .events = POLLIN}, {.fd = victim->pidfd, .events = POLLIN},
		{.fd = victim->socket, .events = POLLIN | POLLRDHUP}};

	uint64_t start = clock_ns();
	assert_int_equal(kill(victim->pid, SIGKILL), 0);
	for (unsigned left = 4; left > 0;) {
		assert_true(poll(fds, 4, PATIENCE_MS) > 0);
		for (unsigned i = 0; i < 4; i++) {
			if (fds[i].fd < 0 || !fds[i].revents)
				continue;
			*times[i] = clock_ns() - start;
			close(fds[i].fd);
			fds[i].fd = -1;
			left--;
		}
	}
	assert_int_equal(waitpid(victim->pid, NULL, 0), victim->pid);
	delays.life_ns = delays.each_ns[delays.each_ns[0] > delays.each_ns[1]];
	return delays;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t median(uint64_t values[static N_KILLS])
{
	qsort(values, N_KILLS, sizeof(values[0]), by_value);
	return values[N_KILLS / 2];
}

static void test_kill_shows_long_before_the_memory_is_released(void **state)
{
	uint64_t lives[N_KILLS], pidfds[N_KILLS], sockets[N_KILLS];
	unsigned n_late[MSG_LIFE_FDS] = {0};

	for (unsigned i = 0; i < N_KILLS; i++) {
		struct victim victim = victim_start();
		struct delays delays = victim_kill(&victim);

		lives[i] = delays.life_ns;
		pidfds[i] = delays.pidfd_ns;
		sockets[i] = delays.socket_ns;
		for (unsigned k = 0; k < MSG_LIFE_FDS; k++)
			n_late[k] += delays.each_ns[k] > delays.pidfd_ns / 2;
	}
	uint64_t life = median(lives), pidfd = median(pidfds), socket = median(sockets);
	print_message("# of %d kills, median and most: life %.1f %.1f ms, socket %.1f %.1f ms, "
		      "pidfd %.1f %.1f ms; one that was late: the first life %u, the second %u\n",
		N_KILLS, (double)life / 1e6, (double)lives[N_KILLS - 1] / 1e6, (double)socket / 1e6,
		(double)sockets[N_KILLS - 1] / 1e6, (double)pidfd / 1e6,
		(double)pidfds[N_KILLS - 1] / 1e6, n_late[0], n_late[1]);
	assert_true(life * RATIO < pidfd);
}

/* ---- a life ---- */

static void test_life_shows_until_it_is_freed(void **state)
{
	struct life *life;
	int fds[MSG_LIFE_FDS];

	assert_int_equal(life_new(&life), 0);
	assert_int_equal(life_open(life, fds), MSG_LIFE_FDS);
	assert_int_equal(is_readable(fds[0], 0), 0);
	assert_int_equal(is_readable(fds[1], 0), 0);
	life_free(life);
	for (unsigned i = 0; i < MSG_LIFE_FDS; i++) {
		assert_int_equal(is_readable(fds[i], PATIENCE_MS), 1);
		close(fds[i]);
	}
}

/* Our threads by their name: sanitizers and libraries have some of their own. */
static unsigned count_life_threads(void)
{
	unsigned n = 0;
	glob_t names;

	assert_int_equal(glob("/proc/self/task/*/comm", 0, NULL, &names), 0);
	for (size_t i = 0; i < names.gl_pathc; i++) {
		char name[32] = "";
		FILE *file = fopen(names.gl_pathv[i], "re");

		if (!file) /* it has gone */
			continue;
		n += fgets(name, sizeof(name), file) && !strcmp(name, LIFE_THREAD_NAME "\n");
		fclose(file);
	}
	globfree(&names);
	return n;
}

/* One that was joined may be listed for a little longer: the kernel reports its end first. */
static void await_threads(unsigned n)
{
	int ms = 0;

	while (count_life_threads() != n && ms++ < PATIENCE_MS)
		usleep(1000);
	assert_int_equal(count_life_threads(), n);
}

static void test_freed_life_leaves_no_thread_and_no_descriptor(void **state)
{
	unsigned n_fds = count_entries("/proc/self/fd");
	struct life *life;

	await_threads(0);
	assert_int_equal(life_new(&life), 0);
	await_threads(MSG_LIFE_FDS);
	assert_int_equal(count_entries("/proc/self/fd"), n_fds);
	life_free(life);
	await_threads(0);
	assert_int_equal(count_entries("/proc/self/fd"), n_fds);
}

static int nested[2 * 601];
static unsigned n_nested_fds;

/* Watch it from n epolls, each of which is watched by another: how many could be. */
static unsigned nest_epolls(int fd, unsigned n)
{
	struct epoll_event event = {.events = EPOLLIN};
	unsigned i;

	for (i = 0; i < n; i++) {
		int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);

		assert_true(inner >= 0 && outer >= 0);
		nested[n_nested_fds++] = inner;
		nested[n_nested_fds++] = outer;
		if (epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) < 0 ||
			epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event) < 0)
			break;
	}
	return i;
}

static void close_nested(void)
{
	while (n_nested_fds > 0)
		close(nested[--n_nested_fds]);
}

/* What one client tries with its own, others must not notice. */
static void test_holder_of_the_descriptor_can_neither_end_nor_prolong_the_life(void **state)
{
	struct life *life;
	int fds[MSG_LIFE_FDS], others[MSG_LIFE_FDS];
	char path[64];

	assert_int_equal(life_new(&life), 0);
	assert_int_equal(life_open(life, fds), MSG_LIFE_FDS);
	assert_int_equal(life_open(life, others), MSG_LIFE_FDS);
	int mine = fds[0], theirs = others[0];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mine);
	int again = open(path, O_RDWR | O_CLOEXEC); /* some kernels give another pidfd */
	assert_true(write(mine, "x", 1) < 0);
	assert_true(read(mine, path, 1) < 0);
	assert_true(shutdown(mine, SHUT_RDWR) < 0);
	fcntl(mine, F_SETFL, O_NONBLOCK | O_ASYNC);
	/* The kernel lets no more than 500 epolls that are watched themselves watch one description. */
	unsigned n_nested = nest_epolls(mine, 600);
	assert_true(n_nested < 600);
	assert_int_equal(nest_epolls(theirs, 1), 1);
	close_nested();
	assert_int_equal(is_readable(theirs, 0), 0);
	life_free(life);
	assert_int_equal(is_readable(theirs, PATIENCE_MS), 1);
	if (again >= 0)
		close(again);
	for (unsigned i = 0; i < MSG_LIFE_FDS; i++) {
		close(fds[i]);
		close(others[i]);
	}
}

static volatile sig_atomic_t n_handled;

static void on_signal(int number)
{
	n_handled++;
}

static _Noreturn void be_signalled(void)
{
	const struct sigaction action = {.sa_handler = on_signal};
	sigset_t usr1, pending;
	struct life *life;

	must(sigaction(SIGUSR1, &action, NULL) == 0);
	must(life_new(&life) == 0);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	must(sigprocmask(SIG_BLOCK, &usr1, NULL) == 0);
	must(kill(getpid(), SIGUSR1) == 0);
	/* Its threads would have taken it by the time that they have ended. */
	life_free(life);
	must(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) && n_handled == 0);
	must(sigprocmask(SIG_UNBLOCK, &usr1, NULL) == 0 && n_handled == 1);
	_exit(0);
}

/* In a process of its own, which has no threads of the BLAS library. */
static void test_no_signal_handler_runs_on_its_threads(void **state)
{
	int status;

	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		be_signalled();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Does the kernel have pidfds of threads? */
static bool has_pidfds(void)
{
	struct life *life;
	int fds[MSG_LIFE_FDS];

	if (life_new(&life) < 0)
		return true; /* which the tests report */
	size_t n = life_open(life, fds);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	life_free(life);
	return n > 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_signal_handler_runs_on_its_threads),
		cmocka_unit_test(test_life_shows_until_it_is_freed),
		cmocka_unit_test(test_freed_life_leaves_no_thread_and_no_descriptor),
		cmocka_unit_test(test_holder_of_the_descriptor_can_neither_end_nor_prolong_the_life),
		cmocka_unit_test(test_kill_shows_long_before_the_memory_is_released),
	};
	bool all = has_pidfds();
	int r = _cmocka_run_group_tests(
		"life", tests, all ? sizeof(tests) / sizeof(tests[0]) : 1, NULL, NULL);

	for (size_t i = 1; !all && i < sizeof(tests) / sizeof(tests[0]); i++)
		printf("# skipped: %s: no pidfds of threads, which need Linux 6.9\n",
			tests[i].name);
	return r;
}
