/* SPDX-License-Identifier: MIT */
#include "daemon/loop/bells.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int bells_init(struct bells *bells)
{
	memset(bells, 0, sizeof(*bells));
	bells->empty_fd = memfd_create("bells", MFD_CLOEXEC);
	if (bells->empty_fd < 0)
		return -errno;
	if (syscall(SYS_io_setup, BELLS_BATCH, &bells->aio) == 0)
		bells->way = BELLS_AIO;
	else if (io_uring_queue_init(1, &bells->uring, 0) == 0)
		bells->way = BELLS_URING;
	else
		bells->way = BELLS_WRITE;
	return 0;
}

void bells_deinit(struct bells *bells)
{
	if (bells->aio)
		syscall(SYS_io_destroy, bells->aio);
	if (bells->way == BELLS_URING)
		io_uring_queue_exit(&bells->uring);
	if (bells->empty_fd >= 0)
		close(bells->empty_fd);
}

/* ---- aio ---- */

static void bells_fetch(struct bells *bells)
{
	struct io_event events[BELLS_BATCH];
	long n = syscall(SYS_io_getevents, bells->aio, 0L, (long)BELLS_BATCH, events, NULL);

	if (n <= 0)
		return;
	assert(n <= bells->n_unfetched);
	bells->n_unfetched -= (uint32_t)n;
}

void bells_flush(struct bells *bells)
{
	struct iocb *pointers[BELLS_BATCH];
	uint32_t done = 0;

	assert(bells->n_batch <= BELLS_BATCH);
	for (uint32_t i = 0; i < bells->n_batch; i++)
		pointers[i] = &bells->batch[i];
	if (bells->n_unfetched + bells->n_batch > BELLS_BATCH)
		bells_fetch(bells);
	while (done < bells->n_batch) {
		long n = syscall(SYS_io_submit, bells->aio, (long)(bells->n_batch - done),
			pointers + done);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n > 0)
			bells->n_unfetched += (uint32_t)n;
		done += n > 0 ? (uint32_t)n : 1; /* one that fails is no eventfd */
	}
	assert(done <= bells->n_batch && bells->n_unfetched <= BELLS_BATCH);
	bells->n_batch -= done;
	memmove(bells->batch, bells->batch + done, bells->n_batch * sizeof(bells->batch[0]));
}

/* ---- where aio is refused ---- */

static void bells_ring_unless_full(int eventfd)
{
	const uint64_t one = 1;
	struct pollfd poll_fd = {.fd = eventfd, .events = POLLOUT};

	/* A failure is a full counter, whose reader is awake, or a closed fd. */
	if (poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLOUT)
		(void)!write(eventfd, &one, sizeof(one));
}

/* False if the kernel refused. */
static bool bells_ring_by_uring(struct io_uring *uring, int eventfd)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(uring); /* NULL: one that was refused is queued still */
	struct io_uring_cqe *cqe;
	int rc;

	if (sqe)
		io_uring_prep_nop(sqe);
	if (io_uring_register_eventfd(uring, eventfd) < 0)
		return false;
	do
		rc = io_uring_submit_and_wait(uring, 1);
	while (rc == -EINTR);
	while (io_uring_peek_cqe(uring, &cqe) == 0)
		io_uring_cqe_seen(uring, cqe);
	io_uring_unregister_eventfd(uring);
	return rc >= 0;
}

void bells_ring(struct bells *bells, int eventfd)
{
	if (bells->way == BELLS_URING) {
		if (!bells_ring_by_uring(&bells->uring, eventfd))
			bells_ring_unless_full(eventfd);
		return;
	}
	if (bells->way == BELLS_WRITE) {
		bells_ring_unless_full(eventfd);
		return;
	}
	if (bells->n_batch == BELLS_BATCH)
		bells_flush(bells);
	if (bells->n_batch == BELLS_BATCH)
		return;
	bells->batch[bells->n_batch++] = (struct iocb){
		.aio_lio_opcode = IOCB_CMD_PREAD,
		.aio_fildes = (uint32_t)bells->empty_fd,
		.aio_flags = IOCB_FLAG_RESFD,
		.aio_resfd = (uint32_t)eventfd,
	};
}
