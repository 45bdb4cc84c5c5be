/* SPDX-License-Identifier: MIT */

/*
 * Whole sessions with a lying peer: a daemon in this process, made once, with a small random model and a draft model on
 * the cpu device, whose engine checks its bookkeeping after each turn.
 *
 * The input is the program of two clients: each instruction is one byte and its operands, zero beyond the
 * input's end. A request is made well-formed and then changed by the patches that the program has gathered
 * for it, so that lies of one field reach what looks at the others. In the end both hang up, and all that
 * they held must come back: pages, slots, sequences, sessions, buffers, descriptors.
 */

#include "tests/fuzz/session_daemon.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/clock.h"
#include "ipc/doorbell.h"
#include "ipc/msg.h"
#include "ipc/region.h"
#include "ipc/socket.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VOCABULARY 97
#define ENTRIES 8u
/* Requests take turns with the parts of the arena: the daemon has mostly read one before it is used again. */
#define TURNS 4u
#define HEADER_AT(peer) ((peer)->turn % TURNS * 8192u)
#define PAYLOAD_AT(peer) (HEADER_AT(peer) + 1024u)
#define OUTPUT_AT(peer) (32768u + HEADER_AT(peer))
#define WORDS_MAX 1024u
#define PATCHES_MAX 8u
#define PEERS 2
#define PATIENCE_NS UINT64_C(30000000000)

/* ---- the program ---- */

struct program {
	const uint8_t *bytes;
	size_t size, at;
};

static uint32_t operand(struct program *p, unsigned n)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < n; i++, p->at++)
		value |= (uint32_t)(p->at < p->size ? p->bytes[p->at] : 0) << 8 * i;
	return value;
}

struct patch {
	enum { ENTRY, HEADER, PAYLOAD, TARGETS } target;
	uint32_t where, value;
};

struct peer {
	int socket; /* -1: none */
	bool attached;
	struct region region;
	int bells[2];
	struct patch patches[PATCHES_MAX];
	uint32_t n_patches, turn;
};

static void hang_up(struct peer *peer)
{
	if (peer->attached) {
		region_deinit(&peer->region);
		close(peer->bells[0]);
		close(peer->bells[1]);
	}
	if (peer->socket >= 0)
		close(peer->socket);
	*peer = (struct peer){.socket = -1};
}

/* ---- on the socket ---- */

static bool connected(struct peer *peer)
{
	if (peer->socket < 0)
		peer->socket = socket_connect(session_daemon_socket, 5000);
	return peer->socket >= 0;
}

/* Bytes with or without descriptors; the peer may have closed. */
static void say(struct peer *peer, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(4 * sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (n_fds > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, n_fds * sizeof(int));
	}
	(void)!sendmsg(peer->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What the daemon says within some milliseconds; the descriptors that come are kept if they are a session's. */
static void hear(struct peer *peer)
{
	static uint8_t buffer[MSG_SOCKET_MAX];
	struct pollfd fd = {.fd = peer->socket, .events = POLLIN};
	int fds[SOCKET_FDS_MAX];
	size_t n_fds = 0;

	if (poll(&fd, 1, 5) != 1)
		return;
	ssize_t n = socket_receive(
		peer->socket, buffer, sizeof(buffer), fds, SOCKET_FDS_MAX, &n_fds, 1000);
	if (n < 0) {
		hang_up(peer);
		return;
	}
	if (!peer->attached && n_fds >= MSG_WELCOME_FDS && region_map(&peer->region, fds[0]) == 0) {
		peer->attached = true;
		peer->bells[0] = fds[1];
		peer->bells[1] = fds[2];
		fds[0] = fds[1] = fds[2] = -1;
	}
	for (size_t i = 0; i < n_fds; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

static void frame(uint8_t *bytes, int n)
{
	uint32_t length = htole32((uint32_t)n);

	memcpy(bytes, &length, sizeof(length));
}

static void greet(struct program *p, struct peer *peer)
{
	uint8_t bytes[256];
	struct msg_hello hello = {.version = MSG_PROTOCOL_VERSION, .entries = ENTRIES,
		.arena_bytes = REGION_ARENA_MIN, .name = "fuzz"};
	uint32_t spoilt = operand(p, 1);

	if (!connected(peer))
		return;
	hello.entries = spoilt & 64 ? 2u << operand(p, 1) % 12 : ENTRIES;
	int n = msg_hello_encode(&hello, bytes + 4, sizeof(bytes) - 4);
	CLAIM(n > 0);
	frame(bytes, n);
	if (spoilt & 128) {
		uint32_t where = operand(p, 1);
		bytes[where % (uint32_t)(n + 4)] = (uint8_t)operand(p, 1);
	}
	say(peer, bytes, (size_t)n + 4, NULL, 0);
	if (!peer->attached)
		hear(peer);
}

static void say_bytes(struct program *p, struct peer *peer)
{
	uint8_t bytes[64];
	uint32_t n = 1 + operand(p, 1) % sizeof(bytes);

	if (!connected(peer))
		return;
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)operand(p, 1);
	say(peer, bytes, n, NULL, 0);
}

static int memory_of(size_t bytes, bool sealed)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CLAIM(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	if (sealed)
		CLAIM(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	return fd;
}

static void call(struct program *p, struct peer *peer)
{
	uint32_t which = operand(p, 1);
	struct msg_call message = {.call = which >= 250 ? MSG_CALL_MODEL_FILES : 1 + which % 4};
	struct mimeo_handle handle = {.kind = MIMEO_HANDLE_MEMFD};
	uint8_t bytes[MSG_CALL_MAX + 4];
	uint32_t how = operand(p, 1);
	int fds[2];

	if (!connected(peer))
		return;
	if (message.call == MSG_CALL_BUFFER_ALLOC) {
		message.kind = how % 4;
		message.bytes = operand(p, how & 16 ? 4 : 2);
	} else if (message.call == MSG_CALL_BUFFER_IMPORT) {
		handle.bytes = operand(p, 2);
		handle.offset = operand(p, 2);
		handle_encode(&handle, message.handle);
	} else if (message.call == MSG_CALL_BUFFER_CLOSE) {
		message.buffer = operand(p, 1);
	} else if (message.call == MSG_CALL_MODEL_FILES) {
		message.model = operand(p, 1) % 3;
	} else {
		message.request = operand(p, 1);
	}
	int n = msg_call_encode(&message, bytes + 4, sizeof(bytes) - 4);
	if (n <= 0)
		return;
	frame(bytes, n);
	if (how & 32) {
		uint32_t where = operand(p, 1);
		bytes[where % (uint32_t)(n + 4)] = (uint8_t)operand(p, 1);
	}
	/* One descriptor where it belongs, else as many as the program says. */
	size_t n_fds = (message.call == MSG_CALL_BUFFER_IMPORT) ^ (how >> 6 & 1);
	n_fds += how >> 7;
	fds[0] = memory_of(operand(p, 2), !(how & 8));
	fds[1] = memory_of(4096, true);
	say(peer, bytes, (size_t)n + 4, fds, n_fds);
	close(fds[0]);
	close(fds[1]);
	if (!(how & 4) && peer->attached)
		hear(peer);
}

/* ---- in the rings ---- */

static void apply(struct peer *peer, struct ring_sqe *sqe)
{
	for (uint32_t i = 0; i < peer->n_patches; i++) {
		const struct patch *patch = &peer->patches[i];

		if (patch->target == ENTRY)
			((uint32_t *)sqe)[patch->where % 15] = patch->value;
		else if (patch->target == HEADER)
			peer->region.arena[HEADER_AT(peer) + patch->where % 128] = (uint8_t)patch->value;
		else
			((uint32_t *)(void *)(peer->region.arena + PAYLOAD_AT(peer)))[patch->where % WORDS_MAX] =
				patch->value;
	}
	peer->n_patches = 0;
}

static void publish(struct program *p, struct peer *peer, struct ring_sqe *sqe)
{
	uint32_t index = operand(p, 1), n;

	sqe->user_data = index;
	sqe->request = index % ENTRIES;
	sqe->generation = index / 32;
	apply(peer, sqe);
	peer->turn++;
	if (ring_sq_push(&peer->region.ring, sqe) != 1)
		return;
	if (index & 16) /* with the next one */
		return;
	ring_sq_publish(&peer->region.ring, &n);
	doorbell_ring(peer->bells[0]);
}

static struct mimeo_sampling sampling_of(uint32_t bits)
{
	return (struct mimeo_sampling){
		.temperature = (float)(bits & 3) / 2,
		.top_k = bits >> 2 & 7,
		.top_p = bits & 32 ? 0.5f : 0,
		.min_p = bits & 64 ? 0.1f : 0,
		.flags = bits >> 7,
	};
}

static struct mimeo_mask mask_of(struct program *p, uint32_t kind)
{
	struct mimeo_mask mask = {.kind = kind % 5};

	if (mask.kind == MIMEO_MASK_WINDOW) {
		mask.window = operand(p, 1);
		mask.sinks = operand(p, 1);
	} else if (mask.kind == MIMEO_MASK_PREFIX) {
		mask.prefix = operand(p, 1);
	}
	return mask;
}

static void fill_payload(struct program *p, struct peer *peer, uint32_t from)
{
	uint32_t *words = (void *)(peer->region.arena + PAYLOAD_AT(peer)), first = operand(p, 1);

	for (uint32_t i = from; i < WORDS_MAX; i++)
		words[i] = (first + i * 7) % VOCABULARY;
}

/* Operands are taken in statements of their own: initializers are evaluated in any order. */
static struct mimeo_place place_of(struct program *p)
{
	struct mimeo_place place = {.buffer = operand(p, 1) % 8};

	place.offset = operand(p, 1) * 64;
	return place;
}

static void generate(struct program *p, struct peer *peer)
{
	static const uint32_t draft_tokens[] = {0, MIMEO_DRAFT_NONE, 1, MIMEO_DRAFT_MAX};
	struct msg_generate msg = {.stop = {5, 6}};
	uint32_t how = operand(p, 1), where;

	msg.n_tokens = operand(p, 1);
	msg.max_tokens = operand(p, 1);
	where = operand(p, 1);
	msg.sequence = where % 8;
	msg.draft_tokens = draft_tokens[where / 8 % 4];
	msg.flags = how & 7;
	msg.sampling = sampling_of(how & 8 ? operand(p, 1) : 0);
	msg.mask = mask_of(p, how & 16 ? operand(p, 1) : 0);
	msg.deadline_ms = how & 32 ? operand(p, 1) : 0;
	msg.first_token_ms = how & 1 ? msg.deadline_ms : 0;
	msg.request_class = (how >> 1) % (MIMEO_CLASS_BATCH + 1);
	msg.n_stop = how & 64 ? 2 : 0;
	if (how & 128)
		msg.logits = place_of(p);
	int n = msg_generate_encode(&msg, peer->region.arena + HEADER_AT(peer), MSG_HEADER_MAX);

	fill_payload(p, peer, 0);
	struct ring_sqe sqe = {
		.op = RING_OP_GENERATE,
		.header_length = n > 0 ? (uint32_t)n : 0,
		.header_offset = HEADER_AT(peer),
		.payload_offset = PAYLOAD_AT(peer),
		.payload_length = msg.n_tokens * (msg_mask_has_words(&msg.mask) ? 12 : 4),
		.output_offset = OUTPUT_AT(peer),
		.output_length = 8192,
	};
	publish(p, peer, &sqe);
}

static void step(struct program *p, struct peer *peer)
{
	uint32_t how = operand(p, 1), tokens = 0, rows_and_class;
	struct msg_step msg = {.outputs = how & 7, .flags = how >> 7};
	struct msg_row *rows = (void *)(peer->region.arena + PAYLOAD_AT(peer));

	rows_and_class = operand(p, 1);
	msg.n_rows = rows_and_class % 6;
	msg.request_class = rows_and_class / 6 % (MIMEO_CLASS_BATCH + 1);
	msg.sampling = sampling_of(how & 8 ? operand(p, 1) : 0);
	msg.mask = mask_of(p, how & 16 ? operand(p, 1) : 0);
	msg.deadline_ms = how & 32 ? operand(p, 1) : 0;
	if (how & 64) {
		uint32_t which = operand(p, 1);
		struct mimeo_place place = place_of(p);
		if (which & 1)
			msg.logits = place;
		if (which & 2)
			msg.hidden = place;
		if (which & 4)
			msg.embeddings = place;
	}
	int n = msg_step_encode(&msg, peer->region.arena + HEADER_AT(peer), MSG_HEADER_MAX);
	for (uint32_t i = 0; i < msg.n_rows; i++) {
		uint32_t sequence = operand(p, 1) % 8;
		uint32_t n_tokens = operand(p, 1) % 100;

		rows[i] = (struct msg_row){.sequence = sequence, .n_tokens = n_tokens};
		tokens += n_tokens;
	}
	fill_payload(p, peer, 2 * msg.n_rows);
	struct ring_sqe sqe = {
		.op = RING_OP_STEP,
		.header_length = n > 0 ? (uint32_t)n : 0,
		.header_offset = HEADER_AT(peer),
		.payload_offset = PAYLOAD_AT(peer),
		.payload_length = 8 * msg.n_rows + tokens * (msg_mask_has_words(&msg.mask) ? 12 : 4),
		.output_offset = OUTPUT_AT(peer),
		.output_length = 8192,
	};
	publish(p, peer, &sqe);
}

static void sequence_call(struct program *p, struct peer *peer)
{
	uint32_t what = operand(p, 1);
	uint32_t argument = operand(p, 1);

	if (argument & 128) {
		atomic_store(&peer->region.ring.cancels[argument % ENTRIES], what);
		atomic_fetch_add(&peer->region.ring.control->n_cancels, 1);
	}
	struct ring_sqe sqe = {
		.op = (uint16_t)(RING_OP_CANCEL + what % 7),
		.sequence = what / 8 % 8,
		.argument = argument,
		.generation2 = what / 64,
	};
	publish(p, peer, &sqe);
}

static void lie(struct program *p, struct peer *peer)
{
	struct ring_control *control = peer->region.ring.control;
	uint32_t what = operand(p, 1), value = operand(p, what & 64 ? 4 : 1);

	switch (what % 6) {
	case 0:
		atomic_fetch_add(&control->sq_tail, value);
		break;
	case 1:
		atomic_fetch_add(&control->cq_head, value);
		break;
	case 2:
		atomic_store(&peer->region.ring.sqes[operand(p, 1) % ENTRIES].stamp, value);
		break;
	case 3:
		atomic_store(&control->client_need_wakeup, value);
		break;
	case 4: /* what the daemon alone writes */
		memset(control, (int)value, offsetof(struct ring_control, sq_tail));
		atomic_store(&control->sq_head, value);
		atomic_store(&control->cq_tail, value);
		break;
	default:
		memset(peer->region.arena + operand(p, 2) % 32768, (int)value, operand(p, 1));
	}
	doorbell_ring(peer->bells[0]);
}

/* Take completions, or final ones alone, for up to a few milliseconds. */
static void take(struct program *p, struct peer *peer)
{
	uint32_t how = operand(p, 1), n = how % 16;
	uint64_t until = clock_ns() + (how & 64 ? 20000000 : 2000000);
	struct ring_cqe cqe;

	while (n > 0 && clock_ns() < until) {
		if (ring_cq_peek(&peer->region.ring, &cqe)) {
			CLAIM(cqe.status <= 0 && cqe.status > -1000);
			ring_cq_advance(&peer->region.ring);
			n -= !(how & 128) || cqe.kind == RING_CQE_FINAL;
		} else {
			sched_yield();
		}
	}
}

static void gather_patch(struct program *p, struct peer *peer)
{
	struct patch patch = {.target = operand(p, 1) % TARGETS};

	patch.where = operand(p, patch.target == PAYLOAD ? 2 : 1);
	patch.value = operand(p, patch.target == HEADER ? 1 : 4);
	if (peer->n_patches < PATCHES_MAX)
		peer->patches[peer->n_patches++] = patch;
}

static void run(struct program *p, struct peer peers[PEERS])
{
	struct peer *peer = &peers[0];

	/* The first byte of an instruction has bits to spare: one chooses the client. */
	for (int i = 0; i < 64 && p->at < p->size; i++) {
		uint32_t op = operand(p, 1);

		peer = &peers[op >> 7];
		switch (op % 16) {
		case 0:
			greet(p, peer);
			continue;
		case 1:
			say_bytes(p, peer);
			continue;
		case 2:
			if (op & 16) { /* before HELLO, or among messages that are not heard */
				call(p, peer);
				continue;
			}
			break;
		case 3:
			hang_up(peer);
			continue;
		default:
			break;
		}
		/* Programs need not say that they attach. */
		if (!peer->attached)
			greet(&(struct program){0}, peer);
		if (!peer->attached)
			continue;
		switch (op % 16) {
		case 2:
			call(p, peer);
			break;
		case 4:
		case 5:
		case 6:
			generate(p, peer);
			break;
		case 7:
		case 8:
		case 9:
			step(p, peer);
			break;
		case 10:
		case 11:
			sequence_call(p, peer);
			break;
		case 12:
			lie(p, peer);
			break;
		case 13:
			take(p, peer);
			break;
		default:
			gather_patch(p, peer);
		}
	}
}

/* ---- */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct peer peer = {.socket = -1};

	session_daemon_start();
	uint64_t until = clock_ns() + PATIENCE_NS;
	greet(&(struct program){0}, &peer);
	while (!peer.attached) {
		CLAIM(peer.socket >= 0 && clock_ns() < until);
		hear(&peer);
	}
	hang_up(&peer);
	session_daemon_settle();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program program = {.bytes = data, .size = size};
	struct peer peers[PEERS] = {{.socket = -1}, {.socket = -1}};

	run(&program, peers);
	for (int i = 0; i < PEERS; i++)
		hang_up(&peers[i]);
	session_daemon_await_idle();
	return 0;
}
