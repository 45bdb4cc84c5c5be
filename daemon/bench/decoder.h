/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_DECODER_H
#define MIMEO_DAEMON_BENCH_DECODER_H

/*
 * A model on a device in this process, with all that its decode steps need and nothing else: no
 * engine, no rings. It is OPENED for a number of rows and positions, graphs are CAPTURED for the
 * sizes that are needed, and steps are LAUNCHED and AWAITED, two in flight, as on the daemon's lane:
 * prepare, metadata, graph, outbox.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/graph/graph_set.h"
#include "daemon/graph/executor.h"

#define DECODER_ROWS_MAX 512u
#define DECODER_PAGE_TOKENS 16u

struct decoder_options {
	const char *device, *model_dir;
	const char *attention;  /* backend, or "auto" */
	uint32_t max_rows;      /* of a step, at most DECODER_ROWS_MAX */
	uint32_t max_positions; /* of a row */
	uint32_t max_pages;     /* of all rows; fewer are taken if the device holds no more */
};

struct decoder {
	struct device *device;
	struct device_info info;
	struct stream *stream;
	struct model *model;
	struct inputs inputs;
	struct forward_context context;
	struct executor executor;
	struct graph_set graphs;
	void *pool;
	uint32_t n_pages; /* that rows may have together */
	uint64_t next;    /* step's number */
	bool polls;       /* the end of a step is seen in its flag, as the engine does */
	struct event *done[INPUTS_SLOTS]; /* where the host should not spin for it */
	uint32_t query_lens[DECODER_ROWS_MAX], seq_lens[DECODER_ROWS_MAX];
	uint32_t *pages; /* [max_positions in pages] scratch */
};

/* Opens the device and reads the model; the KV cache is full of random numbers. 0, or a device's
 * condition or -errno with a sentence in *error where there is more to say. *lane is to be closed
 * even then. */
int decoder_open(
	struct decoder *decoder, const struct decoder_options *options, struct model_error *error);
void decoder_close(struct decoder *decoder);

/* The graph for a decode of so many rows, FULL or PIECEWISE, captured at first use; NONE: NULL,
 * which steps run eagerly. -ERANGE: none is so wide. */
int decoder_graph(
	struct decoder *decoder, uint32_t n_rows, enum graph_mode mode, struct graph_entry **ret);

/* Pages that a row of so many positions takes. */
uint32_t decoder_row_pages(uint32_t positions);

struct decoder_step {
	struct graph_entry *entry; /* NULL: eager */
	uint32_t n_rows;
	uint32_t position;  /* of each row's one token */
	uint32_t row_pages; /* each row has so many of its own */
	bool first;         /* sets the rows' slots up */
};
/* Launch step decoder->next, the one before the last having been awaited; no allocation. */
int decoder_launch(struct decoder *decoder, const struct decoder_step *step);
/* Wait for the end of a step; its slot says when it began and ended. */
int decoder_await(struct decoder *decoder, uint64_t number, const struct inputs_slot **ret);

/* Bytes that a step of so many rows at that position must read: each weight once (of the embedding
 * nothing), each row's keys and values once, as far as windows let it see. */
uint64_t decoder_weight_bytes(const struct model *model);
uint64_t decoder_kv_bytes(const struct decoder *decoder, uint32_t n_rows, uint32_t seq_len);
/* Operations of all layers' products for one token: attention and the head not counted. */
double decoder_token_flop(const struct model *model);

#endif
