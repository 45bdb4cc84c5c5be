/* SPDX-License-Identifier: MIT */
/* A client of test_chaos.c without the library, which lies in every way that it can. Nothing here fails a test:
 * whatever the daemon does to it is right, as long as the others do not notice. */
#include "tests/e2e/chaos.h"

#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ipc/doorbell.h"
#include "ipc/msg.h"
#include "ipc/msg_table.h"
#include "ipc/region.h"
#include "ipc/socket.h"
#include "tests/e2e/process.h"
#include "tests/lingering.h"

#define ENTRIES 16u
#define ARENA_BYTES (256u << 10)
#define HEADER_AT 0u
#define PAYLOAD_AT 1024u
#define OUTPUT_AT 32768u

struct liar {
	struct chaos *chaos;
	uint64_t state;
	int socket;
	struct region region;
	int bells[2];
	atomic_bool over; /* for its second thread */
};

static uint32_t draw(struct liar *l, uint32_t n)
{
	return random_below(&l->state, n);
}

/* Numbers that are just right, just wrong, or far off. */
static uint32_t draw_number(struct liar *l)
{
	static const uint32_t numbers[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 511, 512, 65535, 1u << 18, 1u << 24,
		INT32_MAX, 1u << 31, UINT32_MAX - 1, UINT32_MAX};

	return draw(l, 2) ? numbers[draw(l, 18)] : random_u32(&l->state) >> draw(l, 32);
}

/* ---- on the socket ---- */

static size_t hello(struct liar *l, uint8_t *bytes, size_t size)
{
	const struct msg_hello message = {.version = MSG_PROTOCOL_VERSION, .entries = ENTRIES,
		.arena_bytes = ARENA_BYTES, .wait_ms = draw(l, 2) * 500, .name = "liar"};
	int n = msg_table_write(&msg_hello_table, &message, bytes + 4, size - 4);
	uint32_t length = htole32((uint32_t)n);

	memcpy(bytes, &length, sizeof(length));
	return (size_t)n + 4;
}

static void spoil(struct liar *l, uint8_t *bytes, size_t n)
{
	for (uint32_t i = 1 + draw(l, 4); i > 0; i--)
		bytes[draw(l, (uint32_t)n)] = (uint8_t)random_u32(&l->state);
}

static void say_nonsense(struct liar *l)
{
	uint8_t bytes[256];
	size_t n = hello(l, bytes, sizeof(bytes));

	if (draw(l, 2))
		spoil(l, bytes, n);
	else if (draw(l, 2))
		n = 1 + draw(l, (uint32_t)n);
	else
		while (n < sizeof(bytes))
			bytes[n++] = (uint8_t)random_u32(&l->state);
	(void)!send(l->socket, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (draw(l, 2))
		pause_ms(draw(l, 20));
}

static bool attach(struct liar *l)
{
	uint8_t bytes[256];
	static uint8_t welcome[MSG_SOCKET_MAX];
	int fds[SOCKET_FDS_MAX];
	size_t n_fds = 0, n = hello(l, bytes, sizeof(bytes));

	if (send(l->socket, bytes, n, MSG_NOSIGNAL) != (ssize_t)n)
		return false;
	ssize_t got = socket_receive(
		l->socket, welcome, sizeof(welcome), fds, SOCKET_FDS_MAX, &n_fds, PATIENCE_MS);
	if (got > 0 && n_fds >= MSG_WELCOME_FDS && region_map(&l->region, fds[0]) == 0) {
		l->bells[0] = fds[1];
		l->bells[1] = fds[2];
		while (n_fds > MSG_WELCOME_FDS)
			close(fds[--n_fds]);
		return true;
	}
	for (size_t i = 0; got > 0 && i < n_fds; i++)
		close(fds[i]);
	return false;
}

/* Calls that are most often well-formed, with descriptors that belong there or not. */
static void call(struct liar *l)
{
	struct msg_call message = {.call = 1 + draw(l, 4), .buffer = draw(l, 4), .kind = draw(l, 4),
		.request = draw(l, 2 * ENTRIES), .bytes = draw(l, 4) ? draw_number(l) : random_u64(&l->state)};
	const struct mimeo_handle handle = {
		.kind = MIMEO_HANDLE_MEMFD, .bytes = 4096 * draw(l, 3), .offset = 64 * draw(l, 3)};
	uint8_t bytes[MSG_CALL_MAX + 4];
	int fds[2] = {-1, -1};

	handle_encode(&handle, message.handle);
	int n = msg_table_write(&msg_call_table, &message, bytes + 4, sizeof(bytes) - 4);
	if (n <= 0)
		return;
	uint32_t length = htole32((uint32_t)n);
	memcpy(bytes, &length, sizeof(length));
	n += 4;
	if (draw(l, 8) == 0)
		spoil(l, bytes, (size_t)n);
	size_t n_fds = draw(l, 3);
	fds[0] = memfd_of(4096, draw(l, 4) ? MEMFD_SEALS : 0);
	fds[1] = draw(l, 2) ? eventfd(0, EFD_CLOEXEC) : open("/dev/null", O_RDWR | O_CLOEXEC);
	if (n_fds > 0 && fds[0] >= 0 && fds[1] >= 0)
		send_with_flags_status(l->socket, bytes, (size_t)n, fds, n_fds, MSG_DONTWAIT);
	else
		(void)!send(l->socket, bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fds[0]);
	close(fds[1]);
	/* Replies are not read, or only some of their bytes. */
	(void)!recv(l->socket, bytes, draw(l, sizeof(bytes)), MSG_DONTWAIT);
}

/* ---- in the region ---- */

static int header(struct liar *l, uint32_t op, uint8_t *bytes)
{
	const struct mimeo_sampling sampling = {.temperature = (float)draw(l, 3), .top_k = draw(l, 50)};

	if (op == RING_OP_STEP) {
		const struct msg_step step = {.n_rows = 1 + draw(l, 4), .outputs = 1 + draw(l, 7),
			.sampling = sampling, .deadline_ms = draw(l, 2) * draw(l, 100),
			.logits = {.buffer = draw(l, 8) == 0}};

		return msg_step_encode(&step, bytes, MSG_HEADER_MAX);
	}
	const struct msg_generate generate = {.sequence = draw(l, 3) ? 0 : draw(l, 6),
		.n_tokens = 1 + draw(l, draw(l, 8) ? 40 : 700), .max_tokens = 1 + draw(l, 60),
		.sampling = sampling, .flags = draw(l, 8), .deadline_ms = draw(l, 2) * draw(l, 100),
		.model = draw(l, 16) == 0};

	return msg_generate_encode(&generate, bytes, MSG_HEADER_MAX);
}

static void payload(struct liar *l)
{
	uint32_t *words = (void *)(l->region.arena + PAYLOAD_AT);

	for (uint32_t i = 0; i < 8; i += 2) {
		words[i] = 1 + draw(l, 5); /* a sequence, or a token */
		words[i + 1] = 1 + draw(l, draw(l, 8) ? 8 : 300);
	}
	for (uint32_t i = 8; i < 700; i++)
		words[i] = draw(l, 256);
}

static void submit(struct liar *l, uint32_t lies)
{
	uint32_t op = draw(l, 3) ? 1 + draw(l, 2) : 1 + draw(l, 9), n;
	int header_length = header(l, op, l->region.arena + HEADER_AT);
	struct ring_sqe sqe = {
		.user_data = random_u64(&l->state),
		.request = draw(l, ENTRIES),
		.generation = draw(l, 2),
		.op = (uint16_t)op,
		.sequence = 1 + draw(l, 5),
		.argument = op == RING_OP_OPEN ? 0 : 1 + draw(l, 5),
		.generation2 = draw(l, 2),
		.header_offset = HEADER_AT,
		.header_length = header_length > 0 ? (uint32_t)header_length : 0,
		.payload_offset = PAYLOAD_AT,
		.payload_length = 4 * (1 + draw(l, 700)),
		.output_offset = OUTPUT_AT,
		.output_length = 64 * draw(l, 3000),
	};

	payload(l);
	if (draw(l, 100) < lies)
		((uint32_t *)&sqe)[draw(l, 15)] = draw_number(l);
	if (draw(l, 100) < lies)
		spoil(l, l->region.arena + HEADER_AT, 64);
	if (ring_sq_push(&l->region.ring, &sqe) == 1)
		ring_sq_publish(&l->region.ring, &n);
	doorbell_ring(l->bells[0]);
	atomic_fetch_add(&l->chaos->n_hostile_entries, 1);
}

static void lie_about_indices(struct liar *l)
{
	struct ring_control *control = l->region.ring.control;
	struct ring_sqe *entry = &l->region.ring.sqes[draw(l, ENTRIES)];

	switch (draw(l, 5)) {
	case 0:
		atomic_fetch_add(&control->sq_tail, draw_number(l));
		break;
	case 1:
		atomic_fetch_add(&control->cq_head, draw_number(l));
		break;
	case 2:
		atomic_store(&entry->stamp, draw_number(l));
		break;
	case 3:
		atomic_store(&control->client_need_wakeup, draw(l, 2));
		break;
	default:
		memset(control, 0xee, offsetof(struct ring_control, sq_tail));
		atomic_store(&control->sq_head, draw_number(l));
		atomic_store(&control->cq_tail, draw_number(l));
	}
}

static void block_the_bells(struct liar *l)
{
	for (unsigned i = 0; i < 2; i++) {
		if (fcntl(l->bells[i], F_SETFL, O_NONBLOCK) == 0) /* so that this write does not block */
			(void)eventfd_write(l->bells[i], UINT64_MAX - 1);
		(void)fcntl(l->bells[i], F_SETFL, 0);
	}
}

static void *rewrite(void *arg)
{
	struct liar *l = arg;
	uint32_t noise = 12345;

	while (!atomic_load_explicit(&l->over, memory_order_relaxed)) {
		for (unsigned i = 0; i < 64; i++) {
			noise = noise * 1664525u + 1013904223u;
			uint32_t at = noise >> 8;
			uint8_t value = (uint8_t)(noise >> 3);

			if (noise & 1)
				((volatile uint8_t *)l->region.ring.sqes)[at % (ENTRIES * 64)] = value;
			else
				((volatile uint8_t *)l->region.arena)[at % 4096] = value;
		}
		sched_yield();
	}
	return NULL;
}

/* ---- its life ---- */

static bool is_closed(struct liar *l)
{
	uint8_t byte;

	return recv(l->socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static void misbehave(struct liar *l)
{
	static const uint32_t lies_in_percent[] = {0, 5, 50};
	uint32_t kind = draw(l, 7), lies = lies_in_percent[draw(l, 3)];
	bool reads = draw(l, 4), rewrites = kind == 0;
	struct ring_cqe cqe;
	pthread_t thread;

	atomic_store(&l->over, false);
	if (rewrites && pthread_create(&thread, NULL, rewrite, l) != 0)
		return;
	for (uint32_t i = 20 + draw(l, 500); i > 0 && !is_closed(l); i--) {
		if (kind == 1 && draw(l, 20) == 0)
			lie_about_indices(l);
		else if (kind == 2)
			call(l);
		else if (kind == 3 && i % 64 == 0)
			block_the_bells(l);
		else
			submit(l, lies);
		while (reads && ring_cq_peek(&l->region.ring, &cqe))
			ring_cq_advance(&l->region.ring);
		if (draw(l, 4) == 0)
			pause_ms(1 + draw(l, 4));
	}
	atomic_store(&l->over, true);
	if (rewrites)
		pthread_join(thread, NULL);
}

int chaos_hostile(struct chaos *chaos, uint64_t seed)
{
	static struct liar liar;
	struct liar *l = &liar;

	l->chaos = chaos;
	l->state = seed;
	for (;; pause_ms(draw(l, 20))) {
		l->socket = socket_connect(chaos->socket, PATIENCE_MS);
		if (l->socket < 0)
			continue;
		if (draw(l, 4) == 0) {
			say_nonsense(l);
		} else if (attach(l)) {
			atomic_fetch_add(&chaos->n_hostile_sessions, 1);
			misbehave(l);
			region_deinit(&l->region);
			close(l->bells[0]);
			close(l->bells[1]);
		}
		close(l->socket);
	}
	return 0;
}
