/* SPDX-License-Identifier: MIT */
#include "daemon/graph/mode.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
	[GRAPH_NONE] = "NONE",
	[GRAPH_PIECEWISE] = "PIECEWISE",
	[GRAPH_FULL] = "FULL",
	[GRAPH_FULL_DECODE_ONLY] = "FULL_DECODE_ONLY",
	[GRAPH_FULL_AND_PIECEWISE] = "FULL_AND_PIECEWISE",
};

#define N_MODES (sizeof(names) / sizeof(names[0]))

const char *graph_mode_name(enum graph_mode mode)
{
	return (unsigned)mode < N_MODES ? names[mode] : "?";
}

static bool mode_same_name(const char *text, const char *name)
{
	size_t i;

	for (i = 0; text[i] && name[i]; i++) {
		char c = text[i] == '-' ? '_' : text[i];

		if (toupper((unsigned char)c) != name[i])
			return false;
	}
	return !text[i] && !name[i];
}

int graph_mode_parse(const char *text, enum graph_mode *ret)
{
	for (size_t i = 0; i < N_MODES; i++) {
		if (mode_same_name(text, names[i])) {
			*ret = (enum graph_mode)i;
			return 0;
		}
	}
	return -EINVAL;
}

enum graph_mode graph_mode_decode(enum graph_mode mode)
{
	if (mode == GRAPH_FULL_DECODE_ONLY || mode == GRAPH_FULL_AND_PIECEWISE)
		return GRAPH_FULL;
	return mode;
}

enum graph_mode graph_mode_mixed(enum graph_mode mode)
{
	if (mode == GRAPH_FULL_DECODE_ONLY)
		return GRAPH_NONE;
	if (mode == GRAPH_FULL_AND_PIECEWISE)
		return GRAPH_PIECEWISE;
	return mode;
}

static const char *const reason_names[N_EAGER_REASONS] = {
	[EAGER_NO] = "none",
	[EAGER_MODE] = "mode",
	[EAGER_MIXED] = "mixed",
	[EAGER_TOO_WIDE] = "too_wide",
	[EAGER_NOT_CAPTURED] = "not_captured",
};

const char *eager_reason_name(enum eager_reason reason)
{
	return reason < N_EAGER_REASONS ? reason_names[reason] : "?";
}

static void mode_lower(
	struct mode_resolution *r, enum graph_mode to, const char *why, const char *backend)
{
	r->resolved = to;
	r->lowered = true;
	snprintf(r->reason, sizeof(r->reason), "attention backend %s %s", backend, why);
}

/* The mixed part may still need piecewise graphs. */
static void mode_drop_piecewise(struct mode_resolution *r)
{
	enum graph_mode to = r->resolved == GRAPH_FULL_AND_PIECEWISE ? GRAPH_FULL_DECODE_ONLY
								      : GRAPH_NONE;

	if (r->resolved != GRAPH_FULL_AND_PIECEWISE && r->resolved != GRAPH_PIECEWISE)
		return;
	if (!r->lowered)
		snprintf(r->reason, sizeof(r->reason), "breakable = no: there are no piecewise graphs");
	r->lowered = true;
	r->resolved = to;
}

/* Add that the mode would be higher with piecewise graphs. */
static void mode_blame_breakable(struct mode_resolution *r)
{
	size_t used = strlen(r->reason);

	snprintf(r->reason + used, sizeof(r->reason) - used,
		"; breakable = no: there are no piecewise graphs");
}

int mode_resolve(const struct mode_request *request, struct mode_resolution *ret)
{
	struct mode_resolution r = {
		.configured = request->configured,
		.resolved = request->configured,
		.piecewise = request->piecewise_available,
		.reason = "as configured",
	};
	enum graph_mode fallback = request->piecewise_available ? GRAPH_PIECEWISE : GRAPH_NONE;

	if (r.resolved == GRAPH_FULL && request->support != ATTENTION_ALWAYS) {
		if (request->support == ATTENTION_NEVER) {
			mode_lower(&r, GRAPH_FULL, "cannot run in a graph, and the mode FULL demands it: "
				"ask for piecewise, or another attention",
				request->backend);
			*ret = r;
			return -ENOTSUP;
		}
		mode_lower(&r, GRAPH_FULL_AND_PIECEWISE, "cannot take mixed batches in a full graph",
			request->backend);
	}
	if (graph_mode_decode(r.resolved) == GRAPH_FULL && request->support == ATTENTION_NEVER)
		mode_lower(&r, fallback, "cannot run in a graph", request->backend);
	if (graph_mode_decode(r.resolved) == GRAPH_FULL && request->decode_query > 1 &&
		request->support < ATTENTION_UNIFORM_BATCH)
		mode_lower(&r, fallback, "takes one token a request in a graph, and decoding needs more",
			request->backend);
	if (!request->piecewise_available) {
		bool lowered = r.lowered;

		mode_drop_piecewise(&r);
		if (lowered)
			mode_blame_breakable(&r);
	}
	assert(r.resolved != GRAPH_FULL || request->support == ATTENTION_ALWAYS);
	assert(graph_mode_decode(r.resolved) != GRAPH_FULL || request->support > ATTENTION_NEVER);
	assert(graph_mode_mixed(r.resolved) != GRAPH_PIECEWISE || request->piecewise_available);
	*ret = r;
	return 0;
}

enum graph_mode mode_resolve_draft(enum graph_mode target, enum attention_support support)
{
	if (graph_mode_decode(target) != GRAPH_FULL || support == ATTENTION_NEVER)
		return GRAPH_NONE;
	return GRAPH_FULL_DECODE_ONLY;
}
