/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_REQUEST_H
#define MIMEO_DAEMON_ENGINE_REQUEST_H

/*
 * A request: one submission that intake.c accepted, until finish.c posts its final completion.
 *
 *	FREE --intake--> WAITING --admit--> RUNNING --finish--> FREE
 *	                    |  ^               +-------finish--> ENDING --last step completed--> FREE
 *	                    |  +---preempted---+
 *	                    +--refused, cancelled, deadline--> FREE
 *
 * A step is STARTING between WAITING and RUNNING while some of its rows have started and others still wait for slots
 * or pages.
 */

#include <stdbool.h>
#include <stdint.h>

#include <mimeo/types.h>

#include "daemon/engine/requests/deadline.h"
#include "daemon/engine/requests/payload.h"
#include "ipc/msg.h"
#include "kernels/ops.h"

struct engine_buffer;
struct engine_session;
struct runner;

/* ENDING: it has ended, but a launched step still names device buffers of its client: the final completion
 * waits for that step, because from then on the buffers are the client's to use. */
enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_STARTING, REQUEST_RUNNING, REQUEST_ENDING };

struct request_row {
	uint32_t sequence; /* id */
	uint32_t n_tokens;
	uint32_t first;        /* tokens of the request's rows before it */
	const int32_t *tokens; /* in the request's payload */
};

/* A place in a device buffer that a request names: place.c. */
struct request_place {
	struct engine_buffer *buffer; /* NULL: none */
	uint8_t *at;
};

struct request {
	struct engine_session *session;
	struct runner *runner; /* of generate and step */
	enum request_state state;
	uint32_t index, generation;
	uint64_t user_data;
	uint16_t op;
	uint32_t class;              /* enum mimeo_class */
	uint32_t sequence, argument; /* as in the entry */
	struct slot_sampling sampling;
	struct mimeo_mask mask;
	struct payload payload;    /* its copy, checked at intake and not afterwards */
	const uint8_t *mask_words; /* in it: uint64 [tokens of all rows]; NULL: none */
	struct deadlines deadlines;
	uint64_t started_ns;       /* when it took its first slot; 0: it has not */
	uint64_t first_token_ns;   /* when its first token was read; 0: there is none */
	uint64_t last_token_ns;    /* when its last token was read */
	uint32_t entry;            /* its index in the submission ring */
	uint64_t order;            /* of submission, over all sessions; from 1; its id for operators */
	uint32_t n_passed;         /* later requests that started while it was the model's oldest blocked request */
	bool started;              /* it has run: a preempted request waits with tokens in its sequence */
	bool preempted;            /* it was preempted: its tokens are computed again */
	bool own_mask;             /* its mask is not the model's default */
	uint32_t n_promised;       /* pages that it may pin (pinned.h) in addition to those that it has pinned */
	struct {
		uint64_t order;     /* of the request that it waits for, or has waited for; 0: none */
		uint32_t end;       /* until that one's tokens up to there are launched */
		uint64_t last_step; /* and until so many steps of the model are launched; 0: it has never waited */
	} follow;                  /* follow.h */
	uint32_t n_cached;         /* leading positions that it took from the prefix cache at its first start */
	/* generate */
	uint32_t max_tokens; /* set at the start if no_limit */
	bool no_limit;       /* until a stop token, or the model's length */
	uint32_t n_stop, n_prompt, n_generated;
	int32_t stop[MIMEO_STOP_MAX];
	bool ignore_eos;
	uint32_t n_drafts; /* draft tokens a step that it may have */
	/* what changes its logits: adjust.c; min_position is set when it runs */
	struct slot_adjust adjust;
	const struct mimeo_bias *bias; /* [adjust.n_bias] in its payload */
	const uint32_t *allowed;       /* the same; NULL: all */
	uint32_t min_tokens, penalty_start;
	bool adjusts, counts, bans;    /* at all; by penalties; some tokens are banned */
	bool want_logprobs;            /* of the tokens that it generates */
	/* both; a generate request has one row */
	uint32_t n_rows, n_rows_left;
	uint32_t n_rows_started;    /* of a step: these have or had a slot */
	uint32_t n_rows_unlaunched; /* whose last token has not been launched */
	struct request_row *rows;   /* [max_requests] */
	bool want_tokens, want_logits, want_hidden; /* of each row's last position */
	bool want_scores;                           /* log-probabilities of the rows' own tokens */
	bool all_logits, all_hidden, mean_hidden;   /* of all positions of the rows */
	uint32_t n_top;      /* entries of logprobs and scores beside a token's own */
	int32_t *out_tokens; /* in the region's arena: written, never read */
	float *out_logits, *out_hidden;
	struct mimeo_logprob *out_logprobs, *out_scores; /* [tokens, 1 + n_top] */
	struct request_place logits, hidden; /* in place of out_logits and out_hidden */
	struct request_place embeddings;     /* [tokens of all rows, hidden] act, in place of ids' */
	uint32_t n_places;                   /* how many of these three it has */
	uint64_t last_launch;                /* the last launched step that names them */
	struct event *fence;                 /* to record behind the last row; NULL: none */
	uint32_t n_last; /* of a step: tokens of the last row's sequence when that row ended */
	struct {
		int status;
		unsigned finish;
		uint32_t n_sequence;
		struct msg_detail detail;
	} end; /* how it ended */
	struct request *prev, *next; /* in session.waiting; in accounting.ending */
};

/* Does it want results of more positions than each row's last? Then all its own tokens are to be computed. */
static inline bool request_wants_positions(const struct request *request)
{
	return request->want_scores || request->all_logits || request->all_hidden || request->mean_hidden;
}

#endif
