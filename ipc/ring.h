/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_RING_H
#define MIMEO_IPC_RING_H

/*
 * Two SPSC rings in one shared region: submissions from client to daemon, completions back; and a cancel word
 * for each request index.
 *
 * Indices are 32-bit and run freely; an entry's place is index & (length - 1). Each side reads its
 * own index relaxed (it keeps a private copy and never reads back what it shared), the peer's with
 * acquire, and publishes with release.
 *
 * The last word of an entry is its STAMP, a number made of its index, stored with release when the
 * entry is published. A consumer that is awake reads the stamp, so that a message between two spinning
 * sides moves one cache line. The tail repeats the information in one word for sleeping. A side that
 * goes to sleep and a side that publishes each store one word and load another, for which acquire and
 * release do not suffice:
 *
 *	sleeper:   store NEED_WAKEUP (seq_cst), load the tail (seq_cst), then wait if the next
 *	           entry has no stamp
 *	publisher: store the stamps (release), exchange the tail (seq_cst), load NEED_WAKEUP
 *	           (seq_cst), then ring if it is set
 *
 * In the single order of the operations on tail and flag one of the two loads comes last and sees the
 * other's store: the sleeper sees the tail, and so the stamps, or the publisher sees the flag. They are
 * operations, not fences, so that ThreadSanitizer sees them.
 *
 * The peer is untrusted: its index is read once, and an impossible one is -EPROTO; entries are copied
 * out before they are checked; with forged stamps a client makes the daemon take at most `entries` entries
 * before a release. A tail may lag behind the stamps between two stores of the publisher.
 *
 * A CANCEL WORD is 0, or the generation of its request index that is to be cancelled. The client writes it and
 * then counts the cancel, the daemon reads all words when the count has changed, and one as it takes an entry.
 * So a cancel needs no place in a ring, and takes effect whatever the rings hold. The count is to sleeping what a
 * tail is: exchanged by the publisher, and loaded by the daemon after it has stored NEED_WAKEUP.
 *
 * Control page (one writer a cache line; lines of 64 bytes):
 *
 *	line 0  daemon, once   magic, version, entries, sizes and offsets of what follows
 *	line 1  client         submission tail
 *	line 2  daemon         submission head
 *	line 3  daemon         daemon's NEED_WAKEUP
 *	line 4  daemon         completion tail
 *	line 5  client         completion head
 *	line 6  client         client's NEED_WAKEUP
 *	line 7  client         count of cancels
 *	...     zero to the page's end
 *	page 1  submission entries, completion entries, cancel words, then from a page edge the arena
 */

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#define RING_MAGIC 0x6f656d696dULL /* "mimeo" */
#define RING_VERSION 2u
#define RING_ENTRIES_MIN 2u
#define RING_ENTRIES_MAX 4096u
/* The completion ring is twice as long: one entry for the final completion of each request in
 * flight, and as many for progress. */
#define RING_CQ_ENTRIES(entries) (2 * (entries))

enum ring_op {
	RING_OP_GENERATE = 1,
	RING_OP_STEP = 2,
	RING_OP_CANCEL = 3,    /* argument: request index, generation2: its generation */
	RING_OP_OPEN = 4,      /* sequence: new id, argument: model index */
	RING_OP_FORK = 5,      /* sequence: parent, argument: child's new id */
	RING_OP_TRUNCATE = 6,  /* sequence, argument: tokens to keep */
	RING_OP_CLOSE = 7,     /* sequence */
	RING_OP_NOP = 8,       /* completes at once: what the ring alone costs */
	RING_OP_LENGTH = 9,    /* sequence: the final completion has its length */
};

/* Submission entry. Offsets count from the arena's start, lengths are bytes. */
struct ring_sqe {
	uint64_t user_data;
	uint32_t request; /* the client's request index, below `entries`; not in flight already */
	uint32_t generation; /* of that index; free-running */
	uint16_t op;         /* enum ring_op */
	uint16_t flags;      /* 0 */
	uint32_t sequence;   /* session-local id, 1 ... max_sequences */
	union {
		struct {
			uint32_t argument; /* see enum ring_op */
			uint32_t generation2;
		};
		uint64_t submitted_ns; /* GENERATE, STEP: CLOCK_MONOTONIC; deadlines count from it; 0: from
		                          when the daemon reads the entry */
	};
	uint32_t header_offset, header_length;   /* msgpack, GENERATE and STEP */
	uint32_t payload_offset, payload_length; /* tokens (layout: ipc/msg.h) */
	uint32_t output_offset, output_length;   /* written by the daemon (struct msg_output) */
	uint32_t reserved;                       /* 0 */
	_Atomic uint32_t stamp;                  /* ring.c's */
};

enum ring_cqe_kind {
	RING_CQE_TOKENS = 1, /* progress; n_generated tokens are in the output area */
	RING_CQE_FINAL = 2,
	/* progress; the request's fence has been recorded behind all of its work: wait for it now.
	 * If the ring has no space for progress, only the final one comes. */
	RING_CQE_RECORDED = 3,
};

/* What an error is about; values[] as listed. */
enum ring_detail {
	RING_DETAIL_NONE = 0,
	RING_DETAIL_TOKEN = 1,        /* [index, token, vocabulary] */
	RING_DETAIL_LENGTH = 2,       /* [tokens asked in all, most possible] */
	RING_DETAIL_EMPTY = 3,        /* no tokens, or no rows */
	RING_DETAIL_MODEL = 4,        /* [id, ids of models that the session knows are below] */
	RING_DETAIL_SEQUENCE = 5,     /* [id] */
	RING_DETAIL_HEADER = 6,       /* [byte offset] header is not what msg.h says */
	RING_DETAIL_RANGE = 7,        /* [enum msg_field; for mask numbers also value, kind] a header field is refused */
	RING_DETAIL_EXTENT = 8,       /* [offset, length, arena] does not lie in the arena */
	RING_DETAIL_OUTPUT = 9,       /* [bytes given, bytes needed] */
	RING_DETAIL_OP = 10,          /* [op] unknown */
	RING_DETAIL_PAGES = 11,       /* [pages needed, pages free] */
	RING_DETAIL_KEEP = 12,        /* [tokens to keep, tokens there are] truncate */
	RING_DETAIL_OPEN_TWICE = 13,  /* [id] the sequence id is in use */
	RING_DETAIL_ROW_TWICE = 14,   /* [row, id] a step names a sequence twice */
	RING_DETAIL_ROW_MODEL = 15,   /* [row, id] a sequence of another model */
	RING_DETAIL_PAYLOAD = 16,     /* [bytes given, bytes needed] */
	RING_DETAIL_REQUESTS = 17,    /* [rows asked, most possible] */
	RING_DETAIL_BUFFER = 18,      /* [id] no such device buffer is open */
	RING_DETAIL_BUFFER_RANGE = 19, /* [id, offset, bytes needed, bytes of the buffer] */
	RING_DETAIL_BUFFER_OFFSET = 20, /* [id, offset, what it has to be a multiple of] */
	RING_DETAIL_FENCE = 21,       /* [request index] it has no fence */
	RING_DETAIL_MASK = 22,        /* [mask, 12 bytes: name of the model's attention backend, which
	                                 knows causal alone] */
	RING_DETAIL_MASK_TOKENS = 23, /* [row, tokens under its mask, most possible, mask] */
	RING_DETAIL_DEADLINE = 24,    /* [enum msg_field, milliseconds] which deadline passed */
	RING_DETAIL_DETERMINISTIC = 25, /* the model is not */
	RING_DETAIL_PAYLOAD_MOST = 26, /* [bytes given, most possible] */
	RING_DETAIL_BUDGET = 27,      /* [enum ring_budget, asked for, left] */
	RING_DETAIL_BIAS = 28,        /* [entry, token, vocabulary] its number is out of range, or it does not come
	                                 behind the entry before */
	RING_DETAIL_ALLOWED = 29,     /* [words of the token mask, words that the vocabulary has] */
	RING_DETAIL_NO_TOKEN = 30,    /* no token is allowed */
	RING_DETAIL_CONTINUE = 31,    /* [id, reason] n_tokens is 0, and the sequence is empty (reason 0), or its last
	                                 token cannot be computed once more: it came as an embedding, or its mask
	                                 is gone (1) */
	RING_DETAIL_POSITIONS = 32,   /* [row, tokens, most possible] too many results for an event, of tokens that
	                                 one step must compute */
	RING_DETAIL_HEAD = 33,        /* the model has no head: no tokens, logits or log-probabilities */
	RING_DETAIL_OPERATOR = 34,    /* an operator cancelled it */
	RING_DETAIL_DRAIN = 35,       /* the drain timeout ended it */
	RING_DETAIL_UNLOADED = 36,    /* [id] an operator unloaded the model; of the sequence's model 0 */
};

/* Of what a user or a session may have a limited amount. */
enum ring_budget {
	RING_BUDGET_SEQUENCES = 1, /* open sequences of the session */
	RING_BUDGET_PAGES = 2,     /* KV pages of sequences that cannot be evicted, of the user */
};

/* Completion entry. */
struct ring_cqe {
	uint64_t user_data;
	uint32_t request;
	uint32_t generation;
	int32_t status; /* 0, or a negative enum mimeo_status */
	uint8_t kind;   /* enum ring_cqe_kind */
	uint8_t finish; /* enum mimeo_finish */
	uint16_t detail; /* enum ring_detail */
	uint32_t n_prompt;
	uint32_t n_generated;
	int32_t values[4];
	uint32_t n_cached;   /* final: leading tokens of its sequences that the prefix cache had */
	uint32_t n_sequence; /* final: tokens of its sequence; of a step: of its last row's */
	uint32_t reserved;
	_Atomic uint32_t stamp; /* ring.c's */
};

struct ring_control {
	/* line 0: written once by the daemon, before the client sees the region */
	alignas(64) uint64_t magic;
	uint32_t version;
	uint32_t entries;
	uint64_t region_bytes;
	uint64_t sqe_offset, cqe_offset, arena_offset, arena_bytes, cancel_offset;
	/* line 1 */ alignas(64) _Atomic uint32_t sq_tail;
	/* line 2 */ alignas(64) _Atomic uint32_t sq_head;
	/* line 3 */ alignas(64) _Atomic uint32_t daemon_need_wakeup;
	/* line 4 */ alignas(64) _Atomic uint32_t cq_tail;
	/* line 5 */ alignas(64) _Atomic uint32_t cq_head;
	/* line 6 */ alignas(64) _Atomic uint32_t client_need_wakeup;
	/* line 7 */ alignas(64) _Atomic uint32_t n_cancels;
};

_Static_assert(sizeof(struct ring_sqe) == 64, "a submission entry is one cache line");
_Static_assert(sizeof(struct ring_cqe) == 64, "a completion entry is one cache line");
_Static_assert(offsetof(struct ring_sqe, submitted_ns) == 24, "no padding");
_Static_assert(offsetof(struct ring_sqe, stamp) == 60, "the stamp is the last word");
_Static_assert(offsetof(struct ring_cqe, stamp) == 60, "the stamp is the last word");
_Static_assert(sizeof(struct ring_control) == 8 * 64, "the control block is eight cache lines");
_Static_assert(offsetof(struct ring_control, sq_tail) == 64, "line 1");
_Static_assert(offsetof(struct ring_control, sq_head) == 128, "line 2");
_Static_assert(offsetof(struct ring_control, daemon_need_wakeup) == 192, "line 3");
_Static_assert(offsetof(struct ring_control, cq_tail) == 256, "line 4");
_Static_assert(offsetof(struct ring_control, cq_head) == 320, "line 5");
_Static_assert(offsetof(struct ring_control, client_need_wakeup) == 384, "line 6");
_Static_assert(offsetof(struct ring_control, n_cancels) == 448, "line 7");

/*
 * One side's view. Private memory: sizes are copies, never read back from the region.
 * sq_seen and cq_seen hold the peer's head as last read: a producer reads it again only when its
 * copy leaves too little space.
 */
struct ring {
	struct ring_control *control;
	struct ring_sqe *sqes;
	struct ring_cqe *cqes;
	_Atomic uint32_t *cancels; /* [entries] by request index */
	uint32_t entries;
	uint32_t sq_index; /* client: private tail; daemon: private head */
	uint32_t sq_published;
	uint32_t sq_seen; /* client */
	uint32_t cq_index; /* client: private head; daemon: private tail */
	uint32_t cq_published;
	uint32_t cq_seen; /* daemon */
	uint32_t n_cancels; /* client: counted; daemon: seen */
};

/* ---- daemon's side ---- */

/* Copy out the next submission, its index in the place of the stamp: true and *ret, or false if there is none, or
 * none that may be taken before a release. ring_sq_release publishes the head, by one store for a run of entries. */
bool ring_sq_pop(struct ring *ring, struct ring_sqe *ret);
void ring_sq_release(struct ring *ring);
/* 0, or -EPROTO if the tail is impossible, or ahead of the written entries. Call it only when idle: it reads
 * the client's cache line. */
int ring_sq_check(const struct ring *ring);
/* Free completion entries, or -EPROTO if the client's head jumped. Reads the client's head. */
int ring_cq_space(struct ring *ring);
/* Whether there is space for n completions: 1, 0, or -EPROTO. Reads the client's head only if the last
 * value read leaves too little. */
int ring_cq_fits(struct ring *ring, uint32_t n);
/* Write a completion, for which ring_cq_space or ring_cq_fits found space; the client sees it on
 * publish. */
void ring_cq_push(struct ring *ring, const struct ring_cqe *cqe);
/* Publish what was pushed. True if the client sleeps and its doorbell must be rung. */
bool ring_cq_publish(struct ring *ring);
/* Announce sleep; true if submissions wait already: then do not sleep, and call ring_daemon_awake. Call
 * ring_sq_release before. */
bool ring_daemon_sleep(struct ring *ring);
void ring_daemon_awake(struct ring *ring);

/* Have cancels been counted since ring_cancels_begin? For a sleeper: call it after ring_daemon_sleep. */
bool ring_cancels_wait(const struct ring *ring);
/* The words that were written by now are read next. */
void ring_cancels_begin(struct ring *ring);
/* The index's cancel word. request: below `entries`. */
uint32_t ring_cancel_word(const struct ring *ring, uint32_t request);

/* ---- client's side ---- */

/* Write a submission: 1, 0 if the ring is full, -EPROTO if it is and the daemon's head jumped; seen
 * by the daemon on publish. */
int ring_sq_push(struct ring *ring, const struct ring_sqe *sqe);
/* Have that generation of a request index cancelled, when the daemon has its entry. True if the daemon sleeps and
 * its doorbell must be rung. */
bool ring_cancel(struct ring *ring, uint32_t request, uint32_t generation);
/* The request has ended: its index is used again. */
void ring_cancel_clear(struct ring *ring, uint32_t request);
/* Publish what was pushed. True if the daemon sleeps and its doorbell must be rung. */
bool ring_sq_publish(struct ring *ring, uint32_t *ret_count);
/* Copy out the next completion without taking it: true and *ret, or false if there is none. */
bool ring_cq_peek(const struct ring *ring, struct ring_cqe *ret);
void ring_cq_advance(struct ring *ring);
/* As ring_sq_check. */
int ring_cq_check(const struct ring *ring);
/* Announce sleep; true if completions wait already. */
bool ring_client_sleep(struct ring *ring);
void ring_client_awake(struct ring *ring);

#endif
