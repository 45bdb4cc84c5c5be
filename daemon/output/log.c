/* SPDX-License-Identifier: MIT */
#include "daemon/output/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/output/log_line.h"
#include "ipc/clock.h"

#define LOG_JOURNAL "/run/systemd/journal/socket"

static int log_fd = STDERR_FILENO;
static mode_t log_type; /* S_IFIFO, S_IFSOCK: it may have no space */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t log_n_lost; /* under log_lock */
static enum log_line_form log_form;
static int log_journal = -1; /* its socket, for messages with fields; -1: none */
static _Atomic int log_level = LOG_LEVEL_INFO;

void log_set_journal(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (log_journal >= 0)
		close(log_journal);
	log_journal = -1;
	if (!path || strlen(path) >= sizeof(address.sun_path))
		return;
	strcpy(address.sun_path, path);
	log_journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (log_journal < 0 || connect(log_journal, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return;
	close(log_journal);
	log_journal = -1;
}

void log_open(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	uintmax_t device, inode;
	struct stat status;
	bool known = fstat(fd, &status) == 0;

	log_fd = fd;
	log_type = known ? status.st_mode & S_IFMT : 0;
	log_n_lost = 0;
	log_form = stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 && known &&
			status.st_dev == device && status.st_ino == inode ? LOG_LINE_PRIORITY : LOG_LINE_TEXT;
	log_set_journal(log_form == LOG_LINE_PRIORITY ? LOG_JOURNAL : NULL);
}

int log_format_parse(const char *text, enum log_format *ret)
{
	static const char *const names[] = {
		[LOG_FORMAT_AUTO] = "auto", [LOG_FORMAT_JSON] = "json", [LOG_FORMAT_TEXT] = "text"};

	for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret = (enum log_format)i;
			return 0;
		}
	}
	return -EINVAL;
}

void log_set_format(enum log_format format)
{
	if (format == LOG_FORMAT_AUTO)
		return;
	log_form = format == LOG_FORMAT_JSON ? LOG_LINE_JSON : LOG_LINE_TEXT;
	log_set_journal(NULL);
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* ---- writing ---- */

/* A pipe or socket that nobody reads must not block the thread. O_NONBLOCK would be set for every process
 * that shares the pipe. A pipe that polls writable accepts PIPE_BUF bytes unless another process writes
 * first; the threads of this process take turns. */
static bool log_put(const char *line, size_t size)
{
	struct pollfd poll_fd = {.fd = log_fd, .events = POLLOUT};
	ssize_t n;

	_Static_assert(LOG_LINE_MAX <= PIPE_BUF, "a line fits into a pipe that polls writable");
	if (log_type == S_IFIFO && (poll(&poll_fd, 1, 0) != 1 || !(poll_fd.revents & POLLOUT)))
		return false;
	do
		n = log_type == S_IFSOCK ? send(log_fd, line, size, MSG_DONTWAIT | MSG_NOSIGNAL)
					 : write(log_fd, line, size);
	while (n < 0 && errno == EINTR);
	return n >= 0;
}

/* False if lines that were lost before cannot be reported now. */
static bool log_report_lost(void)
{
	uint64_t n = log_n_lost;
	char text[96], line[LOG_LINE_MAX];

	if (n == 0)
		return true;
	int length = snprintf(
		text, sizeof(text), "%" PRIu64 " line%s of the log lost: nobody read them", n, n == 1 ? "" : "s");
	size_t used = log_line_write(log_form, LOG_LEVEL_WARN, text, (size_t)length, NULL, 0, line, sizeof(line));
	if (!log_put(line, used))
		return false;
	log_n_lost = 0;
	return true;
}

static void log_put_or_lose(const char *line, size_t size)
{
	if (log_type != S_IFIFO && log_type != S_IFSOCK) {
		(void)log_put(line, size);
		return;
	}
	pthread_mutex_lock(&log_lock);
	if (!log_report_lost() || !log_put(line, size))
		log_n_lost++;
	pthread_mutex_unlock(&log_lock);
}

__attribute__((format(printf, 2, 0))) static void log_write_line(enum log_level level, const char *format, va_list arguments)
{
	char text[LOG_LINE_MAX], line[LOG_LINE_MAX];
	int saved_errno = errno;

	int n = vsnprintf(text, sizeof(text), format, arguments);
	if (n < 0)
		n = snprintf(text, sizeof(text), "(no text: %s)", format);
	if ((size_t)n >= sizeof(text))
		n = sizeof(text) - 1;
	log_put_or_lose(line, log_line_write(log_form, level, text, (size_t)n, NULL, 0, line, sizeof(line)));
	errno = saved_errno;
}

void log_write_fields(enum log_level level, const char *text, const struct log_field *fields, size_t n_fields)
{
	const size_t length = strlen(text);
	char line[LOG_LINE_MAX];
	int saved_errno = errno;
	size_t used;

	if (log_journal >= 0) {
		used = log_line_write(LOG_LINE_JOURNAL, level, text, length, fields, n_fields, line, sizeof(line));
		if (send(log_journal, line, used, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
			errno = saved_errno;
			return;
		}
	}
	used = log_line_write(log_form, level, text, length, fields, n_fields, line, sizeof(line));
	log_put_or_lose(line, used);
	errno = saved_errno;
}

void log_write(enum log_level level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	log_write_line(level, format, arguments);
	va_end(arguments);
}

/* ---- limits ---- */

bool log_limit_take(struct log_limit *limit, uint64_t now_ns, uint32_t *ret_dropped)
{
	uint64_t began_ns = atomic_load(&limit->began_ns);

	*ret_dropped = 0;
	if ((began_ns == 0 || now_ns - began_ns >= UINT64_C(1000000000)) &&
		atomic_compare_exchange_strong(&limit->began_ns, &began_ns, now_ns ? now_ns : 1))
		atomic_store(&limit->n_written, 0);
	if (atomic_fetch_add(&limit->n_written, 1) >= limit->per_second) {
		atomic_fetch_sub(&limit->n_written, 1);
		atomic_fetch_add(&limit->n_dropped, 1);
		return false;
	}
	*ret_dropped = atomic_exchange(&limit->n_dropped, 0);
	return true;
}

void log_limited_write(struct log_limit *limit, enum log_level level, const char *format, ...)
{
	va_list arguments;
	uint32_t dropped;

	if (!log_limit_take(limit, clock_ns(), &dropped))
		return;
	if (dropped > 0)
		log_write(level, "%" PRIu32 " message%s like the next one dropped", dropped,
			dropped == 1 ? "" : "s");
	va_start(arguments, format);
	log_write_line(level, format, arguments);
	va_end(arguments);
}
