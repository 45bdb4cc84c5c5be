/* SPDX-License-Identifier: MIT */
#include "sdk/client.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/clock.h"
#include "ipc/socket.h"

#define DEFAULT_ENTRIES 64u
#define DEFAULT_ARENA_BYTES (8ull << 20)
#define DEFAULT_TIMEOUT_MS 5000u
#define DEFAULT_SPIN_US 50u
#define SPIN_LEAST_CPUS 4 /* below, a spinner takes the CPU that the daemon needs */
#define SEQUENCES_MOST (1u << 20)
#define GROWN_BYTES_MOST 4096u
#define WELCOME_FDS_MAX (MSG_WELCOME_FDS + MSG_LIFE_FDS)

bool config_copy(void *known, size_t known_size, const void *given, size_t least)
{
	size_t size;

	memcpy(&size, given, sizeof(size));
	if (size < least || size > GROWN_BYTES_MOST)
		return false;
	for (size_t i = known_size; i < size; i++) {
		if (((const uint8_t *)given)[i] != 0)
			return false;
	}
	memset(known, 0, known_size);
	memcpy(known, given, size < known_size ? size : known_size);
	return true;
}

bool config_answer(void *given, const void *known, size_t known_size)
{
	size_t size;

	if (!given)
		return false;
	memcpy(&size, given, sizeof(size));
	if (size < sizeof(size) || size > GROWN_BYTES_MOST)
		return false;
	memset(given, 0, size);
	memcpy(given, known, size < known_size ? size : known_size);
	memcpy(given, &size, sizeof(size));
	return true;
}

/* ---- configuration ---- */

static uint64_t spin_ns(uint32_t spin_us)
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

static uint64_t power_of_two_above(uint64_t value)
{
	return value <= 1 ? 1 : 1ull << (64 - __builtin_clzll(value - 1));
}

/* Fill in the defaults. 0, or INVALID and why; *ret is the caller's words as far as they are known.
 */
static int config_resolve(struct mimeo_config *ret, const struct mimeo_config *given,
	char text[static MSG_TEXT_MAX])
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	if (given && !config_copy(&config, sizeof(config), given, sizeof(config)))
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
		ret->arena_bytes = power_of_two_above(config.arena_bytes);
	return text[0] ? MIMEO_E_INVALID : 0;
}

/* ---- handshake ---- */

/* What a failed call on the way to the daemon means to the caller. */
static int connect_status(int error)
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

/* A call on the way to the daemon failed: the status, and in `text` which socket it was and why. */
static int connect_failed(const char *path, int error, char text[static MSG_TEXT_MAX])
{
	int status = connect_status(error);
	struct stat st;

	/* To connect(2) it is all one: nobody listens there. */
	const char *why = error == -ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)
		? "not a socket" : strerror(-error);
	snprintf(text, MSG_TEXT_MAX, "%s: %s: %s", path, mimeo_strerror(status), why);
	return status;
}

/* A daemon that turns us away may close before it has our words: its answer is there all the same.
 */
static int say_hello(int fd, const struct mimeo_config *config)
{
	struct msg_hello hello = {
		.version = MSG_PROTOCOL_VERSION,
		.entries = config->entries,
		.arena_bytes = config->arena_bytes,
	};
	uint8_t buffer[MSG_HEADER_MAX];

	strncpy(hello.name, config->name, sizeof(hello.name) - 1);
	int n = msg_hello_encode(&hello, buffer, sizeof(buffer));
	if (n < 0)
		return MIMEO_E_INVALID;
	int r = socket_send(fd, buffer, (size_t)n, NULL, 0);
	return r < 0 && r != -EPIPE && r != -ECONNRESET ? connect_status(r) : 0;
}

static bool is_known(int status)
{
	return strcmp(mimeo_status_name(status), "MIMEO_E_?") != 0;
}

static int welcome_parse(const void *data, size_t size, struct msg_welcome *ret)
{
	struct msg_codec *codec;
	struct msg_detail detail;

	if (msg_codec_new(&codec) < 0)
		return MIMEO_E_NO_MEMORY;
	int r = msg_welcome_decode(codec, data, size, ret, &detail);
	msg_codec_free(codec);
	if (r < 0)
		ret->text[0] = '\0';
	if (r == 0 && ret->status < 0)
		r = is_known(ret->status) ? ret->status : MIMEO_E_PROTOCOL;
	return r;
}

/* 0 and the fds that come with it, those that may lack -1; or a status and none. */
static int hear_welcome(int fd, const char *path, unsigned timeout_ms, struct msg_welcome *ret,
	int fds[static WELCOME_FDS_MAX])
{
	int taken[WELCOME_FDS_MAX];
	size_t n_fds = 0;

	ret->text[0] = '\0';
	void *buffer = malloc(MSG_SOCKET_MAX);
	if (!buffer)
		return MIMEO_E_NO_MEMORY;
	ssize_t n = socket_receive(
		fd, buffer, MSG_SOCKET_MAX, taken, WELCOME_FDS_MAX, &n_fds, timeout_ms);
	if (n < 0) {
		free(buffer);
		return connect_failed(path, (int)n, ret->text);
	}
	int r = welcome_parse(buffer, (size_t)n, ret);
	if (r == 0 && n_fds > 0 && taken[n_fds - 1] == -EMFILE) {
		snprintf(ret->text, sizeof(ret->text), "this process has no descriptor left");
		r = MIMEO_E_NO_MEMORY;
	}
	if (r == 0 && n_fds != MSG_WELCOME_FDS && n_fds != WELCOME_FDS_MAX)
		r = MIMEO_E_PROTOCOL;
	for (size_t i = 0; i < WELCOME_FDS_MAX; i++) {
		if (r == 0)
			fds[i] = i < n_fds ? taken[i] : -1;
		else if (i < n_fds && taken[i] >= 0)
			close(taken[i]);
	}
	free(buffer);
	return r;
}

/* ---- the connection's memory ---- */

/* Requests and sequence ids, all free, the lowest to be taken first. */
static int books_init(struct mimeo *m, uint32_t max_sequences)
{
	uint32_t entries = m->region.ring.entries;

	m->max_sequences = max_sequences < SEQUENCES_MOST ? max_sequences : SEQUENCES_MOST;
	m->requests = calloc(entries, sizeof(*m->requests));
	m->sequences = calloc((size_t)m->max_sequences + 1, sizeof(*m->sequences));
	if (!m->requests || !m->sequences || arena_init(&m->arena, m->region.arena_bytes) < 0)
		return MIMEO_E_NO_MEMORY;

	for (uint32_t i = entries; i-- > 0;) {
		m->requests[i].m = m;
		m->requests[i].index = i;
		m->requests[i].next = m->free;
		m->free = &m->requests[i];
	}
	for (uint32_t id = m->max_sequences; id > 0; id--) {
		m->sequences[id].next = m->free_sequence;
		m->free_sequence = id;
	}
	return 0;
}

static int watch(int epoll, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? MIMEO_E_NO_MEMORY : 0;
}

static int fds_init(struct mimeo *m)
{
	m->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (m->epoll < 0)
		return MIMEO_E_NO_MEMORY;
	int r = watch(m->epoll, m->cq_bell, EPOLLIN);
	if (r == 0)
		r = watch(m->epoll, m->socket, EPOLLIN | EPOLLRDHUP);
	for (size_t i = 0; r == 0 && i < MSG_LIFE_FDS; i++) {
		if (m->lives[i] >= 0)
			r = watch(m->epoll, m->lives[i], EPOLLIN);
	}
	return r;
}

void client_watch(const struct mimeo *m, short events, struct pollfd ret[static WATCHED])
{
	ret[0] = (struct pollfd){.fd = m->socket, .events = events};
	/* Of -1 poll says nothing. */
	for (size_t i = 0; i < MSG_LIFE_FDS; i++)
		ret[1 + i] = (struct pollfd){.fd = m->lives[i], .events = POLLIN};
}

/* A killed daemon's socket hangs up when the kernel has taken down its memory, its threads and all
 * that refers to the socket, io_uring among it: 100 ms later and more. What came with WELCOME tells at
 * once (daemon/serve/life.h). A daemon whose kernel is too old for that sent nothing: then its process's
 * pidfd, which is sooner than a socket that io_uring has, and the socket have to do. */
static void lives_init(struct mimeo *m, const int fds[static MSG_LIFE_FDS])
{
	struct socket_peer peer;

	memcpy(m->lives, fds, sizeof(m->lives));
	if (m->lives[0] < 0 && socket_peer(m->socket, &peer) == 0)
		m->lives[0] = peer.pidfd;
}

/* Why there is no connection: what was found out about it, or else which socket it was. */
static int explain(
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

/* `m` comes with fds of -1 and otherwise zeroed; the caller frees it whatever comes of this. */
static int attach(struct mimeo *m, const struct mimeo_config *config, const char *path,
	char text[static MSG_TEXT_MAX])
{
	struct msg_welcome welcome;
	int fds[WELCOME_FDS_MAX], r;

	uint64_t start = clock_ns();
	m->socket = socket_connect(path, config->connect_timeout_ms);
	if (m->socket < 0)
		return connect_failed(path, m->socket, text);
	r = say_hello(m->socket, config);
	if (r < 0)
		return r;

	uint64_t spent_ms = (clock_ns() - start) / 1000000;
	r = hear_welcome(m->socket, path,
		spent_ms < config->connect_timeout_ms
			? config->connect_timeout_ms - (unsigned)spent_ms : 0,
		&welcome, fds);
	if (r < 0) {
		memcpy(text, welcome.text, MSG_TEXT_MAX);
		return r;
	}
	m->sq_bell = fds[1];
	m->cq_bell = fds[2];
	lives_init(m, fds + MSG_WELCOME_FDS);
	r = region_map(&m->region, fds[0]);
	if (r < 0) {
		close(fds[0]);
		return connect_status(r);
	}
	/* A forked child with this mapping would be a second writer of our rings. */
	madvise(m->region.base, m->region.bytes, MADV_DONTFORK);

	if (welcome.entries != m->region.ring.entries ||
		welcome.arena_bytes != m->region.arena_bytes)
		return MIMEO_E_PROTOCOL;
	m->n_models = welcome.n_models;
	memcpy(m->models, welcome.models, sizeof(m->models));
	r = books_init(m, welcome.max_sequences);
	return r < 0 ? r : fds_init(m);
}

int mimeo_connect(struct mimeo **ret_m, const struct mimeo_config *config)
{
	struct mimeo_config resolved = MIMEO_CONFIG_INIT;
	char path[SOCKET_PATH_MAX] = "socket path", text[MSG_TEXT_MAX] = "";

	if (!ret_m)
		return MIMEO_E_INVALID;
	int r = config_resolve(&resolved, config, text);
	if (r < 0)
		return explain(&resolved, path, r, text);
	struct mimeo *m = calloc(1, sizeof(*m));
	if (!m)
		return explain(&resolved, path, MIMEO_E_NO_MEMORY, text);
	m->pid = getpid();
	m->socket = m->sq_bell = m->cq_bell = m->epoll = -1;
	memset(m->lives, -1, sizeof(m->lives));
	m->spin_ns = spin_ns(resolved.spin_us);

	r = socket_path(path, resolved.socket_path);
	if (r == 0 && !path[0])
		r = -EINVAL;
	if (r < 0)
		snprintf(text, sizeof(text), "the socket's path %s: it has from 1 to %d bytes",
			r == -EINVAL ? "is empty" : "is too long", SOCKET_PATH_MAX - 1);
	r = r < 0 ? connect_status(r) : attach(m, &resolved, path, text);
	if (r < 0) {
		mimeo_close(m);
		return explain(&resolved, path, r, text);
	}
	*ret_m = m;
	return 0;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void mimeo_close(struct mimeo *m)
{
	if (!m)
		return;
	close_fd(m->epoll);
	buffers_deinit(m);
	arena_deinit(&m->arena);
	free(m->sequences);
	free(m->requests);
	if (m->region.base && m->pid != getpid())
		close_fd(m->region.fd); /* a forked child never had the mapping */
	else
		region_deinit(&m->region);
	close_fd(m->cq_bell);
	close_fd(m->sq_bell);
	for (size_t i = 0; i < MSG_LIFE_FDS; i++)
		close_fd(m->lives[i]);
	close_fd(m->socket);
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
