/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_FIXTURE_H
#define MIMEO_TESTS_ATTENTION_FIXTURE_H

/*
 * A backend over a small paged cache: persistent inputs, cache, queries, and a dense reference in
 * double that knows nothing of pages, splits or absorption (reference.c). Tests see and write host
 * images, which each placing and each build takes to the device; a wait brings the output back. On
 * the cpu device the images are the device's memory, but for a cache in fp8. On cuda all contents are
 * numbers that bf16 has.
 *
 * What a token has is a function of (its sequence's seed, position, element), so the same token can
 * be put into any batch. Row r has the slot FIXTURE_ROWS - 1 - r. Whatever no reader may look at is
 * hostile: cache entries that no token occupies and queries of no token are NaN, outputs are NaN
 * before a run, and block table entries past the used pages are garbage.
 */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/attention.h"
#include "tests/assertions.h"
#include "tests/device_memory.h"
#include "tests/random.h"

#define FIXTURE_LAYERS 2u
#define FIXTURE_LAYER 1u /* that runs; layer 0 differs in its window */
#ifndef FIXTURE_ROWS     /* a program may be compiled with larger ones */
#define FIXTURE_ROWS 8u
#define FIXTURE_TOKENS 160u
#endif

/* Not powers of two; what values are at most, 2, is more than 448 times the second. */
#define FIXTURE_FACTORS ((struct kv_factors){ 0.0123f, 0.0041f })

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Latent attention where latent.rank is not 0: then the kv heads follow from it. */
struct shape {
	uint32_t n_heads, n_kv_heads, head_dim, page_tokens, window, max_seq_len;
	struct attention_latent latent;
	/* Not 0: scores are scaled by as much more and W is normalised, so that few keys decide and
	 * a wrong one shows. The output of a head is judged by its distance from the reference. */
	float sharp;
	bool fp8; /* keys and values lie in the cache as e4m3, with FIXTURE_FACTORS */
	float soft_cap;
};

struct row {
	uint32_t seed, n_query, seq_len;
	struct slot_mask mask; /* for backends that read it */
	const uint64_t *words; /* [seq_len] by position; NULL: all 0 */
};

struct fixture {
	struct device *device;
	struct stream *stream;
	bool device_owned, is_cuda;
	struct attention_config config;
	uint32_t windows[FIXTURE_LAYERS];
	struct step_inputs inputs, at_device; /* images; what kernels read */
	const struct attention_backend *backend;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t n_pages;
	float *kv, *q, *out, *w; /* images; w: of kv_b */
	void *kv_device, *q_device, *out_device;
	void *kv_far; /* instead of kv_device; its pages lie beyond 2^31 and 2^32 elements */
	struct weight kv_b;
	uint32_t q_width, q_stride, width; /* q: inside of larger rows; width: of the output */
	float sharp;
	uint64_t random;  /* of pages and garbage, which every placing changes */
	uint32_t samples; /* not 0: about so many tokens of a long row are compared */
	/* the batch */
	struct row rows[FIXTURE_ROWS];
	uint32_t query_lens[FIXTURE_ROWS], seq_lens[FIXTURE_ROWS];
	struct attention_batch batch;
};

/* On a device that outlives it; NULL: one of its own, of MIMEO_DEVICE. backend NULL: there is no
 * manager. */
void fixture_init(struct fixture *f, struct device *device, const char *backend,
	const struct shape *shape);
/* On a cpu device of its own. */
void fixture_init_cpu(struct fixture *f, const char *backend, const struct shape *shape);
void fixture_deinit(struct fixture *f);
/* A new manager and metadata object, by the configuration as it is now. */
void fixture_remake(struct fixture *f);
/* Place pages beyond 2^31 elements from now on. */
void fixture_go_far(struct fixture *f);

/* Write a batch as `prepare` would: cache, table, queries, lengths, tails. padded counts of 0: what
 * is real. */
void fixture_place(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens);
/* A page's contents become the null page's, and the entry of row 0's page something else: what is
 * read through it is the same. */
void fixture_null_page(struct fixture *f, int32_t entry);
/* Check a row whose first page is one that does not exist, for each kind of such ids. */
void fixture_check_missing_pages(struct fixture *f, const struct row *row);
/* Each row alone has the bits that it has among all, which are padded to so many rows and tokens. */
void fixture_check_alone(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens);
/* A graph of one layer of paged attention, of n_rows rows of n_query tokens. */
struct graph_exec *fixture_capture_paged(struct fixture *f, uint32_t n_rows, uint32_t n_query);
/* Place rows, replay, check, and compare with an eager run of the same rows, padded or not. */
void fixture_check_replay(struct fixture *f, struct graph_exec *exec, const struct row *rows,
	uint32_t n_rows, uint32_t padded_rows, uint32_t padded_tokens, bool eager_padded);
/* As of a loop that is unrolled into one graph: the length of the row changes while it runs, and a
 * plan recorded behind the change is of the new one. */
void fixture_check_recorded_plan(struct fixture *f, const struct row *row);
/* The images to the device; done by placing and building. */
void fixture_upload(struct fixture *f);

int fixture_build(struct fixture *f, enum attention_phase phase);
/* Only the call, of the layer given. */
int fixture_enqueue(struct fixture *f, uint32_t layer);
void fixture_poison_out(struct fixture *f);
/* Wait, and bring the output back. */
void fixture_sync(struct fixture *f);
/* Build for the placed batch, run over a poisoned output, sync. */
void fixture_run(struct fixture *f);

/* fixture_place() and fixture_run(). */
void fixture_run_rows(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens);
/* The status of a run on a capturing stream. */
int fixture_run_captured(struct fixture *f);
/* A graph of n runs of the placed batch, built for capture; the device is locked. */
struct graph *fixture_record(struct fixture *f, uint32_t n);
struct graph_exec *fixture_instantiate(struct fixture *f, struct graph *graph);
/* Over a poisoned output, sync. */
void fixture_replay(struct fixture *f, struct graph_exec *exec);

/* Output row of a token, counted from the row's first. */
float *fixture_out(const struct fixture *f, uint32_t row, uint32_t token);
/* Bytes of n tokens of the output. */
size_t fixture_bytes(const struct fixture *f, uint32_t n_tokens);
/* A copy of the whole output (malloc). */
float *fixture_copy(const struct fixture *f);
/* The tokens' outputs are 0; or numbers. */
void fixture_assert_zero(const struct fixture *f, uint32_t first, uint32_t end);
void fixture_assert_numbers(const struct fixture *f, uint32_t first, uint32_t end);

/* Every real token against the reference within the device's tolerance, tokens of no position and
 * padding against zero, the rest untouched. */
void fixture_verify(const struct fixture *f);
/* Place, run, verify. */
void fixture_check(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens);
/* The same with a fixture of its own. */
void fixture_check_once(struct device *device, const char *backend, const struct shape *shape,
	const struct row *rows, uint32_t n_rows, uint32_t padded_rows, uint32_t padded_tokens);

/* Rows of sequences that are empty (one in four), end at the edge of a page or a tile, or anywhere;
 * with queries of one token or of up to `most`. Returns their tokens, FIXTURE_TOKENS - 20 at most.
 */
uint32_t fixture_draw_rows(uint64_t *dice, const struct shape *shape, uint32_t n_rows,
	uint32_t most, struct row *rows);
/* Place, run and verify drawn batches, n of each of the shapes that draw() makes. */
void fixture_check_drawn(struct device *device, const char *backend, uint64_t *dice, int n_shapes,
	struct shape (*draw)(uint64_t *dice), uint32_t most_rows, uint32_t most);

/* ---- contents: reference.c ---- */

enum part { PART_Q, PART_K, PART_V, PART_W };
/* As the device keeps it. PART_K of latent attention: the cached row; PART_W: row, column of W. */
float fixture_content(const struct fixture *f, uint32_t seed, enum part part, uint32_t position,
	uint32_t element);
uint16_t bf16_from_float(float x);
float bf16_to_float(uint16_t x);

#endif
