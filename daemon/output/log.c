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
#include <time.h>
#include <unistd.h>

#include "ipc/clock.h"
#include "ipc/text.h"

static const struct {
	const char *name;
	int priority; /* syslog's */
} log_levels[] = {
	[LOG_LEVEL_ERROR] = { "error", 3 },
	[LOG_LEVEL_WARN] = { "warn", 4 },
	[LOG_LEVEL_INFO] = { "info", 6 },
	[LOG_LEVEL_DEBUG] = { "debug", 7 },
};

enum { N_LEVELS = sizeof(log_levels) / sizeof(log_levels[0]) };

static int log_fd = STDERR_FILENO;
static mode_t log_type; /* S_IFIFO, S_IFSOCK: it may have no space */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t log_n_lost; /* under log_lock */
static bool log_journal;
static _Atomic int log_level = LOG_LEVEL_INFO;

const char *log_level_name(enum log_level level)
{
	return log_levels[level].name;
}

int log_level_parse(const char *text, enum log_level *ret)
{
	for (int i = 0; i < N_LEVELS; i++) {
		if (strcmp(text, log_levels[i].name) == 0) {
			*ret = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
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
	log_journal = stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 && known &&
		      status.st_dev == device && status.st_ino == inode;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* ---- escaping ---- */

size_t log_escape(const char *text, size_t length, char *ret, size_t size)
{
	size_t used = 0;

	if (size == 0)
		return 0;
	for (size_t i = 0; i < length;) {
		size_t n = text_step(text + i, length - i);
		char escaped[5];
		const char *piece = text + i;
		size_t piece_length = n;

		if (n == 0) {
			unsigned char byte = (unsigned char)text[i];
			const char *letter = strchr("\nn\tt\rr", byte);

			if (byte && byte < 0x20 && letter)
				snprintf(escaped, sizeof(escaped), "\\%c", letter[1]);
			else
				snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
			piece = escaped;
			piece_length = strlen(escaped);
			n = 1;
		}
		assert(n <= length - i);
		if (used + piece_length >= size)
			break;
		memcpy(ret + used, piece, piece_length);
		used += piece_length;
		i += n;
	}
	ret[used] = '\0';
	return used;
}

/* ---- writing ---- */

static size_t log_put_prefix(enum log_level level, char *line, size_t size)
{
	struct timespec now;
	struct tm local;

	if (log_journal)
		return (size_t)snprintf(line, size, "<%d>", log_levels[level].priority);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &local);
	size_t used = strftime(line, size, "%Y-%m-%d %H:%M:%S", &local);
	return used + (size_t)snprintf(line + used, size - used, ".%03ld %s: ",
			      now.tv_nsec / 1000000, log_levels[level].name);
}

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
	char line[128];

	if (n == 0)
		return true;
	size_t used = log_put_prefix(LOG_LEVEL_WARN, line, sizeof(line));
	used += (size_t)snprintf(line + used, sizeof(line) - used,
		"%" PRIu64 " line%s of the log lost: nobody read them\n", n, n == 1 ? "" : "s");
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
	size_t used = log_put_prefix(level, line, sizeof(line));
	used += log_escape(text, (size_t)n, line + used, sizeof(line) - used);
	assert(used < sizeof(line));
	line[used++] = '\n'; /* in the terminator's place */
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
