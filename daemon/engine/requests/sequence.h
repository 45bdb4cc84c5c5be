/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SEQUENCE_H
#define MIMEO_DAEMON_ENGINE_SEQUENCE_H

/*
 * A sequence: tokens with a KV history, owned by a session.
 *
 *	IDLE --sequence_run--> RUNNING (slot, request) --sequence_stop--> RELEASING --> IDLE
 *	                          +------------------sequence_preempt--> RELEASING --> IDLE, request WAITING
 *
 * RELEASING: its request has ended or was preempted, but a launched step still names its slot and pages;
 * they go back when runner.completed reaches last_step. A preempted request keeps the sequence until then,
 * so that the tokens of its launched rows are read: the last token may be in the slot only (vLLM #40768).
 *
 * An IDLE sequence that is open keeps its pages until others need them: they are evicted, least recently
 * used first, and its tokens are computed once more when a request names it. Tokens that came as
 * embeddings, or whose mask is not kept, cannot be computed once more: such a sequence is `fixed`, and its
 * pages are pinned (pinned.h).
 */

#include "attention/kv_cache.h"
#include "daemon/engine/engine.h"

struct engine_session;
struct request;
struct runner;

enum sequence_state { SEQUENCE_IDLE, SEQUENCE_RUNNING, SEQUENCE_RELEASING };

struct sequence {
	struct engine_session *session;
	struct runner *runner; /* NULL: its model was unloaded */
	enum sequence_state state;
	bool open;       /* an id of the session's names it */
	bool ephemeral;  /* lives as long as its one request */
	bool forget;     /* give all back when released */
	bool slot_ready; /* the slot's initialisation is on the lane */
	bool fixed;      /* its keys cannot be computed from its tokens */
	bool pinned;     /* its pages are counted as pinned: open, and fixed or to be fixed by its request */
	bool starved;    /* there were no pages for its next tokens */
	bool update_began, updated; /* its slot has some of its request's slot_updates; all of them */
	int32_t slot;    /* -1: none */
	int32_t *tokens; /* [session.max_seq_len] prompt and output that the host knows */
	uint32_t n_tokens;
	uint32_t n_computed; /* positions whose K and V are launched */
	uint32_t n_evicted;  /* leading positions that had been computed when its pages were evicted, or it was preempted */
	uint32_t n_pending;  /* tokens sampled by launched steps, not read; one for a row that verifies */
	uint32_t n_drafted;  /* leading positions whose keys the draft model has, too */
	uint32_t n_drafts;   /* draft tokens a step that its slot may have */
	enum engine_undrafted undrafted; /* why there are none */
	struct kv_table table;
	uint64_t salt;           /* of its pages in the prefix cache */
	uint32_t n_shown;        /* leading entries of the table that the slot's block table has ... */
	uint32_t n_shown_near;   /* ... and that those of sets with a window have */
	uint32_t n_counted;      /* leading tokens that slot_counts has, or that its request does not count */
	struct request *request; /* RUNNING, or RELEASING and preempted */
	bool batch;              /* RUNNING for a batch request */
	uint32_t row;            /* which of the request's */
	uint32_t target;         /* end of the tokens that the request brought */
	uint32_t n_history;      /* leading positions that were computed before the request */
	uint32_t prompt_end;     /* end of the tokens that it had when it took its slot */
	bool resumes;            /* only the last of these tokens was not computed when it took its slot */
	uint32_t document;       /* where the document of the last launched token begins */
	uint64_t last_step;      /* the runner's last launched step that names it */
	uint64_t looked;         /* the step that was to have a chunk of its prompt */
	uint32_t paged;          /* 1 + the scheduler's turn in which the chunk was to get pages */
	uint32_t follow_end;     /* where the first request that waits for its tokens wants them up to; 0: none does */
	uint64_t claim;          /* admission pass in which an earlier request waits for it */
	struct sequence *next;   /* in slots.releasing */
	struct sequence *idle_prev, *idle_next; /* in slots.idle */
};

/* Forget the history of an IDLE sequence without pages; it is the runner's from now on. */
void sequence_reset(struct sequence *sequence, struct runner *runner);
/* The model of an IDLE sequence is unloaded: it has no pages and no model any more. If it is open, its id stays the
 * client's until that closes it. */
void sequence_orphan(struct sequence *sequence);
/* An id names it from now on. */
void sequence_open(struct sequence *sequence);
/* Open a child with the parent's tokens and pages, which they share until either writes; the parent is IDLE,
 * the child not open. 0, or kv_fork's answer with nothing changed. */
int sequence_fork(struct sequence *child, const struct sequence *parent);
/* Position of the first token that the sequence's request appended. Earlier tokens may still have to be
 * computed. */
uint32_t sequence_request_start(const struct sequence *sequence);
/* How many tokens from that position on attend to each other in both directions. */
uint32_t sequence_prefix(const struct sequence *sequence);
/* The longest that it can be when its request ends. */
uint32_t sequence_limit(const struct sequence *sequence);
/* Take pages for n_total tokens; copies of shared pages are queued ahead of the next step. 0, or -ENOSPC and
 * nothing changes. */
int sequence_extend(struct sequence *sequence, uint32_t n_total);
/* Give back pages of sets with a window that no token behind the first n_tokens sees. */
void sequence_leave_window(struct sequence *sequence, uint32_t n_tokens);
/* Set table.keeps for the request: true if its keys cannot be computed again, and for a step request, which takes all
 * of its pages when it starts. */
void sequence_keep_window(struct sequence *sequence, const struct request *request);
/* Take a slot for a row of the request; one must be free. */
void sequence_run(struct sequence *sequence, struct request *request, uint32_t row);
/* The request has ended: back to IDLE as soon as no launched step names the slot. */
void sequence_stop(struct sequence *sequence);
/* The salt of pages that the request may share. */
uint64_t sequence_salt_of(const struct sequence *sequence, const struct request *request);
/* Begin an IDLE sequence without pages with those of the prefix cache that have its tokens; the last
 * token is left to be computed. For a request whose tokens may be shared: sequence_shares. Returns how many
 * tokens these are. */
uint32_t sequence_take_prefix(struct sequence *sequence, bool drafts);
/* Release these pages: the request cannot start now. */
void sequence_drop_prefix(struct sequence *sequence);
/* May the pages that the request computes be shared? Not if tokens came as embeddings, or under a mask that
 * the prefix cache does not know. */
bool sequence_shares(const struct sequence *sequence, const struct request *request);
/* Does the request leave sequences whose keys cannot be computed from their tokens: embeddings, a mask of its own? */
bool sequence_request_fixes(const struct request *request);
/* Are the sequence's pages pinned (pinned.h) from the time the request runs on it? */
bool sequence_pins(const struct sequence *sequence, const struct request *request);
/* Its whole pages that are computed may be found by others from now on. */
void sequence_share(struct sequence *sequence);
/* Can its request be preempted, because everything that it computed can be computed again? */
bool sequence_is_preemptible(const struct sequence *sequence);
/* Preempt it: its generate request waits again as soon as no launched step names the slot. */
void sequence_preempt(struct sequence *sequence);
/* Release the pages of a sequence in slots.idle; its tokens stay. */
void sequence_evict(struct sequence *sequence);
/* Have the last token of an IDLE sequence computed once more; it has tokens, and is not fixed. */
void sequence_step_back(struct sequence *sequence);
/* Keep n_tokens of an IDLE sequence, and the pages that these need; if the next one sees pages that were given back,
 * none, and they are computed again. */
void sequence_truncate(struct sequence *sequence, uint32_t n_tokens);
/* Release an IDLE sequence's pages, forget its history and close it. */
void sequence_forget(struct sequence *sequence);
/* After runner.completed has grown: sequences whose last step has completed. */
void sequence_release_all(struct runner *runner);

#endif
