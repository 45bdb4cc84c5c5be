/* SPDX-License-Identifier: MIT */
#include "tests/e2e/raw.h"

#include <endian.h>
#include <poll.h>
#include <sys/socket.h>

#include "ipc/doorbell.h"
#include "ipc/msg_table.h"
#include "ipc/socket.h"

#define HEADER_AT 0u
#define PAYLOAD_AT 1024u
#define OUTPUT_AT 32768u
#define ARENA_BYTES (256u << 10)

int raw_connect(const struct daemon *daemon)
{
	int fd = socket_connect(daemon->socket, PATIENCE_MS);

	assert_true(fd >= 0);
	return fd;
}

size_t raw_hello(uint8_t *buffer, size_t size, uint32_t entries)
{
	const struct msg_hello hello = {
		.version = MSG_PROTOCOL_VERSION,
		.entries = entries,
		.arena_bytes = ARENA_BYTES,
		.name = "raw",
	};
	int n = msg_table_write(&msg_hello_table, &hello, buffer + 4, size - 4);
	uint32_t length = htole32((uint32_t)n);

	assert_true(n > 0);
	memcpy(buffer, &length, sizeof(length));
	return (size_t)n + 4;
}

/* The descriptors of the daemon's threads are not needed: the socket's end says as much. */
static void hear_welcome(struct raw *raw, int fds[SOCKET_FDS_MAX])
{
	static uint8_t buffer[MSG_SOCKET_MAX];
	struct msg_codec *codec;
	struct msg_detail detail;
	size_t n_fds = 0;

	ssize_t n = socket_receive(
		raw->socket, buffer, sizeof(buffer), fds, SOCKET_FDS_MAX, &n_fds, PATIENCE_MS);
	assert_true(n > 0);
	assert_true(n_fds >= MSG_WELCOME_FDS);
	while (n_fds > MSG_WELCOME_FDS)
		close(fds[--n_fds]);
	assert_int_equal(msg_codec_new(&codec), 0);
	assert_int_equal(msg_welcome_decode(codec, buffer, (size_t)n, &raw->welcome, &detail), 0);
	msg_codec_free(codec);
	assert_int_equal(raw->welcome.status, 0);
}

void raw_attach(struct raw *raw, const struct daemon *daemon, uint32_t entries)
{
	uint8_t hello[MSG_HEADER_MAX];
	int fds[SOCKET_FDS_MAX];

	*raw = (struct raw){.socket = raw_connect(daemon)};
	size_t n = raw_hello(hello, sizeof(hello), entries);
	assert_int_equal(send(raw->socket, hello, n, MSG_NOSIGNAL), n);
	hear_welcome(raw, fds);
	assert_int_equal(region_map(&raw->region, fds[0]), 0);
	raw->sq_bell = fds[1];
	raw->cq_bell = fds[2];
}

void raw_detach(struct raw *raw)
{
	region_deinit(&raw->region);
	close(raw->sq_bell);
	close(raw->cq_bell);
	close(raw->socket);
}

size_t raw_call(const struct msg_call *call, uint8_t *bytes, size_t size)
{
	int n = msg_table_write(&msg_call_table, call, bytes + 4, size - 4);
	uint32_t length = htole32((uint32_t)n);

	assert_true(n > 0);
	memcpy(bytes, &length, sizeof(length));
	return (size_t)n + 4;
}

struct msg_reply raw_hear_reply(struct raw *raw)
{
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_codec *codec;
	struct msg_detail detail;
	struct msg_reply reply;

	ssize_t size = socket_receive(raw->socket, bytes, sizeof(bytes), NULL, 0, NULL, PATIENCE_MS);
	assert_true(size > 0);
	assert_int_equal(msg_codec_new(&codec), 0);
	assert_int_equal(msg_reply_decode(codec, bytes, (size_t)size, &reply, &detail), 0);
	msg_codec_free(codec);
	return reply;
}

struct ring_sqe raw_generate(struct raw *raw, uint32_t n_tokens, int32_t token, uint32_t max_tokens)
{
	const struct msg_generate generate = {
		.n_tokens = n_tokens, .max_tokens = max_tokens, .flags = MIMEO_GENERATE_IGNORE_EOS};
	int32_t *tokens = region_at(&raw->region, PAYLOAD_AT, n_tokens * 4);
	int n = msg_generate_encode(&generate, raw->region.arena + HEADER_AT, MSG_HEADER_MAX);

	assert_true(n > 0);
	assert_non_null(tokens);
	for (uint32_t i = 0; i < n_tokens; i++)
		tokens[i] = token;
	return (struct ring_sqe){
		.user_data = 7,
		.generation = 1,
		.op = RING_OP_GENERATE,
		.header_offset = HEADER_AT,
		.header_length = (uint32_t)n,
		.payload_offset = PAYLOAD_AT,
		.payload_length = n_tokens * 4,
		.output_offset = OUTPUT_AT,
		.output_length = (max_tokens * 4 + 63) & ~63u,
	};
}

void raw_submit(struct raw *raw, const struct ring_sqe *sqe)
{
	uint32_t n;

	assert_true(EVENTUALLY(ring_sq_push(&raw->region.ring, sqe) == 1));
	ring_sq_publish(&raw->region.ring, &n);
	doorbell_ring(raw->sq_bell);
}

struct ring_cqe raw_complete(struct raw *raw)
{
	struct ring_cqe cqe;

	assert_true(EVENTUALLY(ring_cq_peek(&raw->region.ring, &cqe)));
	ring_cq_advance(&raw->region.ring);
	return cqe;
}

struct ring_cqe raw_final(struct raw *raw, uint32_t request)
{
	struct ring_cqe cqe;

	do {
		cqe = raw_complete(raw);
	} while (cqe.kind != RING_CQE_FINAL || cqe.request != request);
	return cqe;
}

void raw_assert_closed(int socket)
{
	struct pollfd fd = {.fd = socket, .events = POLLIN};
	char bytes[1024];
	ssize_t n;

	do {
		assert_int_equal(poll(&fd, 1, (int)PATIENCE_MS), 1);
		n = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
	} while (n > 0);
}

void raw_assert_ends(int socket)
{
	raw_assert_closed(socket);
	close(socket);
}

void raw_assert_alive(struct raw *raw)
{
	struct ring_sqe sqe = raw_generate(raw, 3, 1, 4);

	raw_submit(raw, &sqe);
	struct ring_cqe cqe = raw_final(raw, sqe.request);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.n_generated, 4);
}
