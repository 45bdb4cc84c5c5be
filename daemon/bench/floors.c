/* SPDX-License-Identifier: MIT */
#include "daemon/bench/floors.h"

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/socket.h"

#define SPINS_UNPAUSED 512u /* as the client's library does */
#define REPLY_MS 5000u
#define WARM_UPS 16u
#define SAMPLES_LEAST 8u /* however little time there is */

/* ---- ping-pong ---- */

struct channel {
	alignas(64) _Atomic uint32_t line; /* alone in its cache line */
	alignas(64) enum hop hop;
	int eventfd;
};

struct channels {
	struct channel forth, back;
};

static void channel_send(struct channel *channel, uint32_t number)
{
	const uint64_t one = 1;

	if (channel->hop == HOP_LINE)
		atomic_store_explicit(&channel->line, number, memory_order_release);
	else
		(void)!write(channel->eventfd, &one, sizeof(one));
}

static void channel_wait(struct channel *channel, uint32_t number)
{
	uint64_t value;

	if (channel->hop == HOP_EVENTFD) {
		while (read(channel->eventfd, &value, sizeof(value)) < 0 && errno == EINTR)
			;
		return;
	}
	for (unsigned n = 0;
		atomic_load_explicit(&channel->line, memory_order_acquire) != number; n++) {
#if defined(__x86_64__) || defined(__i386__)
		if (n > SPINS_UNPAUSED)
			__builtin_ia32_pause();
#elif defined(__aarch64__)
		if (n > SPINS_UNPAUSED)
			__asm__ volatile("yield");
#endif
	}
}

static int floor_echo(void *arg, int fd)
{
	struct channels *channels = arg;

	for (uint32_t number = 1;; number++) {
		channel_wait(&channels->forth, number);
		channel_send(&channels->back, number);
	}
	return 0;
}

static void floor_ping(
	struct channels *channels, uint32_t count, uint64_t until_ns, struct samples *samples)
{
	uint64_t before = clock_ns();

	for (uint32_t number = 1; number <= count + WARM_UPS; number++) {
		if (before >= until_ns && number > WARM_UPS + SAMPLES_LEAST)
			break;
		channel_send(&channels->forth, number);
		channel_wait(&channels->back, number);
		uint64_t now = clock_ns();
		if (number > WARM_UPS)
			samples_add(samples, now - before);
		before = now;
	}
}

int floor_ping_pong(enum hop forth, enum hop back, uint32_t count, uint64_t until_ns,
	struct samples *samples)
{
	CLEANUP(cleanup_close) int forth_fd = eventfd(0, EFD_CLOEXEC);
	CLEANUP(cleanup_close) int back_fd = eventfd(0, EFD_CLOEXEC);
	CLEANUP(child_kill) struct child partner = {0};
	struct channels *channels = child_memory(sizeof(*channels));

	if (forth_fd < 0 || back_fd < 0 || !channels)
		return -errno;
	channels->forth = (struct channel){.hop = forth, .eventfd = forth_fd};
	channels->back = (struct channel){.hop = back, .eventfd = back_fd};
	int rc = child_start(&partner, floor_echo, channels);
	if (rc == 0)
		floor_ping(channels, count, until_ns, samples);
	child_memory_free(channels, sizeof(*channels));
	return rc;
}

/* ---- attach ---- */

static int floor_hand_out(void *arg, int fd)
{
	const struct floor_attach *attach = arg;
	int memory = memfd_create("mimeo-bench", MFD_CLOEXEC);
	char byte;

	if (memory < 0 || ftruncate(memory, (off_t)attach->region_bytes) < 0)
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

int floor_attach_start(struct floor_attach *ret, uint64_t region_bytes)
{
	const struct sockaddr_un nameless = {.sun_family = AF_UNIX};

	*ret = (struct floor_attach){.region_bytes = region_bytes};
	ret->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Without a path the kernel picks an address that leaves no file behind. */
	if (ret->listener < 0 ||
		bind(ret->listener, (const struct sockaddr *)&nameless,
			offsetof(struct sockaddr_un, sun_path)) < 0 ||
		listen(ret->listener, 16) < 0)
		return -errno;
	return child_start(&ret->partner, floor_hand_out, ret);
}

static int floor_map(const struct sockaddr_un *address, socklen_t length, int peer, uint64_t bytes)
{
	if (connect(peer, (const struct sockaddr *)address, length) < 0 || write(peer, "", 1) != 1)
		return -errno;
	CLEANUP(cleanup_close) int fd = -1;
	size_t n_fds = 0;
	char byte;
	if (socket_receive(peer, &byte, 1, &fd, 1, &n_fds, REPLY_MS) != 1 || n_fds != 1)
		return -EIO;
	char *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED)
		return -errno;
	*(volatile char *)region = 1;
	munmap(region, bytes);
	return 0;
}

int floor_attach_once(const struct floor_attach *attach_to, struct samples *samples)
{
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	uint64_t before = clock_ns();

	if (getsockname(attach_to->listener, (struct sockaddr *)&address, &length) < 0)
		return -errno;
	CLEANUP(cleanup_close) int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (peer < 0)
		return -errno;
	int rc = floor_map(&address, length, peer, attach_to->region_bytes);
	if (rc == 0)
		samples_add(samples, clock_ns() - before);
	return rc;
}

void floor_attach_stop(struct floor_attach *attach_to)
{
	child_kill(&attach_to->partner);
	if (attach_to->listener >= 0)
		close(attach_to->listener);
}
