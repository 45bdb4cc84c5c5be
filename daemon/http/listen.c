/* SPDX-License-Identifier: MIT */
#include "build-config.h"
#include "daemon/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#if HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "ipc/cleanup.h"

#define LISTEN_BACKLOG 128

union listen_address {
	struct sockaddr any;
	struct sockaddr_un un;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct listen_text {
	char *text;
	size_t size;
};

__attribute__((format(printf, 3, 4)))
static int listen_fail(const struct listen_text *message, int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message->text, message->size, format, arguments);
	va_end(arguments);
	return rc;
}

/* For a system call that failed. -errno, but -EINVAL is for addresses that are wrong. */
static int listen_fail_call(const struct listen_text *message, int error, const char *kind, const char *name)
{
	return listen_fail(message, error == EINVAL ? -EIO : -error, "%s%s: %s", kind, name, strerror(error));
}

static bool listen_is_loopback(const union listen_address *address)
{
	if (address->any.sa_family == AF_INET)
		return (ntohl(address->in.sin_addr.s_addr) >> 24) == 127;
	return address->any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&address->in6.sin6_addr);
}

/* ---- names ---- */

static void listen_name(int fd, char ret[static LISTEN_NAME_MAX])
{
	union listen_address address = {.any.sa_family = AF_UNSPEC};
	socklen_t length = sizeof(address);
	char text[INET6_ADDRSTRLEN] = "?";

	getsockname(fd, &address.any, &length);
	if (address.any.sa_family == AF_INET) {
		inet_ntop(AF_INET, &address.in.sin_addr, text, sizeof(text));
		snprintf(ret, LISTEN_NAME_MAX, "%s:%u", text, ntohs(address.in.sin_port));
	} else if (address.any.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &address.in6.sin6_addr, text, sizeof(text));
		snprintf(ret, LISTEN_NAME_MAX, "[%s]:%u", text, ntohs(address.in6.sin6_port));
	} else {
		/* An abstract name begins with a zero byte. */
		snprintf(ret, LISTEN_NAME_MAX, "unix:%s",
			length > offsetof(struct sockaddr_un, sun_path) ? address.un.sun_path : "?");
	}
}

static void listen_keep(struct listen_sockets *sockets, int fd, bool is_unix, const char *path)
{
	struct listen_socket *own = &sockets->own[sockets->n++];

	*own = (struct listen_socket){.fd = fd, .is_unix = is_unix};
	listen_name(fd, own->name);
	snprintf(own->path, sizeof(own->path), "%s", path);
}

/* ---- Unix sockets ---- */

/* Remove a socket that nobody listens on. 0 or -errno: -EADDRINUSE, -ENOTSOCK. */
static int listen_clear(const struct sockaddr_un *address)
{
	CLEANUP(cleanup_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	if (lstat(address->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -ENOTSOCK;
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno != ECONNREFUSED)
		return -EADDRINUSE;
	return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

static int listen_add_unix(struct listen_sockets *sockets, const char *path, mode_t mode,
	const struct listen_text *message)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (path[0] != '/' || strlen(path) >= sizeof(address.sun_path))
		return listen_fail(message, -EINVAL, "unix:%s: the path must be absolute and have at most %zu bytes",
			path, sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	int rc = listen_clear(&address);
	if (rc == -ENOTSOCK)
		return listen_fail(message, rc, "unix:%s: there is a file that is no socket", path);
	if (rc < 0)
		return listen_fail_call(message, -rc, "unix:", path);
	CLEANUP(cleanup_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return listen_fail_call(message, errno, "unix:", path);
	/* Before anybody can connect. */
	mode_t mask = umask(0777);
	rc = bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	umask(mask);
	if (rc == 0 && (chmod(path, mode) < 0 || listen(fd, LISTEN_BACKLOG) < 0)) {
		rc = -errno;
		unlink(path);
	}
	if (rc < 0)
		return listen_fail_call(message, -rc, "unix:", path);
	listen_keep(sockets, STEAL_FD(fd), true, path);
	return 0;
}

/* ---- TCP ---- */

/* "127.0.0.1:8080", "[::1]:8080", "localhost:8080": the length of the address, or 0. */
static socklen_t listen_parse(const char *text, union listen_address *ret)
{
	const char *colon = strrchr(text, ':');
	char host[INET6_ADDRSTRLEN + 2], *end;

	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
		return 0;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	unsigned long port = strtoul(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end || port > UINT16_MAX)
		return 0;
	memset(ret, 0, sizeof(*ret));
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = '\0';
		ret->in6.sin6_family = AF_INET6;
		ret->in6.sin6_port = htons((uint16_t)port);
		return inet_pton(AF_INET6, host + 1, &ret->in6.sin6_addr) == 1 ? sizeof(ret->in6) : 0;
	}
	ret->in.sin_family = AF_INET;
	ret->in.sin_port = htons((uint16_t)port);
	const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
	return inet_pton(AF_INET, name, &ret->in.sin_addr) == 1 ? sizeof(ret->in) : 0;
}

static int listen_add_tcp(
	struct listen_sockets *sockets, const char *text, const struct listen_text *message)
{
	union listen_address address;
	socklen_t length = listen_parse(text, &address);

	if (length == 0)
		return listen_fail(message, -EINVAL,
			"%s: it must be unix:PATH, ADDRESS:PORT or [IPV6-ADDRESS]:PORT", text);
	if (!listen_is_loopback(&address))
		return listen_fail(message, -EINVAL,
			"%s: not a loopback address: let a proxy with TLS serve other machines", text);
	CLEANUP(cleanup_close) int fd =
		socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int on = 1;
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
		bind(fd, &address.any, length) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return listen_fail_call(message, errno, "", text);
	listen_keep(sockets, STEAL_FD(fd), false, "");
	return 0;
}

int listen_add(struct listen_sockets *sockets, const char *address, mode_t mode, char *message, size_t size)
{
	const struct listen_text text = {message, size};

	if (sockets->n == LISTEN_MAX)
		return listen_fail(&text, -E2BIG, "more than %u sockets to listen on", LISTEN_MAX);
	if (strncmp(address, "unix:", 5) == 0)
		return listen_add_unix(sockets, address + 5, mode, &text);
	return listen_add_tcp(sockets, address, &text);
}

/* ---- a service manager's ---- */

#if HAVE_SYSTEMD
static int listen_take_passed(struct listen_sockets *sockets, int fd, const struct listen_text *message)
{
	union listen_address address = {.any.sa_family = AF_UNSPEC};
	socklen_t length = sizeof(address);

	if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0 || getsockname(fd, &address.any, &length) < 0)
		return listen_fail(message, -EINVAL, "descriptor %d is no stream socket that listens", fd);
	if (address.any.sa_family != AF_UNIX && !listen_is_loopback(&address))
		return listen_fail(message, -EINVAL,
			"descriptor %d: not a loopback address: let a proxy with TLS serve other machines", fd);
	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		return listen_fail(message, -errno, "descriptor %d: %s", fd, strerror(errno));
	listen_keep(sockets, fd, address.any.sa_family == AF_UNIX, "");
	return 0;
}

int listen_add_passed(struct listen_sockets *sockets, char *message, size_t size)
{
	const struct listen_text text = {message, size};
	int n = sd_listen_fds(1);

	if (n < 0)
		return listen_fail(&text, n, "$LISTEN_FDS: %s", strerror(-n));
	if ((unsigned)n > LISTEN_MAX - sockets->n)
		return listen_fail(&text, -E2BIG, "more than %u sockets to listen on", LISTEN_MAX);
	for (int i = 0; i < n; i++) {
		int rc = listen_take_passed(sockets, SD_LISTEN_FDS_START + i, &text);
		if (rc < 0)
			return rc;
	}
	return 0;
}
#else
int listen_add_passed(struct listen_sockets *sockets, char *message, size_t size)
{
	return 0;
}
#endif

bool listen_has_tcp(const struct listen_sockets *sockets)
{
	for (unsigned i = 0; i < sockets->n; i++) {
		if (!sockets->own[i].is_unix)
			return true;
	}
	return false;
}

void listen_deinit(struct listen_sockets *sockets)
{
	while (sockets->n > 0) {
		const struct listen_socket *own = &sockets->own[--sockets->n];

		/* First: behind the close the path may be another process's. */
		if (own->path[0])
			unlink(own->path);
		close(own->fd);
	}
}
