/* SPDX-License-Identifier: MIT */
#include "daemon/serve/closer.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/output/log.h"
#include "daemon/loop/loop.h"
#include "ipc/clock.h"

#define STACK_BYTES (256u << 10)
#define INTERRUPT_MS 100u /* how often, at the end */
#define DRAIN_READS 64 /* of a socket that is hung up, before it is left to a thread */

/* Waits in its user's list; a thread moves it to `busy` and frees it. */
struct closer_item {
	struct closer *closer;
	struct closer_user *user;
	int fd;
	bool counted;
	pthread_t thread; /* busy */
	uint64_t since_ns;
	struct closer_item *prev, *next;
};

struct closer_user {
	uid_t uid;
	uint32_t n, n_counted;
	uint32_t n_begun; /* items of a thread */
	struct closer_item *waiting; /* oldest first */
	struct closer_user *prev, *next;
};

struct closer {
	struct loop *loop;
	struct sigaction saved;
	pthread_mutex_t lock; /* of all below; held for no close */
	pthread_cond_t emptied;
	struct closer_user *users; /* the next one to be served first */
	struct closer_item *busy;
	uint32_t n_items, n_counted, n_threads;
	bool orphaned; /* the last thread frees it */
};

/* ---- users and items, with the lock ---- */

static struct closer_user *closer_user_find(const struct closer *closer, uid_t uid)
{
	struct closer_user *user;

	DL_FOREACH (closer->users, user) {
		if (user->uid == uid)
			return user;
	}
	return NULL;
}

static struct closer_user *closer_user_get(struct closer *closer, uid_t uid)
{
	struct closer_user *user = closer_user_find(closer, uid);

	if (user)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = uid;
	DL_APPEND(closer->users, user);
	return user;
}

/* Take the oldest item of the next user who may have one more thread, and move that user to the end. */
static struct closer_item *closer_item_begin(struct closer *closer)
{
	struct closer_user *user;

	DL_FOREACH (closer->users, user) {
		struct closer_item *item = user->waiting;

		if (!item || user->n_begun == CLOSER_THREADS_PER_UID)
			continue;
		DL_DELETE(user->waiting, item);
		DL_DELETE(closer->users, user);
		DL_APPEND(closer->users, user);
		user->n_begun++;
		assert(user->n_begun <= CLOSER_THREADS_PER_UID && user->n_begun <= user->n);
		return item;
	}
	return NULL;
}

static void closer_item_free(struct closer *closer, struct closer_item *item)
{
	struct closer_user *user = item->user;

	assert(closer->n_items > 0 && user->n > 0 && user->n_begun > 0);
	assert(user->n_counted >= item->counted && closer->n_counted >= user->n_counted);
	closer->n_items--;
	user->n_begun--;
	user->n_counted -= item->counted;
	closer->n_counted -= item->counted;
	if (item->counted && closer->loop &&
		(closer->n_counted == CLOSER_MAX - 1 || user->n_counted == CLOSER_MAX_PER_UID - 1))
		loop_wake(closer->loop);
	if (--user->n == 0) {
		assert(!user->waiting && user->n_begun == 0 && user->n_counted == 0);
		DL_DELETE(closer->users, user);
		free(user);
	}
	free(item);
}

/* ---- threads ---- */

/* Does nothing: the signal only interrupts a thread that sleeps in the kernel. */
static void closer_on_signal(int number)
{
}

static void closer_destroy(struct closer *closer)
{
	struct closer_user *user, *next_user;
	struct closer_item *item, *next;

	assert(closer->n_threads == 0 && !closer->busy);
	DL_FOREACH_SAFE (closer->users, user, next_user) {
		DL_FOREACH_SAFE (user->waiting, item, next)
			free(item);
		free(user);
	}
	pthread_cond_destroy(&closer->emptied);
	pthread_mutex_destroy(&closer->lock);
	free(closer);
}

static void *closer_main(void *userdata)
{
	struct closer_item *item = userdata;
	struct closer *closer = item->closer;

	pthread_mutex_lock(&closer->lock);
	for (; item; item = closer_item_begin(closer)) {
		item->thread = pthread_self();
		item->since_ns = clock_ns();
		DL_APPEND(closer->busy, item);
		pthread_mutex_unlock(&closer->lock);
		close(item->fd);
		pthread_mutex_lock(&closer->lock);
		DL_DELETE(closer->busy, item);
		closer_item_free(closer, item);
	}
	assert(closer->n_threads > 0);
	closer->n_threads--;
	pthread_cond_broadcast(&closer->emptied);
	bool last = closer->orphaned && closer->n_threads == 0;
	pthread_mutex_unlock(&closer->lock);
	if (last)
		closer_destroy(closer);
	return NULL;
}

static bool closer_thread_start(struct closer_item *item)
{
	pthread_attr_t attributes;
	sigset_t blocked, before;
	pthread_t thread;

	if (pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&blocked);
	sigdelset(&blocked, SIGURG);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	int rc = pthread_create(&thread, &attributes, closer_main, item);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return rc == 0;
}

/* Start a thread for each waiting item that may have one. With the lock; creating a thread does not
 * sleep on anything that a client controls. */
static void closer_start(struct closer *closer)
{
	while (closer->n_threads < CLOSER_THREADS) {
		struct closer_item *item = closer_item_begin(closer);

		if (!item)
			return;
		if (!closer_thread_start(item)) {
			assert(item->user->n_begun > 0);
			item->user->n_begun--;
			DL_PREPEND(item->user->waiting, item);
			return;
		}
		closer->n_threads++;
	}
}

/* With the lock. */
static void closer_interrupt(struct closer *closer, uint64_t patience_ns)
{
	uint64_t now = clock_ns();
	struct closer_item *item;

	DL_FOREACH (closer->busy, item) {
		if (now - item->since_ns >= patience_ns)
			pthread_kill(item->thread, SIGURG);
	}
}

void closer_tick(struct closer *closer)
{
	pthread_mutex_lock(&closer->lock);
	closer_start(closer);
	closer_interrupt(closer, CLOSER_PATIENCE_MS * UINT64_C(1000000));
	pthread_mutex_unlock(&closer->lock);
}

/* ---- work for them ---- */

static bool closer_post(struct closer *closer, int fd, uid_t uid, bool counted)
{
	struct closer_item *item = malloc(sizeof(*item));

	if (!item)
		return false;
	pthread_mutex_lock(&closer->lock);
	struct closer_user *user = closer_user_get(closer, uid);
	if (user) {
		*item = (struct closer_item){
			.closer = closer, .user = user, .fd = fd, .counted = counted};
		user->n++;
		user->n_counted += counted;
		closer->n_items++;
		closer->n_counted += counted;
		DL_APPEND(user->waiting, item);
		closer_start(closer);
	}
	pthread_mutex_unlock(&closer->lock);
	if (!user)
		free(item);
	return user;
}

void closer_take(struct closer *closer, int fd, uid_t uid)
{
	/* Without memory for an item, this thread has to close it. */
	if (!closer_post(closer, fd, uid, true))
		close(fd);
}

void closer_take_memory(struct closer *closer, int fd, uid_t uid)
{
	if (!closer_post(closer, fd, uid, false))
		close(fd);
}

void closer_hang_up(struct closer *closer, int fd, uid_t uid)
{
	uint8_t bytes[4096];
	int n_unread = 1;
	ssize_t n = 1;

	/* Nothing can be sent to it from here on; descriptors come with a byte at least. */
	if (shutdown(fd, SHUT_RDWR) == 0) {
		for (int i = 0; i < DRAIN_READS && n > 0; i++)
			n = closer_receive(fd, bytes, sizeof(bytes), NULL);
		if (ioctl(fd, SIOCINQ, &n_unread) < 0)
			n_unread = 1;
	}
	if (n_unread == 0)
		close(fd);
	else
		closer_take(closer, fd, uid);
}

/*
 * The first look installs a copy of the descriptor (of the first one, if there are more) and leaves the
 * message in the socket. Taking the message then drops only the kernel's own reference, which is not
 * the last one while the copy is open.
 */
ssize_t closer_receive(int fd, void *buffer, size_t size, int *ret_fd)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = buffer, .iov_len = size};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = ret_fd ? &control : NULL,
		/* Not CMSG_SPACE: with the padding a second descriptor would fit. */
		.msg_controllen = ret_fd ? CMSG_LEN(sizeof(int)) : 0,
	};
	int received = -1;
	ssize_t n;

	do
		n = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	const struct cmsghdr *c = ret_fd ? CMSG_FIRSTHDR(&message) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&received, CMSG_DATA(c), sizeof(received));
	if (message.msg_flags & MSG_CTRUNC) {
		if (received >= 0)
			close(received); /* not the last reference: the message still has one */
		return ret_fd && received < 0 ? -EMFILE : -EBADMSG;
	}
	if (n > 0)
		n = recv(fd, buffer, (size_t)n, MSG_DONTWAIT);
	if (n < 0 && received >= 0)
		close(received); /* likewise */
	if (n < 0)
		return -errno;
	if (ret_fd)
		*ret_fd = received;
	return n;
}

uint32_t closer_n(struct closer *closer)
{
	pthread_mutex_lock(&closer->lock);
	uint32_t n = closer->n_counted;
	pthread_mutex_unlock(&closer->lock);
	return n;
}

uint32_t closer_n_of(struct closer *closer, uid_t uid)
{
	pthread_mutex_lock(&closer->lock);
	const struct closer_user *user = closer_user_find(closer, uid);
	uint32_t n = user ? user->n_counted : 0;
	pthread_mutex_unlock(&closer->lock);
	return n;
}

bool closer_is_full(struct closer *closer, uid_t uid)
{
	return closer_n_of(closer, uid) >= CLOSER_MAX_PER_UID;
}

/* ---- life ---- */

int closer_new(struct closer **ret, struct loop *loop)
{
	const struct sigaction action = {.sa_handler = closer_on_signal}; /* without SA_RESTART */
	pthread_condattr_t attributes;
	struct closer *closer = calloc(1, sizeof(*closer));
	if (!closer)
		return -ENOMEM;

	closer->loop = loop;
	pthread_mutex_init(&closer->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&closer->emptied, &attributes);
	pthread_condattr_destroy(&attributes);
	sigaction(SIGURG, &action, &closer->saved);
	*ret = closer;
	return 0;
}

/* True if all is closed and all threads have ended. With the lock. */
static bool closer_await_end(struct closer *closer, uint32_t ms)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while (closer->n_threads > 0 && rc == 0)
		rc = pthread_cond_timedwait(&closer->emptied, &closer->lock, &until);
	return closer->n_threads == 0;
}

void closer_free(struct closer *closer)
{
	if (!closer)
		return;
	pthread_mutex_lock(&closer->lock);
	closer->loop = NULL;
	closer_start(closer);
	bool ended = closer_await_end(closer, CLOSER_STOP_MS);
	for (uint32_t ms = 0; !ended && ms < CLOSER_STOP_MS; ms += INTERRUPT_MS) {
		closer_interrupt(closer, 0);
		ended = closer_await_end(closer, INTERRUPT_MS);
	}
	if (closer->n_items > 0)
		log_warn("closing descriptors of clients takes too long, left to the kernel: %u",
			closer->n_items);
	closer->orphaned = !ended;
	if (ended)
		sigaction(SIGURG, &closer->saved, NULL);
	pthread_mutex_unlock(&closer->lock);
	if (ended)
		closer_destroy(closer);
}
