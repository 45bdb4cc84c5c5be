/* SPDX-License-Identifier: MIT */
#include "tests/e2e/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static void on_alarm(int signal)
{
	static const char text[] = "watchdog: the test hangs\n";

	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

void watchdog(unsigned seconds)
{
	struct sigaction action = {.sa_handler = on_alarm};

	sigaction(SIGALRM, &action, NULL);
	alarm(seconds);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t now_ms(void)
{
	return now_ns() / 1000000;
}

void pause_ms(unsigned ms)
{
	struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&time, NULL);
}

/* ---- processes ---- */

pid_t process_fork(void)
{
	pid_t parent = getpid();

	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0) {
		perror("fork");
		abort();
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

pid_t process_run(int (*fn)(void *arg), void *arg)
{
	pid_t pid = process_fork();

	if (pid == 0)
		_exit(fn(arg));
	return pid;
}

int process_wait(pid_t pid, unsigned timeout_ms)
{
	uint64_t until = now_ms() + timeout_ms;
	int status;

	for (;;) {
		pid_t ended = waitpid(pid, &status, WNOHANG);

		if (ended == pid)
			return status;
		if ((ended < 0 && errno != EINTR) || now_ms() >= until)
			return -1;
		pause_ms(1);
	}
}

int process_exit_status(pid_t pid, unsigned timeout_ms)
{
	int status = process_wait(pid, timeout_ms);

	if (status == -1)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void process_kill(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

/* Entries of /proc/PID/name. */
static uint32_t process_n_entries(pid_t pid, const char *name)
{
	char path[64];
	uint32_t n = 0;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	DIR *folder = opendir(path);
	if (!folder)
		return 0;
	for (struct dirent *entry; (entry = readdir(folder));)
		n += entry->d_name[0] != '.';
	closedir(folder);
	return n;
}

uint32_t process_n_fds(pid_t pid)
{
	return process_n_entries(pid, "fd");
}

void process_show_fds(pid_t pid)
{
	char path[300], target[256];

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *folder = opendir(path);
	if (!folder)
		return;
	for (struct dirent *entry; (entry = readdir(folder));) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
		const ssize_t n = readlink(path, target, sizeof(target));

		if (n > 0)
			fprintf(stderr, "fd %s: %.*s\n", entry->d_name, (int)n, target);
	}
	closedir(folder);
}

uint32_t process_n_threads(pid_t pid)
{
	return process_n_entries(pid, "task");
}

int memfd_of(size_t bytes, int seals)
{
	int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && (!seals || fcntl(fd, F_ADD_SEALS, seals) == 0))
		return fd;
	close(fd);
	return -1;
}

void *shared_new(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		abort();
	}
	return memory;
}

void shared_free(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}

static void collect(int fd, struct program_output *ret)
{
	size_t used = 0;
	char rest[4096];

	for (;;) {
		size_t space = sizeof(ret->text) - 1 - used;
		ssize_t n = read(fd, space ? ret->text + used : rest, space ? space : sizeof(rest));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		if (space)
			used += (size_t)n;
	}
	ret->text[used] = '\0';
}

void program_run(const char *const *argv, struct program_output *ret)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0) {
		perror("pipe");
		abort();
	}
	pid_t pid = process_fork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		execv(argv[0], (char *const *)(uintptr_t)argv);
		perror(argv[0]);
		_exit(127);
	}
	close(ends[1]);
	collect(ends[0], ret);
	close(ends[0]);
	ret->status = process_exit_status(pid, PATIENCE_MS);
}

/* ---- files ---- */

char *file_text(const char *path, size_t *ret_size)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t size = 0;

	if (!file)
		return NULL;
	if (fseek(file, 0, SEEK_END) == 0 && ftell(file) >= 0) {
		size = (size_t)ftell(file);
		rewind(file);
		text = malloc(size + 1);
		if (text) {
			size = fread(text, 1, size, file);
			text[size] = '\0';
		}
	}
	fclose(file);
	if (ret_size)
		*ret_size = size;
	return text;
}

void file_write(const char *path, const void *data, size_t size)
{
	FILE *file = fopen(path, "we");

	if (!file || fwrite(data, 1, size, file) != size || fclose(file) == EOF) {
		perror(path);
		abort();
	}
}

void folder_remove(const char *path)
{
	DIR *folder = opendir(path);
	char name[PATH_MAX];

	if (!folder)
		return;
	for (struct dirent *entry; (entry = readdir(folder));) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		if (unlink(name) < 0 && (errno == EISDIR || errno == EPERM))
			folder_remove(name);
	}
	closedir(folder);
	rmdir(path);
}

static const char *path_in(const char *variable, const char *name)
{
	static char paths[8][PATH_MAX];
	static unsigned turn;
	const char *folder = getenv(variable);
	char *path = paths[turn++ % 8];

	if (!folder) {
		fprintf(stderr, "%s is not set: run the test through meson\n", variable);
		abort();
	}
	snprintf(path, PATH_MAX, "%s/%s", folder, name);
	return path;
}

const char *build_path(const char *name)
{
	return path_in("MIMEO_BUILD", name);
}

const char *source_path(const char *name)
{
	return path_in("MIMEO_SOURCE", name);
}
