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

#define SPINS_UNPAUSED 512u /* as the client's library does */
#define WARM_UPS 16u
#define SAMPLES_LEAST 8u /* however little time there is */

/* A forked process that dies with this one; 0 in it. */
static pid_t fork_partner(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void end_partner(pid_t pid)
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

static _Noreturn void echo(struct channels *channels)
{
	for (uint32_t number = 1;; number++) {
		channel_wait(&channels->forth, number);
		channel_send(&channels->back, number);
	}
}

static void ping(struct channels *channels, uint32_t count, uint64_t until_ns, struct samples *samples)
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

static int channel_init(struct channel *channel, enum hop hop)
{
	channel->hop = hop;
	channel->eventfd = eventfd(0, EFD_CLOEXEC);
	return channel->eventfd < 0 ? -errno : 0;
}

int floor_ping_pong(enum hop forth, enum hop back, uint32_t count, uint64_t until_ns,
	struct samples *samples)
{
	struct channels *channels = mmap(NULL, sizeof(*channels), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	pid_t partner;

	if (channels == MAP_FAILED)
		return -errno;
	channels->forth.eventfd = channels->back.eventfd = -1;
	int r = channel_init(&channels->forth, forth);
	if (r == 0)
		r = channel_init(&channels->back, back);
	if (r == 0 && (partner = fork_partner()) < 0)
		r = -errno;
	if (r == 0) {
		if (partner == 0)
			echo(channels);
		ping(channels, count, until_ns, samples);
		end_partner(partner);
	}
	if (channels->back.eventfd >= 0)
		close(channels->back.eventfd);
	if (channels->forth.eventfd >= 0)
		close(channels->forth.eventfd);
	munmap(channels, sizeof(*channels));
	return r;
}

/* ---- attach ---- */

union fd_space {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr aligned;
};

/* One byte with a file descriptor. */
static int send_fd(int socket, int fd)
{
	union fd_space space = {0};
	struct iovec byte = {.iov_base = &(char){0}, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &byte,
		.msg_iovlen = 1,
		.msg_control = space.bytes,
		.msg_controllen = sizeof(space.bytes),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	return sendmsg(socket, &message, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static int receive_fd(int socket)
{
	union fd_space space;
	char byte;
	struct iovec place = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &place,
		.msg_iovlen = 1,
		.msg_control = space.bytes,
		.msg_controllen = sizeof(space.bytes),
	};
	int fd;

	if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
		return -EIO;
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(fd)))
		return -EIO;
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

static _Noreturn void hand_out(int listener, uint64_t region_bytes)
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
			(void)send_fd(peer, memory);
		close(peer);
	}
}

int floor_attach_start(struct floor_attach *ret, uint64_t region_bytes)
{
	const struct sockaddr_un nameless = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0)
		return -errno;
	/* Without a path the kernel picks an address that leaves no file behind. */
	if (bind(listener, (const struct sockaddr *)&nameless,
		    offsetof(struct sockaddr_un, sun_path)) < 0 ||
		listen(listener, 16) < 0) {
		int r = -errno;

		close(listener);
		return r;
	}
	pid_t pid = fork_partner();
	if (pid == 0)
		hand_out(listener, region_bytes);
	if (pid < 0) {
		int r = -errno;

		close(listener);
		return r;
	}
	*ret = (struct floor_attach){pid, listener};
	return 0;
}

static int attach(const struct sockaddr_un *address, socklen_t length, int peer, uint64_t bytes)
{
	if (connect(peer, (const struct sockaddr *)address, length) < 0 || write(peer, "", 1) != 1)
		return -errno;
	int fd = receive_fd(peer);
	if (fd < 0)
		return fd;
	char *region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
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
	int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (peer < 0)
		return -errno;
	int r = attach(&address, length, peer, region_bytes);
	close(peer);
	if (r == 0)
		samples_add(samples, stats_now() - before);
	return r;
}

void floor_attach_stop(struct floor_attach *attach_to)
{
	if (!attach_to || attach_to->pid <= 0)
		return;
	end_partner(attach_to->pid);
	close(attach_to->listener);
	*attach_to = (struct floor_attach){0};
}

/* ---- death ---- */

int floor_death(struct samples *samples)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	pid_t pid = fork_partner();
	if (pid == 0) {
		close(ends[0]);
		(void)!write(ends[1], "", 1);
		for (;;)
			pause();
	}
	int r = pid < 0 ? -errno : 0;
	close(ends[1]);
	char byte;
	if (r == 0 && read(ends[0], &byte, 1) != 1)
		r = -EIO;
	if (r == 0) {
		struct pollfd hangup = {.fd = ends[0], .events = POLLIN | POLLRDHUP};
		uint64_t before = stats_now();

		kill(pid, SIGKILL);
		if (poll(&hangup, 1, 1000) == 1)
			samples_add(samples, stats_now() - before);
		else
			r = -ETIMEDOUT;
	}
	if (pid > 0)
		end_partner(pid);
	close(ends[0]);
	return r;
}
