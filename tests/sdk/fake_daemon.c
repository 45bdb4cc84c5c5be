/* SPDX-License-Identifier: MIT */
#include "tests/sdk/fake_daemon.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/doorbell.h"
#include "tests/ipc/listen.h"
#include "ipc/msg_table.h"

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "fake daemon: %s\n", what);
	abort();
}

/* ---- greeting ---- */

static struct mimeo_model_info model(const char *name, uint32_t vocab)
{
	struct mimeo_model_info model = {
		.vocab_size = vocab,
		.hidden_size = FAKE_HIDDEN,
		.max_seq_len = FAKE_MAX_SEQ_LEN,
		.page_tokens = 16,
		.n_eos = 1,
		.eos = {FAKE_EOS},
		.bos = FAKE_BOS,
		.sampling = {.temperature = 0.5f, .top_k = 40},
		.max_batch_tokens = FAKE_BATCH_TOKENS,
		.max_rows = 16,
	};

	snprintf(model.name, sizeof(model.name), "%s", name);
	return model;
}

static struct msg_welcome welcome_of(const struct fake *fake, const struct msg_hello *hello)
{
	struct msg_welcome welcome = {
		.version = MSG_PROTOCOL_VERSION,
		.status = fake->script.welcome_status,
		.nonce = 7,
		.session = 1,
		.max_sequences = fake->script.max_sequences ? fake->script.max_sequences : 8,
		.entries = fake->script.claim_entries ? fake->script.claim_entries : hello->entries,
		.arena_bytes = hello->arena_bytes,
		.n_models = 2,
		.n_model_ids = 2,
		.model_ids = {0, 1},
	};

	if (fake->script.welcome_text)
		snprintf(welcome.text, sizeof(welcome.text), "%s", fake->script.welcome_text);
	welcome.models[fake->script.wide] = model("count", FAKE_VOCAB);
	welcome.models[!fake->script.wide] = model("wide", 1000);
	for (uint32_t i = 0; i < welcome.n_models; i++) {
		welcome.models[i].masks = !fake->script.no_masks;
		welcome.models[i].mask = fake->script.default_mask;
		welcome.models[i].draft_tokens = fake->script.no_draft ? 0 : FAKE_DRAFT_TOKENS;
	}
	return welcome;
}

/* A fresh session's region and doorbells; the old ones go. */
static void session_open(struct fake *fake, int socket, const struct msg_hello *hello)
{
	fake_hang_up(fake);
	region_deinit(&fake->region);
	if (fake->sq_bell >= 0) {
		close(fake->sq_bell);
		close(fake->cq_bell);
	}
	must(region_create(&fake->region, hello->entries, hello->arena_bytes) == 0, "region");
	fake->sq_bell = doorbell_new();
	fake->cq_bell = doorbell_new();
	fake->socket = socket;
	fake->hello = *hello;
}

static void greet(struct fake *fake, int socket)
{
	uint8_t *buffer = malloc(MSG_SOCKET_MAX);
	struct msg_detail detail;
	struct msg_hello hello;
	size_t n_fds;

	ssize_t n = socket_receive(socket, buffer, MSG_SOCKET_MAX, NULL, 0, &n_fds, 5000);
	must(n >= 0, "no hello");
	must(msg_hello_decode(fake->codec, buffer, (size_t)n, &hello, &detail) == 0, "bad hello");
	session_open(fake, socket, &hello);
	struct msg_welcome welcome = welcome_of(fake, &hello);
	const void *data = buffer;
	if (fake->script.raw_welcome) {
		data = fake->script.raw_welcome;
		n = (ssize_t)fake->script.raw_welcome_bytes;
	} else {
		n = msg_table_write(&msg_welcome_table, &welcome, buffer, MSG_SOCKET_MAX);
		must(n >= 0, "welcome");
	}
	const int fds[] = {fake->region.fd, fake->sq_bell, fake->cq_bell, fake->lives[0],
		fake->lives[1]};
	n_fds = fake->script.lives ? MSG_WELCOME_FDS + MSG_LIFE_FDS : MSG_WELCOME_FDS;
	n_fds = welcome.status < 0 ? 0 : fake->script.n_fds ? fake->script.n_fds : n_fds;
	if (!fake->script.silent)
		must(socket_send(socket, data, (size_t)n, fds, n_fds) == 0, "send");
	free(buffer);
}

static void *greeter(void *argument)
{
	struct fake *fake = argument;
	struct pollfd fds[] = {
		{.fd = fake->listener, .events = POLLIN}, {.fd = fake->stop, .events = POLLIN}};

	for (;;) {
		must(poll(fds, 2, -1) > 0, "poll");
		if (fds[1].revents)
			return NULL;
		int socket = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
		if (socket < 0)
			continue;
		pthread_mutex_lock(&fake->mutex);
		greet(fake, socket);
		fake->greeted = true;
		pthread_cond_signal(&fake->changed);
		pthread_mutex_unlock(&fake->mutex);
	}
}

void fake_init(struct fake *fake, const struct fake_script *script)
{
	sigset_t all, before;

	*fake = (struct fake){
		.folder = "/tmp/mimeo-fake-XXXXXX", .socket = -1, .sq_bell = -1, .cq_bell = -1};
	if (script)
		fake->script = *script;
	must(mkdtemp(fake->folder) != NULL, "folder");
	snprintf(fake->path, sizeof(fake->path), "%s/d.sock", fake->folder);
	fake->listener = socket_listen(fake->path, &fake->lock);
	must(fake->listener >= 0, "listen");
	fake->stop = doorbell_new();
	for (unsigned i = 0; i < MSG_LIFE_FDS; i++)
		fake->lives[i] = doorbell_new();
	must(msg_codec_new(&fake->codec) == 0, "codec");
	pthread_mutex_init(&fake->mutex, NULL);
	pthread_cond_init(&fake->changed, NULL);
	/* a test's signals are for threads that wait in the library */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	must(pthread_create(&fake->greeter, NULL, greeter, fake) == 0, "thread");
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fake_session(struct fake *fake)
{
	pthread_mutex_lock(&fake->mutex);
	while (!fake->greeted)
		pthread_cond_wait(&fake->changed, &fake->mutex);
	fake->greeted = false;
	pthread_mutex_unlock(&fake->mutex);
}

void fake_folder_remove(const struct fake *fake)
{
	char lock[SOCKET_PATH_MAX + 8];

	snprintf(lock, sizeof(lock), "%s.lock", fake->path);
	unlink(lock);
	unlink(fake->path);
	rmdir(fake->folder);
}

void fake_deinit(struct fake *fake)
{
	atomic_store(&fake->quit, true);
	doorbell_ring(fake->stop);
	if (fake->serving) {
		doorbell_ring(fake->sq_bell);
		pthread_join(fake->server, NULL);
	}
	pthread_join(fake->greeter, NULL);
	fake_hang_up(fake);
	region_deinit(&fake->region);
	if (fake->sq_bell >= 0) {
		close(fake->sq_bell);
		close(fake->cq_bell);
	}
	for (unsigned i = 0; i < MSG_LIFE_FDS; i++)
		close(fake->lives[i]);
	close(fake->listener);
	close(fake->lock);
	close(fake->stop);
	msg_codec_free(fake->codec);
	pthread_cond_destroy(&fake->changed);
	pthread_mutex_destroy(&fake->mutex);
	fake_folder_remove(fake);
}

/* ---- by hand ---- */

int fake_pop(struct fake *fake, struct ring_sqe *ret)
{
	bool popped = ring_sq_pop(&fake->region.ring, ret);

	ring_sq_release(&fake->region.ring);
	return popped;
}

void fake_push(struct fake *fake, const struct ring_cqe *cqe)
{
	int space;

	/* A serving thread waits for a slow client; in a test that plays the daemon no other thread takes them. */
	while ((space = ring_cq_fits(&fake->region.ring, 1)) == 0 && fake->serving) {
		if (atomic_load(&fake->quit))
			return;
		sched_yield();
	}
	must(space == 1, "the client's completion ring is full");
	ring_cq_push(&fake->region.ring, cqe);
	if (ring_cq_publish(&fake->region.ring))
		fake_ring(fake);
}

void fake_ring(struct fake *fake)
{
	doorbell_ring(fake->cq_bell);
	atomic_fetch_add(&fake->n_rings, 1);
}

void fake_hang_up(struct fake *fake)
{
	if (fake->socket >= 0)
		close(fake->socket);
	fake->socket = -1;
}

void fake_life_end(struct fake *fake, unsigned which)
{
	doorbell_ring(fake->lives[which]);
}

void fake_say(struct fake *fake, const void *data, size_t size)
{
	must(send(fake->socket, data, size, MSG_NOSIGNAL) == (ssize_t)size, "say");
}

struct ring_cqe fake_final(const struct ring_sqe *sqe)
{
	return (struct ring_cqe){
		.user_data = sqe->user_data,
		.request = sqe->request,
		.generation = sqe->generation,
		.kind = RING_CQE_FINAL,
	};
}

/* ---- the model ---- */

static void *at(struct fake *fake, uint32_t offset, uint32_t length)
{
	void *place = region_at(&fake->region, offset, length);

	must(place != NULL, "an extent outside the arena");
	return place;
}

static void rows_write(void *area, uint32_t n_rows, uint32_t width, float base)
{
	float *values = area;

	for (uint32_t i = 0; i < n_rows; i++) {
		for (uint32_t k = 0; k < width; k++)
			values[i * width + k] = base + 1000.0f * (float)i + (float)k;
	}
}

static uint32_t vocab_of(const struct fake *fake, uint32_t model)
{
	return model == fake->script.wide ? FAKE_VOCAB : 1000;
}

static struct msg_generate generate_of(struct fake *fake, const struct ring_sqe *sqe)
{
	struct msg_generate generate;
	struct msg_detail detail;
	uint8_t header[MSG_HEADER_MAX];

	memcpy(header, at(fake, sqe->header_offset, sqe->header_length), sqe->header_length);
	int r = msg_generate_decode(fake->codec, header, sqe->header_length, &generate, &detail);
	must(r == 0, "a generate header that does not decode");
	must(sqe->payload_length == generate.n_tokens * sizeof(int32_t), "payload length");
	if (fake->script.ret_mask)
		*fake->script.ret_mask = generate.mask;
	return generate;
}

static uint32_t limit_of(const struct msg_generate *generate)
{
	return generate->max_tokens ? generate->max_tokens : FAKE_MAX_SEQ_LEN - generate->n_tokens;
}

void fake_write(struct fake *fake, const struct ring_sqe *sqe, uint32_t n_tokens)
{
	struct msg_generate generate = generate_of(fake, sqe);
	bool logits = generate.flags & MIMEO_GENERATE_PROMPT_LOGITS;
	uint32_t vocab = vocab_of(fake, generate.model);
	const uint32_t n_logprobs = generate.flags & MIMEO_GENERATE_LOGPROBS ? limit_of(&generate) : 0;
	struct msg_output output = msg_output_layout(limit_of(&generate), logits, vocab, 0, 0);
	const int32_t *prompt = at(fake, sqe->payload_offset, sqe->payload_length);
	uint8_t *area = at(fake, sqe->output_offset, sqe->output_length);
	int32_t *tokens = (int32_t *)(void *)(area + output.tokens);

	msg_output_add_logprobs(&output, n_logprobs,
		generate.flags & MIMEO_GENERATE_PROMPT_LOGPROBS ? generate.n_tokens : 0,
		generate.top_logprobs);
	must(sqe->output_length == output.bytes, "output length");
	must(n_tokens <= limit_of(&generate), "too many tokens");
	uint32_t last = (uint32_t)prompt[generate.n_tokens - 1];
	for (uint32_t i = 0; i < n_tokens; i++)
		tokens[i] = (int32_t)((last + 1 + i) % FAKE_VOCAB);
	if (logits)
		rows_write(area + output.logits, 1, vocab, 0);
}

/* Where counting on ends: at the end token, a stop id or the limit. */
static uint32_t length_of(struct fake *fake, const struct ring_sqe *sqe,
	const struct msg_generate *generate, uint8_t *ret_finish)
{
	const int32_t *prompt = at(fake, sqe->payload_offset, sqe->payload_length);
	int32_t token = prompt[generate->n_tokens - 1];
	uint32_t most = limit_of(generate);

	*ret_finish = 1;
	for (uint32_t n = 1; n <= most; n++) {
		token = (token + 1) % (int32_t)FAKE_VOCAB;
		if (token == FAKE_EOS && !(generate->flags & MIMEO_GENERATE_IGNORE_EOS))
			return n;
		for (uint32_t i = 0; i < generate->n_stop; i++) {
			if (token == generate->stop[i])
				return n;
		}
	}
	*ret_finish = 2;
	return most;
}

/* The first prompt token outside the vocabulary is refused, as the daemon does. */
static bool refuse(struct fake *fake, const struct ring_sqe *sqe, uint32_t vocab)
{
	const int32_t *prompt = at(fake, sqe->payload_offset, sqe->payload_length);

	for (uint32_t i = 0; i < sqe->payload_length / sizeof(int32_t); i++) {
		if (prompt[i] >= 0 && (uint32_t)prompt[i] < vocab)
			continue;
		struct ring_cqe cqe = fake_final(sqe);
		cqe.status = MIMEO_E_INVALID;
		cqe.finish = 4;
		cqe.detail = RING_DETAIL_TOKEN;
		cqe.values[0] = (int32_t)i;
		cqe.values[1] = prompt[i];
		cqe.values[2] = (int32_t)vocab;
		fake_push(fake, &cqe);
		return true;
	}
	return false;
}

static bool answer_generate(struct fake *fake, const struct ring_sqe *sqe)
{
	struct msg_generate generate = generate_of(fake, sqe);
	uint32_t stride = fake->script.tokens_a_completion;
	struct ring_cqe cqe = fake_final(sqe);
	uint8_t finish;

	if (refuse(fake, sqe, vocab_of(fake, generate.model)))
		return true;
	fake->draft_tokens = generate.draft_tokens;
	fake->first_token_ms = generate.first_token_ms;
	uint32_t length = length_of(fake, sqe, &generate, &finish);
	fake_write(fake, sqe, length);
	cqe.n_prompt = generate.n_tokens;
	for (uint32_t n = stride; stride > 0 && n <= length; n += stride) {
		cqe.kind = RING_CQE_TOKENS;
		cqe.n_generated = n;
		fake_push(fake, &cqe);
		if (fake->script.hang_up_midway) {
			fake_hang_up(fake);
			return false;
		}
	}
	cqe.kind = RING_CQE_FINAL;
	cqe.finish = finish;
	cqe.n_generated = length;
	fake_push(fake, &cqe);
	return true;
}

static void answer_step(struct fake *fake, const struct ring_sqe *sqe)
{
	struct msg_step step;
	struct msg_detail detail;
	uint8_t header[MSG_HEADER_MAX];

	memcpy(header, at(fake, sqe->header_offset, sqe->header_length), sqe->header_length);
	int r = msg_step_decode(fake->codec, header, sqe->header_length, &step, &detail);
	must(r == 0, "a step header that does not decode");
	uint32_t vocab = vocab_of(fake, step.model);
	uint32_t n_logits = step.outputs & MIMEO_STEP_LOGITS ? step.n_rows : 0;
	uint32_t n_hidden = step.outputs & MIMEO_STEP_HIDDEN ? step.n_rows : 0;
	uint32_t n_sampled = step.outputs & MIMEO_STEP_TOKENS ? step.n_rows : 0;
	struct msg_output output =
		msg_output_layout(n_sampled, n_logits, vocab, n_hidden, FAKE_HIDDEN);
	uint8_t *area = at(fake, sqe->output_offset, sqe->output_length);
	const struct msg_row *rows = at(fake, sqe->payload_offset, sqe->payload_length);
	const int32_t *tokens = (const int32_t *)(const void *)(rows + step.n_rows);

	must(sqe->output_length == output.bytes, "output length");
	for (uint32_t i = 0; i < step.n_rows; i++) {
		tokens += rows[i].n_tokens;
		if (n_sampled)
			((int32_t *)(void *)(area + output.tokens))[i] = tokens[-1] + 1;
	}
	must((const uint8_t *)tokens == (const uint8_t *)rows + sqe->payload_length, "payload");
	rows_write(area + output.logits, n_logits, vocab, 0);
	rows_write(area + output.hidden, n_hidden, FAKE_HIDDEN, 0.5f);
	struct ring_cqe cqe = fake_final(sqe);
	fake_push(fake, &cqe);
}

bool fake_answer(struct fake *fake, const struct ring_sqe *sqe)
{
	struct ring_cqe cqe = fake_final(sqe);

	switch (sqe->op) {
	case RING_OP_GENERATE:
		return answer_generate(fake, sqe);
	case RING_OP_STEP:
		answer_step(fake, sqe);
		return true;
	case RING_OP_CANCEL:
		cqe.status = MIMEO_E_UNKNOWN_REQUEST;
		break;
	}
	fake_push(fake, &cqe);
	return true;
}

static void *server(void *argument)
{
	struct fake *fake = argument;
	struct pollfd bell = {.fd = fake->sq_bell, .events = POLLIN};
	struct ring_sqe sqe;

	while (!atomic_load(&fake->quit)) {
		if (fake_pop(fake, &sqe)) {
			if (!fake_answer(fake, &sqe))
				return NULL;
			continue;
		}
		if (fake->script.spin)
			continue;
		if (!ring_daemon_sleep(&fake->region.ring))
			must(poll(&bell, 1, -1) > 0, "poll");
		doorbell_clear(fake->sq_bell);
		ring_daemon_awake(&fake->region.ring);
	}
	return NULL;
}

void fake_serve(struct fake *fake)
{
	fake->serving = true;
	must(pthread_create(&fake->server, NULL, server, fake) == 0, "thread");
}
