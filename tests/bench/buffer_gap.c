/* SPDX-License-Identifier: MIT */
/*
 * What closing memory costs others. One client generates without pause, and of each ROUND keeps the
 * longest time in which no token came; another one closes buffers when a round begins, or does not,
 * by turns. They are processes of their own and communicate through a BOARD.
 *
 * The first client has two sequences in flight, so that the lane does not run empty between two
 * requests: what waits for an empty lane would run there and cost no client anything. Gaps in which
 * a prompt is computed do not count.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/bench/child.h"
#include "daemon/bench/client.h"
#include "daemon/engine/builder.h"

#define STREAMS 2u
#define TOKENS_MAX 1000u /* of a request */
#define CLOSED 4u        /* buffers in a round */
#define CLOSED_BYTES (2ull << 20)
#define ROUNDS 5u           /* of each closing */
#define USUAL_MAX (1u << 19) /* gaps */
#define SHORT_ROUND_MS 300u
#define LONG_ROUND_MS (BUILDER_CLOSE_LIMIT_MS + 500u) /* to see it given back */
#define SETTLE_MS 20u
#define SETTLE_TOKENS 4u
#define FLOW_NS 20000000000ull /* for a token to come at all */
#define FLOOR "of gaps: all gaps of that client while nothing is closed"

/* What one client closes while another one generates. */
enum closing { NOTHING, DESCRIPTORS, HANDLES, N_CLOSINGS };

static const char *const names[N_CLOSINGS] = {"longest gap, nothing closed",
	"longest gap, descriptors closed", "longest gap, CUDA IPC closed"};

struct board {
	_Atomic uint32_t round;  /* enum closing + 1; 0: none, nothing is kept */
	_Atomic uint32_t tokens; /* that have come; runs freely */
	_Atomic uint32_t gaps;   /* of rounds; runs freely */
	_Atomic bool stop;       /* by the bench, or by a client that cannot go on */
};

struct gaps {
	const struct buffer_bench *bench;
	struct board *board;
	struct samples *longest[N_CLOSINGS]; /* gap of each round */
	struct samples *usual;               /* all gaps while nothing is closed */
};

/* ---- the client that generates ---- */

struct generator {
	const struct gaps *gaps;
	struct mimeo *m;
	bool starting[STREAMS];     /* its first token has not come */
	uint64_t last[STREAMS];     /* when a token came; 0: a gap that begins there does not count */
	uint32_t round;             /* whose longest gap is kept */
	uint64_t longest;
};

static int generator_begin(struct generator *g, uint32_t stream, uint32_t n_tokens)
{
	int rc = client_generate(g->m, &(struct client_prompt){
		.model = g->gaps->bench->options->model_name,
		.n_prompt = 1,
		.n_tokens = n_tokens,
		.user_data = stream,
	});

	g->starting[stream] = true;
	memset(g->last, 0, sizeof(g->last));
	return rc;
}

static void generator_keep(struct generator *g, uint64_t gap)
{
	uint32_t round = atomic_load(&g->gaps->board->round);

	if (round != g->round) {
		if (g->round && g->longest)
			samples_add(g->gaps->longest[g->round - 1], g->longest);
		g->round = round;
		g->longest = 0;
	}
	if (round && gap) {
		g->longest = gap > g->longest ? gap : g->longest;
		atomic_fetch_add(&g->gaps->board->gaps, 1);
	}
	if (round == NOTHING + 1 && gap)
		samples_add(g->gaps->usual, gap);
}

static int generator_take(struct generator *g)
{
	struct mimeo_event event;
	int rc = client_next(g->m, &event);

	if (rc < 0)
		return rc;
	uint64_t now = stats_now(), stream = event.user_data;
	if (event.n_tokens > 0) {
		g->starting[stream] = false;
		generator_keep(g, g->last[stream] ? now - g->last[stream] : 0);
		g->last[stream] = g->starting[0] || g->starting[1] ? 0 : now;
		atomic_fetch_add(&g->gaps->board->tokens, 1);
	}
	bool last = event.kind == MIMEO_EVENT_FINAL;
	mimeo_event_seen(g->m, &event);
	return last ? generator_begin(g, (uint32_t)stream, TOKENS_MAX) : 0;
}

/* Reports by a byte that both sequences have tokens. */
static int generator_child(void *arg, int fd)
{
	const struct gaps *gaps = arg;
	struct generator g = {.gaps = gaps};
	bool reported = false;

	if (client_connect(&g.m, gaps->bench->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	int rc = generator_begin(&g, 0, TOKENS_MAX);
	if (rc == 0) /* half of it, so that they do not end together */
		rc = generator_begin(&g, 1, TOKENS_MAX / 2);
	while (rc == 0 && !atomic_load(&gaps->board->stop)) {
		rc = generator_take(&g);
		if (!reported && !g.starting[0] && !g.starting[1])
			reported = write(fd, "", 1) == 1;
	}
	mimeo_close(g.m);
	atomic_store(&gaps->board->stop, true);
	return rc < 0;
}

/* ---- the client that closes ---- */

static void closer_pause(uint32_t ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* Until so many more have come. 0, or -1, which is reported. */
static int closer_await(
	struct board *board, const _Atomic uint32_t *counter, uint32_t since, uint32_t n)
{
	uint64_t until = stats_now() + FLOW_NS;

	while (atomic_load(counter) - since < n) {
		if (atomic_load(&board->stop))
			return -1;
		if (stats_now() >= until)
			return bench_fail(-1, "no tokens while buffers are closed");
		closer_pause(1);
	}
	return 0;
}

/* Until what was done before is no part of a gap any more. */
static int closer_settle(struct board *board)
{
	uint32_t tokens = atomic_load(&board->tokens);

	closer_pause(SETTLE_MS);
	return closer_await(board, &board->tokens, tokens, SETTLE_TOKENS);
}

static int closer_round(struct board *board, struct mimeo *m, enum closing closing, uint32_t ms)
{
	uint32_t kind = closing == HANDLES ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_DEFAULT;
	uint32_t buffers[CLOSED], n = closing == NOTHING ? 0 : CLOSED;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_alloc(m, kind, CLOSED_BYTES, &buffers[i]);
	if (rc < 0)
		return buffer_fail(m, "a buffer", rc);
	if (closer_settle(board) < 0)
		return -1;
	uint32_t gaps = atomic_load(&board->gaps);
	atomic_store(&board->round, closing + 1);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_close(m, buffers[i]);
	if (rc < 0)
		return buffer_fail(m, "closing a buffer", rc);
	closer_pause(ms);
	/* a round needs a gap: on a busy machine no token may have come so far */
	if (closer_await(board, &board->gaps, gaps, 1) < 0)
		return -1;
	atomic_store(&board->round, 0);
	return closer_settle(board);
}

/* Whether there are buffers without a descriptor: then rounds last until they are given back. */
static int closer_has_handles(struct mimeo *m)
{
	uint32_t buffer;
	int rc = mimeo_buffer_alloc(m, MIMEO_HANDLE_CUDA_IPC, CLOSED_BYTES, &buffer);

	if (rc == MIMEO_E_UNSUPPORTED)
		return 0;
	if (rc == 0)
		rc = mimeo_buffer_close(m, buffer);
	if (rc < 0)
		return buffer_fail(m, "a buffer", rc);
	closer_pause(LONG_ROUND_MS);
	return 1;
}

static int closer_child(void *arg, int fd)
{
	const struct gaps *gaps = arg;
	struct mimeo *m;

	if (client_connect(&m, gaps->bench->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	int handles = closer_has_handles(m), rc = handles < 0 ? handles : 0;
	uint32_t n = handles > 0 ? N_CLOSINGS : HANDLES;
	for (uint32_t i = 0; i < ROUNDS * n && rc == 0; i++)
		rc = closer_round(gaps->board, m, (enum closing)(i % n),
			handles > 0 ? LONG_ROUND_MS : SHORT_ROUND_MS);
	mimeo_close(m);
	return rc < 0;
}

/* ---- both ---- */

static int gaps_run(struct gaps *gaps)
{
	CLEANUP(child_kill) struct child generator = {0};
	uint32_t timeout_s = gaps->bench->options->timeout_s;
	uint64_t timeout_ns = timeout_s * 1000000000ull;
	int rc = child_start(&generator, generator_child, gaps);

	if (rc == 0)
		rc = child_next(&generator, stats_now() + timeout_ns);
	rc = rc == 1 ? 0 : rc == 0 ? -ECHILD : rc;
	if (rc == 0)
		rc = child_run("closing buffers", closer_child, gaps, timeout_s);
	atomic_store(&gaps->board->stop, true);
	if (rc == 0)
		rc = child_wait(&generator, stats_now() + timeout_ns);
	if (rc < 0 && rc != -EINTR && rc != -ECHILD) /* -ECHILD: it has said why itself */
		bench_fail(rc, "a client that generates: %s", strerror(-rc));
	return rc;
}

int buffer_gaps(const struct buffer_bench *bench)
{
	struct gaps gaps = {.bench = bench, .board = child_memory(sizeof(struct board))};
	bool ok = gaps.board;
	int rc;

	gaps.usual = samples_new(USUAL_MAX);
	for (uint32_t i = 0; i < N_CLOSINGS; i++) {
		gaps.longest[i] = samples_new(ROUNDS);
		ok = ok && gaps.longest[i];
	}
	rc = ok && gaps.usual ? gaps_run(&gaps) : bench_fail(-ENOMEM, "no memory");
	for (uint32_t i = 0; i < N_CLOSINGS; i++) {
		if (rc == 0 && gaps.longest[i]->n > 0)
			buffer_row(bench, names[i], gaps.longest[i], gaps.usual, FLOOR);
		samples_free(gaps.longest[i]);
	}
	samples_free(gaps.usual);
	child_memory_free(gaps.board, sizeof(struct board));
	return rc;
}
