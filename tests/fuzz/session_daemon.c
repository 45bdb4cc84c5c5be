/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/session_daemon.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/options.h"
#include "daemon/engine/engine.h"
#include "daemon/startup/startup.h"
#include "ipc/clock.h"
#include "ipc/socket.h"

int __real_engine_start(struct engine *engine, struct builder *builder);
int __wrap_engine_start(struct engine *engine, struct builder *builder);

#define MODEL MIMEO_SOURCE "/tests/data/drafts/target"
#define DRAFT MIMEO_SOURCE "/tests/data/drafts/eagle"
#define REQUESTS 4 /* slots */
#define PATIENCE_NS UINT64_C(30000000000)

static struct engine *engine;
char session_daemon_socket[96];
static char session_folder[] = "/tmp/fuzz-session-XXXXXX";
static uint32_t n_idle_fds;

int __wrap_engine_start(struct engine *started, struct builder *builder)
{
	engine = started;
	return __real_engine_start(started, builder);
}

/* Ends by a signal alone, whose handlers are the daemon's. */
static void *serve(void *arg)
{
	bool abandoned;

	CLAIM(startup_serve(arg, &abandoned) == MIMEOD_EXIT_DONE);
	exit(0);
}

static void remove_folder(void)
{
	static const char *const names[] = {"m.sock", "m-admin.sock", "m.sock.lock", "m-admin.sock.lock"};
	char path[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", session_folder, names[i]);
		unlink(path);
	}
	rmdir(session_folder);
}

/* Of the kinds that sessions have; the fuzzer has pipes to its symbolizer. */
static uint32_t count_fds(void)
{
	static const char *const kinds[] = {"socket:", "anon_inode:", "/memfd:"};
	DIR *folder = opendir("/proc/self/fd");
	char target[64];
	uint32_t n = 0;

	CLAIM(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = '\0';
		for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
			n += strncmp(target, kinds[i], strlen(kinds[i])) == 0;
	}
	closedir(folder);
	return n;
}

static bool is_idle(void)
{
	const struct engine_stats *stats = engine_stats(engine);
	struct engine_model_facts facts;

	engine_model_facts(engine, 0, &facts);
	return stats->n_sessions == 0 && stats->n_running == 0 && stats->n_waiting == 0 &&
		stats->n_sequences == 0 && stats->n_in_lane == 0 && stats->n_slots_free == REQUESTS &&
		facts.pages_free == facts.pages_total && (n_idle_fds == 0 || count_fds() == n_idle_fds);
}

void session_daemon_await_idle(void)
{
	const struct engine_stats *stats = engine_stats(engine);
	uint64_t until = clock_ns() + PATIENCE_NS;
	struct engine_model_facts facts;

	while (!is_idle()) {
		if (clock_ns() < until) {
			sched_yield();
			continue;
		}
		engine_model_facts(engine, 0, &facts);
		fprintf(stderr, "sessions %u, running %u, waiting %u, sequences %u, in the lane %u, "
			"slots free %u of %u, pages free %u of %u, descriptors %u of %u\n",
			stats->n_sessions, stats->n_running, stats->n_waiting, stats->n_sequences,
			stats->n_in_lane, stats->n_slots_free, REQUESTS, facts.pages_free,
			facts.pages_total, count_fds(), n_idle_fds);
		abort();
	}
}

void session_daemon_start(void)
{
	static struct config config;
	static const char *const command[] = {"mimeod", "--socket", session_daemon_socket, "--model", "m=" MODEL,
		"--draft", DRAFT, "--draft-tokens", "3", "--device", "cpu", "--attention", "flex", "--kv-pages", "12",
		"--capture-sizes", "1,2,4",
		"--max-requests", "4", "--max-batch-tokens", "32", "--max-seq-len", "128",
		"--max-sequences", "6", "--max-client-buffers", "3", "--max-client-buffer-bytes", "64K",
		"--spin-us", "0", "--log-level", "error", NULL};
	struct config_error wrong;
	struct startup *startup;
	struct startup_error error;
	pthread_t thread;

	CLAIM(mkdtemp(session_folder));
	atexit(remove_folder);
	snprintf(session_daemon_socket, sizeof(session_daemon_socket), "%s/m.sock", session_folder);
	log_open(STDERR_FILENO);
	if (options_parse(sizeof(command) / sizeof(command[0]) - 1, (char **)(uintptr_t)command, NULL, stderr,
		    &config, &wrong)) {
		fprintf(stderr, "%s\n", wrong.text);
		abort();
	}
	log_set_level(config.log_level);
	if (startup_new(&config, &startup, &error)) {
		fprintf(stderr, "%s\n", error.text);
		abort();
	}
	CLAIM(pthread_create(&thread, NULL, serve, startup) == 0);
	uint64_t until = clock_ns() + PATIENCE_NS;
	int fd;
	while ((fd = socket_connect(session_daemon_socket, 5000)) < 0)
		CLAIM(clock_ns() < until);
	close(fd);
}

void session_daemon_settle(void)
{
	session_daemon_await_idle();
	usleep(200000); /* the last descriptors are closed by a thread of their own */
	n_idle_fds = count_fds();
}
