/* SPDX-License-Identifier: MIT */
#include "tests/e2e/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <mimeo/mimeo.h>

#include "daemon/ctl/ask.h"
#include "ipc/socket.h"
#include "tests/device.h"

const char *test_model(void)
{
	const char *name = getenv("MIMEO_MODEL");

	return name && *name ? name : "tinycalc";
}

void daemon_init(struct daemon *daemon)
{
	const char *folder = getenv("TMPDIR");

	*daemon = (struct daemon){.admin = -1};
	snprintf(daemon->folder, sizeof(daemon->folder), "%.40s/mimeo-XXXXXX",
		folder && *folder ? folder : "/tmp");
	if (!mkdtemp(daemon->folder))
		fail_msg("no folder %s", daemon->folder);
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/m.sock", daemon->folder);
	snprintf(daemon->log, sizeof(daemon->log), "%s/log", daemon->folder);
	daemon->argv[daemon->argc++] = build_path("daemon/mimeod");
	daemon->argv[0] = strdup(daemon->argv[0]);
	daemon_option(daemon, "--socket", daemon->socket);
	daemon_option(daemon, "--model", "");
	daemon_model(daemon, test_model());
	daemon_option(daemon, "--device", test_device());
	daemon_option(daemon, "--capture-sizes", "1,2,4,8");
	daemon_option(daemon, "--kv-pages", "512");
}

void daemon_option(struct daemon *daemon, const char *name, const char *value)
{
	for (unsigned i = 1; i + 1 < daemon->argc; i += 2) {
		if (strcmp(daemon->argv[i], name) == 0 && strcmp(name, "--model") != 0) {
			daemon->argv[i + 1] = value;
			return;
		}
	}
	assert_true(daemon->argc + 2 <= DAEMON_OPTIONS_MAX);
	daemon->argv[daemon->argc++] = name;
	daemon->argv[daemon->argc++] = value;
}

void daemon_model(struct daemon *daemon, const char *name)
{
	static char model[4096 + 64];
	char below[128];

	snprintf(below, sizeof(below), "examples/models/%s", name);
	snprintf(model, sizeof(model), "%s=%s", name, source_path(below));
	for (unsigned i = 1; i + 1 < daemon->argc; i += 2) {
		if (strcmp(daemon->argv[i], "--model") == 0)
			daemon->argv[i + 1] = model;
	}
}

static void admin_close(struct daemon *daemon)
{
	if (daemon->admin >= 0)
		close(daemon->admin);
	daemon->admin = -1;
}

void daemon_deinit(struct daemon *daemon)
{
	admin_close(daemon);
	process_kill(daemon->pid);
	daemon->pid = 0;
	folder_remove(daemon->folder);
	free((void *)(uintptr_t)daemon->argv[0]);
	daemon->argv[0] = NULL;
}

/* ---- its life ---- */

/* From here on the process has no SO_PASSRIGHTS. */
static void forget_pass_rights(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_PASSRIGHTS, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0) {
		perror("seccomp");
		_exit(127);
	}
}

/* In the child: as descriptors 3 and up, and none behind. */
static void pass_sockets(const struct daemon *daemon)
{
	int copies[2];
	char text[16];

	for (unsigned i = 0; i < daemon->n_passed; i++)
		copies[i] = fcntl(daemon->passed[i], F_DUPFD, 64);
	for (unsigned i = 0; i < daemon->n_passed; i++)
		dup2(copies[i], STDERR_FILENO + 1 + (int)i);
	snprintf(text, sizeof(text), "%u", daemon->n_passed);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
}

void daemon_launch(struct daemon *daemon)
{
	assert_int_equal(daemon->pid, 0);
	daemon->pid = process_fork();
	if (daemon->pid != 0)
		return;
	int log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	/* Connections of the test's own stay the test's. */
	if (daemon->n_passed)
		pass_sockets(daemon);
	close_range(STDERR_FILENO + 1 + daemon->n_passed, ~0u, 0);
	if (daemon->takes_rights)
		forget_pass_rights();
	execv(daemon->argv[0], (char *const *)(uintptr_t)daemon->argv);
	perror(daemon->argv[0]);
	_exit(127);
}

static bool admin_open(struct daemon *daemon)
{
	char path[SOCKET_PATH_MAX];

	if (daemon->admin >= 0)
		return true;
	if (socket_admin_path(path, daemon->socket) == 0)
		daemon->admin = socket_connect(path, PATIENCE_MS);
	return daemon->admin >= 0;
}

static struct answer *ask(struct daemon *daemon, const char *op)
{
	struct answer *answer;

	if (!admin_open(daemon))
		return NULL;
	if (ask_send(daemon->admin, &(struct ask){.op = op}) < 0 || ask_receive(daemon->admin, &answer) < 0) {
		admin_close(daemon);
		return NULL;
	}
	return answer;
}

static bool is_serving(struct daemon *daemon)
{
	struct answer *answer = ask(daemon, "status");
	char state[16];

	bool serving = answer && strcmp(answer_text(answer, 0, "state", state, sizeof(state)),
					 "serving") == 0;
	answer_free(answer);
	return serving;
}

void daemon_start(struct daemon *daemon)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	daemon_launch(daemon);
	while (!is_serving(daemon)) {
		int status = process_exit_status(daemon->pid, 0);

		if (status >= 0 || now_ms() > until) {
			daemon_log_show(daemon);
			daemon->pid = status >= 0 ? 0 : daemon->pid;
			fail_msg("mimeod does not start: status %d", status);
		}
		pause_ms(2);
	}
}

int daemon_wait(struct daemon *daemon)
{
	int status = process_exit_status(daemon->pid, PATIENCE_MS);

	admin_close(daemon);
	if (status >= 0)
		daemon->pid = 0;
	return status;
}

void daemon_stop(struct daemon *daemon)
{
	kill(daemon->pid, SIGTERM);
	int status = daemon_wait(daemon);
	if (status != 0) {
		daemon_log_show(daemon);
		fail_msg("mimeod ends with status %d after SIGTERM", status);
	}
}

void daemon_kill(struct daemon *daemon)
{
	process_kill(daemon->pid);
	daemon->pid = 0;
	admin_close(daemon);
}

void daemon_pause(struct daemon *daemon)
{
	int status;

	assert_int_equal(kill(daemon->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(daemon->pid, &status, WUNTRACED), daemon->pid);
	assert_true(WIFSTOPPED(status));
}

void daemon_go_on(struct daemon *daemon)
{
	assert_int_equal(kill(daemon->pid, SIGCONT), 0);
}

bool daemon_is_alive(const struct daemon *daemon)
{
	return daemon->pid > 0 && process_exit_status(daemon->pid, 0) == -1;
}

bool daemon_log_has(const struct daemon *daemon, const char *text)
{
	char *log = file_text(daemon->log, NULL);
	bool has = log && strstr(log, text);

	free(log);
	return has;
}

void daemon_log_show(const struct daemon *daemon)
{
	char *log = file_text(daemon->log, NULL);
	size_t length = log ? strlen(log) : 0;

	fprintf(stderr, "---- mimeod's log\n%s----\n",
		log ? log + (length > 8000 ? length - 8000 : 0) : "");
	free(log);
}

/* ---- its counters ---- */

int64_t daemon_number(struct daemon *daemon, const char *op, unsigned row, const char *key)
{
	struct answer *answer = ask(daemon, op);

	if (!answer) {
		daemon_log_show(daemon);
		fail_msg("mimeod does not answer %s", op);
	}
	int64_t value = (int64_t)answer_count(answer, row, key, UINT64_MAX);
	answer_free(answer);
	return value;
}

int64_t daemon_count(struct daemon *daemon, const char *key)
{
	return daemon_number(daemon, "status", 0, key);
}

int64_t daemon_metric(struct daemon *daemon, const char *name)
{
	struct answer *answer = ask(daemon, "metrics");
	int64_t sum = -1;
	char text[96];

	for (size_t row = 0; answer && row < answer->n_rows; row++) {
		if (strcmp(answer_text(answer, row, "name", text, sizeof(text)), name) == 0)
			sum = (sum < 0 ? 0 : sum) + (int64_t)answer_count(answer, row, "value", 0);
	}
	answer_free(answer);
	return sum;
}

struct holdings daemon_holdings(struct daemon *daemon)
{
	struct answer *answer = ask(daemon, "status");

	if (!answer) {
		daemon_log_show(daemon);
		fail_msg("mimeod does not answer");
	}
	struct holdings holdings = {
		.pages_free = (int64_t)answer_count(answer, 0, "pages_free", UINT64_MAX),
		.slots_free = (int64_t)answer_count(answer, 0, "slots_free", UINT64_MAX),
		.sequences = (int64_t)answer_count(answer, 0, "sequences", UINT64_MAX),
		.running = (int64_t)answer_count(answer, 0, "running", UINT64_MAX),
		.waiting = (int64_t)answer_count(answer, 0, "waiting", UINT64_MAX),
		.sessions = (int64_t)answer_count(answer, 0, "sessions", UINT64_MAX),
		.n_fds = process_n_fds(daemon->pid),
	};
	answer_free(answer);
	return holdings;
}

void daemon_assert_settles(struct daemon *daemon, const struct holdings *before)
{
	struct holdings now;

	if (EVENTUALLY((now = daemon_holdings(daemon), memcmp(&now, before, sizeof(now)) == 0)))
		return;
	fprintf(stderr,
		"            before    now\npages free  %6ld %6ld\nslots free  %6ld %6ld\n"
		"sequences   %6ld %6ld\nrunning     %6ld %6ld\nwaiting     %6ld %6ld\n"
		"sessions    %6ld %6ld\nfds         %6ld %6ld\n",
		(long)before->pages_free, (long)now.pages_free, (long)before->slots_free,
		(long)now.slots_free, (long)before->sequences, (long)now.sequences,
		(long)before->running, (long)now.running, (long)before->waiting, (long)now.waiting,
		(long)before->sessions, (long)now.sessions, (long)before->n_fds, (long)now.n_fds);
	if (now.n_fds != before->n_fds)
		process_show_fds(daemon->pid);
	fail_msg("what the clients held did not come back");
}

struct mimeo *daemon_connect(struct daemon *daemon, uint32_t entries, uint64_t arena_bytes)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.entries = entries;
	config.arena_bytes = arena_bytes;
	config.connect_timeout_ms = PATIENCE_MS;
	int rc = mimeo_connect(&m, &config);
	if (rc != 0) {
		daemon_log_show(daemon);
		fail_msg("connect: %s", mimeo_status_name(rc));
	}
	return m;
}

struct mimeo *daemon_connect_child(const struct daemon *daemon, uint32_t spin_us)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.spin_us = spin_us;
	config.connect_timeout_ms = PATIENCE_MS;
	CHILD_EXPECT(mimeo_connect(&m, &config) == 0);
	return m;
}

/* ---- one daemon for all tests of a program ---- */

struct daemon group_daemon;
struct holdings group_idle;
char group_hold_file[96];

int group_daemon_start_with(void **state, const char *const *options)
{
	daemon_init(&group_daemon);
	for (; *options; options += 2)
		daemon_option(&group_daemon, options[0], options[1]);
	*state = &group_daemon;
	daemon_start(&group_daemon);
	return 0;
}

int group_daemon_start(void **state)
{
	static const char *const none[] = {NULL};

	return group_daemon_start_with(state, none);
}

int group_daemon_start_held(void **state)
{
	char hold[128];

	daemon_init(&group_daemon);
	snprintf(group_hold_file, sizeof(group_hold_file), "%.80s/hold", group_daemon.folder);
	snprintf(hold, sizeof(hold), "sample:%s", group_hold_file);
	setenv("MIMEO_CPU_HOLD", hold, 1);
	setenv("MIMEO_CUDA_HOLD", hold, 1);
	*state = &group_daemon;
	daemon_start(&group_daemon);
	unsetenv("MIMEO_CPU_HOLD");
	unsetenv("MIMEO_CUDA_HOLD");
	return 0;
}

int group_daemon_end(void **state)
{
	if (group_daemon.pid > 0)
		daemon_stop(&group_daemon);
	daemon_deinit(&group_daemon);
	return 0;
}

int group_daemon_begin(void **state)
{
	*state = &group_daemon;
	assert_true(EVENTUALLY(daemon_count(&group_daemon, "sessions") == 0));
	group_idle = daemon_holdings(&group_daemon);
	return 0;
}

int group_daemon_settle(void **state)
{
	daemon_assert_settles(&group_daemon, &group_idle);
	return 0;
}
