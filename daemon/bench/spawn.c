/* SPDX-License-Identifier: MIT */
#include "daemon/bench/spawn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/options.h"

#define READY_PERIOD_NS 20000000ull
#define CONNECT_TIMEOUT_MS 2000u
#define TERM_TIMEOUT_NS 10000000000ull
#define LOG_SHOWN 4096

/* ---- places ---- */

/* Relative to this program's directory, or (without '^') to the current one. */
static const struct {
	const char *option; /* that overrides the search */
	const char *places[5];
} spawn_kinds[] = {
	[SPAWN_MIMEOD] = {"mimeod", {"^.", "^../../daemon", "^../sbin"}},
	[SPAWN_MAKE_CHECKPOINT] = {"model",
		{"^../examples", "^../../examples", "^../libexec/mimeo", "^."}},
	[SPAWN_MODEL] = {"model", {"^../../examples/models", "^../../../examples/models",
		"^../share/mimeo/models", "examples/models"}},
	[SPAWN_TEXT] = {"text", {"^../../examples/texts", "^../../../examples/texts", "^../share/mimeo/texts",
		"examples/texts"}},
};

const char *spawn_find(enum spawn_kind kind, const char *name, char path[SPAWN_PATH_MAX])
{
	char self[512], places[2048];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	size_t used = 0;

	self[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (const char *const *place = spawn_kinds[kind].places; *place; place++) {
		bool beside = **place == '^';

		snprintf(path, SPAWN_PATH_MAX, "%s%s%s/%s", beside ? self : "", beside ? "/" : "",
			*place + beside, name);
		if (access(path, R_OK) == 0)
			return path;
		if (used < sizeof(places))
			used += (size_t)snprintf(places + used, sizeof(places) - used, "%s%s",
				used ? ", " : "", path);
	}
	bench_fail(-ENOENT, "%s is at none of %s: say --%s", name, places, spawn_kinds[kind].option);
	return NULL;
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

static int spawn_remove(const char *path, const struct stat *info, int type, struct FTW *place)
{
	remove(path);
	return 0;
}

void spawn_remove_directory(const char *path)
{
	nftw(path, spawn_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- starting programs ---- */

struct launch {
	const char *program, *log; /* log NULL: output is discarded, errors go to standard error */
	const char *argv[48];
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

/* The program inherits the pipe, which therefore closes when it ends. */
static int launch_exec(void *arg, int fd)
{
	const struct launch *launch = arg;
	int log = open(launch->log ? launch->log : "/dev/null", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (log < 0 || dup2(log, launch->log ? STDERR_FILENO : STDOUT_FILENO) < 0 ||
		fcntl(fd, F_SETFD, 0) < 0)
		return 1;
	options_clear_environment("loop"); /* results do not depend on the user's; mimeo-bench(1) names this one */
	execv(launch->program, (char *const *)launch->argv);
	return bench_fail(127, "%s: %s", launch->program, strerror(errno));
}

int spawn_make_model(const struct bench_options *options, const char *directory, const char *name,
	const char *family, bool config_only, char ret[SPAWN_DIRECTORY_MAX + 8])
{
	struct launch launch = {.n = 1};
	char path[SPAWN_PATH_MAX];

	snprintf(ret, SPAWN_DIRECTORY_MAX + 8, "%s/%s", directory, name);
	launch.program = spawn_find(SPAWN_MAKE_CHECKPOINT, "make-checkpoint", path);
	if (!launch.program)
		return -ENOENT;
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

/* Ask for `status`: while the daemon loads, it answers and closes the connection. */
static bool target_serves(struct target *target, const char *admin)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	char state[16] = "";

	target->admin = socket_connect(admin, CONNECT_TIMEOUT_MS);
	if (target->admin >= 0 && ask_once(target->admin, &(struct ask){.op = "status"}, &answer) == 0)
		answer_text(answer, 0, "state", state, sizeof(state));
	if (strcmp(state, "serving") == 0)
		return true;
	if (target->admin >= 0)
		close(target->admin);
	target->admin = -1;
	return false;
}

static int target_await(struct target *target, const char *admin, uint32_t timeout_s)
{
	uint64_t now = clock_ns(), end = now + timeout_s * 1000000000ull;

	for (; now < end; now = clock_ns()) {
		int rc = child_next(&target->child, now + READY_PERIOD_NS);

		if (rc == 0)
			return -ECHILD;
		if (rc < 0 && rc != -ETIMEDOUT)
			return rc;
		if (target_serves(target, admin))
			return 0;
	}
	return -ETIMEDOUT;
}

static int target_launch(
	const struct bench_options *o, const struct spawn_needs *needs, struct target *target)
{
	struct launch launch = {.program = o->mimeod, .log = target->log, .argv = {o->mimeod}, .n = 1};
	char admin[SOCKET_PATH_MAX], model[1024], pages[16], drafts[16], requests[16];

	snprintf(target->socket, sizeof(target->socket), "%s/mimeod.sock", target->directory);
	snprintf(target->log, sizeof(target->log), "%s/log", target->directory);
	snprintf(model, sizeof(model), "bench=%s", o->model_dir);
	snprintf(pages, sizeof(pages), "%u", needs->kv_pages);
	snprintf(drafts, sizeof(drafts), "%u", needs->draft_tokens);
	snprintf(requests, sizeof(requests), "%u", needs->max_requests);
	launch_add(&launch, "--config", "/dev/null"); /* not the machine's */
	launch_add(&launch, "--model", model);
	launch_add(&launch, "--socket", target->socket);
	launch_add(&launch, "--device", o->device);
	launch_add(&launch, "--attention", o->attention);
	launch_add(&launch, "--deterministic", o->deterministic ? "yes" : NULL);
	launch_add(&launch, "--head-dtype", strcmp(o->head_dtype, "model") ? o->head_dtype : NULL);
	launch_add(&launch, "--kv-dtype", strcmp(o->kv_dtype, "model") ? o->kv_dtype : NULL);
	launch_add(&launch, "--kv-pages", pages);
	launch_add(&launch, "--max-sessions-per-uid", "64"); /* BENCH_PROCESSES_MAX */
	/* A single user may use half of it, a second one a third of the rest. */
	launch_add(&launch, "--max-sessions", needs->weights ? "256" : "128");
	launch_add(&launch, "--weights", needs->weights);
	launch_add(&launch, "--max-requests", needs->max_requests ? requests : NULL);
	launch_add(&launch, "--graph-mode", needs->graph_mode);
	launch_add(&launch, "--prefix-sharing", needs->prefix_sharing);
	launch_add(&launch, "--token-us", needs->token_us);
	launch_add(&launch, "--draft", needs->draft);
	launch_add(&launch, "--draft-tokens", needs->draft ? drafts : NULL);
	launch_add(&launch, "--spin-us", needs->spin_us);
	int rc = socket_admin_path(admin, target->socket);
	if (rc < 0)
		return rc;
	rc = child_start(&target->child, launch_exec, &launch);
	return rc < 0 ? rc : target_await(target, admin, o->timeout_s);
}

static int target_start(
	const struct bench_options *o, const struct spawn_needs *needs, struct target *target)
{
	int rc = spawn_make_directory(target->directory);

	if (rc < 0)
		return rc;
	if (needs->weights && chmod(target->directory, 0711) < 0)
		return bench_fail(-errno, "%s: %s", target->directory, strerror(errno));
	rc = target_launch(o, needs, target);
	if (rc < 0 && rc != -EINTR) {
		bench_fail(rc, "%s did not come up: %s", o->mimeod,
			rc == -ECHILD || rc == -EFAULT ? "it ended" : strerror(-rc));
		target_show_log(target);
	}
	return rc;
}

/* ---- its answers ---- */

int target_ask(const struct target *target, const char *op, struct answer **ret)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	if (target->admin < 0)
		return -EACCES;
	int rc = ask_once(target->admin, &(struct ask){.op = op}, &answer);
	if (rc < 0)
		return rc;
	if (answer->status < 0)
		return -EACCES;
	*ret = STEAL(answer);
	return 0;
}

double answer_number(const struct answer *answer, size_t row, const char *key)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	return cell && (cell->type == MSGPACK_OBJECT_FLOAT64 ||
			       cell->type == MSGPACK_OBJECT_FLOAT32)
		       ? cell->via.f64
		       : 0;
}

double answer_metric(const struct answer *metrics, const char *name, const char *label)
{
	double sum = 0;
	char text[64];

	for (size_t row = 0; row < metrics->n_rows; row++) {
		if (strcmp(answer_text(metrics, row, "name", text, sizeof(text)), name) != 0)
			continue;
		if (!label ||
			strcmp(answer_text(metrics, row, "label_value", text, sizeof(text)), label) == 0 ||
			strcmp(answer_text(metrics, row, "label_2_value", text, sizeof(text)), label) == 0)
			sum += (double)answer_count(metrics, row, "value", 0) + answer_number(metrics, row, "value");
	}
	return sum;
}

static int target_facts(const struct target *target, struct results *results)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	char device[128], loop[16], version[32];
	int rc = target_ask(target, "status", &answer);

	if (rc < 0)
		return rc;
	results_machine(results, answer_text(answer, 0, "device", device, sizeof(device)),
		answer_text(answer, 0, "loop", loop, sizeof(loop)),
		answer_text(answer, 0, "version", version, sizeof(version)));
	return 0;
}

/* The operators' socket of a running daemon may refuse this user; then its counters are missing. */
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
		child_wait(&target->child, clock_ns() + TERM_TIMEOUT_NS);
	}
	child_kill(&target->child);
	if (target->directory[0])
		spawn_remove_directory(target->directory);
	target->directory[0] = '\0';
}

int target_run(const struct bench_options *options, const struct spawn_needs *needs,
	struct results *results, const char *name, int (*child)(void *arg, int fd), const void *what)
{
	CLEANUP(target_close) struct target target;
	struct target_work work = {options, results, &target, what};
	int rc = target_open(options, needs, results, &target);

	return rc < 0 ? rc : child_run(name, child, &work, options->timeout_s);
}
