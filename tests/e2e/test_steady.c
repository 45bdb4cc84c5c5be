/* SPDX-License-Identifier: MIT */
/*
 * What a request costs while everybody spins: no system call and no allocation, neither on the
 * client's thread nor on the engine's.
 *
 * Proof by force: after a warm-up both threads get a seccomp filter that traps every system call
 * but the client's look at its socket once a millisecond; allocations are counted by taking
 * malloc's place. A filter cannot be taken off again, so each scene runs in a process of its own
 * (this program, executed again with the scene's name) that holds daemon and client and ends by
 * _exit. The engine's thread installs its filter itself: the linker puts us between it and
 * mailbox_take, which it calls every turn (--wrap).
 *
 * Client, engine and the cpu device's worker spin without limit, so that below four CPUs they
 * mostly wait for each other: the long scenes are skipped there, unless MIMEO_TEST_STEADY is set.
 *
 * On a GPU prompts run eagerly through cuBLASLt, whose products allocate: there replays are watched
 * alone, from a request's first token on, and of whole requests the system calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "daemon/config/options.h"
#include "daemon/startup/startup.h"
#include "tests/device.h"
#include "tests/e2e/process.h"
#include "tests/e2e/questions.h"

#define N_REQUESTS 1000
#define N_STEPS 1000
#define N_WARM_UP 50
#define CPUS_LEAST 4

/* One of the two threads that are watched. */
struct watch {
	const char *name;
	_Atomic bool wanted, armed;
	_Atomic uint64_t n_syscalls, n_allocations, n_polls;
	_Atomic int first_syscall;
};

static struct watch engine_watch = {.name = "engine"}, client_watch = {.name = "client"};
static _Thread_local struct watch *watched;

/* ---- allocations ---- */

static void count_allocation(void)
{
	if (watched && atomic_load(&watched->armed))
		atomic_fetch_add(&watched->n_allocations, 1);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* The sanitizer replaces malloc, and reports. */
int __sanitizer_install_malloc_and_free_hooks(
	void (*on_malloc)(const volatile void *, size_t), void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *memory, size_t bytes)
{
	count_allocation();
}

static void on_free(const volatile void *memory)
{
	count_allocation();
}

static void watch_allocations(void)
{
	if (__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) == 0)
		abort();
}
#else
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
	count_allocation();
	return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	count_allocation();
	return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
	count_allocation();
	return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	count_allocation();
	return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret, size_t alignment, size_t bytes)
{
	count_allocation();
	*ret = __libc_memalign(alignment, bytes);
	return *ret ? 0 : ENOMEM;
}

void free(void *memory)
{
	count_allocation();
	__libc_free(memory);
}

static void watch_allocations(void)
{
}
#endif

/* ---- system calls ---- */

/* Ours in place of libc's, to count how often the client looks at its socket. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};

	if (watched)
		atomic_fetch_add(&watched->n_polls, 1);
	return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
}

static void on_trap(int number, siginfo_t *info, void *context)
{
	int none = 0;

	atomic_fetch_add(&watched->n_syscalls, 1);
	atomic_compare_exchange_strong(&watched->first_syscall, &none, info->si_syscall);
}

#define ALLOW(call)                                                                                \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1),                                         \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* From here on this thread's system calls are trapped. clock_gettime is no system call where the
 * kernel's shared page serves it, and on machines where it is one that is not ours to change. */
static void watch_begin(struct watch *watch)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_exit_group),
		ALLOW(SYS_rt_sigreturn),
		ALLOW(SYS_clock_gettime),
		ALLOW(watch == &client_watch ? SYS_ppoll : SYS_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
	sigset_t trap;

	/* The engine's thread takes no signals; a blocked SIGSYS would kill us instead. */
	sigemptyset(&trap);
	sigaddset(&trap, SIGSYS);
	pthread_sigmask(SIG_UNBLOCK, &trap, NULL);
	watched = watch;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0) {
		perror("seccomp");
		_exit(2);
	}
	atomic_store(&watch->armed, true);
}

/* What a thread must not do, once, to see that it is noticed. */
static _Atomic bool misbehave_engine;

static void misbehave(void)
{
	void *volatile memory = malloc(1);

	free(memory);
	syscall(SYS_getppid);
}

struct engine;
bool __real_mailbox_take(struct engine *engine);
bool __wrap_mailbox_take(struct engine *engine);

bool __wrap_mailbox_take(struct engine *engine)
{
	if (atomic_load_explicit(&engine_watch.wanted, memory_order_relaxed) && !watched)
		watch_begin(&engine_watch);
	if (watched && atomic_exchange(&misbehave_engine, false))
		misbehave();
	return __real_mailbox_take(engine);
}

static void watch_both(void)
{
	atomic_store(&engine_watch.wanted, true);
	while (!atomic_load(&engine_watch.armed))
		;
	watch_begin(&client_watch);
}

static bool watch_report(const struct watch *watch, uint64_t ms, bool may_allocate)
{
	uint64_t n_syscalls = atomic_load(&watch->n_syscalls);
	uint64_t n_allocations = atomic_load(&watch->n_allocations);
	uint64_t n_polls = atomic_load(&watch->n_polls);

	printf("%s: %lu system calls (the first: %d), %lu allocations, %lu looks at the socket in "
	       "%lu ms\n",
		watch->name, (unsigned long)n_syscalls, atomic_load(&watch->first_syscall),
		(unsigned long)n_allocations, (unsigned long)n_polls, (unsigned long)ms);
	return atomic_load(&watch->armed) && n_syscalls == 0 &&
	       (n_allocations == 0 || may_allocate) && n_polls <= ms + 1;
}

/* ---- the scenes ---- */

struct scene {
	const char *socket;
	enum { REQUESTS, DECODE, MISBEHAVE } kind;
	_Atomic bool done;
	bool right;
	uint64_t ms;
};

/* Submit and wait for the end: the number of tokens, or 0. watch_late: from the first token on. */
static uint32_t generate(struct mimeo *m, uint32_t max_tokens, bool watch_late)
{
	struct mimeo_event event;
	uint32_t n_tokens = 0;

	if (endless_submit(m, max_tokens, 0, NULL) != 0)
		return 0;
	while (mimeo_event_wait(m, &event, -1) == 1) {
		bool last = event.kind == MIMEO_EVENT_FINAL;

		if (watch_late && !watched)
			watch_both();
		n_tokens += event.n_tokens;
		if (last && event.status != 0)
			n_tokens = 0;
		mimeo_event_seen(m, &event);
		if (last)
			break;
	}
	return n_tokens;
}

static bool play(struct mimeo *m, const struct scene *scene)
{
	if (scene->kind == DECODE)
		return generate(m, N_STEPS, true) == N_STEPS;
	if (scene->kind == MISBEHAVE) {
		misbehave();
		atomic_store(&misbehave_engine, true);
		while (atomic_load(&misbehave_engine))
			;
		return generate(m, 2, false) == 2;
	}
	for (uint32_t i = 0; i < N_REQUESTS; i++) {
		if (generate(m, 2, false) != 2)
			return false;
	}
	return true;
}

static void *client_main(void *arg)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct scene *scene = arg;
	struct mimeo *m;
	int rc;

	config.socket_path = scene->socket;
	config.spin_us = MIMEO_SPIN_FOREVER;
	while ((rc = mimeo_connect(&m, &config)) == MIMEO_E_UNREACHABLE)
		pause_ms(1);
	bool warm = rc == 0;
	for (uint32_t i = 0; i < N_WARM_UP && warm; i++)
		warm = generate(m, 5, false) == 5;
	if (warm) {
		if (scene->kind != DECODE || !test_on_cuda())
			watch_both();
		uint64_t start = now_ms();
		scene->right = play(m, scene);
		scene->ms = now_ms() - start;
	}
	atomic_store(&scene->done, true);
	/* There is no way to sleep and none to end this thread alone. */
	for (;;)
		;
	return NULL;
}

static void *daemon_main(void *startup)
{
	bool abandoned;

	startup_serve(startup, &abandoned);
	return NULL;
}

static struct startup *startup_make(char *socket, char *model)
{
	static struct config config;
	static struct startup_error startup_error;
	static struct config_error error;
	char *argv[] = {"mimeod", "--socket", socket, "--model", model, "--device",
		(char *)(uintptr_t)test_device(), "--capture-sizes", "1,2,4", "--kv-pages", "128",
		"--spin-us", "forever", "--log-level", "warn", NULL};
	struct startup *startup;

	if (options_parse(15, argv, NULL, stdout, &config, &error) != 0) {
		printf("%s\n", error.text);
		return NULL;
	}
	if (startup_new(&config, &startup, &startup_error) < 0) {
		printf("%s\n", startup_error.text);
		return NULL;
	}
	return startup;
}

/* The program's second life. Its exit status: 0 if nothing was trapped and nothing allocated. */
static int run_scene(const char *name, char *socket, char *model)
{
	const struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	struct scene scene = {
		.socket = socket,
		.kind = strcmp(name, "decode") == 0      ? DECODE
			: strcmp(name, "misbehave") == 0 ? MISBEHAVE
							 : REQUESTS,
	};
	pthread_t daemon, client;

	watch_allocations();
	sigaction(SIGSYS, &action, NULL);
	struct startup *startup = startup_make(socket, model);
	if (!startup || pthread_create(&daemon, NULL, daemon_main, startup) != 0 ||
		pthread_create(&client, NULL, client_main, &scene) != 0)
		return 2;
	while (!atomic_load(&scene.done))
		pause_ms(1);
	bool ok = watch_report(&engine_watch, scene.ms, scene.kind == REQUESTS && test_on_cuda());
	ok &= watch_report(&client_watch, scene.ms, false);
	printf("answers: %s\n", scene.right ? "right" : "wrong");
	fflush(stdout);
	_exit(ok && scene.right ? 0 : 1);
}

static void play_scene(const char *name, struct program_output *ret)
{
	char folder[] = "/tmp/mimeo-XXXXXX", socket[64], model[4096 + 32];
	const char *const argv[] = {"/proc/self/exe", name, socket, model, NULL};

	assert_non_null(mkdtemp(folder));
	snprintf(socket, sizeof(socket), "%s/m.sock", folder);
	snprintf(model, sizeof(model), "tinycalc=%s", source_path("examples/models/tinycalc"));
	program_run(argv, ret);
	folder_remove(folder);
	if (ret->status != 0)
		fprintf(stderr, "%s", ret->text);
}

static void test_requests_cost_no_system_call_and_no_allocation(void **state)
{
	static struct program_output output;

	play_scene("requests", &output);
	assert_int_equal(output.status, 0);
}

static void test_decode_steps_cost_no_system_call_and_no_allocation(void **state)
{
	static struct program_output output;

	play_scene("decode", &output);
	assert_int_equal(output.status, 0);
}

static void test_watch_sees_system_calls_and_allocations_on_both_threads(void **state)
{
	static struct program_output output;

	play_scene("misbehave", &output);
	assert_int_equal(output.status, 1);
	assert_non_null(strstr(output.text, "engine: 1 system calls"));
	assert_non_null(strstr(output.text, "client: 1 system calls"));
	assert_null(strstr(output.text, " 0 allocations"));
	assert_non_null(strstr(output.text, "answers: right"));
}

static bool has_cpus(void)
{
	cpu_set_t cpus;

	return getenv("MIMEO_TEST_STEADY") || sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ||
	       CPU_COUNT(&cpus) >= CPUS_LEAST;
}

#define REQUESTS_TEST cmocka_unit_test(test_requests_cost_no_system_call_and_no_allocation)
#define DECODE_TEST cmocka_unit_test(test_decode_steps_cost_no_system_call_and_no_allocation)
#define WATCH_TEST cmocka_unit_test(test_watch_sees_system_calls_and_allocations_on_both_threads)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {REQUESTS_TEST, DECODE_TEST, WATCH_TEST};
	static const struct CMUnitTest watch_only[] = {WATCH_TEST};
	int failed;

	watchdog(WATCHDOG_SECONDS);
	if (argc == 4)
		return run_scene(argv[1], argv[2], argv[3]);
	if (has_cpus()) {
		failed = cmocka_run_group_tests_name("steady", tests, NULL, NULL);
		if (test_on_cuda())
			printf("# skipped: allocations of whole requests: "
			       "cuBLASLt allocates in prompts\n");
		return failed;
	}
	failed = cmocka_run_group_tests_name("steady", watch_only, NULL, NULL);
	/* Behind the rest: nothing may stand before TAP's first line. */
	for (unsigned i = 0; i < 2; i++)
		printf("# skipped: %s: fewer than %d CPUs, and no MIMEO_TEST_STEADY\n",
			tests[i].name, CPUS_LEAST);
	return failed;
}
