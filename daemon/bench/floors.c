/* SPDX-License-Identifier: MIT */
#include "daemon/bench/floors.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/socket.h"

#define SPINS_UNPAUSED 512u /* as the client's library does */
#define REPLY_MS 5000u
#define WARM_UPS 16u
#define SAMPLES_LEAST 8u /* however little time there is */

/* A forked process that dies with this one; 0 in it. */
static pid_t floor_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void floor_end(pid_t pid)
{
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

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

static _Noreturn void floor_echo(struct channels *channels)
{
	for (uint32_t number = 1;; number++) {
		channel_wait(&channels->forth, number);
		channel_send(&channels->back, number);
	}
}

static void floor_ping(struct channels *channels, uint32_t count, uint64_t until_ns, struct samples *samples)
{
	uint64_t before = stats_now();

	for (uint32_t number = 1; number <= count + WARM_UPS; number++) {
		if (before >= until_ns && number > WARM_UPS + SAMPLES_LEAST)
			break;
		channel_send(&channels->forth, number);
		channel_wait(&channels->back, number);
		uint64_t now = stats_now();
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
	struct channels *channels = mmap(NULL, sizeof(*channels), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (forth_fd < 0 || back_fd < 0 || channels == MAP_FAILED)
		return -errno;
	channels->forth.hop = forth;
	channels->forth.eventfd = forth_fd;
	channels->back.hop = back;
	channels->back.eventfd = back_fd;
	pid_t partner = floor_fork();
	if (partner == 0)
		floor_echo(channels);
	int rc = partner < 0 ? -errno : 0;
	if (rc == 0) {
		floor_ping(channels, count, until_ns, samples);
		floor_end(partner);
	}
	munmap(channels, sizeof(*channels));
	return rc;
}

/* ---- attach ---- */

static _Noreturn void floor_hand_out(int listener, uint64_t region_bytes)
{
	int memory = memfd_create("mimeo-bench", MFD_CLOEXEC);
	char byte;

	if (memory < 0 || ftruncate(memory, (off_t)region_bytes) < 0)
		_exit(1);
	for (;;) {
		int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (peer < 0)
			continue;
		if (read(peer, &byte, 1) == 1)
			(void)socket_send(peer, &byte, 1, &memory, 1);
		close(peer);
	}
}

int floor_attach_start(struct floor_attach *ret, uint64_t region_bytes)
{
	const struct sockaddr_un nameless = {.sun_family = AF_UNIX};
	CLEANUP(cleanup_close) int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* Without a path the kernel picks an address that leaves no file behind. */
	if (listener < 0 ||
		bind(listener, (const struct sockaddr *)&nameless,
			offsetof(struct sockaddr_un, sun_path)) < 0 ||
		listen(listener, 16) < 0)
		return -errno;
	pid_t pid = floor_fork();
	if (pid < 0)
		return -errno;
	if (pid == 0)
		floor_hand_out(listener, region_bytes);
	*ret = (struct floor_attach){pid, STEAL_FD(listener)};
	return 0;
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

int floor_attach_once(const struct floor_attach *attach_to, uint64_t region_bytes,
	struct samples *samples)
{
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	uint64_t before = stats_now();

	if (getsockname(attach_to->listener, (struct sockaddr *)&address, &length) < 0)
		return -errno;
	CLEANUP(cleanup_close) int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (peer < 0)
		return -errno;
	int rc = floor_map(&address, length, peer, region_bytes);
	if (rc == 0)
		samples_add(samples, stats_now() - before);
	return rc;
}

void floor_attach_stop(struct floor_attach *attach_to)
{
	if (!attach_to || attach_to->pid <= 0)
		return;
	floor_end(attach_to->pid);
	close(attach_to->listener);
	*attach_to = (struct floor_attach){0};
}

/* ---- death ---- */

int floor_death(struct samples *samples)
{
	int ends[2], rc = 0;
	char byte;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	pid_t pid = floor_fork();
	if (pid == 0) {
		close(ends[0]);
		(void)!write(ends[1], "", 1);
		for (;;)
			pause();
	}
	close(ends[1]);
	if (pid < 0 || read(ends[0], &byte, 1) != 1) {
		rc = -EIO;
	} else {
		struct pollfd hangup = {.fd = ends[0], .events = POLLIN | POLLRDHUP};
		uint64_t before = stats_now();

		kill(pid, SIGKILL);
		rc = poll(&hangup, 1, 1000) == 1 ? 0 : -ETIMEDOUT;
		samples_add(samples, stats_now() - before);
	}
	if (pid > 0)
		floor_end(pid);
	close(ends[0]);
	return rc;
}
