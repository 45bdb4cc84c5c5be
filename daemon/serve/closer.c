/* SPDX-License-Identifier: MIT */
#include "daemon/serve/closer.h"

#include <errno.h>
#include <fcntl.h>
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

#include "daemon/log.h"
#include "daemon/loop/loop.h"

#define STACK_BYTES (256u << 10)

enum item_kind { ITEM_CLOSE, ITEM_RECEIVE };

struct closer_item {
	enum item_kind kind;
	int fd;
	uid_t uid;
	bool busy, done;
	/* ITEM_RECEIVE */
	ssize_t n;
	size_t size;
	struct closer_item *prev, *next;
	uint8_t bytes[]; /* [size] */
};

struct closer {
	struct loop *loop;
	pthread_mutex_t lock; /* of what follows; held for a few instructions */
	pthread_cond_t emptied;
	struct closer_item *items; /* oldest first */
	uint32_t n_items, n_threads, n_starting;
	bool orphaned; /* the last thread frees it */
};

/* ---- the threads ---- */

static uint32_t n_busy(const struct closer *closer, uid_t uid)
{
	const struct closer_item *item;
	uint32_t n = 0;

	DL_FOREACH (closer->items, item)
		n += item->busy && item->uid == uid;
	return n;
}

/* The oldest that may be begun. */
static struct closer_item *next_item(const struct closer *closer)
{
	struct closer_item *item;

	DL_FOREACH (closer->items, item) {
		if (!item->busy && !item->done &&
			n_busy(closer, item->uid) < CLOSER_THREADS_PER_UID)
			return item;
	}
	return NULL;
}

static void threads_start(struct closer *closer);

static void item_free(struct closer *closer, struct closer_item *item)
{
	DL_DELETE(closer->items, item);
	closer->n_items--;
	free(item);
	if (closer->n_items == 0)
		pthread_cond_broadcast(&closer->emptied);
}

/* Called with the lock, which it lets go while it works. */
static void item_work(struct closer *closer, struct closer_item *item)
{
	ssize_t n = 0;

	item->busy = true;
	bool receives = item->kind == ITEM_RECEIVE;
	threads_start(closer); /* for the next: this one may hang */
	pthread_mutex_unlock(&closer->lock);
	if (receives) {
		n = recv(item->fd, item->bytes, item->size, MSG_DONTWAIT);
		n = n < 0 ? -errno : n;
	} else {
		close(item->fd);
	}
	pthread_mutex_lock(&closer->lock);
	item->busy = false;
	if (!receives) {
		item_free(closer, item);
	} else if (item->kind == ITEM_RECEIVE) {
		item->n = n;
		item->done = true;
		if (closer->loop)
			loop_wake(closer->loop);
	} /* else it was abandoned meanwhile, and is to be closed */
}

static void closer_destroy(struct closer *closer)
{
	struct closer_item *item, *next;

	DL_FOREACH_SAFE (closer->items, item, next)
		free(item);
	pthread_cond_destroy(&closer->emptied);
	pthread_mutex_destroy(&closer->lock);
	free(closer);
}

static void *closer_main(void *userdata)
{
	struct closer *closer = userdata;
	struct closer_item *item;

	pthread_mutex_lock(&closer->lock);
	closer->n_starting--;
	while ((item = next_item(closer)))
		item_work(closer, item);
	closer->n_threads--;
	pthread_cond_broadcast(&closer->emptied);
	bool last = closer->orphaned && closer->n_threads == 0;
	pthread_mutex_unlock(&closer->lock);
	if (last)
		closer_destroy(closer);
	return NULL;
}

static bool thread_start(struct closer *closer)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;

	if (pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(&thread, &attributes, closer_main, closer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return r == 0;
}

/* With the lock: a thread for what may be begun, unless one that will take it is on its way. */
static void threads_start(struct closer *closer)
{
	if (closer->n_starting > 0 || closer->n_threads >= CLOSER_THREADS || !next_item(closer))
		return;
	closer->n_threads++;
	closer->n_starting++;
	if (!thread_start(closer)) {
		closer->n_threads--;
		closer->n_starting--;
	}
}

void closer_tick(struct closer *closer)
{
	pthread_mutex_lock(&closer->lock);
	threads_start(closer);
	pthread_mutex_unlock(&closer->lock);
}

/* ---- work for them ---- */

static struct closer_item *item_new(
	struct closer *closer, enum item_kind kind, int fd, size_t size, uid_t uid)
{
	struct closer_item *item = calloc(1, sizeof(*item) + size);

	if (!item)
		return NULL;
	item->kind = kind;
	item->fd = fd;
	item->uid = uid;
	item->size = size;
	pthread_mutex_lock(&closer->lock);
	DL_APPEND(closer->items, item);
	closer->n_items++;
	threads_start(closer);
	pthread_mutex_unlock(&closer->lock);
	return item;
}

static void close_elsewhere(struct closer *closer, int fd, uid_t uid)
{
	/* Without memory for a list's entry there is no better place left than this one. */
	if (!item_new(closer, ITEM_CLOSE, fd, 0, uid))
		close(fd);
}

void closer_take(struct closer *closer, int fd, uid_t uid)
{
	if (fcntl(fd, F_GET_SEALS) >= 0)
		close(fd);
	else
		close_elsewhere(closer, fd, uid);
}

void closer_hang_up(struct closer *closer, int fd, uid_t uid)
{
	int n_unread;

	/* Nothing can be sent to it from here on; descriptors come with a byte at least. */
	if (shutdown(fd, SHUT_RDWR) == 0 && ioctl(fd, SIOCINQ, &n_unread) == 0 && n_unread == 0)
		close(fd);
	else
		close_elsewhere(closer, fd, uid);
}

ssize_t closer_peek_receive(int fd, void *buffer, size_t size)
{
	struct iovec part = {.iov_base = buffer, .iov_len = size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t n;

	do
		n = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	/* No room was given for descriptors: that is how the kernel says that there are any. */
	if (n >= 0 && message.msg_flags & MSG_CTRUNC)
		return -EBADMSG;
	if (n > 0)
		n = recv(fd, buffer, (size_t)n, MSG_DONTWAIT);
	return n < 0 ? -errno : n;
}

struct closer_item *closer_receive(struct closer *closer, int fd, size_t size, uid_t uid)
{
	return item_new(closer, ITEM_RECEIVE, fd, size, uid);
}

bool closer_received(struct closer *closer, struct closer_item *item, void *buffer, ssize_t *ret_n)
{
	pthread_mutex_lock(&closer->lock);
	bool done = item->done;
	if (done) {
		*ret_n = item->n;
		if (item->n > 0)
			memcpy(buffer, item->bytes, (size_t)item->n);
		item_free(closer, item);
	}
	pthread_mutex_unlock(&closer->lock);
	return done;
}

void closer_abandon(struct closer *closer, struct closer_item *item)
{
	shutdown(item->fd, SHUT_RDWR);
	pthread_mutex_lock(&closer->lock);
	item->kind = ITEM_CLOSE;
	item->done = false;
	threads_start(closer);
	pthread_mutex_unlock(&closer->lock);
}

uint32_t closer_n(struct closer *closer)
{
	pthread_mutex_lock(&closer->lock);
	uint32_t n = closer->n_items;
	pthread_mutex_unlock(&closer->lock);
	return n;
}

uint32_t closer_n_of(struct closer *closer, uid_t uid)
{
	const struct closer_item *item;
	uint32_t n = 0;

	pthread_mutex_lock(&closer->lock);
	DL_FOREACH (closer->items, item)
		n += item->uid == uid;
	pthread_mutex_unlock(&closer->lock);
	return n;
}

/* ---- life ---- */

int closer_new(struct closer **ret, struct loop *loop)
{
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
	*ret = closer;
	return 0;
}

void closer_free(struct closer *closer)
{
	struct timespec until;
	int r = 0;

	if (!closer)
		return;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += CLOSER_STOP_MS / 1000;
	pthread_mutex_lock(&closer->lock);
	closer->loop = NULL;
	threads_start(closer);
	while ((closer->n_items > 0 || closer->n_threads > 0) && r == 0)
		r = pthread_cond_timedwait(&closer->emptied, &closer->lock, &until);
	closer->orphaned = closer->n_threads > 0;
	bool empty = !closer->orphaned;
	if (closer->n_items > 0)
		log_warn("descriptors of clients that do not close: %u", closer->n_items);
	pthread_mutex_unlock(&closer->lock);
	if (empty)
		closer_destroy(closer);
}
