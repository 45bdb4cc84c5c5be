/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ENGINE_H
#define MIMEO_DAEMON_ENGINE_ENGINE_H

/*
 * The engine: one thread that owns the lane. It takes submissions from every session's ring, batches
 * their rows, replays graphs or runs eager, and posts completions.
 *
 * Made by the main thread (allocates, warms up, captures, maps the KV cache) and started; then the loop
 * thread posts commands to its mailbox (engine_post_*), and the engine posts reports and rings an eventfd.
 * Counters are atomics that any thread may read at any time.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "attention/kv_sets.h"
#include "attention/layers.h"
#include "daemon/engine/histogram.h"
#include "daemon/graph/mode.h"
#include "daemon/model/model.h"
#include "ipc/msg.h"
#include "ipc/region.h"

#define ENGINE_MODELS_MAX 32
#define ENGINE_SESSIONS_MAX 1024
#define ENGINE_WEIGHT_MAX 1000u /* of a user */
#define ENGINE_SPIN_FOREVER UINT32_MAX
#define ENGINE_GENERATION_NS UINT64_C(10000000000) /* length of a generation: see lane/late.c */
#define ENGINE_QUIET_NS UINT64_C(100000000) /* no step for so long: captures are not limited */
#define ENGINE_STATUSES 300 /* negative statuses of <mimeo/types.h> */
#define ENGINE_LONG_GAP_NS 10000u /* the lane waited for the engine */

struct engine_model_options {
	char name[64];
	struct model *model; /* taken over by the engine */
	struct attention_layers attention;
	struct mode_resolution mode; /* daemon/graph/mode.h */
	struct mimeo_mask mask;        /* of requests that bring none; a prefix of UINT32_MAX: all there is */
	uint32_t max_seq_len;        /* tokens a sequence may have */
	struct kv_sets sets;         /* of its layers (kv_sets.h); n 0: one set. With a draft model there must be one. */
	uint32_t kv_pages;           /* pages to map, without the null page; 0: from kv_bytes */
	uint64_t kv_bytes;
	bool kv_exact; /* fewer pages are an error, not a warning */
	struct model *draft; /* taken over by the engine; NULL: no speculation */
	uint32_t n_drafts;   /* tokens that it drafts a step, 1 ... SPECULATE_MAX */
	const struct attention_backend *draft_attention;
	enum attention_support draft_support; /* with queries of 1 + n_drafts tokens */
};

struct engine_progress {
	const char *model;
	bool capture; /* else warm-up */
	uint32_t done, total;
};

/* Which requests share cached prefixes: none, those of one user, all. */
enum engine_prefix_sharing { ENGINE_PREFIX_NONE, ENGINE_PREFIX_USER, ENGINE_PREFIX_ALL };

struct engine_options {
	struct device *device; /* stays the caller's; freed after the engine */
	uint32_t n_models;
	struct engine_model_options models[ENGINE_MODELS_MAX];
	uint32_t max_requests;     /* rows of a step, slots */
	uint32_t max_batch_tokens; /* tokens of a step */
	uint32_t page_tokens;
	uint32_t max_sequences; /* open sequences a session may have */
	const uint32_t *capture_sizes; /* NULL: the default ladder */
	uint32_t n_capture_sizes;
	bool lazy_capture; /* at first use, and not by engine_new */
	enum engine_prefix_sharing prefix_sharing;
	uint32_t token_us; /* target for the time between a request's tokens beside prompts of others; 0: none */
	uint32_t spin_us; /* before the engine sleeps; ENGINE_SPIN_FOREVER */
	const char *loop; /* "auto", "io_uring", "epoll" */
	/* Called by engine_new after each shape that was warmed up or captured; NULL is fine. */
	void (*progress)(void *userdata, const struct engine_progress *progress);
	void *progress_userdata;
};

struct engine;
struct runner; /* a model in the engine */

enum engine_report_kind {
	ENGINE_DETACHED = 1,    /* port */
	ENGINE_PROTOCOL = 2,    /* port, text: the client broke the rings; detach it */
	ENGINE_DRAINED = 3,
	ENGINE_DEVICE_LOST = 4, /* text; every request has been ended with DEVICE_LOST */
};

/* Each is made at most once for its port or engine, which holds the place for it: reporting cannot
 * fail. */
struct engine_report {
	enum engine_report_kind kind;
	struct engine_port *port;
	char text[256];
	struct engine_report *prev, *next; /* the engine's */
};

/*
 * A device buffer of a session. The loop thread fills it in and sets `open`; from then on requests
 * may name it, until engine_post_buffer_close; those that the client had submitted before still may. It comes
 * back by engine_buffer_take, not open, when these are taken, and no request and no launched step names it: only
 * then may its memory go.
 */
struct engine_buffer {
	void *address; /* the loop thread's, until it is open */
	uint64_t bytes;
	_Atomic bool open;
	_Atomic bool ends; /* entries from the index `end` of the submission ring on may not name it */
	uint32_t end;      /* before `ends` is set */
	/* the engine's */
	struct engine_port *port;
	uint32_t n_requests; /* that name it: waiting, running, or ended while a launched step names it */
	bool closing;
	struct engine_buffer *next; /* among those that are closing, then among those to be taken */
};

/*
 * One attached session as both threads see it. Made by the loop thread (handshake done, region
 * created), handed over by engine_post_attach, handed back by an ENGINE_DETACHED report; in between
 * only the engine touches `region` and `engine_private`. Counters: written by the engine.
 */
struct engine_port {
	struct region region;
	int sq_bell, cq_bell; /* owned by the loop thread; open until DETACHED */
	uint32_t session;     /* number, never used twice in a daemon's life */
	pid_t pid;
	uid_t uid;
	uint32_t weight; /* of its user among the users, 1 ... ENGINE_WEIGHT_MAX; 0: 1 */
	char name[32];
	void *userdata; /* the loop thread's */
	void *engine_private;
	/* The loop thread's memory until DETACHED, which waits until no launched step names any. */
	struct engine_buffer *buffers; /* [n_buffers] by id - 1 */
	uint32_t n_buffers;            /* 0: it may have none */
	_Atomic(struct event *) *fences; /* [entries] by request index, NULL: none; or NULL */
	struct engine_report protocol, detached; /* the engine's */
	_Atomic uint64_t n_requests, n_tokens, n_prompt_tokens, n_cached_tokens;
	/* Of generate requests: first tokens, the time from submissions to them, and between tokens. */
	_Atomic uint64_t n_firsts, first_ns, between_ns;
	_Atomic uint64_t n_failed, n_deadlines, n_quotas; /* requests; of these: ended with DEADLINE, QUOTA */
	_Atomic uint32_t n_in_flight, n_waiting, n_sequences, n_pages;
};

struct engine_needs {
	uint64_t pool_bytes;   /* of the device: activations */
	uint64_t inputs_bytes; /* of the device: persistent inputs */
	uint64_t draft_logits_bytes; /* part of inputs_bytes: draft logits of all slots */
	uint64_t pinned_bytes; /* of the host: what feeds them */
};
/* Memory of a model besides weights and KV cache, under the limits of the options, with a draft model (or
 * NULL) and n_drafts draft tokens. Allocates nothing. -EOVERFLOW. */
int engine_measure(const struct engine_options *options, const struct model_config *config,
	const struct kv_sets *sets, const struct model_config *draft, uint32_t n_drafts, uint32_t max_seq_len,
	enum dtype activation, struct engine_needs *ret);

/* Frees the options' models and clears them; the draft first: it uses its target's embedding and head. Only
 * before engine_new. */
void engine_model_options_deinit(struct engine_model_options *options);
/* Takes the models of the options over, whatever it returns. */
int engine_new(const struct engine_options *options, struct engine **ret, struct model_error *error);
struct builder;
/* Starts the thread. The builder instantiates and destroys graphs for it from now on, and has idle ones
 * dropped where it lacks memory; it is freed after engine_stop and before engine_free. */
int engine_start(struct engine *engine, struct builder *builder);
/* Stops the thread, after engine_post_stop or at once. Ports must be detached. */
void engine_stop(struct engine *engine);
/* engine_stop, and frees all. */
void engine_free(struct engine *engine);

/* ---- mailbox: from the loop thread; allocate, never block on the engine ---- */

int engine_post_attach(struct engine *engine, struct engine_port *port);
/* Ends all that the session has: requests, sequences, pages, slots. DETACHED follows as soon as no
 * launched step names any of it. */
int engine_post_detach(struct engine *engine, struct engine_port *port);
/* Requests that the client submits from now on may not name the buffer; engine_buffer_take returns it when no
 * request names it. If the session is detached first, DETACHED returns all its buffers. */
int engine_post_buffer_close(struct engine *engine, struct engine_port *port, uint32_t buffer);
/* New requests get DRAINING from now on; a DRAINED report follows when none is left. */
int engine_post_drain(struct engine *engine);
/* The drain takes too long: end every request in flight with DRAINING. */
int engine_post_abort(struct engine *engine);
int engine_post_stop(struct engine *engine);
/* What engine_options has of these holds no more. */
struct engine_tuning {
	uint32_t token_us, spin_us;
};
int engine_post_tuning(struct engine *engine, const struct engine_tuning *tuning);
/* The next turn adds one to engine_stats.n_pings. */
int engine_post_ping(struct engine *engine);
/* The weight of the user whose session it is, in place of port->weight. */
int engine_post_weight(struct engine *engine, struct engine_port *port, uint32_t weight);

/* DROP_IDLE: of all models those that no step has replayed in this generation and the one before. */
enum engine_graph_order { ENGINE_GRAPH_CAPTURE, ENGINE_GRAPH_DROP, ENGINE_GRAPH_DROP_IDLE };
#define ENGINE_ALL UINT32_MAX

struct engine_graphs_order {
	enum engine_graph_order order;
	uint32_t model, graph; /* id; index, as in engine_graph_facts; or ENGINE_ALL */
};
/* Captures what is not captured, or drops what is; what is being built or dropped stays as it is.
 * engine_graph_facts shows the result. */
int engine_post_graphs(struct engine *engine, const struct engine_graphs_order *order);
/* The device is out of memory: idle graphs go, then builder_relieved. From any thread. */
int engine_post_relieve(struct engine *engine);

/* ---- models while the engine serves ---- */

/*
 * Make one more model ready to be served: its memory, warm-up, graphs and KV pages. It may take long; the engine goes
 * on. On a thread that has lifted the device's lock (device.h), one at a time. The models of the options are taken
 * over in any case. 0, or the device's answer and a sentence in *error: then nothing is left of it.
 */
int engine_model_new(struct engine *engine, const struct engine_model_options *options, struct runner **ret,
	struct model_error *error);
/* Is there a place for one more? Those that are being unloaded keep theirs. On the loop thread. */
bool engine_has_room(const struct engine *engine);
/* Free a model that engine_post_load did not take, or that engine_model_take handed back. From any thread; freeing may
 * wait for the device. */
void engine_model_free(struct runner *model);
/* Serve it: sessions attached from now on may use it. Takes it over on success. -ENOSPC: ENGINE_MODELS_MAX. */
int engine_post_load(struct engine *engine, struct runner *model);
/*
 * Stop serving the model of that id; from now on it is not among engine_n_models. Its requests end with
 * MIMEO_E_UNKNOWN_MODEL, and so do later ones; its sequences lose their pages; a sequence's id stays taken until its
 * client closes it. engine_model_take returns it as soon as no launched step and no capture names it. -ENOENT.
 */
int engine_post_unload(struct engine *engine, uint32_t id);
/* The index of the model of that id; engine_n_models: it is not served. */
uint32_t engine_find_model(const struct engine *engine, uint32_t id);

/* ---- reports: to the loop thread ---- */

/* Readable (edge) when reports wait. */
int engine_report_fd(const struct engine *engine);
/* Take one: true and *ret. */
bool engine_report_take(struct engine *engine, struct engine_report *ret);

/* Take one closed buffer: true, its port and its id. Rings the same fd. */
bool engine_buffer_take(
	struct engine *engine, struct engine_port **ret_port, uint32_t *ret_buffer);

/* Take one model that was unloaded, or NULL. Rings the same fd. */
struct runner *engine_model_take(struct engine *engine);

/* ---- counters and facts, from any thread ---- */

struct engine_stats {
	_Atomic uint64_t n_steps, n_replays, n_shared_replays; /* shared: rows of two processes or more */
	_Atomic uint64_t n_eager[N_EAGER_REASONS]; /* eager steps by reason */
	_Atomic uint64_t n_rows, n_padded_rows, n_tokens_in, n_tokens_out, n_discarded_rows;
	_Atomic uint64_t n_requests, n_finished, n_cancelled, n_failed, n_refused;
	_Atomic uint64_t n_failed_with[ENGINE_STATUSES]; /* n_failed by -status */
	_Atomic uint64_t n_ring_full; /* times that a session's completion ring had no space for another request */
	_Atomic uint64_t n_aborted; /* requests that engine_post_abort found in flight */
	_Atomic uint64_t n_sleeps;                             /* times the engine slept */
	_Atomic uint64_t lane_ns; /* steps' time on the lane, prepare to outbox, by the device's clock */
	/* Lane idle ahead of steps that generate on from the step before, and how many such steps. */
	_Atomic uint64_t gap_ns, n_gaps, long_gap_ns, n_long_gaps;
	_Atomic uint64_t work_ns; /* of turns that launched a step or read one: the engine's own time */
	/* Captures while serving: their turns on the engine, and the longest gap that one caused. */
	_Atomic uint64_t n_late_captures, late_capture_ns, late_gap_ns;
	struct histogram wake; /* from a step's end to its results being read, if the engine slept meanwhile */
	_Atomic uint64_t n_pings; /* of engine_post_ping, seen by a turn */
	_Atomic uint32_t n_graph_orders; /* posted, not yet carried out */
	_Atomic uint32_t n_in_lane; /* steps launched whose end was not seen */
	_Atomic uint32_t n_sessions, n_sequences, n_running, n_waiting, n_slots_free;
	_Atomic int32_t device_condition; /* 0: healthy */
	_Atomic bool draining;
};
const struct engine_stats *engine_stats(const struct engine *engine);
/* Requests that ended, for the loop thread. */
struct request_log;
struct request_log *engine_request_log(struct engine *engine);
struct trace;
struct trace *engine_trace(struct engine *engine);
/* "io_uring" or "epoll", and why not io_uring. */
const char *engine_loop_name(const struct engine *engine);
const char *engine_loop_reason(const struct engine *engine);

#define ENGINE_DRAFTS_MAX 8 /* SPECULATE_MAX */

/* Why a row of a model with a draft model decoded without draft tokens: its request wanted none; has a mask
 * of its own; is on a sequence whose beginning the draft model has not seen; or is a step request. */
enum engine_undrafted {
	UNDRAFTED_ASKED,
	UNDRAFTED_MASK,
	UNDRAFTED_SEQUENCE,
	UNDRAFTED_STEP,
	N_UNDRAFTED,
};

/*
 * n_rows: rows that verified draft tokens; n_tokens: what their requests took of them, accepted draft
 * tokens and the token behind. Draft token i of a row was offered if its request speculates that far and
 * had not ended before it. It was accepted if it and all before it were right; its rate is accepted /
 * offered.
 *
 * n_draft_steps: steps with draft passes; draft_ns: the lane's time for them, from the target's last kernel
 * and copies of results to the step's end.
 */
struct engine_speculation {
	uint64_t n_rows, n_tokens;
	uint64_t n_offered[ENGINE_DRAFTS_MAX], n_accepted[ENGINE_DRAFTS_MAX];
	uint64_t n_draft_steps, draft_ns;
	uint64_t n_undrafted[N_UNDRAFTED]; /* rows launched that verify none and decode a token */
};

/*
 * FIRST_TOKEN: from a generate request's submission to its first token. TOKEN: from a token to the next, of each token
 * behind the first; tokens that come together share the time. QUEUE: from the submission of a generate or step request
 * to its start. REQUEST: to its end, however it ended. STEP: a step's time on the device. ROWS, SESSIONS: how many a
 * step has, and of how many sessions its rows are.
 */
enum engine_distribution {
	ENGINE_FIRST_TOKEN,
	ENGINE_TOKEN,
	ENGINE_QUEUE,
	ENGINE_REQUEST,
	ENGINE_STEP,
	ENGINE_ROWS,
	ENGINE_STEP_SESSIONS,
	N_ENGINE_DISTRIBUTIONS,
};

struct engine_model_facts {
	uint32_t id; /* no other model has it in the daemon's life; requests name the model by it */
	const char *name;
	const struct model *model;
	const char *attention, *support;
	const char *kv_dtype; /* of keys and values: "f32", "bf16", "fp8" */
	bool masks; /* requests may bring some */
	const struct mode_resolution *mode;
	const struct mimeo_mask *mask; /* of requests that bring none */
	uint32_t max_seq_len, max_batch_tokens, max_rows, page_tokens, pages_total, pages_free;
	/* With its draft's: memory, what was read from files and how long that took, and graphs. */
	uint64_t weights_bytes, weights_read_bytes, kv_bytes, pool_bytes, graph_bytes;
	double load_seconds, capture_seconds;
	uint32_t n_graphs, n_ready; /* descriptors, and those of them that are captured */
	uint64_t n_tokens_out, n_steps, n_rows;
	uint64_t n_firsts, first_ns, between_ns; /* as in engine_port */
	const struct histogram *distributions; /* [N_ENGINE_DISTRIBUTIONS] of the runner, for any thread */
	uint64_t n_prompt_tokens; /* of requests, those that the prefix cache had included */
	uint64_t n_cached_tokens; /* that the prefix cache had: not computed */
	uint64_t n_prefix_hits; /* rows that began with tokens of the prefix cache */
	uint32_t pages_cached;    /* unused pages that it keeps; they count as free */
	uint64_t n_evicted, n_preempted; /* idle sequences, requests: their pages went to others */
	uint64_t n_not_finite; /* rows whose logits gave no token; not those of requests that had ended or ban tokens */
	uint64_t n_eager[N_EAGER_REASONS]; /* steps */
	const char *draft; /* its architecture; NULL: none */
	uint32_t n_drafts;
	/* Passes of the draft's two managers (daemon/graph/speculator.h). */
	uint64_t n_prefill_eager[N_EAGER_REASONS], n_decode_eager[N_EAGER_REASONS];
	struct engine_speculation speculation;
};
/* The device's name, and its memory as it is now. 0, or the device's answer. */
int engine_device_info(const struct engine *engine, struct device_info *ret);

/* Models served, and facts of one by its index, which changes as others are unloaded: on the loop thread. */
uint32_t engine_n_models(const struct engine *engine);
/* Bytes that the engine may need for the sequences and requests of a session with a ring and arena of these
 * sizes. */
uint64_t engine_bytes_of_session(
	const struct engine *engine, uint32_t entries, uint64_t arena_bytes);
void engine_model_facts(const struct engine *engine, uint32_t model, struct engine_model_facts *ret);
/* The name of the model of that id, even if it is gone; until the next engine_post_load. On the loop thread. */
const char *engine_model_name(const struct engine *engine, uint32_t id);

struct engine_graph_facts {
	const char *owner;      /* "target"; "draft prefill", "draft decode" */
	bool of_draft;          /* captured when the model is loaded, and kept; orders do not apply to it */
	char name[32];          /* "FULL 8x1"; unique per model and owner */
	char mode[24];          /* "FULL" */
	const char *state;      /* "ready" */
	uint32_t tokens, rows;  /* padded; rows 0: any */
	uint32_t query_len;     /* 0: any */
	uint32_t n_captures, n_drops;
	uint32_t n_nodes, n_segments;
	uint64_t bytes;
	double seconds;
	uint64_t n_replays, n_padded_rows;
	uint64_t n_shared_replays; /* of a draft's not counted: 0 */
};
/* The model's own graphs first, then those of its draft. False past the last one. */
bool engine_graph_facts(const struct engine *engine, uint32_t model, uint32_t index,
	struct engine_graph_facts *ret);

#endif
