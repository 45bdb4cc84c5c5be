/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_CHAOS_CLIENT_H
#define MIMEO_TESTS_E2E_CHAOS_CLIENT_H

/* What an honest client of test_chaos.c remembers of its requests and sequences. */

#include "tests/e2e/chaos.h"
#include "tests/e2e/embedding_table.h"
#include "tests/e2e/process.h"

#define REQUESTS_MAX 64u
#define SEQUENCES_MAX 3u
#define ROWS_MAX SEQUENCES_MAX
#define HISTORY_MAX 96u /* tokens of a stream that sequences follow: else a few clients hold all pages */
#define BUFFER_BYTES (64u << 10)
#define EMBEDDINGS_BYTES (ROWS_MAX * HISTORY_MAX * HIDDEN * sizeof(float))
#define BUFFER_CLOSED UINT32_MAX /* in place of the id that a request names */

enum kind { FREE, GENERATE, STEP, CANCEL };

struct row {
	uint32_t stream, begin, end; /* it appends these tokens of the stream */
	uint32_t place, epoch;       /* of the client's sequences; place SEQUENCES_MAX: none */
};

struct asked {
	enum kind kind;
	uint64_t id;
	struct row rows[ROWS_MAX];
	uint32_t n_rows;
	uint32_t n_expected, n_got, finish, class; /* of a generate */
	bool cancelled, has_deadline;
	bool prompt_logits;
	uint32_t buffer, place; /* of a step's logits; 0: none */
	bool embedded; /* a step of embeddings: its input is in the client's buffer until it ends */
};

struct sequence {
	uint32_t id;     /* 0: not open */
	uint32_t stream, at; /* it has so many of its tokens */
	uint32_t epoch;  /* requests of other epochs do not move it any more */
	bool busy, forked;
};

struct client {
	struct chaos *chaos;
	uint64_t state, seed;
	struct mimeo *m;
	uint32_t vocab;
	struct asked asked[REQUESTS_MAX];
	struct sequence sequences[SEQUENCES_MAX];
	uint32_t n_entries, n_in_flight;
	uint32_t buffer; /* 0: none */
	const uint8_t *buffer_memory;
	uint32_t embeddings; /* a buffer; 0: none */
	float *embeddings_memory;
	bool embeddings_busy;
	uint64_t deaf_until; /* takes no events until then */
	bool over;     /* it cannot go on */
};

static inline uint32_t client_draw(struct client *c, uint32_t n)
{
	return random_below(&c->state, n);
}

static inline bool client_chance(struct client *c, uint32_t percent)
{
	return client_draw(c, 100) < percent;
}

#define WRONG(c, format, ...)                                                                      \
	do {                                                                                       \
		fprintf(stderr, "chaos: client %llu: " format "\n", (unsigned long long)(c)->seed,  \
			##__VA_ARGS__);                                                            \
		atomic_fetch_add(&(c)->chaos->n_wrong, 1);                                         \
		(c)->over = true;                                                                  \
	} while (0)

static inline const struct chaos_stream *client_stream(const struct client *c, const struct row *row)
{
	return &c->chaos->streams[row->stream];
}

/* Take an event and compare what it brings: true, or false if none comes within timeout_ms. */
bool client_take(struct client *c, int timeout_ms);

#endif
