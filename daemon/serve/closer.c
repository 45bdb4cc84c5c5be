/* SPDX-License-Identifier: MIT */
#include "daemon/serve/closer.h"

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

enum item_kind { ITEM_CLOSE, ITEM_RECEIVE };

/* In a list of its user's while it waits, in `busy` while a thread has it, in `done` behind that. */
struct closer_item {
	enum item_kind kind;
	int fd;
	struct user *user;
	bool done, counted;
	pthread_t thread; /* busy */
	uint64_t since_ns;
	/* ITEM_RECEIVE; what it has kept goes with it if it is to be closed after all */
	bool keep;
	struct closer_result result;
	size_t size;
	struct closer_item *prev, *next;
	uint8_t bytes[]; /* [size] */
};

struct user {
	uid_t uid;
	uint32_t n, n_counted, n_busy;
	struct closer_item *waiting; /* oldest first */
	struct user *prev, *next;
};

struct closer {
	struct loop *loop;
	struct sigaction saved;
	pthread_mutex_t lock; /* of what follows; held for no call that may sleep */
	pthread_cond_t emptied;
	struct user *users; /* whose turn it is first */
	struct closer_item *busy, *done;
	uint32_t n_items, n_counted, n_threads, n_starting;
	bool orphaned; /* the last thread frees it */
};

/* ---- users, with the lock ---- */

static struct user *user_find(const struct closer *closer, uid_t uid)
{
	struct user *user;

	DL_FOREACH (closer->users, user) {
		if (user->uid == uid)
			return user;
	}
	return NULL;
}

static struct user *user_get(struct closer *closer, uid_t uid)
{
	struct user *user = user_find(closer, uid);

	if (user)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = uid;
	DL_APPEND(closer->users, user);
	return user;
}

/* Of whom something may be begun. */
static struct user *user_next(const struct closer *closer)
{
	struct user *user;

	DL_FOREACH (closer->users, user) {
		if (user->waiting && user->n_busy < CLOSER_THREADS_PER_UID)
			return user;
	}
	return NULL;
}

static void item_free(struct closer *closer, struct closer_item *item)
{
	struct user *user = item->user;

	closer->n_items--;
	user->n_counted -= item->counted;
	closer->n_counted -= item->counted;
	if (item->counted && closer->n_counted == CLOSER_MAX - 1 && closer->loop)
		loop_wake(closer->loop);
	if (--user->n == 0) {
		DL_DELETE(closer->users, user);
		free(user);
	}
	free(item);
	if (closer->n_items == 0)
		pthread_cond_broadcast(&closer->emptied);
}

/* ---- the threads ---- */

/* Ends what sleeps in the kernel, and does nothing else. */
static void on_signal(int number)
{
	(void)number;
}

static void *closer_main(void *userdata);

static bool thread_start(struct closer *closer)
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
	int r = pthread_create(&thread, &attributes, closer_main, closer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return r == 0;
}

/* A thread for what may be begun, unless one that will take it is on its way. Without the lock. */
static void threads_start(struct closer *closer)
{
	pthread_mutex_lock(&closer->lock);
	bool wanted = closer->n_starting == 0 && closer->n_threads < CLOSER_THREADS &&
		user_next(closer);
	closer->n_threads += wanted;
	closer->n_starting += wanted;
	pthread_mutex_unlock(&closer->lock);
	if (!wanted || thread_start(closer))
		return;
	pthread_mutex_lock(&closer->lock);
	closer->n_threads--;
	closer->n_starting--;
	pthread_mutex_unlock(&closer->lock);
}

/* The oldest of the user whose turn it is, who comes last then. With the lock. */
static struct closer_item *item_begin(struct closer *closer)
{
	struct user *user = user_next(closer);
	struct closer_item *item = user ? user->waiting : NULL;

	if (!item)
		return NULL;
	DL_DELETE(user->waiting, item);
	DL_DELETE(closer->users, user);
	DL_APPEND(closer->users, user);
	user->n_busy++;
	item->thread = pthread_self();
	item->since_ns = clock_ns();
	DL_APPEND(closer->busy, item);
	return item;
}

/* What has no room here the kernel drops, on this thread. */
static struct closer_result receive(struct closer_item *item)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = item->bytes, .iov_len = item->size};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = item->keep ? &control : NULL,
		/* Not its space: with the padding a second one would fit. */
		.msg_controllen = item->keep ? CMSG_LEN(sizeof(int)) : 0,
	};
	struct closer_result result = {.fd = -1};

	result.n = recvmsg(item->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (result.n < 0) {
		result.n = -errno;
		return result;
	}
	const struct cmsghdr *c = item->keep ? CMSG_FIRSTHDR(&message) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&result.fd, CMSG_DATA(c), sizeof(result.fd));
	result.surplus = result.fd >= 0 && message.msg_flags & MSG_CTRUNC;
	result.lost = item->keep && result.fd < 0;
	return result;
}

/* With the lock, which it lets go while it works. */
static void item_work(struct closer *closer, struct closer_item *item)
{
	struct closer_result result = {.fd = -1};
	bool receives = item->kind == ITEM_RECEIVE;

	pthread_mutex_unlock(&closer->lock);
	threads_start(closer); /* for the next: this one may hang */
	if (receives) {
		result = receive(item);
	} else {
		if (item->result.fd >= 0)
			close(item->result.fd);
		close(item->fd);
	}
	pthread_mutex_lock(&closer->lock);
	DL_DELETE(closer->busy, item);
	item->user->n_busy--;
	if (!receives) {
		item_free(closer, item);
		return;
	}
	item->result = result;
	/* Abandoned meanwhile, or nobody is left to ask for it. */
	if (item->kind == ITEM_CLOSE || !closer->loop) {
		item->kind = ITEM_CLOSE;
		DL_APPEND(item->user->waiting, item);
		return;
	}
	item->done = true;
	DL_APPEND(closer->done, item);
	loop_wake(closer->loop);
}

static void closer_destroy(struct closer *closer)
{
	struct user *user, *next_user;
	struct closer_item *item, *next;

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
	struct closer *closer = userdata;
	struct closer_item *item;

	pthread_mutex_lock(&closer->lock);
	closer->n_starting--;
	while ((item = item_begin(closer)))
		item_work(closer, item);
	closer->n_threads--;
	pthread_cond_broadcast(&closer->emptied);
	bool last = closer->orphaned && closer->n_threads == 0;
	pthread_mutex_unlock(&closer->lock);
	if (last)
		closer_destroy(closer);
	return NULL;
}

/* With the lock. */
static void interrupt(struct closer *closer, uint64_t patience_ns)
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
	threads_start(closer);
	pthread_mutex_lock(&closer->lock);
	interrupt(closer, CLOSER_PATIENCE_MS * UINT64_C(1000000));
	pthread_mutex_unlock(&closer->lock);
}

/* ---- work for them ---- */

static struct closer_item *item_new(enum item_kind kind, int fd, size_t size, bool counted)
{
	struct closer_item *item = calloc(1, sizeof(*item) + size);

	if (!item)
		return NULL;
	item->kind = kind;
	item->fd = fd;
	item->size = size;
	item->counted = counted;
	item->result.fd = -1;
	return item;
}

/* False: no memory for its user, and the item is as it was. */
static bool item_post(struct closer *closer, struct closer_item *item, uid_t uid)
{
	pthread_mutex_lock(&closer->lock);
	struct user *user = item->user = user_get(closer, uid);
	if (user) {
		user->n++;
		user->n_counted += item->counted;
		closer->n_items++;
		closer->n_counted += item->counted;
		DL_APPEND(user->waiting, item);
	}
	pthread_mutex_unlock(&closer->lock);
	/* The item may be gone already. */
	if (user)
		threads_start(closer);
	return user;
}

static void take(struct closer *closer, int fd, uid_t uid, bool counted)
{
	struct closer_item *item = item_new(ITEM_CLOSE, fd, 0, counted);

	/* Without memory for a list's entry there is no better place left than this one. */
	if (!item || !item_post(closer, item, uid)) {
		free(item);
		close(fd);
	}
}

void closer_take(struct closer *closer, int fd, uid_t uid)
{
	take(closer, fd, uid, true);
}

void closer_take_known(struct closer *closer, int fd, uid_t uid)
{
	take(closer, fd, uid, false);
}

void closer_hang_up(struct closer *closer, int fd, uid_t uid)
{
	uint8_t bytes[4096];
	int n_unread = 1;
	ssize_t n = 1;

	/* Nothing can be sent to it from here on; descriptors come with a byte at least. */
	if (shutdown(fd, SHUT_RDWR) == 0) {
		for (int i = 0; i < DRAIN_READS && n > 0; i++)
			n = closer_peek_receive(fd, bytes, sizeof(bytes));
		if (ioctl(fd, SIOCINQ, &n_unread) < 0)
			n_unread = 1;
	}
	if (n_unread == 0)
		close(fd);
	else
		closer_take(closer, fd, uid);
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

struct closer_item *closer_receive(
	struct closer *closer, int fd, size_t size, bool keep, uid_t uid)
{
	struct closer_item *item = item_new(ITEM_RECEIVE, fd, size, true);

	if (!item)
		return NULL;
	item->keep = keep;
	if (item_post(closer, item, uid))
		return item;
	free(item);
	return NULL;
}

bool closer_received(struct closer *closer, struct closer_item *item, void *buffer,
	struct closer_result *ret)
{
	pthread_mutex_lock(&closer->lock);
	bool done = item->done;
	if (done) {
		DL_DELETE(closer->done, item);
		*ret = item->result;
		if (ret->n > 0)
			memcpy(buffer, item->bytes, (size_t)ret->n);
		item_free(closer, item);
	}
	pthread_mutex_unlock(&closer->lock);
	return done;
}

/* With the lock. */
static void close_done(struct closer *closer, struct closer_item *item)
{
	DL_DELETE(closer->done, item);
	item->kind = ITEM_CLOSE;
	item->done = false;
	DL_APPEND(item->user->waiting, item);
}

void closer_abandon(struct closer *closer, struct closer_item *item)
{
	shutdown(item->fd, SHUT_RDWR);
	pthread_mutex_lock(&closer->lock);
	item->kind = ITEM_CLOSE;
	if (item->done)
		close_done(closer, item);
	pthread_mutex_unlock(&closer->lock);
	threads_start(closer);
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
	const struct user *user = user_find(closer, uid);
	uint32_t n = user ? user->n_counted : 0;
	pthread_mutex_unlock(&closer->lock);
	return n;
}

/* ---- life ---- */

int closer_new(struct closer **ret, struct loop *loop)
{
	const struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
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
static bool await_end(struct closer *closer, uint32_t ms)
{
	struct timespec until;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while ((closer->n_items > 0 || closer->n_threads > 0) && r == 0)
		r = pthread_cond_timedwait(&closer->emptied, &closer->lock, &until);
	return closer->n_items == 0 && closer->n_threads == 0;
}

void closer_free(struct closer *closer)
{
	if (!closer)
		return;
	pthread_mutex_lock(&closer->lock);
	closer->loop = NULL;
	while (closer->done)
		close_done(closer, closer->done);
	pthread_mutex_unlock(&closer->lock);
	threads_start(closer);
	pthread_mutex_lock(&closer->lock);
	bool ended = await_end(closer, CLOSER_STOP_MS);
	for (uint32_t ms = 0; !ended && ms < CLOSER_STOP_MS; ms += INTERRUPT_MS) {
		interrupt(closer, 0);
		ended = await_end(closer, INTERRUPT_MS);
	}
	if (closer->n_items > 0)
		log_warn("descriptors of clients that do not close: %u", closer->n_items);
	bool orphaned = closer->orphaned = closer->n_threads > 0;
	if (!orphaned)
		sigaction(SIGURG, &closer->saved, NULL);
	pthread_mutex_unlock(&closer->lock);
	if (!orphaned)
		closer_destroy(closer);
}
