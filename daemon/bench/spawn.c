/* SPDX-License-Identifier: MIT */
#include "daemon/bench/spawn.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READY_PERIOD_NS 20000000ull
#define CONNECT_TIMEOUT_MS 2000u
#define TERM_TIMEOUT_NS 10000000000ull
#define LOG_SHOWN 4096
#define METRICS_MAX 32u

/* ---- places ---- */

/* A place is relative to this program's directory, or (without '^') to the current one. */
static void spawn_resolve(const char *place, const char *name, char *path, size_t size)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	if (*place == '^')
		snprintf(path, size, "%s/%s/%s", self, place + 1, name);
	else
		snprintf(path, size, "%s/%s", place, name);
}

/* The first of `places` where something of that name is. */
static const char *spawn_find(
	const char *const *places, const char *name, char *path, size_t size)
{
	for (; *places; places++) {
		spawn_resolve(*places, name, path, size);
		if (access(path, R_OK) == 0)
			return path;
	}
	return NULL;
}

const char *spawn_find_mimeod(char *path, size_t size)
{
	static const char *const places[] = {"^.", "^../../daemon", "^../sbin", NULL};

	return spawn_find(places, "mimeod", path, size);
}

const char *spawn_find_make_checkpoint(char *path, size_t size)
{
	static const char *const places[] = {
		"^../examples", "^../../examples", "^../libexec/mimeo", "^.", NULL};

	return spawn_find(places, "make-checkpoint", path, size);
}

static const char *const model_places[] = {"^../../examples/models", "^../../../examples/models",
	"^../share/mimeo/models", "examples/models", NULL};

const char *spawn_find_model(const char *name, char *path, size_t size)
{
	return spawn_find(model_places, name, path, size);
}

void spawn_model_places(const char *name, char *ret, size_t size)
{
	char path[600];
	size_t used = 0;

	ret[0] = '\0';
	for (const char *const *place = model_places; *place && used < size; place++) {
		spawn_resolve(*place, name, path, sizeof(path));
		used += (size_t)snprintf(
			ret + used, size - used, "%s%s", place == model_places ? "" : ", ", path);
	}
}

int spawn_make_directory(char ret[SPAWN_DIRECTORY_MAX])
{
	static const char name[] = "/mimeo-bench-XXXXXX";
	const char *place = getenv("TMPDIR");

	if (!place || *place != '/' || strlen(place) + sizeof(name) > SPAWN_DIRECTORY_MAX)
		place = "/tmp";
	snprintf(ret, SPAWN_DIRECTORY_MAX, "%s%s", place, name);
	if (mkdtemp(ret))
		return 0;
	int rc = bench_fail(-errno, "%s: %s", ret, strerror(errno));
	ret[0] = '\0';
	return rc;
}

void spawn_remove_directory(const char *path)
{
	DIR *directory = opendir(path);

	if (!directory)
		return;
	for (struct dirent *entry; (entry = readdir(directory));)
		unlinkat(dirfd(directory), entry->d_name, 0);
	closedir(directory);
	rmdir(path);
}

/* ---- starting programs ---- */

struct launch {
	const char *program, *log; /* log NULL: nowhere, but errors as they are */
	const char *argv[32];
	uint32_t n;
};

/* An option and its value, unless that is NULL. */
static void launch_add(struct launch *launch, const char *name, const char *value)
{
	assert(launch->n + 3 <= sizeof(launch->argv) / sizeof(launch->argv[0]));
	if (!value)
		return;
	launch->argv[launch->n++] = name;
	launch->argv[launch->n++] = value;
}

/* The pipe ends with the program, so the program has to have it. */
static int launch_exec(void *arg, int fd)
{
	const struct launch *launch = arg;
	int log = open(launch->log ? launch->log : "/dev/null", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (log < 0 || dup2(log, launch->log ? STDERR_FILENO : STDOUT_FILENO) < 0 ||
		fcntl(fd, F_SETFD, 0) < 0)
		return 1;
	execv(launch->program, (char *const *)launch->argv);
	return bench_fail(127, "%s: %s", launch->program, strerror(errno));
}

int spawn_make_model(const struct bench_options *options, const char *directory, const char *name,
	const char *family, bool config_only, char ret[SPAWN_DIRECTORY_MAX + 8])
{
	struct launch launch = {.program = options->make_checkpoint, .n = 1};
	char path[600];

	snprintf(ret, SPAWN_DIRECTORY_MAX + 8, "%s/%s", directory, name);
	if (!launch.program)
		launch.program = spawn_find_make_checkpoint(path, sizeof(path));
	if (!launch.program)
		return bench_fail(-ENOENT, "make-checkpoint is neither in ../libexec/mimeo nor in "
					   "../examples: say --make-checkpoint FILE");
	launch.argv[0] = launch.program;
	launch_add(&launch, "--shape", options->shape);
	launch_add(&launch, "--family", family);
	launch.argv[launch.n++] = ret;
	if (config_only)
		launch.argv[launch.n++] = "--config-only";
	return child_run("make-checkpoint", launch_exec, &launch, options->timeout_s);
}

static void target_show_log(const struct target *target)
{
	char text[LOG_SHOWN];
	CLEANUP(cleanup_close) int log = open(target->log, O_RDONLY | O_CLOEXEC);

	if (log < 0)
		return;
	off_t end = lseek(log, 0, SEEK_END);
	ssize_t n = pread(log, text, sizeof(text), end > LOG_SHOWN ? end - LOG_SHOWN : 0);
	if (n > 0)
		fwrite(text, 1, (size_t)n, stderr);
}

/* It serves when the admin socket accepts us. */
static int target_await(struct target *target, const char *admin, uint32_t timeout_s)
{
	uint64_t now = stats_now(), end = now + timeout_s * 1000000000ull;

	for (; now < end; now = stats_now()) {
		int rc = child_next(&target->child, now + READY_PERIOD_NS);

		if (rc == 0)
			return -ECHILD;
		if (rc < 0 && rc != -ETIMEDOUT)
			return rc;
		target->admin = socket_connect(admin, CONNECT_TIMEOUT_MS);
		if (target->admin >= 0)
			return 0;
	}
	return -ETIMEDOUT;
}

static int target_start(
	const struct bench_options *o, const struct spawn_needs *needs, struct target *target)
{
	struct launch launch = {.program = o->mimeod, .log = target->log, .argv = {o->mimeod}, .n = 1};
	char admin[SOCKET_PATH_MAX], model[1024], pages[16], requests[16], drafts[16];
	int rc = spawn_make_directory(target->directory);

	if (rc < 0)
		return rc;
	snprintf(target->socket, sizeof(target->socket), "%s/mimeod.sock", target->directory);
	snprintf(target->log, sizeof(target->log), "%s/log", target->directory);
	snprintf(model, sizeof(model), "bench=%s", o->model_dir);
	snprintf(pages, sizeof(pages), "%u", needs->kv_pages);
	snprintf(requests, sizeof(requests), "%u", needs->max_requests);
	snprintf(drafts, sizeof(drafts), "%u", needs->draft_tokens);
	launch_add(&launch, "--config", "/dev/null"); /* not the machine's */
	launch_add(&launch, "--model", model);
	launch_add(&launch, "--socket", target->socket);
	launch_add(&launch, "--device", o->device);
	launch_add(&launch, "--attention", o->attention);
	launch_add(&launch, "--kv-pages", pages);
	launch_add(&launch, "--max-sessions-per-uid", "64"); /* BENCH_PROCESSES_MAX */
	launch_add(&launch, "--max-requests", needs->max_requests ? requests : NULL);
	launch_add(&launch, "--graph-mode", needs->graph_mode);
	launch_add(&launch, "--draft", needs->draft);
	launch_add(&launch, "--draft-tokens", needs->draft ? drafts : NULL);
	launch_add(&launch, "--spin-us", needs->spin_us);
	rc = socket_admin_path(admin, target->socket);
	if (rc == 0)
		rc = child_start(&target->child, launch_exec, &launch);
	if (rc == 0)
		rc = target_await(target, admin, o->timeout_s);
	if (rc < 0 && rc != -EINTR) {
		bench_fail(rc, "%s did not come up: %s", o->mimeod,
			rc == -ECHILD || rc == -EFAULT ? "it ended" : strerror(-rc));
		target_show_log(target);
	}
	return rc;
}

/* ---- what it says ---- */

int target_ask(const struct target *target, const char *op, struct answer **ret)
{
	if (target->admin < 0)
		return -EACCES;
	int rc = ask_send(target->admin, &(struct ask){.op = op});
	if (rc == 0)
		rc = ask_receive(target->admin, ret);
	if (rc == 0 && (*ret)->status < 0) {
		answer_free(*ret);
		return -EACCES;
	}
	return rc;
}

int target_metrics(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *ret)
{
	struct answer *answer;
	char text[64];
	int rc = target_ask(target, "metrics", &answer);

	if (rc < 0)
		return rc;
	memset(ret, 0, n * sizeof(*ret));
	for (size_t row = 0; row < answer->n_rows; row++) {
		answer_text(answer, row, "name", text, sizeof(text));
		for (uint32_t i = 0; i < n; i++)
			if (strcmp(text, names[i]) == 0)
				ret[i] = answer_count(answer, row, "value", 0);
	}
	answer_free(answer);
	return 0;
}

int target_metrics_since(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *from)
{
	uint64_t now[METRICS_MAX];

	assert(n <= METRICS_MAX);
	int rc = target_metrics(target, names, n, now);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		from[i] = now[i] - from[i];
	return rc;
}

double answer_number(const struct answer *answer, size_t row, const char *key)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	return cell && (cell->type == MSGPACK_OBJECT_FLOAT64 ||
			       cell->type == MSGPACK_OBJECT_FLOAT32)
		       ? cell->via.f64
		       : 0;
}

static int target_facts(const struct target *target, struct results *results)
{
	struct answer *answer;
	char device[128], loop[16], version[32];
	int rc = target_ask(target, "status", &answer);

	if (rc < 0)
		return rc;
	results_machine(results, answer_text(answer, 0, "device", device, sizeof(device)),
		answer_text(answer, 0, "loop", loop, sizeof(loop)),
		answer_text(answer, 0, "version", version, sizeof(version)));
	answer_free(answer);
	return 0;
}

/* A running daemon's admin socket may be closed to us; then we know less and go on. */
static int target_use_running(
	const struct bench_options *options, struct results *results, struct target *target)
{
	char admin[SOCKET_PATH_MAX];
	int rc = socket_path(target->socket, options->socket);

	if (rc == 0)
		rc = socket_admin_path(admin, target->socket);
	if (rc < 0)
		return bench_fail(rc, "%s: %s", options->socket, strerror(-rc));
	results_machine(results, "?", "?", "?");
	target->admin = socket_connect(admin, CONNECT_TIMEOUT_MS);
	if (target->admin >= 0 && target_facts(target, results) < 0) {
		close(target->admin);
		target->admin = -1;
	}
	return 0;
}

int target_open(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, struct target *ret)
{
	*ret = (struct target){.admin = -1, .is_private = !options->socket};
	if (options->socket)
		return target_use_running(options, results, ret);
	int rc = target_start(options, needs, ret);
	if (rc < 0)
		return rc;
	rc = target_facts(ret, results);
	return rc < 0 ? bench_fail(rc, "%s: status: %s", ret->socket, strerror(-rc)) : 0;
}

void target_close(struct target *target)
{
	if (target->admin >= 0)
		close(target->admin);
	target->admin = -1;
	if (target->child.pid > 0) {
		kill(target->child.pid, SIGTERM);
		child_wait(&target->child, stats_now() + TERM_TIMEOUT_NS);
	}
	child_kill(&target->child);
	if (target->directory[0])
		spawn_remove_directory(target->directory);
	target->directory[0] = '\0';
}
