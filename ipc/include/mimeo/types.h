/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TYPES_H
#define MIMEO_TYPES_H

/*
 * Types and constants that clients and the daemon share: part of <mimeo/mimeo.h>, and what the wire
 * code encodes and decodes.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MIMEO_PUBLIC __attribute__((visibility("default")))
#else
#define MIMEO_PUBLIC
#endif

/* ---- statuses, grouped by what they cost ---- */

enum mimeo_status {
	MIMEO_OK = 0,

	/* one request: -1 ... -99 */
	MIMEO_E_FULL = -1,             /* no space in the ring or the arena */
	MIMEO_E_INVALID = -2,          /* an argument is out of range */
	MIMEO_E_DEADLINE = -3,         /* the request's deadline passed */
	MIMEO_E_CANCELLED = -4,        /* the request was cancelled */
	MIMEO_E_TOO_LONG = -5,         /* more tokens than the model or its KV cache can hold */
	MIMEO_E_NO_MEMORY = -6,        /* no KV pages (step), or no memory in this process */
	MIMEO_E_UNKNOWN_MODEL = -7,    /* no model of that name or index */
	MIMEO_E_UNKNOWN_SEQUENCE = -8, /* the sequence is not open in this session */
	MIMEO_E_UNKNOWN_REQUEST = -9,  /* the request to cancel is not in flight */
	MIMEO_E_UNSUPPORTED = -10,     /* this daemon or model cannot do that */
	MIMEO_E_UNKNOWN_BUFFER = -11,  /* the device buffer is not open in this session */
	MIMEO_E_DENIED = -12,          /* the daemon's configuration does not allow that */
	MIMEO_E_NOT_FINITE = -13,      /* NaN or infinity in the logits: there is no token */
	MIMEO_E_NO_TOKEN = -14,        /* bans and mask leave no token that the model can give */

	/* this session: -100 ... -199 */
	MIMEO_E_GONE = -100,     /* the daemon died or closed the session */
	MIMEO_E_QUOTA = -101,    /* a limit of this user's is reached */
	MIMEO_E_PROTOCOL = -102, /* bytes that are not Mimeo's protocol */

	/* the daemon: -200 ... -299 */
	MIMEO_E_UNREACHABLE = -200, /* no daemon listens on the socket */
	MIMEO_E_VERSION = -201,     /* client and daemon speak different versions */
	MIMEO_E_DEVICE_LOST = -202, /* the device failed; the daemon restarts */
	MIMEO_E_DRAINING = -203,    /* the daemon takes no new work */
};

/* Name of a status, e.g. "MIMEO_E_FULL"; "MIMEO_E_?" for an unknown one. Static storage. */
MIMEO_PUBLIC const char *mimeo_status_name(int status);
/* One sentence for a status, lower case, without a full stop. Static storage. */
MIMEO_PUBLIC const char *mimeo_strerror(int status);

/* ---- masks: which tokens of its sequence a token attends to ---- */

/*
 * Masks need a model that the daemon serves with an attention backend that has masks
 * (`--attention flex`); other models refuse a request with a mask other than DEFAULT (UNSUPPORTED).
 * A mask applies to the tokens that its request computes, generated ones included, and decides which
 * tokens of the sequence they see. A token always sees itself. A model's own sliding windows apply in
 * addition to any mask, counted in the order of the sequence.
 */
enum mimeo_mask_kind {
	MIMEO_MASK_DEFAULT = 0,   /* the model's: all tokens before it, or what mimeod --mask says */
	MIMEO_MASK_WINDOW = 1,    /* causal, but only the last `window` tokens, itself included, and
	                             the first `sinks` tokens of the sequence */
	MIMEO_MASK_PREFIX = 2,    /* causal, but the first `prefix` tokens of the request (of each of
	                             its rows) see one another in both directions. They are
	                             computed in one step: more than the daemon's
	                             max_batch_tokens are refused (TOO_LONG) */
	MIMEO_MASK_DOCUMENTS = 3, /* causal, and within its document only. Adjacent tokens with the
	                             same word belong to one document; a row begins a new one;
	                             generated tokens belong to the last one */
	MIMEO_MASK_TREE = 4,      /* steps only, rows of at most MIMEO_TREE_MAX tokens: a token sees
	                             all earlier tokens of the sequence, and token i of its row if
	                             bit i of its word is set; only bits of tokens before it count.
	                             Its position is that of the row's first token plus the number
	                             of the row's tokens before it that it sees. Results are those
	                             of the last token. Tokens appended later follow all of the
	                             row's tokens and see all of them: truncate first */
};
#define MIMEO_TREE_MAX 64

struct mimeo_mask {
	uint32_t kind;   /* enum mimeo_mask_kind */
	uint32_t window; /* WINDOW: 1 ...; else 0 */
	uint32_t sinks;  /* WINDOW: 0 ...; else 0 */
	uint32_t prefix; /* PREFIX: 1 ... the tokens of each row; else 0 */
	const uint64_t *words; /* DOCUMENTS and TREE: [tokens of the request], row after row; copied
	                          by the prepare call; else NULL */
};

/* ---- adjustment of logits, log-probabilities ---- */

#define MIMEO_BIAS_MAX 1024       /* entries of a request's list */
#define MIMEO_BIAS_RANGE 100      /* of a finite bias: -100 ... 100 */
#define MIMEO_PENALTY_RANGE 2     /* of presence and frequency: -2 ... 2 */
#define MIMEO_TOP_LOGPROBS_MAX 20

struct mimeo_bias {
	int32_t token;
	float bias; /* added to the token's logit; -INFINITY: the token is banned */
};

/* A token and the natural logarithm of its probability: the softmax of the model's own logits, before
 * bias, penalties, bans, temperature and filters. */
struct mimeo_logprob {
	int32_t token; /* -1: none, and the logarithm is NaN */
	float logprob;
};

/* ---- models ---- */

#define MIMEO_NAME_MAX 64
#define MIMEO_STOP_MAX 8

struct mimeo_sampling {
	float temperature; /* 0: greedy; else > 0, applied first */
	float top_p;       /* (0, 1]; 0 or 1: off */
	float min_p;       /* [0, 1]; 0: off */
	uint32_t top_k;    /* 0: off */
	uint64_t seed;     /* used if MIMEO_SAMPLING_SEEDED */
	uint32_t flags;    /* MIMEO_SAMPLING_... */
	uint32_t reserved; /* 0 */
};

#define MIMEO_SAMPLING_SEEDED 1u /* draw from `seed`; without it the daemon picks a seed */
#define MIMEO_SAMPLING_MODEL 2u  /* the model's own defaults; all else but the seed is ignored */

/* Owned by the library and seen by pointer only: later versions add fields at its end. */
struct mimeo_model_info {
	char name[MIMEO_NAME_MAX];
	uint32_t vocab_size;
	uint32_t hidden_size;
	uint32_t max_seq_len; /* tokens a sequence may have, prompt and output together */
	uint32_t n_eos;       /* end-of-sequence ids in eos[] */
	int32_t eos[MIMEO_STOP_MAX];
	int32_t bos; /* begin-of-sequence id, or -1 */
	uint32_t page_tokens;
	struct mimeo_sampling sampling; /* from generation_config.json; greedy if it has none */
	uint32_t activation; /* enum mimeo_activation: the type of embeddings */
	uint32_t masks;      /* 1: requests may have masks; 0: they are refused */
	/* For requests without a mask (`mimeod --mask`): DEFAULT is causal here, and PREFIX has the
	 * prefix UINT32_MAX, all tokens of each row. */
	struct mimeo_mask mask;
	uint32_t max_batch_tokens; /* of a step, for all its rows together: the longest prefix */
	uint32_t draft_tokens; /* draft tokens in a step, 1 ... MIMEO_DRAFT_MAX; 0: no draft model */
	uint32_t deterministic; /* 1: results do not depend, in any bit, on what else runs; 0: requests
	                           that ask for it are refused */
	uint32_t max_rows; /* the most rows of a step request */
};

enum mimeo_activation {
	MIMEO_ACTIVATION_F32 = 0,
	MIMEO_ACTIVATION_BF16 = 1,
	MIMEO_ACTIVATION_F16 = 2,
};

/*
 * The files that make text of a model's tokens, as read-only descriptors; -1: the model has no such file. To be read
 * with pread(2) or a private mapping: other processes may share the file offset.
 */
struct mimeo_model_files {
	size_t size;       /* sizeof(struct mimeo_model_files); set by MIMEO_MODEL_FILES_INIT */
	int tokenizer;     /* tokenizer.json */
	int config;        /* tokenizer_config.json */
	int chat_template; /* chat_template.jinja; if it is there, config's template is ignored */
	int reserved;      /* -1 */
};
#define MIMEO_MODEL_FILES_INIT                                                                     \
	{                                                                                          \
		sizeof(struct mimeo_model_files), -1, -1, -1, -1                                   \
	}

/* ---- device buffers ---- */

enum mimeo_handle_kind {
	MIMEO_HANDLE_DEFAULT = 0,  /* to allocate: the kind with a descriptor that the device has */
	MIMEO_HANDLE_MEMFD = 1,    /* descriptor of host memory, on the cpu device */
	MIMEO_HANDLE_VMM_FD = 2,   /* descriptor of an allocation by cuMemCreate */
	MIMEO_HANDLE_CUDA_IPC = 3, /* cudaIpcMemHandle_t or cudaIpcEventHandle_t, no descriptor */
};

/* Names memory or an event of the device for another process. The library does not interpret it:
 * <mimeo/mimeo-cuda.h> makes device pointers and events of it. */
struct mimeo_handle {
	size_t size;        /* sizeof(struct mimeo_handle); set by MIMEO_HANDLE_INIT */
	uint32_t kind;      /* enum mimeo_handle_kind */
	int32_t fd;         /* descriptor, or -1 if the kind has none */
	uint8_t uuid[16];   /* of the device; zero for MEMFD */
	uint64_t bytes;     /* of the buffer */
	uint64_t offset;    /* bytes from the start of the allocation that it names; a multiple of
			       MIMEO_PLACE_ALIGN */
	uint8_t opaque[64]; /* CUDA_IPC: the driver's handle; else zero */
};
#define MIMEO_HANDLE_INIT                                                                          \
	{                                                                                          \
		sizeof(struct mimeo_handle), 0, -1, {0}, 0, 0, {0}                                 \
	}

/* A place in a device buffer. Offsets are multiples of MIMEO_PLACE_ALIGN. */
struct mimeo_place {
	uint32_t buffer;   /* 0: none */
	uint32_t reserved; /* 0 */
	uint64_t offset;   /* bytes from the buffer's start */
};
#define MIMEO_PLACE_ALIGN 64

/* ---- classes of requests ---- */

/*
 * Which requests come first. A class moves work within a user's share; it does not enlarge that share:
 *
 *	INTERACTIVE   before other requests of the same user
 *	NORMAL
 *	BATCH         behind the others of all users, and preempted first; but one of 16 slots is for BATCH
 *	              requests, with the rights of NORMAL ones
 */
enum mimeo_class {
	MIMEO_CLASS_NORMAL = 0,
	MIMEO_CLASS_INTERACTIVE = 1,
	MIMEO_CLASS_BATCH = 2,
};

/* ---- flags of requests ---- */

/* struct mimeo_generate: flags */
#define MIMEO_GENERATE_IGNORE_EOS 1u    /* ended only by `stop`, the limit and cancel */
#define MIMEO_GENERATE_PROMPT_LOGITS 2u /* the final event carries the logits of the last prompt
                                           position, [1, vocab_size], before temperature
                                           and behind bias, penalties and bans */
#define MIMEO_GENERATE_FENCE 4u         /* as MIMEO_STEP_FENCE, when the prompt is computed */
#define MIMEO_GENERATE_DETERMINISTIC 8u /* refused unless the model is deterministic */
#define MIMEO_GENERATE_LOGPROBS 16u     /* log-probabilities of generated tokens */
#define MIMEO_GENERATE_PROMPT_LOGPROBS 32u /* the same of the request's own tokens, all but the first */

/* struct mimeo_generate: draft_tokens */
#define MIMEO_DRAFT_MAX 8u
#define MIMEO_DRAFT_NONE 0xffffffffu

/* struct mimeo_step: outputs */
#define MIMEO_STEP_TOKENS 1u /* the token sampled after each row; not appended to the sequence */
#define MIMEO_STEP_LOGITS 2u /* logits of each row's last position, [n_rows, vocab_size] float32 */
#define MIMEO_STEP_HIDDEN 4u /* hidden state after the final norm, [n_rows, hidden_size] float32 */
#define MIMEO_STEP_LOGPROBS 8u /* log-probabilities of each row's tokens, all but its first */
/* In place of LOGITS and HIDDEN, which are of each row's last position: */
#define MIMEO_STEP_ALL_LOGITS 16u  /* logits of all positions, [n_positions, vocab_size] float32 */
#define MIMEO_STEP_ALL_HIDDEN 32u  /* hidden states of all, [n_positions, hidden_size] float32 */
#define MIMEO_STEP_MEAN_HIDDEN 64u /* the mean of each row's hidden states, [n_rows, hidden_size] */

/* struct mimeo_step: flags */
#define MIMEO_STEP_FENCE 1u  /* record the request's fence behind all of its work, and send
				MIMEO_EVENT_RECORDED; mimeo_request_fence comes first */
#define MIMEO_STEP_DETERMINISTIC 2u /* refused unless the model is deterministic */

/* ---- how a generate request ended ---- */

enum mimeo_finish {
	MIMEO_FINISH_NONE = 0, /* not a final event, or not a generate request */
	MIMEO_FINISH_STOP = 1, /* an end-of-sequence or stop id, which is the last token */
	MIMEO_FINISH_LENGTH = 2,
	MIMEO_FINISH_CANCELLED = 3,
	MIMEO_FINISH_ERROR = 4, /* `status` says which */
};

#ifdef __cplusplus
}
#endif

#endif
