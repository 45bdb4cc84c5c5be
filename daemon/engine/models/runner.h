/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_RUNNER_H
#define MIMEO_DAEMON_ENGINE_RUNNER_H

/*
 * A model in the engine: its memory, inputs, graphs and draft model, and the table of its slots.
 * Phases of all runners, in this order: runner_init, runner_warm_up, (device lock), runner_capture,
 * runner_map_all. After that nothing that a graph reads is ever reallocated. The engine's thread alone
 * uses a runner, except its counters, which any thread reads.
 */

#include <assert.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/models/counter.h"
#include "daemon/graph/graph_set.h"
#include "daemon/graph/executor.h"
#include "daemon/graph/speculator.h"

struct request;
struct sequence;

/* Pages that cannot be evicted, and who is charged for them: requests/pinned.h. */
struct pinned_user {
	uint32_t n_pages, n_promised;
};
struct pinned {
	uint32_t *n_tables; /* [pages] pinned sequences that have the page */
	uint16_t *holders;  /* [pages] if there are any: the index of the user who is charged */
	uint32_t n_pages;   /* that are pinned */
	uint32_t n_promised;
	uint32_t n_users; /* who are charged for any */
	struct pinned_user users[ENGINE_SESSIONS_MAX]; /* by index in accounting.users */
};

/* The model's slots: requests/sequence.c, requests/start.c. */
struct slots {
	int32_t *free;
	uint32_t n_free;
	struct sequence **running; /* [max_requests] */
	uint32_t n_running;
	uint32_t n_batch; /* of these: of batch requests */
	struct sequence *releasing; /* stopped, but a launched step still names their slots and pages */
	struct sequence *idle;      /* IDLE and open, with pages, not fixed; the least recently used first */
	uint32_t n_idle, n_idle_pages; /* of these; pages that they share count several times */
	struct pinned pinned;
	uint32_t *marks; /* [pages] scratch of pinned.c, by page; `mark` is in use */
	uint32_t mark;
	struct request *blocked; /* the oldest one that found a slot, but not all slots and pages that it needs */
	struct request *head;   /* a blocked request that was passed so often that none may pass it now */
	struct request *reserved_for;   /* requests were preempted for it; what they release is reserved for it ... */
	uint64_t reserved_step, reserved_turn; /* ... up to an admission turn after this one when this step has completed */
	/* In this admission turn no slot could be preempted for this session's requests of this class. */
	uint64_t no_victim_turn;
	const struct engine_session *no_victim_of;
	uint32_t no_victim_class;
	uint64_t follow_last_step; /* when the first request that waits for another's tokens has waited for long enough;
	                              0: none does */
	uint32_t (*copies)[2]; /* [max_copies] pages to copy ahead of the next step: of each request one a set */
	uint32_t n_copies, max_copies;
};

/* engine.h, struct engine_speculation */
struct speculation_counters {
	_Atomic uint64_t n_verified, n_verified_tokens, draft_ns, n_draft_steps;
	_Atomic uint64_t n_offered[SPECULATE_MAX], n_accepted[SPECULATE_MAX];
	_Atomic uint64_t n_undrafted[N_UNDRAFTED];
};

struct runner {
	struct engine_model_options options;
	const struct engine_options *limits;
	struct device *device;
	struct stream *lane;
	uint32_t id;    /* the model's: no other has it in the daemon's life */
	uint32_t place; /* below ENGINE_MODELS_MAX: no other runner has it at this time */
	bool leaving;   /* being unloaded: it takes no request, and goes when nothing names it */
	struct runner *next; /* among those that were unloaded: requests/reports.h */
	struct model *model;
	struct kv_cache *kv;
	struct inputs inputs;
	void *pool;
	uint64_t pool_bytes;
	struct forward_context context;
	struct executor executor;
	struct graph_set graphs;
	struct speculator speculator; /* of a model with a draft model */
	struct kv_cache *draft_kv;    /* the draft model's memory; the pages are `kv`'s */
	uint32_t max_pages;           /* of a sequence, of each set */
	enum dtype activation_dtype;
	uint32_t *query_lens, *seq_lens; /* [max_requests] of the batch being built */
	uint32_t *dropped;               /* [sets, max_pages] scratch */
	struct slots slots;
	uint64_t launched, completed; /* step numbers, from 1 */
	_Atomic uint32_t pages_free, pages_cached;
	_Atomic uint64_t n_tokens_out, n_steps, n_rows, n_not_finite;
	struct histogram distributions[N_ENGINE_DISTRIBUTIONS];
	_Atomic uint64_t n_evicted, n_preempted; /* idle sequences, requests */
	_Atomic uint64_t n_prompt_tokens, n_prefix_hits; /* engine.h, struct engine_model_facts */
	_Atomic uint64_t n_cached_tokens;        /* that were not computed: the prefix cache had them */
	_Atomic uint64_t n_positions;            /* whose results were computed beside those of rows */
	_Atomic uint64_t n_eager[N_EAGER_REASONS];
	struct speculation_counters speculation;
};

/* The engine's models, in the order of their ids. */
struct runners {
	struct runner *all[ENGINE_MODELS_MAX];
	uint32_t n;
};

/* NULL: there is none. */
static inline struct runner *runners_find(const struct runners *runners, uint32_t id)
{
	for (uint32_t i = 0; i < runners->n; i++) {
		if (runners->all[i]->id == id)
			return runners->all[i];
	}
	return NULL;
}

/* ---- runner.c ---- */

/* Takes the options' models over in any case; limits outlive the runner; call runner_deinit in any case. 0, or the
 * device's answer and a sentence in *error. */
int runner_init(struct runner *runner, const struct engine_options *limits,
	const struct engine_model_options *options, struct stream *lane, struct model_error *error);
/* Names it, before the engine's thread knows it. */
void runner_set_id(struct runner *runner, uint32_t id);
int runner_warm_up(struct runner *runner, struct model_error *error);
/* With lazy_capture the draft model's graphs alone. */
int runner_capture(struct runner *runner, struct model_error *error);
void runner_deinit(struct runner *runner);

/* ---- runner_memory.c ---- */

/* Returns rc, and writes what failed and for which model. */
int runner_fail(struct model_error *error, const struct runner *runner, const char *what, int rc);
/* Options, limits, device, model and activation_dtype are set; what was allocated before a failure stays
 * for runner_deinit. */
int runner_allocate(struct runner *runner, const struct device_info *info,
	struct model_buffers *ret_draft, struct model_error *error);
/* Pages that the warm-up's one real row may write. */
uint32_t runner_warm_up_pages(const struct runner *runner);
/* The last phase, of all runners: map their KV pages. */
int runner_map_all(const struct runners *runners, struct model_error *error);
/* Bytes of a page of its KV cache, the draft model's part included. */
uint64_t runner_page_bytes(const struct runner *runner);
/* Publish how many pages are free now. */
void runner_show_pages(struct runner *runner);

#endif
