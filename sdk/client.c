/* SPDX-License-Identifier: MIT */
#include "sdk/client.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "sdk/device_buffer.h"
#include "sdk/versioned.h"

#define DEFAULT_ENTRIES 64u
#define DEFAULT_ARENA_BYTES (8ull << 20)
#define DEFAULT_TIMEOUT_MS 5000u
#define DEFAULT_SPIN_US 50u
#define SPIN_LEAST_CPUS 4 /* below, a spinner takes the CPU that the daemon needs */
#define WELCOME_FDS_MAX (MSG_WELCOME_FDS + MSG_LIFE_FDS)

/* ---- configuration ---- */

static uint64_t client_spin_ns(uint32_t spin_us)
{
	cpu_set_t cpus;

	if (spin_us == MIMEO_SPIN_FOREVER)
		return UINT64_MAX;
	if (spin_us != MIMEO_SPIN_DEFAULT)
		return spin_us * 1000ull;
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < SPIN_LEAST_CPUS)
		return 0;
	return DEFAULT_SPIN_US * 1000ull;
}

static uint64_t client_round_up(uint64_t value)
{
	return value <= 1 ? 1 : 1ull << (64 - __builtin_clzll(value - 1));
}

/* Fill in the defaults. 0, or INVALID and why; *ret is the caller's configuration as far as it is known. */
static int client_resolve(struct mimeo_config *ret, const struct mimeo_config *given,
	char text[static MSG_TEXT_MAX])
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	if (given && !versioned_read(&config, sizeof(config), given, sizeof(config)))
		return MIMEO_E_INVALID;
	if (config.entries == 0)
		config.entries = DEFAULT_ENTRIES;
	if (config.arena_bytes == 0)
		config.arena_bytes = DEFAULT_ARENA_BYTES;
	if (config.connect_timeout_ms == 0)
		config.connect_timeout_ms = DEFAULT_TIMEOUT_MS;
	if (!config.name)
		config.name = program_invocation_short_name;
	*ret = config;

	if (config.entries < RING_ENTRIES_MIN || config.entries > RING_ENTRIES_MAX ||
		(config.entries & (config.entries - 1)) != 0)
		snprintf(text, MSG_TEXT_MAX, "entries %u is not a power of two from %u to %u",
			config.entries, RING_ENTRIES_MIN, RING_ENTRIES_MAX);
	else if (config.arena_bytes < REGION_ARENA_MIN || config.arena_bytes > REGION_ARENA_MAX)
		snprintf(text, MSG_TEXT_MAX, "arena_bytes %llu is not from %llu to %llu",
			(unsigned long long)config.arena_bytes, REGION_ARENA_MIN, REGION_ARENA_MAX);
	else if (config.reserved != 0)
		snprintf(text, MSG_TEXT_MAX, "reserved is %u and not 0", config.reserved);
	else
		ret->arena_bytes = client_round_up(config.arena_bytes);
	return text[0] ? MIMEO_E_INVALID : 0;
}

/* ---- handshake ---- */

/* The status for the errno of a system call while connecting. */
static int client_status(int error)
{
	switch (error) {
	case -EINVAL:
	case -ENAMETOOLONG:
		return MIMEO_E_INVALID;
	case -ENOMEM:
	case -ENOBUFS:
	case -EMFILE:
	case -ENFILE:
		return MIMEO_E_NO_MEMORY;
	case -EMSGSIZE:
	case -EPROTO:
		return MIMEO_E_PROTOCOL;
	case -EPROTONOSUPPORT:
		return MIMEO_E_VERSION;
	default:
		return MIMEO_E_UNREACHABLE;
	}
}

/* A system call failed: the status, and in `text` the socket's path and the reason. */
static int client_connect_failed(const char *path, int error, char text[static MSG_TEXT_MAX])
{
	int status = client_status(error);
	struct stat st;

	/* connect(2) does not distinguish a file that is no socket from one without a listener. */
	const char *why = error == -ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)
		? "not a socket" : error == -ETIMEDOUT ? "timed out: mimeod may be loading its models" : strerror(-error);
	snprintf(text, MSG_TEXT_MAX, "%s: %s: %s", path, mimeo_strerror(status), why);
	return status;
}

/* A daemon that refuses the client may close before it reads HELLO: its answer has still arrived. */
static int client_send_hello(int fd, const struct mimeo_config *config, unsigned left_ms)
{
	struct msg_hello hello = {
		.version = MSG_PROTOCOL_VERSION,
		.entries = config->entries,
		.arena_bytes = config->arena_bytes,
		/* The remaining time is for the daemon's refusal, which names the limit that the client waited
		 * for. */
		.wait_ms = left_ms - left_ms / 8,
	};
	uint8_t buffer[MSG_HEADER_MAX];

	strncpy(hello.name, config->name, sizeof(hello.name) - 1);
	int n = msg_hello_encode(&hello, buffer, sizeof(buffer));
	if (n < 0)
		return MIMEO_E_INVALID;
	int rc = socket_send(fd, buffer, (size_t)n, NULL, 0);
	return rc < 0 && rc != -EPIPE && rc != -ECONNRESET ? client_status(rc) : 0;
}

static bool client_is_status(int status)
{
	return strcmp(mimeo_status_name(status), "MIMEO_E_?") != 0;
}

static int client_parse_welcome(
	struct mimeo *m, const void *data, size_t size, struct msg_welcome *ret)
{
	struct msg_detail detail;

	int rc = msg_welcome_decode(m->codec, data, size, ret, &detail);
	if (rc < 0)
		ret->text[0] = '\0';
	else if (ret->status < 0)
		rc = client_is_status(ret->status) ? ret->status : MIMEO_E_PROTOCOL;
	return rc;
}

static void client_close_fds(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

/* 0 and the fds that come with it, -1 in place of optional ones; or a status and none. */
static int client_receive_welcome(struct mimeo *m, const char *path, unsigned timeout_ms,
	struct msg_welcome *ret, int fds[static WELCOME_FDS_MAX])
{
	CLEANUP(cleanup_free) void *buffer = malloc(MSG_SOCKET_MAX);
	size_t n_fds = 0;

	ret->text[0] = '\0';
	memset(fds, -1, WELCOME_FDS_MAX * sizeof(*fds));
	if (!buffer)
		return MIMEO_E_NO_MEMORY;
	ssize_t n = socket_receive(
		m->socket, buffer, MSG_SOCKET_MAX, fds, WELCOME_FDS_MAX, &n_fds, timeout_ms);
	if (n < 0)
		return client_connect_failed(path, (int)n, ret->text);
	int rc = client_parse_welcome(m, buffer, (size_t)n, ret);
	if (rc == 0 && n_fds > 0 && fds[n_fds - 1] == -EMFILE) {
		snprintf(ret->text, sizeof(ret->text), "this process has no descriptor left");
		rc = MIMEO_E_NO_MEMORY;
	}
	if (rc == 0 && n_fds != MSG_WELCOME_FDS && n_fds != WELCOME_FDS_MAX)
		rc = MIMEO_E_PROTOCOL;
	if (rc < 0)
		client_close_fds(fds, n_fds);
	return rc;
}

/* ---- the connection's memory ---- */

/* Requests and sequence ids, all free, the lowest to be taken first. */
static int client_state_init(struct mimeo *m, uint32_t max_sequences)
{
	uint32_t entries = m->region.ring.entries;

	m->requests = calloc(entries, sizeof(*m->requests));
	if (!m->requests || buddy_init(&m->arena, m->region.arena_bytes) < 0)
		return MIMEO_E_NO_MEMORY;
	assert(!m->free);
	for (uint32_t i = entries; i-- > 0;) {
		m->requests[i].m = m;
		m->requests[i].index = i;
		m->requests[i].next = m->free;
		m->free = &m->requests[i];
	}
	return sequence_ids_init(m, max_sequences);
}

static int client_add(const struct mimeo *m, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	return epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int client_fds_init(struct mimeo *m)
{
	m->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (m->epoll < 0)
		return MIMEO_E_NO_MEMORY;
	if (client_add(m, m->cq_bell, EPOLLIN) < 0 ||
		client_add(m, m->socket, EPOLLIN | EPOLLRDHUP) < 0)
		return MIMEO_E_NO_MEMORY;
	for (size_t i = 0; i < MSG_LIFE_FDS; i++) {
		if (m->lives[i] >= 0 && client_add(m, m->lives[i], EPOLLIN) < 0)
			return MIMEO_E_NO_MEMORY;
	}
	return 0;
}

/* A killed daemon's socket hangs up after the kernel has released its memory, its threads and all
 * references to the socket, such as io_uring's: 100 ms later and more. The fds that come with WELCOME
 * report the death at once (daemon/serve/life.h). A daemon on a kernel too old for them sends none: then
 * its pidfd, which is sooner than a socket that io_uring uses, and the socket have to suffice. */
static void client_lives_init(struct mimeo *m, const int fds[static MSG_LIFE_FDS])
{
	struct socket_peer peer;

	memcpy(m->lives, fds, sizeof(m->lives));
	if (m->lives[0] < 0 && socket_peer(m->socket, &peer) == 0)
		m->lives[0] = peer.pidfd;
}

/* Write why there is no connection: `text`, or else the socket and the status. */
static int client_explain(
	const struct mimeo_config *config, const char *path, int status, const char *text)
{
	if (!config->message || !config->message_size)
		return status;
	if (text[0])
		snprintf(config->message, config->message_size, "%s", text);
	else
		snprintf(config->message, config->message_size, "%s: %s", path,
			mimeo_strerror(status));
	return status;
}

/* `m` comes with fds of -1 and otherwise zeroed; the caller closes it on success and on failure. */
static int client_attach(struct mimeo *m, const struct mimeo_config *config, const char *path,
	char text[static MSG_TEXT_MAX])
{
	struct msg_welcome welcome;
	int fds[WELCOME_FDS_MAX];

	uint64_t start = clock_ns();
	m->socket = socket_connect(path, config->connect_timeout_ms);
	if (m->socket < 0)
		return client_connect_failed(path, m->socket, text);
	uint64_t spent_ms = (clock_ns() - start) / 1000000;
	unsigned left_ms = spent_ms < config->connect_timeout_ms
		? config->connect_timeout_ms - (unsigned)spent_ms : 0;
	int rc = client_send_hello(m->socket, config, left_ms);
	if (rc < 0)
		return rc;
	rc = client_receive_welcome(m, path, left_ms, &welcome, fds);
	if (rc < 0) {
		memcpy(text, welcome.text, MSG_TEXT_MAX);
		return rc;
	}
	CLEANUP(cleanup_close) int region_fd = fds[0];
	m->sq_bell = fds[1];
	m->cq_bell = fds[2];
	client_lives_init(m, fds + MSG_WELCOME_FDS);
	rc = region_map(&m->region, region_fd);
	if (rc < 0)
		return client_status(rc);
	assert(m->region.fd == region_fd);
	region_fd = -1; /* the region's */
	/* A forked child with this mapping would be a second writer of our rings. */
	madvise(m->region.base, m->region.bytes, MADV_DONTFORK);

	if (welcome.entries != m->region.ring.entries ||
		welcome.arena_bytes != m->region.arena_bytes)
		return MIMEO_E_PROTOCOL;
	m->n_models = welcome.n_models;
	memcpy(m->models, welcome.models, sizeof(m->models));
	memcpy(m->model_ids, welcome.model_ids, sizeof(m->model_ids));
	rc = client_state_init(m, welcome.max_sequences);
	return rc < 0 ? rc : client_fds_init(m);
}

/* Find the socket's path, then client_attach. */
static int client_open(struct mimeo *m, const struct mimeo_config *config,
	char path[static SOCKET_PATH_MAX], char text[static MSG_TEXT_MAX])
{
	m->pid = getpid();
	m->socket = m->sq_bell = m->cq_bell = m->epoll = -1;
	memset(m->lives, -1, sizeof(m->lives));
	m->spin_ns = client_spin_ns(config->spin_us);
	if (msg_codec_new(&m->codec) < 0)
		return MIMEO_E_NO_MEMORY;
	if (socket_path(path, config->socket_path) == 0 && path[0])
		return client_attach(m, config, path, text);
	snprintf(text, MSG_TEXT_MAX, "the socket's path must be 1 to %d bytes, this one has %zu",
		SOCKET_PATH_MAX - 1, socket_path_bytes(config->socket_path));
	return MIMEO_E_INVALID;
}

DEFINE_CLEANUP(client, struct mimeo, mimeo_close)

int mimeo_connect(struct mimeo **ret_m, const struct mimeo_config *config)
{
	struct mimeo_config resolved = MIMEO_CONFIG_INIT;
	char path[SOCKET_PATH_MAX] = "socket path", text[MSG_TEXT_MAX] = "";

	if (!ret_m)
		return MIMEO_E_INVALID;
	int rc = client_resolve(&resolved, config, text);
	if (rc < 0)
		return client_explain(&resolved, path, rc, text);
	CLEANUP(cleanup_client) struct mimeo *m = calloc(1, sizeof(*m));
	rc = m ? client_open(m, &resolved, path, text) : MIMEO_E_NO_MEMORY;
	if (rc < 0)
		return client_explain(&resolved, path, rc, text);
	*ret_m = STEAL(m);
	return 0;
}

void mimeo_close(struct mimeo *m)
{
	if (!m)
		return;
	assert(m->pid != getpid() || m->n_in_flight <= m->region.ring.entries);
	device_buffers_deinit(m);
	buddy_deinit(&m->arena);
	msg_codec_free(m->codec);
	free(m->sequences);
	free(m->requests);
	const int fds[] = {m->epoll, m->cq_bell, m->sq_bell, m->socket};
	client_close_fds(fds, sizeof(fds) / sizeof(fds[0]));
	client_close_fds(m->lives, MSG_LIFE_FDS);
	if (m->region.base && m->pid != getpid())
		close(m->region.fd); /* a forked child never had the mapping */
	else
		region_deinit(&m->region);
	free(m);
}

int mimeo_fd(struct mimeo *m)
{
	m->fd_taken = true;
	return m->epoll;
}

/* ---- models ---- */

uint32_t mimeo_model_count(const struct mimeo *m)
{
	return m->n_models;
}

const struct mimeo_model_info *mimeo_model_get(const struct mimeo *m, uint32_t index)
{
	return index < m->n_models ? &m->models[index] : NULL;
}

int mimeo_model_find(const struct mimeo *m, const char *name)
{
	for (uint32_t i = 0; name && i < m->n_models; i++) {
		if (strcmp(m->models[i].name, name) == 0)
			return (int)i;
	}
	return MIMEO_E_UNKNOWN_MODEL;
}
