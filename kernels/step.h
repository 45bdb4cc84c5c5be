/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_STEP_H
#define MIMEO_KERNELS_STEP_H

/*
 * A step's record, which the host writes, and the persistent inputs, which graphs read.
 * T: tokens, R: rows; "act": device_info's activation_dtype (kernels/ops.h).
 */

#include "kernels/device.h"

#define ROW_FROM_SLOT 1u /* the row's one id is its slot's last token, not the record's */
#define ROW_SAMPLE 2u    /* sample from the row's last token; the result becomes the slot's last token */
#define ROW_TREE 4u      /* tokens from position `tree` on form a tree; mask_words name ancestors */
#define ROW_VERIFY 8u    /* its ids are the slot's last token and drafts; ignored if max_drafts is 0 */
#define ROW_ADJUST 16u   /* with ROW_SAMPLE: op_adjust changes its logits as slot_adjust says */
#define ROW_COUNT 32u    /* with ROW_SAMPLE: its new tokens are counted in slot_counts */
#define ROW_LOGPROBS 64u /* with ROW_SAMPLE: row_logprobs gets the log-probabilities of its tokens */

struct step_row {
	int32_t slot;        /* persistent slot, or -1: an empty row, which writes nothing */
	uint32_t flags;      /* ROW_... */
	uint32_t n_tokens;   /* its query length, 0 ... */
	uint32_t start;      /* position of its first token; rows that begin at slot_length ignore it */
	/* Embeddings in place of ids, [n_tokens - n_ids, hidden] act on the device, or NULL: none. To
	 * stay until the step has completed. None where ROW_FROM_SLOT or ROW_VERIFY. */
	const void *embeddings;
	uint32_t n_ids;      /* leading tokens that still use ids if `embeddings` is set */
	uint32_t tree;       /* ROW_TREE: position where it begins */
	const uint64_t *words; /* [n_tokens] for the slot's mask, in the record slot; NULL: all 0 */
	int32_t next_id;     /* speculation: the id behind the row's last, if it is known; else -1 */
	/* Entries [page_first, page_first + n_pages) of its slot's block table, as far as it goes,
	 * become step_record.pages[page_offset ...], for this row and for later steps. 0 pages where
	 * the slot has an init in the same step, which has all. */
	uint32_t page_first, n_pages, page_offset;
};

/*
 * What a sequence's tokens see, for attention backends that read it; the others know causal alone.
 * A token sees itself whatever the mask says. Positions count from the sequence's first token; a
 * layer's own window holds beside any of these.
 */
enum mask_kind {
	MASK_CAUSAL = 0,    /* itself and all before it */
	MASK_WINDOW = 1,    /* of those the last `window`, itself included, and the sinks [0, end) */
	MASK_PREFIX = 2,    /* causal, but a token of [begin, end) sees all up to `end` */
	MASK_DOCUMENTS = 3, /* causal from its document's first position, given by its mask word */
	/* from `begin` on: all before `begin`, and begin + i if bit i of its mask word is set */
	MASK_TREE = 4,
};
#define MASK_KINDS 5u
#define MASK_TREE_MAX 64u /* tokens of a tree */

struct slot_mask {
	uint32_t kind; /* enum mask_kind */
	uint32_t window;
	uint32_t begin, end;
};

struct slot_sampling {
	float temperature, top_p, min_p; /* temperature 0: greedy; top_p 1, min_p 0: off */
	uint32_t top_k;                  /* 0: off */
	uint64_t seed;
};

/* ---- adjustment of logits, log-probabilities ---- */

#define SLOT_BIAS_MAX 1024u
#define SLOT_ENDS_MAX 16u
#define LOGPROBS_TOP_MAX 20u
#define LOGPROBS_WIDTH (1 + LOGPROBS_TOP_MAX)

/* A token's entry in slot_counts. */
#define COUNT_PROMPT 0x8000u /* it is among those that count for the repetition penalty alone */
#define COUNT_MAX 0x3fffu    /* how often it is among the output; more are not counted */

struct token_bias {
	int32_t token;
	float bias; /* finite, or -infinity: banned */
};

struct token_logprob {
	int32_t token; /* -1: none */
	float logprob;
};

/* How the logits of a slot's rows become what they are sampled from: op_adjust. */
struct slot_adjust {
	float repetition, presence, frequency; /* 1, 0, 0: off; repetition > 0 */
	uint32_t n_bias;       /* of slot_bias */
	uint32_t masked;       /* tokens whose bit in slot_allowed is 0 are banned */
	uint32_t n_top;        /* ROW_LOGPROBS: 0 ... LOGPROBS_TOP_MAX */
	uint32_t min_position; /* tokens at positions before it may not be any of `ends` */
	uint32_t n_ends;
	int32_t ends[SLOT_ENDS_MAX];
};

/* 32-bit words of a token mask, bit i % 32 of word i / 32 being token i's; and entries between the slots of
 * slot_counts. Macros, because device code uses them, too. */
#define TOKEN_WORDS(vocab_size) ((vocab_size) / 32u + ((vocab_size) % 32u != 0))
#define COUNTS_STRIDE(vocab_size) (32u * TOKEN_WORDS(vocab_size))

/* ---- the record ---- */

/* Sets a slot up for a new request, before the step's rows are expanded. */
struct slot_init {
	int32_t slot;
	uint32_t n_pages;     /* leading entries of the slot's block table */
	uint32_t page_offset; /* where they begin in step_record.pages */
	uint32_t n_drafts;    /* drafts that its steps may have, 0 ... step_inputs.max_drafts */
	struct slot_sampling sampling;
	struct slot_mask mask;
};

/* One step as the host writes it into pinned memory. Pointers are into the same record slot, which
 * is not rewritten until the step has completed. */
struct step_record {
	uint32_t n_rows, n_tokens;               /* real: R, T */
	uint32_t padded_rows, padded_tokens;     /* what the graph will run: Rp, Tp */
	uint32_t n_inits;
	uint32_t last_only; /* speculation: no row verifies, and each has logits of its last token alone */
	const struct step_row *rows;             /* [n_rows] */
	const int32_t *ids;                      /* [n_tokens]; not read where the slot has them */
	const struct slot_init *inits;           /* [n_inits] */
	const uint32_t *pages;                   /* of inits and rows */
};

/* Entries [first, first + n_pages) of a slot's block table of a set of layers other than the first become
 * pages[page_offset ...] (op_set_tables). */
struct set_change {
	int32_t slot;
	uint32_t set, first, n_pages, page_offset;
};

/* Allocated once at (max_rows, max_tokens). Every step `prepare` rewrites the arrays of rows and
 * tokens whole, tails too, except block_table entries that nothing reads, and row_logprobs, which
 * adjust, sample and verify write. Arrays of slots keep their values. */
struct step_inputs {
	uint32_t max_rows, max_tokens, max_slots;
	uint32_t max_pages; /* row stride of both block tables; with drafts, see max_drafts */
	/* Sets of layers that have pages of their own (attention/kv_sets.h); 0 counts as 1. slot_mapping, block_table
	 * and slot_block_table have as many parts, one behind the other: below is what one has. prepare writes the
	 * first set's, set_tables the others', and the first's if it has a window: entries of pages that have left the
	 * window of a row's first token are 0. */
	uint32_t n_sets;
	uint32_t page_tokens;
	uint32_t vocab_size;
	uint32_t embedding_bytes; /* of a token: hidden act */
	int32_t *input_ids;      /* [max_tokens]; tail: any id in range (0) */
	const void **embedding_from; /* [max_tokens] or NULL: the id's; tail: NULL */
	int32_t *positions;      /* [max_tokens] to rotate by, in a tree by depth; tail: 0 */
	int32_t *slot_mapping;   /* [max_tokens] page * page_tokens + offset; from the real T: -1 */
	int32_t *query_start;    /* [max_rows + 1]; all past R: T */
	int32_t *seq_lens;       /* [max_rows] history + query; tail: 0 */
	int32_t *block_table;    /* [max_rows, max_pages] batch order; rows R ... Rp: 0. Covers seq_lens
	                            and K tokens more, which draft decodes read */
	int32_t *row_slot;       /* [max_rows]; tail: -1 */
	int32_t *row_flags;      /* [max_rows]; tail: 0 */
	int32_t *next_ids;       /* [max_rows] step_row's next_id; tail: -1; with max_drafts 0 NULL */
	int32_t *logit_index;    /* [max_rows, 1 + max_drafts] token index of the row's last token; of
	                            a row to verify, all its tokens'; if last_only [max_rows], one a
	                            row; tail, and what is left over: 0 */
	/* per slot */
	int32_t *slot_last_token;          /* [max_slots] */
	struct slot_sampling *slot_sampling; /* [max_slots] */
	int32_t *slot_block_table;         /* [max_slots, max_pages] */
	/* For masks; both NULL: no backend reads them. */
	struct slot_mask *slot_mask;       /* [max_slots] */
	uint64_t *mask_words;              /* [max_tokens]; tail: 0 */
	/*
	 * For speculation; max_drafts 0: none, and the pointers are NULL. The host does not know
	 * how many drafts a step that it has not read accepted: what a row of ROW_VERIFY or
	 * ROW_FROM_SLOT begins at is slot_length, and not step_row.start.
	 *
	 * Such a row may run past its slot's pages and past the longest sequence: by up to K tokens if
	 * its first token is within the sequence; by up to 2 K if a step that the host has not read has
	 * ended the sequence, and then its results are dropped. Attention takes a
	 * token's place from the end of its row, seq_lens, which is cut at max_pages: so max_pages
	 * has to hold K tokens more than the longest sequence, or first tokens, which are real,
	 * would be misplaced.
	 */
	uint32_t max_drafts;        /* K: a row to verify has 1 + K tokens; fewer: the first drafts */
	int32_t *slot_length;       /* [max_slots] tokens whose keys the target's cache holds */
	int32_t *slot_n_drafts;     /* [max_slots] as slot_init says */
	int32_t *slot_drafts;       /* [max_slots, K] for the next step to verify; -1: none */
	float *slot_draft_logits;   /* [max_slots, K, vocab_size] what they were drawn from, -inf: never;
	                               a greedy slot's are neither written nor read */
	/* For the adjustment of logits and for log-probabilities; all NULL: rows have neither. Those of
	 * slots are written by update_slots, and the counts by sample and verify, too. */
	struct slot_adjust *slot_adjust; /* [max_slots] */
	uint16_t *slot_counts;           /* [max_slots, COUNTS_STRIDE] the tokens up to the last sampled one */
	struct token_bias *slot_bias;    /* [max_slots, SLOT_BIAS_MAX] tokens ascending, each once */
	uint32_t *slot_allowed;          /* [max_slots, TOKEN_WORDS] */
	struct token_logprob *row_logprobs; /* [max_rows, 1 + max_drafts, LOGPROBS_WIDTH] a token of the row,
	                                       then the likeliest in its place, in falling order */
};

#endif
