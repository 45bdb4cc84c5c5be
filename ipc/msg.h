/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_MSG_H
#define MIMEO_IPC_MSG_H

/*
 * Typed headers to and from bounded msgpack.
 *
 * Written by msgpack-c into the caller's buffer. Read in three moves: wire_check (ipc/wire_check.h)
 * walks a stranger's bytes linearly and refuses whatever msgpack-c would reserve memory for without
 * having the bytes; msgpack-c unpacks into the codec's one preallocated zone (no malloc a request);
 * the fields are taken out by key, unknown keys are refused, each value is checked for type and
 * range. A decoder returns 0 or a negative status (status.h) and fills *ret_detail.
 *
 * A header is a map from small integers (enum msg_field) to values; a field that is zero or empty
 * is left out. Fields of floats take integers too. What a decoder refuses, it names:
 *
 *	RING_DETAIL_HEADER [byte offset]   not msgpack as wire_check.h draws it, too long, or no map
 *	RING_DETAIL_RANGE [enum msg_field] unknown, twice, of a wrong type, or out of range; 0 if a
 *	                                   key is no field's number at all. Of a mask's numbers
 *	                                   [field, its value, the mask's kind]
 *	RING_DETAIL_EMPTY                  no tokens, or no rows
 *
 * Requests are refused with E_INVALID. HELLO and WELCOME of another version with E_VERSION,
 * whatever else is in them, and values [MSG_VERSION, the peer's version]; else a malformed one with
 * E_PROTOCOL; a HELLO whose field is refused with E_INVALID, such a WELCOME with E_PROTOCOL.
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
#define MSG_CALL_MAX 512u /* a call on a session's socket, behind its length */
#define MSG_PROTOCOL_VERSION 3u

enum msg_field {
	MSG_MODEL = 1,
	MSG_SEQUENCE,
	MSG_MAX_TOKENS,
	MSG_TEMPERATURE,
	MSG_TOP_K,
	MSG_TOP_P,
	MSG_MIN_P,
	MSG_SEED,
	MSG_SAMPLING_FLAGS,
	MSG_STOP,
	MSG_FLAGS,
	MSG_DEADLINE_MS,
	MSG_OUTPUTS,
	MSG_N_ROWS,
	MSG_N_TOKENS,
	MSG_LOGITS_BUFFER,
	MSG_LOGITS_OFFSET,
	MSG_HIDDEN_BUFFER,
	MSG_HIDDEN_OFFSET,
	MSG_EMBEDDINGS_BUFFER,
	MSG_EMBEDDINGS_OFFSET,
	MSG_MASK,
	MSG_MASK_WINDOW,
	MSG_MASK_SINKS,
	MSG_MASK_PREFIX,
	MSG_DRAFT_TOKENS,
	/* handshake */
	MSG_VERSION = 32,
	MSG_FEATURES,
	MSG_ENTRIES,
	MSG_ARENA_BYTES,
	MSG_NAME,
	MSG_NONCE,
	MSG_MAX_SEQUENCES,
	MSG_SESSION,
	MSG_MODELS,
	MSG_STATUS,
	MSG_TEXT,
	/* model description */
	MSG_VOCAB_SIZE = 64,
	MSG_HIDDEN_SIZE,
	MSG_MAX_SEQ_LEN,
	MSG_EOS,
	MSG_BOS,
	MSG_PAGE_TOKENS,
	MSG_ACTIVATION,
	MSG_MASKS,
	MSG_MAX_BATCH_TOKENS,
	/* calls */
	MSG_CALL = 96,
	MSG_BUFFER,
	MSG_KIND,
	MSG_BYTES,
	MSG_HANDLE,
	MSG_REQUEST,
};

/* "max_tokens" for MSG_MAX_TOKENS and so on; "?" if unknown. */
const char *msg_field_name(unsigned field);

struct msg_detail {
	uint32_t detail; /* enum ring_detail */
	int32_t values[4];
};

/* "default", "window", "prefix", "documents", "tree"; "?" if unknown. */
const char *msg_mask_name(unsigned kind);

/* With DOCUMENTS or TREE the payload goes on with a uint64 for each token of the request, at any
 * multiple of 4 bytes; the mask's `words` is not of the message. */
static inline bool msg_mask_has_words(const struct mimeo_mask *mask)
{
	return mask->kind == MIMEO_MASK_DOCUMENTS || mask->kind == MIMEO_MASK_TREE;
}

/* RING_OP_GENERATE. Payload: int32 tokens[n_tokens]. */
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
};
struct msg_row {
	uint32_t sequence, n_tokens;
};

/* Where results lie in a request's output area; each part starts on a multiple of 64 bytes. */
struct msg_output {
	uint64_t tokens, logits, hidden; /* byte offsets from the area's start */
	uint64_t bytes; /* of the whole area, a multiple of 64; UINT64_MAX: beyond any number */
};
/* n_tokens int32, n_logits rows of vocab float32, n_hidden rows of hidden float32. */
struct msg_output msg_output_layout(
	uint64_t n_tokens, uint64_t n_logits, uint32_t vocab, uint64_t n_hidden, uint32_t hidden);

struct msg_hello {
	uint32_t version;
	uint32_t features; /* 0 */
	uint32_t entries;
	uint64_t arena_bytes;
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
};

/*
 * After WELCOME the client may call on the socket, one call at a time; each gets one reply. They
 * take what may take milliseconds and descriptors: device buffers, and the requests' fences.
 *
 *	BUFFER_ALLOC   kind, bytes       -> buffer, handle, fd if the kind has one; kind 0: the one with
 *	                                    a descriptor that the device has
 *	BUFFER_IMPORT  handle, its fd    -> buffer
 *	BUFFER_CLOSE   buffer            -> from now on no request may name it
 *	FENCE          request index     -> handle of the event that the index's requests record; fd if
 *	                                    the kind has one. As long as the session.
 */
enum msg_call_kind {
	MSG_CALL_BUFFER_ALLOC = 1,
	MSG_CALL_BUFFER_IMPORT,
	MSG_CALL_BUFFER_CLOSE,
	MSG_CALL_FENCE,
};
struct msg_call {
	uint32_t call; /* enum msg_call_kind */
	uint32_t buffer, kind /* enum mimeo_handle_kind */, request;
	uint64_t bytes;
	uint8_t handle[HANDLE_WIRE_BYTES]; /* not checked by msg_call_decode: handle_decode does */
};
struct msg_reply {
	int32_t status;
	char text[MSG_TEXT_MAX]; /* what and why, if it is refused */
	uint32_t buffer;
	uint8_t handle[HANDLE_WIRE_BYTES]; /* all zero: none */
};

/* Decoding memory, allocated once: one a thread. */
struct msg_codec;
int msg_codec_new(struct msg_codec **ret);
void msg_codec_free(struct msg_codec *codec);

/* Encoders: bytes written to buffer[size]; -ENOSPC; -EINVAL if n_stop, n_eos or n_models exceeds
 * its array. No allocation. With MIMEO_SAMPLING_MODEL only seed and flags are written. Bytes of a
 * name or text that a decoder would refuse (control characters, broken UTF-8) become '?'. */
int msg_generate_encode(const struct msg_generate *msg, void *buffer, size_t size);
int msg_step_encode(const struct msg_step *msg, void *buffer, size_t size);
int msg_hello_encode(const struct msg_hello *msg, void *buffer, size_t size);
int msg_welcome_encode(const struct msg_welcome *msg, void *buffer, size_t size);
int msg_call_encode(const struct msg_call *msg, void *buffer, size_t size);
int msg_reply_encode(const struct msg_reply *msg, void *buffer, size_t size);

/* Decoders: 0, or a negative status with *ret_detail; *ret is written only on success. `data` must
 * be private memory: it is read more than once. Absent optional fields are 0. Values that no daemon
 * would take are refused here (non-finite or negative temperature, top_p or min_p outside [0, 1],
 * max_tokens 0, no outputs, unknown flags, entries or arena_bytes that no region can have ...).
 * Requests allocate nothing; the handshake may. */
int msg_generate_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_generate *ret, struct msg_detail *ret_detail);
int msg_step_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_step *ret,
	struct msg_detail *ret_detail);
int msg_hello_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_hello *ret,
	struct msg_detail *ret_detail);
int msg_welcome_decode(struct msg_codec *codec, const void *data, size_t size,
	struct msg_welcome *ret, struct msg_detail *ret_detail);
/* A call that is malformed is E_PROTOCOL; of which a field is refused, E_INVALID. A refused reply is
 * E_PROTOCOL. */
int msg_call_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_call *ret,
	struct msg_detail *ret_detail);
int msg_reply_decode(struct msg_codec *codec, const void *data, size_t size, struct msg_reply *ret,
	struct msg_detail *ret_detail);

#endif
