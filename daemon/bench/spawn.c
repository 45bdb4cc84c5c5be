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

#include "build-config.h"
#include "daemon/bench/stats.h"

#define READY_PERIOD_NS 20000000ull
#define CONNECT_TIMEOUT_MS 2000u
#define TERM_TIMEOUT_NS 10000000000ull
#define LOG_SHOWN 4096
#define TARGET_METRICS_MAX 32u

/* ---- where things are ---- */

/* A place is relative to this program's folder, or (without '^') to the current one. */
static void place_resolve(const char *place, char *path, size_t size)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	if (*place == '^')
		snprintf(path, size, "%s/%s", self, place + 1);
	else
		snprintf(path, size, "%s", place);
}

/* The first of `places` where something is. */
static const char *find(const char *const *places, char *path, size_t size)
{
	for (; *places; places++) {
		place_resolve(*places, path, size);
		if (access(path, R_OK) == 0)
			return path;
	}
	return NULL;
}

const char *spawn_find_mimeod(char *path, size_t size)
{
	static const char *const places[] = {"^mimeod", "^../../daemon/mimeod", "^../sbin/mimeod", NULL};

	return find(places, path, size);
}

const char *spawn_find_make_checkpoint(char *path, size_t size)
{
	static const char *const places[] = {
		"^../examples/make-checkpoint", "^../../examples/make-checkpoint", "^../libexec/mimeo/make-checkpoint",
		"^make-checkpoint", NULL};

	return find(places, path, size);
}

static const char *const model_places[] = {
	"^../../examples/models",
	"^../../../examples/models",
	"^../share/mimeo/models",
	"examples/models",
	NULL,
};

const char *spawn_find_model(const char *name, char *path, size_t size)
{
	char folder[600];

	for (const char *const *place = model_places; *place; place++) {
		place_resolve(*place, folder, sizeof(folder));
		if ((size_t)snprintf(path, size, "%s/%s", folder, name) < size &&
			access(path, R_OK) == 0)
			return path;
	}
	return NULL;
}

void spawn_model_places(const char *name, char *ret, size_t size)
{
	char folder[600];
	size_t used = 0;

	ret[0] = '\0';
	for (const char *const *place = model_places; *place && used < size; place++) {
		place_resolve(*place, folder, sizeof(folder));
		used += (size_t)snprintf(ret + used, size - used, "%s%s/%s",
			place == model_places ? "" : ", ", folder, name);
	}
}

/* ---- starting one ---- */

struct launch {
	const struct bench_options *options;
	const struct spawn_needs *needs;
	const struct target *target;
};

static int exec_mimeod(void *arg, int fd)
{
	const struct launch *launch = arg;
	const struct bench_options *o = launch->options;
	const char *argv[30];
	char model[1024], pages[16], requests[16], drafts[16];
	int n = 0;

	snprintf(model, sizeof(model), "bench=%s", o->model_dir);
	snprintf(pages, sizeof(pages), "%u", launch->needs->kv_pages);
	snprintf(requests, sizeof(requests), "%u", launch->needs->max_requests);
	argv[n++] = o->mimeod;
	argv[n++] = "--config";
	argv[n++] = "/dev/null"; /* not the machine's */
	argv[n++] = "--model";
	argv[n++] = model;
	argv[n++] = "--socket";
	argv[n++] = launch->target->socket;
	argv[n++] = "--device";
	argv[n++] = o->device;
	argv[n++] = "--attention";
	argv[n++] = o->attention;
	argv[n++] = "--kv-pages";
	argv[n++] = pages;
	argv[n++] = "--max-sessions-per-uid";
	argv[n++] = "64"; /* BENCH_PROCESSES_MAX */
	if (launch->needs->max_requests) {
		argv[n++] = "--max-requests";
		argv[n++] = requests;
	}
	if (launch->needs->graph_mode) {
		argv[n++] = "--graph-mode";
		argv[n++] = launch->needs->graph_mode;
	}
	if (launch->needs->draft) {
		snprintf(drafts, sizeof(drafts), "%u", launch->needs->draft_tokens);
		argv[n++] = "--draft";
		argv[n++] = launch->needs->draft;
		argv[n++] = "--draft-tokens";
		argv[n++] = drafts;
	}
	if (launch->needs->spin_us) {
		argv[n++] = "--spin-us";
		argv[n++] = launch->needs->spin_us;
	}
	argv[n] = NULL;

	int log = open(launch->target->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0)
		return 1;
	execv(o->mimeod, (char *const *)argv);
	dprintf(STDERR_FILENO, "%s: %s\n", o->mimeod, strerror(errno));
	return 127;
}

static void show_log(const struct target *target)
{
	char text[LOG_SHOWN];
	int log = open(target->log, O_RDONLY | O_CLOEXEC);

	if (log < 0)
		return;
	off_t end = lseek(log, 0, SEEK_END);
	ssize_t n = pread(log, text, sizeof(text), end > LOG_SHOWN ? end - LOG_SHOWN : 0);
	if (n > 0)
		fwrite(text, 1, (size_t)n, stderr);
	close(log);
}

/* It serves when the admin socket takes us. */
static int await_ready(struct target *target, const char *admin, uint32_t timeout_s)
{
	uint64_t now = stats_now(), end = now + timeout_s * 1000000000ull;

	for (; now < end; now = stats_now()) {
		int r = child_next(&target->child, now + READY_PERIOD_NS);

		if (r == 0)
			return -ECHILD;
		if (r < 0 && r != -ETIMEDOUT)
			return r;
		target->admin = socket_connect(admin, CONNECT_TIMEOUT_MS);
		if (target->admin >= 0)
			return 0;
	}
	return -ETIMEDOUT;
}

static int start(const struct bench_options *options, const struct spawn_needs *needs,
	struct target *target)
{
	struct launch launch = {options, needs, target};
	const char *place = getenv("TMPDIR");
	char admin[SOCKET_PATH_MAX];

	/* A socket's path is short, and so is what we put in front of it. */
	if (!place || *place != '/' || strlen(place) + sizeof("/mimeo-bench-XXXXXX") > 56)
		place = "/tmp";
	snprintf(target->folder, sizeof(target->folder), "%s/mimeo-bench-XXXXXX", place);
	if (!mkdtemp(target->folder)) {
		int r = -errno;

		fprintf(stderr, "mimeo-bench: %s: %s\n", target->folder, strerror(-r));
		target->folder[0] = '\0';
		return r;
	}
	snprintf(target->socket, sizeof(target->socket), "%s/mimeod.sock", target->folder);
	snprintf(target->log, sizeof(target->log), "%s/log", target->folder);
	int r = socket_admin_path(admin, target->socket);
	if (r == 0)
		r = child_start(&target->child, exec_mimeod, &launch);
	if (r == 0)
		r = await_ready(target, admin, options->timeout_s);
	if (r < 0 && r != -EINTR) {
		fprintf(stderr, "mimeo-bench: %s did not come up: %s\n", options->mimeod,
			r == -ECHILD || r == -EFAULT ? "it ended" : strerror(-r));
		show_log(target);
	}
	return r;
}

/* ---- facts ---- */

int target_ask(const struct target *target, const char *op, struct answer **ret)
{
	if (target->admin < 0)
		return -EACCES;
	int r = ask_send(target->admin, &(struct ask){.op = op});
	if (r == 0)
		r = ask_receive(target->admin, ret);
	if (r == 0 && (*ret)->status < 0) {
		answer_free(*ret);
		return -EACCES;
	}
	return r;
}

uint64_t answer_metric(const struct answer *answer, const char *name)
{
	char text[64];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "name", text, sizeof(text));
		if (strcmp(text, name) == 0)
			return answer_count(answer, i, "value", 0);
	}
	return 0;
}

int target_metrics(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *ret)
{
	struct answer *answer;
	int rc = target_ask(target, "metrics", &answer);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < n; i++)
		ret[i] = answer_metric(answer, names[i]);
	answer_free(answer);
	return 0;
}

int target_metrics_since(
	const struct target *target, const char *const *names, uint32_t n, uint64_t *from)
{
	uint64_t now[TARGET_METRICS_MAX];
	assert(n <= TARGET_METRICS_MAX);
	int rc = target_metrics(target, names, n, now);

	for (uint32_t i = 0; i < n && rc == 0; i++)
		from[i] = now[i] - from[i];
	return rc;
}

void target_machine(const struct target *target, struct results *results)
{
	results_machine(results, target->device, target->is_none ? NULL : target->loop,
		target->version);
}

double answer_number(const struct answer *answer, size_t row, const char *key)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	return cell && (cell->type == MSGPACK_OBJECT_FLOAT64 ||
			       cell->type == MSGPACK_OBJECT_FLOAT32)
		       ? cell->via.f64
		       : 0;
}

/* "cpu" says little: the processor's own name tells more. */
static void add_cpu_name(char *device, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[256], name[96];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "model name : %95[^\n]", name) == 1) {
			snprintf(device, size, "cpu (%s)", name);
			break;
		}
	}
	if (file)
		fclose(file);
}

void target_none(struct target *ret, const char *device)
{
	*ret = (struct target){
		.admin = -1, .is_none = true, .loop = "none", .version = MIMEO_VERSION};
	snprintf(ret->device, sizeof(ret->device), "%s", device);
	if (strcmp(device, "cpu") == 0)
		add_cpu_name(ret->device, sizeof(ret->device));
}

static int take_facts(struct target *target)
{
	struct answer *answer;
	int r = target_ask(target, "status", &answer);

	if (r < 0)
		return r;
	answer_text(answer, 0, "device", target->device, sizeof(target->device));
	answer_text(answer, 0, "loop", target->loop, sizeof(target->loop));
	answer_text(answer, 0, "version", target->version, sizeof(target->version));
	answer_free(answer);
	if (strcmp(target->device, "cpu") == 0)
		add_cpu_name(target->device, sizeof(target->device));
	return 0;
}

/* A running daemon's admin socket may be closed to us; then we know less and go on. */
static int use_running(const struct bench_options *options, struct target *target)
{
	char admin[SOCKET_PATH_MAX];
	int r = socket_path(target->socket, options->socket);

	if (r == 0)
		r = socket_admin_path(admin, target->socket);
	if (r < 0) {
		fprintf(stderr, "mimeo-bench: %s: %s\n", options->socket, strerror(-r));
		return r;
	}
	target->admin = socket_connect(admin, CONNECT_TIMEOUT_MS);
	if (target->admin >= 0 && take_facts(target) < 0) {
		close(target->admin);
		target->admin = -1;
	}
	return 0;
}

int target_open(
	const struct bench_options *options, const struct spawn_needs *needs, struct target *ret)
{
	*ret = (struct target){.admin = -1, .device = "?", .loop = "?", .version = "?"};
	if (options->socket)
		return use_running(options, ret);
	ret->is_private = true;
	int r = start(options, needs, ret);
	if (r == 0 && (r = take_facts(ret)) < 0)
		fprintf(stderr, "mimeo-bench: %s: status: %s\n", ret->socket, strerror(-r));
	return r;
}

/* ---- the end ---- */

void spawn_remove_folder(const char *path)
{
	DIR *folder = opendir(path);

	if (!folder)
		return;
	for (struct dirent *entry; (entry = readdir(folder));)
		unlinkat(dirfd(folder), entry->d_name, 0);
	closedir(folder);
	rmdir(path);
}

void target_close(struct target *target)
{
	if (!target)
		return;
	if (target->admin >= 0)
		close(target->admin);
	target->admin = -1;
	if (target->child.pid > 0) {
		kill(target->child.pid, SIGTERM);
		child_wait(&target->child, stats_now() + TERM_TIMEOUT_NS);
	}
	child_kill(&target->child);
	if (target->folder[0])
		spawn_remove_folder(target->folder);
	target->folder[0] = '\0';
}
