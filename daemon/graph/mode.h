/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_MODE_H
#define MIMEO_DAEMON_GRAPH_MODE_H

/*
 * Graph modes: what is configured, what it resolves to, and why.
 *
 * A configured mode has a part for uniform decode batches and a part for all others. Resolution
 * lowers it to what the model's attention supports and what is available. The rules and their order
 * follow vLLM's Model Runner V2 (#42885, #47144, #44050).
 */

#include <stdbool.h>
#include <stdint.h>

#include "attention/attention.h"

enum graph_mode {
	GRAPH_NONE,
	GRAPH_PIECEWISE,
	GRAPH_FULL,
	GRAPH_FULL_DECODE_ONLY,
	GRAPH_FULL_AND_PIECEWISE,
};

const char *graph_mode_name(enum graph_mode mode); /* "FULL_AND_PIECEWISE" */
/* "full_and_piecewise" or "full-and-piecewise", any case; -EINVAL. */
int graph_mode_parse(const char *text, enum graph_mode *ret);
/* The concrete mode (NONE, PIECEWISE or FULL) of either part. */
enum graph_mode graph_mode_decode(enum graph_mode mode);
enum graph_mode graph_mode_mixed(enum graph_mode mode);

/* Why a step ran without a graph. */
enum eager_reason {
	EAGER_NO,
	EAGER_MODE,         /* the mode has no graphs */
	EAGER_MIXED,        /* none for batches that are not decodes */
	EAGER_TOO_WIDE,     /* wider than the widest */
	EAGER_NOT_CAPTURED, /* its graph is not captured yet, or was dropped */
	N_EAGER_REASONS,
};
const char *eager_reason_name(enum eager_reason reason); /* "too_wide" */

struct mode_request {
	enum graph_mode configured;
	enum attention_support support; /* the lowest of the model's layers */
	const char *backend;            /* whose it is: "naive", or "naive of layer 1" */
	uint32_t decode_query;          /* 1, or 1 + draft tokens */
	bool piecewise_available;
};

struct mode_resolution {
	enum graph_mode configured, resolved;
	char reason[240]; /* "as configured", or what lowered it */
	bool lowered;     /* log a warning */
	bool piecewise;   /* graphs in pieces are available */
};

/* The mode of a draft model's decodes beside a target of that resolved mode, `support` being its own
 * with queries of one token: FULL_DECODE_ONLY or NONE, never PIECEWISE, which pads tokens and not
 * requests, so that per-request metadata would be stale (vLLM #39773). Pure. */
enum graph_mode mode_resolve_draft(enum graph_mode target, enum attention_support support);

/* 0, or -ENOTSUP (FULL with a backend that supports NEVER): the reason names the backend. Pure. */
int mode_resolve(const struct mode_request *request, struct mode_resolution *ret);

#endif
