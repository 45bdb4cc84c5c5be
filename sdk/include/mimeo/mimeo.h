/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_H
#define MIMEO_H

/*
 * libmimeo: the client library of Mimeo, a shared-memory sidecar for GPU inference.
 *
 * A client CONNECTS to mimeod over a Unix socket and from then on talks to it through two rings in
 * shared memory. It GETS a request, PREPARES it, SUBMITS any number of prepared requests at once,
 * and takes EVENTS: peek or wait, use, mark as seen. A process that does this needs no GPU context.
 *
 *	struct mimeo *m;
 *	struct mimeo_config config = MIMEO_CONFIG_INIT;
 *	mimeo_connect(&m, &config);
 *	struct mimeo_request *r = mimeo_request_get(m);
 *	struct mimeo_generate g = MIMEO_GENERATE_INIT;
 *	g.tokens = prompt; g.n_tokens = n; g.max_tokens = 64;
 *	mimeo_request_prep_generate(r, &g);
 *	mimeo_submit(m);
 *	struct mimeo_event e;
 *	while (mimeo_event_wait(m, &e, -1) == 1) {
 *		use(e.tokens, e.n_tokens);
 *		bool last = e.kind == MIMEO_EVENT_FINAL;
 *		mimeo_event_seen(m, &e);
 *		if (last)
 *			break;
 *	}
 *	mimeo_close(m);
 *
 * Threads: a connection belongs to one thread at a time; different connections are independent.
 * Forks: in a child a connection's shared memory is absent; mimeo_close is all it may call there.
 * Blocking: mimeo_connect, mimeo_event_wait, mimeo_fence_wait and the calls that ask the daemon for
 * files, device buffers and fences block; no other call does. Memory: only mimeo_connect and the calls for
 * buffers and fences allocate.
 * Errors: every function that can fail returns a negative enum mimeo_status; mimeo_strerror gives
 * its sentence and the manual page mimeo_status(3) its remedy.
 */

#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library, e.g. "0.1.0". Static storage. */
MIMEO_PUBLIC const char *mimeo_version(void);

/* ---- connection ---- */

struct mimeo;

struct mimeo_config {
	size_t size;             /* sizeof(struct mimeo_config); set by MIMEO_CONFIG_INIT */
	const char *socket_path; /* NULL: $MIMEO_SOCKET, else $XDG_RUNTIME_DIR/mimeo/mimeod.sock,
	                            else /run/mimeo/mimeod.sock */
	const char *name;        /* shown to operators, up to 31 bytes; NULL: the program's name */
	uint32_t entries; /* requests in flight, a power of two, 2 ... 4096; the completion ring
			     has twice as many entries; 0: 64 */
	uint32_t spin_us;        /* how long a wait spins before it sleeps; 0: sleep at once,
	                            MIMEO_SPIN_DEFAULT: 50, or 0 below 4 CPUs;
	                            MIMEO_SPIN_FOREVER: never sleep */
	uint64_t arena_bytes;    /* shared memory for prompts and results, 64 KiB ... 1 GiB, rounded
	                            up to a power of two; 0: 8 MiB */
	uint32_t connect_timeout_ms; /* how long a daemon that listens may take to answer, and how long
	                                to wait in line where a limit is reached; a daemon that is
	                                absent fails at once; 0: 5000 */
	uint32_t reserved;           /* 0 */
	char *message; /* [message_size] where mimeo_connect writes one sentence that says why it
			  failed, with the daemon's own words if it refused; NULL: nowhere */
	size_t message_size; /* bytes with the terminator; 256 suffice */
};

#define MIMEO_SPIN_DEFAULT UINT32_MAX
#define MIMEO_SPIN_FOREVER (UINT32_MAX - 1)
#define MIMEO_CONFIG_INIT                                                                          \
	{                                                                                          \
		sizeof(struct mimeo_config), NULL, NULL, 0, MIMEO_SPIN_DEFAULT, 0, 0, 0, NULL, 0   \
	}

/*
 * Connect to the daemon and attach a session.
 * *ret_m is the caller's, until mimeo_close; written only on success. `config` may be NULL
 * (all defaults) and is not kept. Blocks for connect_timeout_ms at most. Allocates.
 * 0, or UNREACHABLE, VERSION, QUOTA, DRAINING, INVALID (a value of config), NO_MEMORY, PROTOCOL.
 */
MIMEO_PUBLIC int mimeo_connect(struct mimeo **ret_m, const struct mimeo_config *config);

/* End the session. Requests in flight are dropped, sequences closed; every pointer that came from
 * `m` is dead. NULL is fine. Does not block. In a forked child it gives back the child's copies and
 * leaves the parent's session alone. */
MIMEO_PUBLIC void mimeo_close(struct mimeo *m);

/*
 * A file descriptor that polls readable when events wait or the daemon is gone: an epoll fd that watches
 * the doorbell, the socket and pidfds of the daemon; for poll, epoll and io_uring. It belongs to the
 * connection: do not read, write or close it. Before polling it call mimeo_event_peek: that arms the
 * wake-up whenever it returns 0. After this call each wake-up costs the daemon a system call, and so does
 * the first peek that finds no event after one that did; a caller that spins should not call it.
 */
MIMEO_PUBLIC int mimeo_fd(struct mimeo *m);

/* ---- models ---- */

/* Number of models the daemon serves; they are indexed from 0. */
MIMEO_PUBLIC uint32_t mimeo_model_count(const struct mimeo *m);
/* The description of a model, or NULL if there is no such index. Lives as long as `m`. */
MIMEO_PUBLIC const struct mimeo_model_info *mimeo_model_get(const struct mimeo *m, uint32_t index);
/* The index of the model of that name, or UNKNOWN_MODEL. */
MIMEO_PUBLIC int mimeo_model_find(const struct mimeo *m, const char *name);
/*
 * Get the files that make text of a model's tokens, for mimeo_text_open_files() of libmimeo-text: copies that the
 * daemon made when it loaded the model, so that a client needs no right to the model's folder. *ret_files was begun
 * by MIMEO_MODEL_FILES_INIT; its descriptors are read-only, close-on-exec, and the caller's to close.
 * Blocks until the daemon has answered.
 * 0 (each descriptor may be -1), or UNKNOWN_MODEL, NO_MEMORY (this process has no descriptor left), INVALID
 * (ret_files), GONE. mimeo_buffer_message has a sentence.
 */
MIMEO_PUBLIC int mimeo_model_files(
	struct mimeo *m, uint32_t model, struct mimeo_model_files *ret_files);

/* ---- sequences: tokens with a KV history, owned by this session ---- */

/*
 * Open an empty sequence of a model; fork one (the child shares its pages until either writes);
 * cut one to its first n_tokens tokens; close one. Each takes effect in the order of submission,
 * after the requests submitted before it on the same sequence have ended, and is published by the
 * next mimeo_submit. None blocks or allocates. Should the daemon refuse, a MIMEO_EVENT_SEQUENCE
 * carries the status; success is silent. Closing a sequence does not cancel what it runs.
 * 0, or FULL (as many requests and sequence calls as `entries` are in use: submit, wait for an event,
 * mark it seen, try again), QUOTA (all of the session's sequences are open, or closed and the daemon
 * has not answered), UNKNOWN_MODEL, UNKNOWN_SEQUENCE, GONE. Entries of calls that succeeded are free
 * again without mimeo_event_peek.
 * A sequence whose open or fork was refused is not open. A closed one's id may be given out again.
 */
MIMEO_PUBLIC int mimeo_sequence_open(struct mimeo *m, uint32_t model, uint32_t *ret_sequence);
MIMEO_PUBLIC int mimeo_sequence_fork(struct mimeo *m, uint32_t sequence, uint32_t *ret_child);
MIMEO_PUBLIC int mimeo_sequence_truncate(struct mimeo *m, uint32_t sequence, uint32_t n_tokens);
MIMEO_PUBLIC int mimeo_sequence_close(struct mimeo *m, uint32_t sequence);
/* Ask how many tokens a sequence has, in the order of submission as above. The answer is a MIMEO_EVENT_SEQUENCE with
 * status 0, `sequence` and `n_sequence`. 0, or as above. */
MIMEO_PUBLIC int mimeo_sequence_length(struct mimeo *m, uint32_t sequence);
/* Why the last of these calls was refused: one sentence, which for QUOTA names the limit; "" if it was not. For a
 * refusal by the daemon see mimeo_event_message. Valid until the next of these calls. */
MIMEO_PUBLIC const char *mimeo_sequence_message(const struct mimeo *m);

/* ---- device buffers: memory of the daemon's device that both sides see ---- */

/*
 * Have the daemon allocate a buffer of `bytes` zeroed bytes and share it: the preferred way, because
 * a client's death then leaves nothing behind. `kind`: enum mimeo_handle_kind. *ret_buffer is an id
 * of this session's, from 1. Blocks until the daemon has answered; allocates.
 * Ids of closed buffers are given out again.
 * 0, or UNSUPPORTED (the device has no such kind), QUOTA (a limit, which mimeo_buffer_message names),
 * NO_MEMORY, INVALID, DEVICE_LOST, GONE.
 */
MIMEO_PUBLIC int mimeo_buffer_alloc(
	struct mimeo *m, uint32_t kind, uint64_t bytes, uint32_t *ret_buffer);
/*
 * Have the daemon map memory that this process exported. The handle is copied; its fd stays the
 * caller's and may be closed afterwards. The same memory may be imported many times, with other
 * offsets: the daemon maps it once. A VMM_FD handle's offset and bytes must reach the end of the
 * allocation (but for its rounding) the first time: the driver maps the whole or nothing. The memory
 * must live until the buffer is closed and every request that names it has ended: mimeo(7) says
 * what happens otherwise. Blocks, allocates.
 * 0, or DENIED (allow_client_ipc), INVALID (not such memory, another device's, smaller than the handle
 * says, an offset that is no multiple of MIMEO_PLACE_ALIGN, a descriptor that is not open; the message
 * says which), UNSUPPORTED (the device has no such kind), QUOTA, NO_MEMORY, DEVICE_LOST, GONE.
 */
MIMEO_PUBLIC int mimeo_buffer_import(
	struct mimeo *m, const struct mimeo_handle *handle, uint32_t *ret_buffer);
/* Store the handle of an allocated buffer, which this or another process can map, in *ret_handle, which
 * MIMEO_HANDLE_INIT has initialised. Its fd is the connection's, open until the buffer is closed. 0, or
 * UNKNOWN_BUFFER (an imported one too), INVALID. */
MIMEO_PUBLIC int mimeo_buffer_handle(
	struct mimeo *m, uint32_t buffer, struct mimeo_handle *ret_handle);
/* The memory of an allocated MEMFD buffer in this process, until it is closed. The daemon may write
 * to it while a request that names it is in flight. 0, or UNSUPPORTED (another kind; see
 * <mimeo/mimeo-cuda.h>), UNKNOWN_BUFFER, NO_MEMORY. */
MIMEO_PUBLIC int mimeo_buffer_map(struct mimeo *m, uint32_t buffer, void **ret_memory);
/* Close a buffer: requests can no longer name it. Those submitted before that do go on; the daemon gives
 * the memory back when the last of them has ended, and counts it as held until then. What
 * mimeo_buffer_map gave is unmapped, and the handle's fd is closed; what this process has mapped by
 * itself stays mapped: unmap CUDA_IPC memory first. Blocks. 0, or UNKNOWN_BUFFER, NO_MEMORY,
 * DEVICE_LOST, GONE (local mappings are released all the same). */
MIMEO_PUBLIC int mimeo_buffer_close(struct mimeo *m, uint32_t buffer);
/* Why the last of these calls, of those for fences or of mimeo_model_files was refused, by the daemon or
 * by the library; "" if it was not, or with GONE. Lives until the next one. */
MIMEO_PUBLIC const char *mimeo_buffer_message(const struct mimeo *m);

/* ---- requests ---- */

struct mimeo_request;

struct mimeo_generate {
	size_t size;           /* sizeof(struct mimeo_generate); set by MIMEO_GENERATE_INIT */
	uint32_t model;        /* index */
	uint32_t sequence;     /* 0: a sequence for this request alone; else one of that model, to
	                          which prompt and output are appended */
	const int32_t *tokens; /* [n_tokens] the prompt; copied by the prepare call */
	uint32_t n_tokens;     /* 1 ... max_seq_len - max_tokens (of 0: - 1), the sequence's own counted
	                          in; or 0: go on with an open sequence that has tokens, as it is */
	uint32_t max_tokens;   /* token limit of the output; 0: until a stop, or the sequence is full */
	struct mimeo_sampling sampling; /* all zero: greedy */
	const int32_t *stop;            /* [n_stop] further ids that end the output; copied */
	uint32_t n_stop;                /* 0 ... MIMEO_STOP_MAX */
	uint32_t flags;                 /* MIMEO_GENERATE_... */
	uint32_t deadline_ms;           /* from submission to the end; 0: none */
	uint32_t draft_tokens;          /* draft tokens in a step, if the model has a draft model: 0: as
	                                   many as the daemon is configured for, 1 ... MIMEO_DRAFT_MAX:
	                                   at most so many, or MIMEO_DRAFT_NONE */
	struct mimeo_place logits;      /* where PROMPT_LOGITS go; buffer 0: into the event */
	struct mimeo_mask mask;         /* all zero: the model's, usually causal */
	uint32_t first_token_ms;        /* deadline of the first token, from submission; 0: none */
	uint32_t request_class;         /* enum mimeo_class */
	/* What changes the logits, in this order: bias, repetition, frequency, presence, bans. */
	float repetition_penalty; /* of tokens that the sequence has; 0.01 ... 100, 0 or 1: off */
	float presence_penalty;   /* -2 ... 2, subtracted from the logit of a token of the output ... */
	float frequency_penalty;  /* ... and -2 ... 2 for each time that it is there */
	uint32_t penalty_start;   /* the position of the sequence where the output begins; 0: behind this
	                             request's prompt */
	const struct mimeo_bias *bias; /* [n_bias] by ascending token; copied */
	const uint32_t *allowed;  /* [n_allowed] bit i % 32 of word i / 32: token i is not banned; copied */
	uint32_t n_bias;          /* 0 ... MIMEO_BIAS_MAX */
	uint32_t n_allowed;       /* (vocab_size + 31) / 32; 0: no token is banned */
	uint32_t min_tokens;      /* end and stop ids are banned until so many are generated */
	uint32_t top_logprobs;    /* with (PROMPT_)LOGPROBS: likeliest tokens beside each token's own, 0 ...
	                             MIMEO_TOP_LOGPROBS_MAX */
};

#define MIMEO_GENERATE_INIT                                                                        \
	{sizeof(struct mimeo_generate), 0, 0, NULL, 0, 0, {0, 0, 0, 0, 0, 0, 0}, NULL, 0, 0, 0, 0, \
		{0, 0, 0}, {0, 0, 0, 0, NULL}, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0}

struct mimeo_step_row {
	uint32_t sequence;     /* an open sequence of the step's model; once per step */
	uint32_t n_tokens;     /* 1 ... */
	const int32_t *tokens; /* [n_tokens] to append, copied; ignored, may be NULL, with embeddings */
};

struct mimeo_step {
	size_t size; /* sizeof(struct mimeo_step); set by MIMEO_STEP_INIT */
	uint32_t model;
	uint32_t n_rows;                   /* 1 ... */
	const struct mimeo_step_row *rows; /* [n_rows] */
	uint32_t outputs;                  /* MIMEO_STEP_..., at least one */
	uint32_t deadline_ms;              /* from submission; 0: none */
	struct mimeo_sampling sampling;    /* for MIMEO_STEP_TOKENS */
	/* Device buffers for the results, [n_rows, vocab_size] and [n_rows, hidden_size] float32, those
	 * of all positions [n_positions, ...]; buffer 0: in the event. */
	struct mimeo_place logits;
	struct mimeo_place hidden;
	/* A device buffer with the input embeddings of all rows' tokens, row by row, [tokens,
	 * hidden_size] of the model's activation type, in place of those of ids; buffer 0: ids.
	 * They must be there when the step is submitted, and stay until its final event. */
	struct mimeo_place embeddings;
	uint32_t flags;         /* MIMEO_STEP_FENCE */
	uint32_t request_class; /* enum mimeo_class */
	struct mimeo_mask mask; /* of each row; all zero: the model's, usually causal */
	uint32_t top_logprobs;  /* with LOGPROBS: likeliest tokens beside each token's own, 0 ...
	                           MIMEO_TOP_LOGPROBS_MAX */
	uint32_t reserved;      /* 0 */
};

#define MIMEO_STEP_INIT                                                                            \
	{sizeof(struct mimeo_step), 0, 0, NULL, 0, 0, {0, 0, 0, 0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0}, \
		{0, 0, 0}, 0, 0, {0, 0, 0, 0, NULL}, 0, 0}

/* A free request, to be prepared once and then submitted; NULL when as many as `entries` are in use,
 * sequence calls counted in (wait for an event, mark it seen, try again). Requests come from a fixed set of
 * `entries`. A request is free again when its final event is marked as seen; the same pointer may then be
 * returned again, and names the same entry as long as the connection lives. */
MIMEO_PUBLIC struct mimeo_request *mimeo_request_get(struct mimeo *m);
/* Give back a request that was got and not submitted. */
MIMEO_PUBLIC void mimeo_request_put(struct mimeo_request *request);
/* Set a value that every event of the request carries. Before submitting. */
MIMEO_PUBLIC void mimeo_request_set_data(struct mimeo_request *request, uint64_t user_data);
/* An id for mimeo_cancel and mimeo_request_prep_cancel, never used twice by a connection. */
MIMEO_PUBLIC uint64_t mimeo_request_id(const struct mimeo_request *request);

/*
 * Prepare a request. Parameters and tokens are copied; results are placed in the arena, and stay
 * until the final event is marked as seen. None blocks, allocates or calls the system.
 * 0, or INVALID (a value that no daemon would accept), FULL (no space in the arena: take events and
 * mark them seen, or connect with more arena_bytes), TOO_LONG, UNKNOWN_MODEL, UNKNOWN_SEQUENCE.
 * After an error the request may be prepared again or put back.
 */
MIMEO_PUBLIC int mimeo_request_prep_generate(
	struct mimeo_request *request, const struct mimeo_generate *generate);
MIMEO_PUBLIC int mimeo_request_prep_step(
	struct mimeo_request *request, const struct mimeo_step *step);
/* A cancel that is itself a request: it is processed in order with other requests, and has an event with
 * status 0, or UNKNOWN_REQUEST if the request had already ended. */
MIMEO_PUBLIC int mimeo_request_prep_cancel(struct mimeo_request *request, uint64_t request_id);
/* Why the last prepare call refused this request: one sentence with the value ("top_p is 1.5: it must be
 * from 0 to 1"); "" if that call accepted it or was for another request. Valid until the connection's
 * next prepare call. */
MIMEO_PUBLIC const char *mimeo_request_message(const struct mimeo_request *request);

/*
 * The request's fence: an event of the daemon's device that this process can have its own streams
 * wait for, so that results in a device buffer are used without the host in between. The daemon
 * records it where MIMEO_STEP_FENCE (MIMEO_GENERATE_FENCE) asks for it, behind the work that writes
 * the results, and then sends MIMEO_EVENT_RECORDED. WAIT ONLY AFTER THAT (or after the final event):
 * a wait before that returns at once. The fence is recorded again by a later request only after this
 * one's final event was marked as seen.
 *
 * *ret_fence belongs to the connection and does not change; each of the `entries` requests has its
 * own, so the pointer identifies it. Call mimeo_request_fence for each request that is got, before
 * it is submitted with the flag: without a fence the daemon refuses it (INVALID). The first call
 * for one of the `entries` asks the daemon, blocks and allocates; later ones do not. 0, or
 * UNSUPPORTED, NO_MEMORY, QUOTA (64 a connection), DEVICE_LOST, INVALID (a request that is neither
 * got nor prepared), GONE.
 */
MIMEO_PUBLIC int mimeo_request_fence(
	struct mimeo_request *request, const struct mimeo_handle **ret_fence);
/* Wait, on the host, for what a MEMFD fence was last recorded behind: 1, 0 after timeout_ms (-1:
 * without limit), or GONE, UNSUPPORTED (another kind; see <mimeo/mimeo-cuda.h>). */
MIMEO_PUBLIC int mimeo_fence_wait(
	struct mimeo *m, const struct mimeo_handle *fence, int timeout_ms);

/* Publish everything prepared since the last call, in the order of preparation. Returns how many
 * entries were published (sequence calls counted in), or GONE: prepared requests then stay
 * prepared, get no event, and may be put back. Never blocks or allocates; makes a system call only
 * if the daemon sleeps. */
MIMEO_PUBLIC int mimeo_submit(struct mimeo *m);

/* Cancel the request with that id, which was submitted. Takes effect at once, ahead of what is prepared, and
 * also where all requests are in use or events wait to be taken. It has no event: the request's final event
 * has status CANCELLED, its tokens so far and, for a generate request, finish CANCELLED; or how it ended, if
 * it ended before the cancel. Cancelling twice is harmless. Never blocks or allocates; makes a system call
 * only if the daemon sleeps. 0, or UNKNOWN_REQUEST (its final event was marked as seen), INVALID (not
 * submitted yet: put it back; or an id that no request can have), GONE. */
MIMEO_PUBLIC int mimeo_cancel(struct mimeo *m, uint64_t request_id);

/* ---- events ---- */

enum mimeo_event_kind {
	MIMEO_EVENT_TOKENS = 1,   /* tokens of a generate request; more events follow */
	MIMEO_EVENT_FINAL = 2,    /* the last event of a request, a step or a cancel too */
	MIMEO_EVENT_SEQUENCE = 3, /* a sequence call was refused, by `status`; or the answer of
	                             mimeo_sequence_length, in `n_sequence` */
	MIMEO_EVENT_RECORDED = 4, /* the request's fence is recorded and can be waited for. More
	                             events follow. Left out if the completion ring is full */
};

struct mimeo_event {
	uint64_t user_data;
	uint32_t kind;         /* enum mimeo_event_kind */
	int32_t status;        /* 0, or a negative enum mimeo_status */
	uint32_t finish;       /* enum mimeo_finish */
	uint32_t sequence;     /* MIMEO_EVENT_SEQUENCE only */
	uint32_t n_prompt;     /* prompt tokens of the request, computed so far */
	uint32_t n_generated;  /* tokens generated so far; in the final event, in all */
	const int32_t *tokens; /* [n_tokens] new since the request's last event */
	uint32_t n_tokens;
	uint32_t n_rows;     /* rows of logits and hidden; of ALL_LOGITS and ALL_HIDDEN: n_positions */
	const float *logits; /* [n_rows, vocab_size], or NULL (in a device buffer, too); final
	                        event only */
	const float *hidden; /* [n_rows, hidden_size], or NULL (in a device buffer, too); final
	                        event only */
	uint32_t detail;     /* the subject of an error; see mimeo_event_message */
	uint32_t slot;       /* the library's own */
	int32_t detail_values[4];
	uint32_t n_cached;   /* final event: leading tokens that were taken from the prefix cache */
	uint32_t n_sequence; /* final event: tokens that the sequence has now, of a step the last row's; and
	                        mimeo_sequence_length's answer */
	/* Log-probabilities, n_logprobs entries for each token: its own, then the likeliest in its place,
	 * which may be itself, in falling order. NULL: not requested. */
	const struct mimeo_logprob *logprobs;        /* [n_tokens, n_logprobs] of `tokens` */
	const struct mimeo_logprob *prompt_logprobs; /* [n_positions, n_logprobs] of the tokens that the
	                                                request brought; final event only */
	uint32_t n_logprobs;  /* 1 + top_logprobs */
	uint32_t n_positions; /* tokens that the request brought, of all its rows; final event only */
};

/*
 * The next event, if there is one: 1 and *ret_event, else 0. The pointers in it stay valid until it
 * is marked as seen; until then peeking again gives the same event. When the daemon is gone each
 * request in flight gives one final event with GONE, and after those the call returns GONE; a
 * daemon that breaks the protocol counts as gone. Sequence calls in flight end without an event. Never
 * blocks or allocates; when nothing has come for a millisecond it looks, once a millisecond,
 * whether the daemon lives.
 */
MIMEO_PUBLIC int mimeo_event_peek(struct mimeo *m, struct mimeo_event *ret_event);
/* The same, waiting up to timeout_ms (-1: without limit) : 1, 0 on timeout, or GONE. A signal does
 * not end the wait. It returns 0 early, once, if only sequence calls that succeeded (which are silent) were
 * in flight: no event would come. With nothing ever submitted it waits for the timeout or for the
 * daemon's end. */
MIMEO_PUBLIC int mimeo_event_wait(struct mimeo *m, struct mimeo_event *ret_event, int timeout_ms);
/* Done with the event last peeked or waited for; the final event's request and memory are free
 * again. */
MIMEO_PUBLIC void mimeo_event_seen(struct mimeo *m, const struct mimeo_event *event);
/* Writes one sentence that names what an error event is about ("token 3 is 999, outside the
 * vocabulary of 256"), cut to `size` bytes with the terminator. Returns its full length. */
MIMEO_PUBLIC int mimeo_event_message(const struct mimeo_event *event, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif

#endif
