/* SPDX-License-Identifier: MIT */
/*
 * The cost of one more process: the times from mimeo_connect to the session, to the first token of a request,
 * and to its second, which is the first from a captured decode graph.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/spawn.h"

#define TARGET_SECONDS 0.010
#define REGION_BYTES (8ull << 20) /* the size of the default arena; the rings are small */
#define REPLY_MS 5000u
#define FLOOR                                                                                      \
	"connecting to a Unix socket, receiving a memfd of the same size, mapping and touching it"

/* ---- the floor ---- */

/* A process that sends a memfd to each process that connects. */
struct attach_floor {
	struct child partner;
	int listener;
};

static int attach_floor_hand_out(void *arg, int fd)
{
	const struct attach_floor *attach = arg;
	int memory = memfd_create("mimeo-bench", MFD_CLOEXEC);
	char byte;

	if (memory < 0 || ftruncate(memory, REGION_BYTES) < 0)
		return 1;
	for (;;) {
		int peer = accept4(attach->listener, NULL, NULL, SOCK_CLOEXEC);

		if (peer < 0)
			continue;
		if (read(peer, &byte, 1) == 1)
			(void)socket_send(peer, &byte, 1, &memory, 1);
		close(peer);
	}
	return 0;
}

/* 0 or -errno; must be stopped even if it fails. */
static int attach_floor_start(struct attach_floor *ret)
{
	const struct sockaddr_un nameless = {.sun_family = AF_UNIX};

	*ret = (struct attach_floor){.listener = -1};
	ret->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Without a path the kernel picks an address that leaves no file behind. */
	if (ret->listener < 0 ||
		bind(ret->listener, (const struct sockaddr *)&nameless,
			offsetof(struct sockaddr_un, sun_path)) < 0 ||
		listen(ret->listener, 16) < 0)
		return -errno;
	return child_start(&ret->partner, attach_floor_hand_out, ret);
}

static int attach_floor_map(const struct sockaddr_un *address, socklen_t length, int peer)
{
	if (connect(peer, (const struct sockaddr *)address, length) < 0 || write(peer, "", 1) != 1)
		return -errno;
	CLEANUP(cleanup_close) int fd = -1;
	size_t n_fds = 0;
	char byte;
	if (socket_receive(peer, &byte, 1, &fd, 1, &n_fds, REPLY_MS) != 1 || n_fds != 1)
		return -EIO;
	char *region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED)
		return -errno;
	*(volatile char *)region = 1;
	munmap(region, REGION_BYTES);
	return 0;
}

static int attach_floor_once(const struct attach_floor *attach, struct samples *samples)
{
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	uint64_t before = clock_ns();

	if (getsockname(attach->listener, (struct sockaddr *)&address, &length) < 0)
		return -errno;
	CLEANUP(cleanup_close) int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (peer < 0)
		return -errno;
	int rc = attach_floor_map(&address, length, peer);
	if (rc == 0)
		samples_add(samples, clock_ns() - before);
	return rc;
}

static void attach_floor_stop(struct attach_floor *attach)
{
	child_kill(&attach->partner);
	if (attach->listener >= 0)
		close(attach->listener);
}

/* ---- attaching ---- */

enum leg { SESSION, FIRST, SECOND, N_LEGS };

static const char *const names[N_LEGS] = {
	"connect and handshake", "to the first token", "to the first decoded token"};

static int attach_once(const struct target_work *work, struct samples *const *legs)
{
	const struct client_prompt prompt = {.model = work->options->model_name,
		.n_prompt = CLIENT_PROMPT_TOKENS,
		.n_tokens = 2};
	struct mimeo_event event;
	struct mimeo *m;
	uint32_t n_tokens = 0;
	uint64_t start = clock_ns();

	int rc = client_connect(&m, work->target->socket, MIMEO_SPIN_DEFAULT);
	if (rc < 0)
		return rc;
	samples_add(legs[SESSION], clock_ns() - start);
	rc = client_generate(m, &prompt);
	while (rc == 0 && n_tokens < 2) {
		rc = client_next(m, &event);
		if (rc < 0)
			break;
		uint64_t now = clock_ns();
		if (n_tokens == 0 && event.n_generated > 0)
			samples_add(legs[FIRST], now - start);
		n_tokens = event.n_generated;
		if (n_tokens == 2)
			samples_add(legs[SECOND], now - start);
		mimeo_event_seen(m, &event);
	}
	mimeo_close(m);
	return rc;
}

static void attach_rows(struct results *results, struct samples *const *legs)
{
	for (uint32_t i = 0; i < N_LEGS; i++) {
		results_row(results);
		results_text(results, "measure", "MEASURE", names[i]);
		results_samples(results, legs[i], legs[N_LEGS]);
		if (i != SESSION)
			results_target(results, TABLE_SECONDS, samples_quantile(legs[i], 0.5),
				TARGET_SECONDS, true);
		results_floor(results, FLOOR);
	}
}

static int attach_child(void *arg, int fd)
{
	const struct target_work *work = arg;
	uint32_t count = work->options->count;
	struct samples *legs[N_LEGS + 1]; /* the last one is the floor */
	CLEANUP(attach_floor_stop) struct attach_floor floor;
	int rc = attach_floor_start(&floor);

	if (samples_make(legs, N_LEGS + 1, count) < 0)
		return bench_fail(1, "no memory");
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = attach_floor_once(&floor, legs[N_LEGS]);
		if (rc == 0 && attach_once(work, legs) < 0)
			return 1; /* it has said why */
	}
	if (rc < 0)
		return bench_fail(1, "the floor: %s", strerror(-rc));
	attach_rows(work->results, legs);
	return 0;
}

int bench_attach(const struct bench_options *options, struct results *results)
{
	return target_run(options, &(struct spawn_needs){.kv_pages = 64}, results, "attach",
		attach_child, NULL);
}
