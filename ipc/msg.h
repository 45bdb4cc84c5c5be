/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_MSG_H
#define MIMEO_IPC_MSG_H

/*
 * Message headers: structs to and from bounded msgpack.
 *
 * A header is a map from small integers (enum msg_field) to values; a field that is zero or empty is
 * left out, and an absent field is zero. Encoders and decoders apply the same checks of type and range.
 *
 * Encoding writes into the caller's buffer. Decoding takes three steps: wire_check (ipc/wire_check.h)
 * refuses bytes for which msgpack-c would reserve more memory than they can fill; msgpack-c unpacks
 * into the codec's preallocated zone, without malloc for a request; then fields are taken by key.
 * Unknown keys are refused. A decoder returns 0, or a negative status and in *ret_detail the reason:
 *
 *	RING_DETAIL_HEADER [byte offset]   not the msgpack that wire_check accepts, too long, or no map
 *	RING_DETAIL_RANGE [enum msg_field] an unknown or repeated field, a wrong type, or a value out of
 *	                                   range; 0 if the key is no field's number. For numbers of a
 *	                                   mask [field, value, kind of the mask]
 *	RING_DETAIL_EMPTY                  no tokens, or no rows
 *
 * Requests are refused with E_INVALID. A HELLO or WELCOME of another version is refused with
 * E_VERSION, whatever its other fields are, and values [MSG_VERSION, the peer's version]. Malformed ones
 * are E_PROTOCOL. A refused field is E_PROTOCOL in WELCOME, E_INVALID in HELLO.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#include "ipc/handle.h"
#include "ipc/ring.h"

#define MSG_HEADER_MAX 1024u       /* a request's header */
#define MSG_SOCKET_MAX (64u << 10) /* a message on a socket, behind its 4-byte length */
#define MSG_DEPTH_MAX 8
#define MSG_TEXT_MAX 256
#define MSG_HELLO_MAX 1024u /* a HELLO, behind its length; it has some 60 */
#define MSG_CALL_MAX 512u /* a call on a session's socket, behind its length */
#define MSG_PROTOCOL_VERSION 6u

/* Fields of all headers: X(constant, key, name). Keys of one message differ; gaps separate subjects. */
#define MSG_FIELDS(X)                                                                              \
	X(MODEL, 1, "model")                                                                       \
	X(SEQUENCE, 2, "sequence")                                                                 \
	X(MAX_TOKENS, 3, "max_tokens")                                                             \
	X(TEMPERATURE, 4, "temperature")                                                           \
	X(TOP_K, 5, "top_k")                                                                       \
	X(TOP_P, 6, "top_p")                                                                       \
	X(MIN_P, 7, "min_p")                                                                       \
	X(SEED, 8, "seed")                                                                         \
	X(SAMPLING_FLAGS, 9, "sampling_flags")                                                     \
	X(STOP, 10, "stop")                                                                        \
	X(FLAGS, 11, "flags")                                                                      \
	X(DEADLINE_MS, 12, "deadline_ms")                                                          \
	X(OUTPUTS, 13, "outputs")                                                                  \
	X(N_ROWS, 14, "n_rows")                                                                    \
	X(N_TOKENS, 15, "n_tokens")                                                                \
	X(LOGITS_BUFFER, 16, "logits_buffer")                                                      \
	X(LOGITS_OFFSET, 17, "logits_offset")                                                      \
	X(HIDDEN_BUFFER, 18, "hidden_buffer")                                                      \
	X(HIDDEN_OFFSET, 19, "hidden_offset")                                                      \
	X(EMBEDDINGS_BUFFER, 20, "embeddings_buffer")                                              \
	X(EMBEDDINGS_OFFSET, 21, "embeddings_offset")                                              \
	X(MASK, 22, "mask")                                                                        \
	X(MASK_WINDOW, 23, "mask_window")                                                          \
	X(MASK_SINKS, 24, "mask_sinks")                                                            \
	X(MASK_PREFIX, 25, "mask_prefix")                                                          \
	X(DRAFT_TOKENS, 26, "draft_tokens")                                                        \
	X(FIRST_TOKEN_MS, 27, "first_token_ms")                                                    \
	X(REQUEST_CLASS, 28, "request_class")                                                      \
	X(VERSION, 32, "version")                                                                  \
	X(FEATURES, 33, "features")                                                                \
	X(ENTRIES, 34, "entries")                                                                  \
	X(ARENA_BYTES, 35, "arena_bytes")                                                          \
	X(NAME, 36, "name")                                                                        \
	X(NONCE, 37, "nonce")                                                                      \
	X(MAX_SEQUENCES, 38, "max_sequences")                                                      \
	X(SESSION, 39, "session")                                                                  \
	X(MODELS, 40, "models")                                                                    \
	X(STATUS, 41, "status")                                                                    \
	X(TEXT, 42, "text")                                                                        \
	X(WAIT_MS, 43, "wait_ms")                                                                  \
	X(REPETITION_PENALTY, 48, "repetition_penalty")                                            \
	X(PRESENCE_PENALTY, 49, "presence_penalty")                                                \
	X(FREQUENCY_PENALTY, 50, "frequency_penalty")                                              \
	X(PENALTY_START, 51, "penalty_start")                                                      \
	X(N_BIAS, 52, "n_bias")                                                                    \
	X(N_ALLOWED, 53, "n_allowed")                                                              \
	X(MIN_TOKENS, 54, "min_tokens")                                                            \
	X(TOP_LOGPROBS, 55, "top_logprobs")                                                        \
	X(VOCAB_SIZE, 64, "vocab_size")                                                            \
	X(HIDDEN_SIZE, 65, "hidden_size")                                                          \
	X(MAX_SEQ_LEN, 66, "max_seq_len")                                                          \
	X(EOS, 67, "eos")                                                                          \
	X(BOS, 68, "bos")                                                                          \
	X(PAGE_TOKENS, 69, "page_tokens")                                                          \
	X(ACTIVATION, 70, "activation")                                                            \
	X(MASKS, 71, "masks")                                                                      \
	X(MAX_BATCH_TOKENS, 72, "max_batch_tokens")                                                \
	X(MODEL_IDS, 73, "model_ids")                                                              \
	X(DETERMINISTIC, 74, "deterministic")                                                      \
	X(MAX_ROWS, 75, "max_rows")                                                                \
	X(CALL, 96, "call")                                                                        \
	X(BUFFER, 97, "buffer")                                                                    \
	X(KIND, 98, "kind")                                                                        \
	X(BYTES, 99, "bytes")                                                                      \
	X(HANDLE, 100, "handle")                                                                   \
	X(REQUEST, 101, "request")                                                                 \
	X(FILES, 102, "files")

#define MSG_FIELD_CONSTANT(constant, key, name) MSG_##constant = (key),
enum msg_field { MSG_FIELDS(MSG_FIELD_CONSTANT) };
#undef MSG_FIELD_CONSTANT

/* "max_tokens" for MSG_MAX_TOKENS; "?" if unknown. */
const char *msg_field_name(unsigned field);

struct msg_detail {
	uint32_t detail; /* enum ring_detail */
	int32_t values[4];
};

/* "default", "window", "prefix", "documents", "tree"; "?" if unknown. */
const char *msg_mask_name(unsigned kind);

/* With DOCUMENTS or TREE the payload continues with a uint64 for each token of the request, aligned to 4
 * bytes only; the message does not use `mask.words`. */
static inline bool msg_mask_has_words(const struct mimeo_mask *mask)
{
	return mask->kind == MIMEO_MASK_DOCUMENTS || mask->kind == MIMEO_MASK_TREE;
}

/*
 * RING_OP_GENERATE. Payload: int32 tokens[n_tokens], the mask's words, struct mimeo_bias [n_bias], and
 * uint32 [n_allowed], bit i % 32 of word i / 32 for token i.
 */
struct msg_generate {
	uint32_t model, sequence, n_tokens, max_tokens;
	struct mimeo_sampling sampling;
	uint32_t n_stop;
	int32_t stop[MIMEO_STOP_MAX];
	uint32_t flags; /* MIMEO_GENERATE_... */
	uint32_t deadline_ms;
	struct mimeo_place logits; /* for the prompt's logits, in place of the output area */
	struct mimeo_mask mask;
	uint32_t draft_tokens;
	uint32_t first_token_ms;
	uint32_t request_class; /* enum mimeo_class */
	float repetition_penalty, presence_penalty, frequency_penalty;
	uint32_t penalty_start;
	uint32_t n_bias, n_allowed, min_tokens, top_logprobs;
};

/* RING_OP_STEP. Payload: struct msg_row rows[n_rows], then int32 tokens of row 0, of row 1, ... */
struct msg_step {
	uint32_t model, n_rows, outputs, deadline_ms;
	struct mimeo_sampling sampling;
	/* Results [n_rows, vocab or hidden] float32, in place of the output area; and the embeddings
	 * [tokens of all rows, hidden] of the model's activation type, in place of the ids'. */
	struct mimeo_place logits, hidden, embeddings;
	uint32_t flags; /* MIMEO_STEP_FENCE */
	struct mimeo_mask mask; /* of each row */
	uint32_t request_class; /* enum mimeo_class */
	uint32_t top_logprobs;
};
struct msg_row {
	uint32_t sequence, n_tokens;
};

/* Where results lie in a request's output area; each part starts on a multiple of 64 bytes. */
struct msg_output {
	uint64_t tokens, logits, hidden; /* byte offsets from the area's start */
	uint64_t bytes; /* of the whole area, a multiple of 64; UINT64_MAX: beyond any number */
	/* struct mimeo_logprob, 1 + top_logprobs a token: of generated tokens and of given ones */
	uint64_t logprobs, prompt_logprobs;
};
/* n_tokens int32, n_logits rows of vocab float32, n_hidden rows of hidden float32. */
struct msg_output msg_output_layout(
	uint64_t n_tokens, uint64_t n_logits, uint32_t vocab, uint64_t n_hidden, uint32_t hidden);
/* Append log-probabilities of so many generated and given tokens. */
void msg_output_add_logprobs(
	struct msg_output *output, uint64_t n_generated, uint64_t n_given, uint32_t top_logprobs);

/* 32-bit words of a token mask. */
static inline uint32_t msg_allowed_words(uint32_t vocab)
{
	return vocab / 32 + (vocab % 32 != 0);
}

/* 0, or E_INVALID with the detail: a bias out of range, a token outside the vocabulary, or one that does
 * not come behind that of the entry before. */
int msg_bias_check(
	const struct mimeo_bias *bias, uint32_t n, uint32_t vocab, struct msg_detail *ret_detail);

/* Kinds of results that a step gives: of each row, and of each position. */
#define MSG_STEP_LOGITS (MIMEO_STEP_LOGITS | MIMEO_STEP_ALL_LOGITS)
#define MSG_STEP_HIDDEN (MIMEO_STEP_HIDDEN | MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_MEAN_HIDDEN)

struct msg_hello {
	uint32_t version;
	uint32_t features; /* 0 */
	uint32_t entries;
	uint64_t arena_bytes;
	uint32_t wait_ms; /* how long the client waits in line where a limit is reached; 0: not at all */
	char name[32];
};

#define MSG_MODELS_MAX 32

/* Answer to HELLO. Status 0 comes with MSG_WELCOME_FDS fds in SCM_RIGHTS: region, submission doorbell
 * (client rings), completion doorbell (daemon rings); and with all or none of MSG_LIFE_FDS more, each
 * of which polls readable once the daemon is dead. Otherwise text says what and why. */
#define MSG_WELCOME_FDS 3u
#define MSG_LIFE_FDS 2u
struct msg_welcome {
	int32_t status;
	char text[MSG_TEXT_MAX];
	uint32_t version, features;
	uint64_t nonce; /* of the daemon's life */
	uint32_t session, max_sequences, entries;
	uint64_t arena_bytes;
	uint32_t n_models;
	struct mimeo_model_info models[MSG_MODELS_MAX];
	uint32_t n_model_ids; /* as many */
	int32_t model_ids[MSG_MODELS_MAX]; /* by which requests and calls name the models; none is used twice */
};

/*
 * After WELCOME the client may call on the socket, one call at a time; each gets one reply. Calls
 * do what is slow or needs descriptors: device buffers, fences and files.
 *
 *	BUFFER_ALLOC   kind, bytes       -> buffer, handle, fd if the kind has one; kind 0: the one with
 *	                                    a descriptor that the device has
 *	BUFFER_IMPORT  handle, its fd    -> buffer
 *	BUFFER_CLOSE   buffer            -> no request that is submitted from now on may name it
 *	FENCE          request index     -> handle of the event that the index's requests record; fd if
 *	                                    the kind has one. It lives as long as the session.
 *	MODEL_FILES    model             -> files: which ones come; a descriptor for each, in the order of
 *	                                    the bits
 *
 * The kernel limits how many descriptors of the daemon's user are sent and not yet received. So a client that
 * calls for files before it has read the reply to its call before breaks the protocol.
 */
enum msg_call_kind {
	MSG_CALL_BUFFER_ALLOC = 1,
	MSG_CALL_BUFFER_IMPORT,
	MSG_CALL_BUFFER_CLOSE,
	MSG_CALL_FENCE,
	MSG_CALL_MODEL_FILES,
};
/* As in struct mimeo_model_files. */
#define MSG_FILE_TOKENIZER 1u
#define MSG_FILE_CONFIG 2u
#define MSG_FILE_CHAT_TEMPLATE 4u
#define MSG_FILES_MAX 3u
struct msg_call {
	uint32_t call; /* enum msg_call_kind */
	uint32_t buffer, kind /* enum mimeo_handle_kind */, request, model;
	uint64_t bytes;
	uint8_t handle[HANDLE_WIRE_BYTES]; /* checked by handle_decode, not here */
};
struct msg_reply {
	int32_t status;
	char text[MSG_TEXT_MAX]; /* what and why, if it is refused */
	uint32_t buffer;
	uint32_t files; /* MSG_FILE_... */
	uint8_t handle[HANDLE_WIRE_BYTES]; /* all zero: none */
};

/* Decoding memory, allocated once: one a thread. */
struct msg_codec;
int msg_codec_new(struct msg_codec **ret);
void msg_codec_free(struct msg_codec *codec);

/* Encoders: the bytes written to buffer[size]; -ENOSPC; -EINVAL if the decoder would refuse a value.
 * No allocation. With MIMEO_SAMPLING_MODEL only seed and flags are checked and written. Bytes of a name
 * or text that a decoder would refuse (control characters, malformed UTF-8) become '?'. */
int msg_generate_encode(const struct msg_generate *msg, void *buffer, size_t size);
int msg_step_encode(const struct msg_step *msg, void *buffer, size_t size);
int msg_hello_encode(const struct msg_hello *msg, void *buffer, size_t size);
int msg_welcome_encode(const struct msg_welcome *msg, void *buffer, size_t size);
int msg_call_encode(const struct msg_call *msg, void *buffer, size_t size);
int msg_reply_encode(const struct msg_reply *msg, void *buffer, size_t size);

/* Why msg_generate_encode or msg_step_encode gave -EINVAL: one sentence with the field and its value,
 * and in *ret_detail what a decoder would report. */
void msg_generate_explain(const struct msg_generate *msg, struct msg_detail *ret_detail,
	char ret_text[static MSG_TEXT_MAX]);
void msg_step_explain(const struct msg_step *msg, struct msg_detail *ret_detail,
	char ret_text[static MSG_TEXT_MAX]);

/* One sentence for the values of a RING_DETAIL_RANGE, cut to `size` bytes. Returns its full length. */
int msg_range_explain(const int32_t values[static 3], char *buffer, size_t size);

/* A refusal by a limit of what a user or a session may have: the one sentence of all of them, such as "shared memory:
 * 268435456 bytes asked for, 1048576 left for user 1000 (max_shared_bytes)". */
struct msg_quota {
	const char *what, *unit; /* "shared memory", " bytes" or "" */
	uint64_t asked, left;
	const char *whom, *limit; /* "user 1000", "max_shared_bytes" */
};
/* Cut to `size` bytes. Returns its full length. */
int msg_quota_explain(const struct msg_quota *quota, char *buffer, size_t size);
/* The same for the values of a RING_DETAIL_BUDGET. */
int msg_budget_explain(const int32_t values[static 3], char *buffer, size_t size);

/* Decoders: 0, or a negative status with *ret_detail; *ret is written only on success. `data` must be
 * private memory: it is read more than once. Requests allocate nothing; the handshake may. */
int msg_generate_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_generate *ret, struct msg_detail *ret_detail);
int msg_step_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_step *ret,
	struct msg_detail *ret_detail);
int msg_hello_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_hello *ret,
	struct msg_detail *ret_detail);
int msg_welcome_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_welcome *ret, struct msg_detail *ret_detail);
/* A malformed call and any refused reply are E_PROTOCOL; a call with a refused field is E_INVALID. */
int msg_call_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_call *ret,
	struct msg_detail *ret_detail);
int msg_reply_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_reply *ret,
	struct msg_detail *ret_detail);

#endif
