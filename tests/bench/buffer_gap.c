/* SPDX-License-Identifier: MIT */
/*
 * What closing memory costs others. One client generates without pause, and of each ROUND keeps the
 * longest time in which no token came; another one closes buffers when a round begins, or does not,
 * by turns. They are processes of their own and speak over a BOARD.
 *
 * The first client has two sequences in flight, so that the lane does not run empty between two
 * requests: what waits for an empty lane would slip in there, and cost nobody anything. Gaps in
 * which a prompt is computed do not count.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/bench/client.h"
#include "daemon/engine/builder.h"

#define STREAMS 2u
#define TOKENS_MAX 1000u /* of a request */
#define CLOSED 4u        /* buffers in a round */
#define CLOSED_BYTES (2ull << 20)
#define SHORT_ROUND_MS 300u
#define LONG_ROUND_MS (BUILDER_CLOSE_LIMIT_MS + 500u) /* to see it given back */
#define SETTLE_MS 20u
#define SETTLE_TOKENS 4u
#define FLOW_NS 20000000000ull /* for a token to come at all */

struct buffer_board {
	_Atomic uint32_t round;  /* enum buffer_closing + 1; 0: none, nothing is kept */
	_Atomic uint32_t tokens; /* that have come; runs freely */
	_Atomic uint32_t gaps;   /* of rounds; runs freely */
	_Atomic bool stop;       /* by the bench, or by who generates: it cannot go on */
};

struct gap_work {
	struct buffer_bench *bench;
	struct buffer_board *board;
};

/* ---- who generates ---- */

struct stream {
	bool starting;       /* its first token has not come */
	uint64_t last_token; /* when; 0: a gap that begins there does not count */
};

struct generator {
	const struct gap_work *work;
	struct mimeo *m;
	uint32_t model, n_tokens;
	struct stream streams[STREAMS];
	uint32_t round; /* whose longest gap is kept */
	uint64_t longest;
};

static int begin(struct generator *g, uint32_t stream, uint32_t n_tokens)
{
	static const int32_t prompt[] = {' '};
	struct mimeo_request *request = mimeo_request_get(g->m);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.model = g->model;
	generate.tokens = prompt;
	generate.n_tokens = 1;
	generate.max_tokens = n_tokens;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	int r = request ? mimeo_request_prep_generate(request, &generate) : MIMEO_E_FULL;
	if (r == 0) {
		mimeo_request_set_data(request, stream);
		r = mimeo_submit(g->m);
	}
	if (r < 0)
		return buffer_fail(g->m, "generate", r);
	g->streams[stream].starting = true;
	for (uint32_t i = 0; i < STREAMS; i++)
		g->streams[i].last_token = 0;
	return 0;
}

static bool is_starting(const struct generator *g)
{
	for (uint32_t i = 0; i < STREAMS; i++) {
		if (g->streams[i].starting)
			return true;
	}
	return false;
}

static void keep(struct generator *g, uint64_t gap)
{
	uint32_t round = atomic_load(&g->work->board->round);
	struct buffer_bench *bench = g->work->bench;

	if (round != g->round) {
		if (g->round && g->longest)
			samples_add(bench->longest[g->round - 1], g->longest);
		g->round = round;
		g->longest = 0;
	}
	if (round && gap) {
		g->longest = gap > g->longest ? gap : g->longest;
		atomic_fetch_add(&g->work->board->gaps, 1);
	}
	if (round == BUFFER_NOTHING + 1 && gap)
		samples_add(bench->usual, gap);
}

static int take(struct generator *g, const struct mimeo_event *event)
{
	struct stream *stream = &g->streams[event->user_data];
	uint64_t now = stats_now();

	if (event->n_tokens > 0) {
		stream->starting = false;
		keep(g, stream->last_token ? now - stream->last_token : 0);
		stream->last_token = is_starting(g) ? 0 : now;
		atomic_fetch_add(&g->work->board->tokens, 1);
	}
	return event->kind == MIMEO_EVENT_FINAL ? begin(g, (uint32_t)event->user_data, g->n_tokens)
						: 0;
}

/* Says by a byte that both sequences have tokens. */
static int generate(struct generator *g, int fd)
{
	struct mimeo_event event;
	bool said = false;
	int r = begin(g, 0, g->n_tokens);

	/* Half of it, so that they do not end together. */
	if (r == 0)
		r = begin(g, 1, (g->n_tokens + 1) / 2);
	while (r == 0 && !atomic_load(&g->work->board->stop)) {
		r = client_next(g->m, &event);
		if (r < 0)
			break;
		const struct mimeo_event taken = event;
		mimeo_event_seen(g->m, &event);
		r = take(g, &taken);
		if (!said && !is_starting(g)) {
			if (write(fd, "", 1) != 1)
				return -1;
			said = true;
		}
	}
	return r;
}

static int work_generate(void *arg, int fd)
{
	struct gap_work *work = arg;
	const char *name = work->bench->options->model_name;
	struct generator g = {.work = work};

	if (client_connect(&g.m, work->bench->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	int index = name ? mimeo_model_find(g.m, name) : 0;
	g.model = (uint32_t)index;
	const struct mimeo_model_info *info = index < 0 ? NULL : mimeo_model_get(g.m, g.model);
	int r = info ? 0 : buffer_fail(g.m, name ? name : "model", MIMEO_E_UNKNOWN_MODEL);
	if (r == 0) {
		g.n_tokens =
			info->max_seq_len - 1 < TOKENS_MAX ? info->max_seq_len - 1 : TOKENS_MAX;
		r = generate(&g, fd);
	}
	mimeo_close(g.m);
	atomic_store(&work->board->stop, true);
	return r < 0;
}

/* ---- who closes ---- */

static void pause_ms(uint32_t ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* Until so many more have come. 0, or -1, which somebody has told. */
static int await(struct buffer_board *board, const _Atomic uint32_t *counter, uint32_t since, uint32_t n)
{
	uint64_t until = stats_now() + FLOW_NS;

	while (atomic_load(counter) - since < n) {
		if (atomic_load(&board->stop))
			return -1;
		if (stats_now() >= until) {
			fprintf(stderr, "mimeo-bench: no tokens while buffers are closed\n");
			return -1;
		}
		pause_ms(1);
	}
	return 0;
}

/* Until what was done before is no part of a gap any more. */
static int settle(struct buffer_board *board)
{
	uint32_t tokens = atomic_load(&board->tokens);

	pause_ms(SETTLE_MS);
	return await(board, &board->tokens, tokens, SETTLE_TOKENS);
}

static uint32_t kind_of(enum buffer_closing closing)
{
	return closing == BUFFER_HANDLES ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_DEFAULT;
}

static int play(
	struct buffer_board *board, struct mimeo *m, enum buffer_closing closing, uint32_t ms)
{
	uint32_t buffers[CLOSED], n = closing == BUFFER_NOTHING ? 0 : CLOSED, gaps;
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i++)
		r = mimeo_buffer_alloc(m, kind_of(closing), CLOSED_BYTES, &buffers[i]);
	if (r < 0)
		return buffer_fail(m, "a buffer", r);
	if (settle(board) < 0)
		return -1;
	gaps = atomic_load(&board->gaps);
	atomic_store(&board->round, closing + 1);
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = mimeo_buffer_close(m, buffers[i]);
	if (r < 0)
		return buffer_fail(m, "closing a buffer", r);
	pause_ms(ms);
	/* a round without a gap is none: on a busy machine no token may have come yet */
	if (await(board, &board->gaps, gaps, 1) < 0)
		return -1;
	atomic_store(&board->round, 0);
	return settle(board);
}

/* Whether there are buffers without a descriptor: then rounds last until they are given back. */
static int has_handles(struct mimeo *m)
{
	uint32_t buffer;
	int r = mimeo_buffer_alloc(m, kind_of(BUFFER_HANDLES), CLOSED_BYTES, &buffer);

	if (r == MIMEO_E_UNSUPPORTED)
		return 0;
	if (r == 0)
		r = mimeo_buffer_close(m, buffer);
	if (r < 0)
		return buffer_fail(m, "a buffer", r);
	pause_ms(LONG_ROUND_MS);
	return 1;
}

static int work_close(void *arg, int fd)
{
	struct gap_work *work = arg;
	struct mimeo *m;

	(void)fd;
	if (client_connect(&m, work->bench->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	int both = has_handles(m), r = both < 0 ? both : 0;
	uint32_t n = both > 0 ? BUFFER_CLOSINGS : BUFFER_HANDLES;
	for (uint32_t i = 0; i < BUFFER_ROUNDS * n && r == 0; i++)
		r = play(work->board, m, (enum buffer_closing)(i % n),
			both > 0 ? LONG_ROUND_MS : SHORT_ROUND_MS);
	mimeo_close(m);
	return r < 0;
}

/* ---- both ---- */

/* What became of the client that generates. */
static int tell(int r, uint32_t timeout_s)
{
	if (r == -ETIMEDOUT)
		fprintf(stderr, "mimeo-bench: a client that generates: not done within %u s\n",
			timeout_s);
	else if (r < 0 && r != -EINTR && r != -ECHILD) /* -ECHILD: it has said why itself */
		fprintf(stderr, "mimeo-bench: a client that generates: %s\n",
			r == -EFAULT ? "ended by a signal" : strerror(-r));
	return r;
}

static int run(struct gap_work *work)
{
	uint32_t timeout_s = work->bench->options->timeout_s;
	uint64_t timeout_ns = timeout_s * 1000000000ull;
	struct child generator = {0};
	int r = child_start(&generator, work_generate, work);

	if (r == 0)
		r = child_next(&generator, stats_now() + timeout_ns);
	r = tell(r == 1 ? 0 : r == 0 ? -ECHILD : r, timeout_s);
	if (r == 0)
		r = child_run("closing buffers", work_close, work, timeout_s);
	atomic_store(&work->board->stop, true);
	if (r == 0)
		r = tell(child_wait(&generator, stats_now() + timeout_ns), timeout_s);
	child_kill(&generator);
	return r;
}

int buffer_gaps_run(struct buffer_bench *bench)
{
	struct gap_work work = {bench, child_memory(sizeof(*work.board))};

	if (!work.board)
		return -ENOMEM;
	int r = run(&work);
	child_memory_free(work.board, sizeof(*work.board));
	return r;
}
