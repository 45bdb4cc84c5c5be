/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_STATE_H
#define MIMEO_DAEMON_ENGINE_STATE_H

/*
 * The engine's own objects, shared by the files of this folder and by nobody else.
 *
 *	engine --< runner   one model: its KV cache, inputs, graphs, and the sequences that run
 *	       --< session  one client: its ring, its requests by index, its sequences by id
 *	       --< flight   a launched step whose end has not been seen (two at most)
 *
 * A request is FREE, WAITING (in its session's list, in order of submission) or RUNNING. A sequence
 * is IDLE, RUNNING (it has a slot and a request) or RELEASING: its request has ended, but a launched
 * step still names its slot and pages, so they go back when runner.completed reaches last_step.
 */

#include <pthread.h>
#include <stdatomic.h>

#include <mimeo/types.h>

#include "daemon/engine/builder.h"
#include "daemon/engine/engine.h"
#include "daemon/graph/dispatch.h"
#include "daemon/graph/execute.h"
#include "daemon/graph/speculate.h"
#include "daemon/loop/loop.h"
#include "ipc/clock.h"
#include "ipc/msg.h"

#define ENGINE_FLIGHTS 2 /* steps launched ahead of what the host has read, the current one included */

struct session;
struct request;
struct runner;

enum sequence_state { SEQUENCE_IDLE, SEQUENCE_RUNNING, SEQUENCE_RELEASING };

struct sequence {
	struct session *session;
	struct runner *runner;
	enum sequence_state state;
	bool open;         /* an id of the session's names it */
	bool ephemeral;    /* lives as long as its one request */
	bool forget;       /* give all back when released */
	bool slot_ready;   /* the slot's initialisation is on the lane */
	int32_t slot;      /* -1: none */
	int32_t *tokens;   /* [session.max_seq_len] prompt and output that the host knows */
	uint32_t n_tokens;
	uint32_t n_computed; /* positions whose K and V are launched */
	uint32_t n_pending;  /* tokens sampled by launched steps, not read yet; of one that verifies one */
	uint32_t n_drafted;  /* leading positions that the draft has been at, too */
	uint32_t n_drafts;   /* drafts a step that its slot may have */
	enum engine_undrafted undrafted; /* why they are none */
	struct kv_table table;
	struct request *request; /* RUNNING only */
	uint32_t row;            /* which of the request's */
	uint32_t target;         /* tokens to compute before the row samples first */
	uint32_t document;       /* of the last token that was launched: where its document begins */
	uint64_t last_step;      /* the runner's last launched step that names it */
	uint64_t claim;          /* admission pass in which an earlier request waits for it */
	struct sequence *next;   /* in runner.releasing */
};

/* ENDING: it has ended, but a launched step still names buffers of its client's: nobody is told before
 * that step has completed, because from then on they are the client's to use. */
enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_RUNNING, REQUEST_ENDING };

struct request_row {
	uint32_t sequence; /* id */
	uint32_t n_tokens;
	uint32_t first; /* tokens of the request's rows before it */
	const int32_t *tokens; /* in the session's mirror, validated again when they are taken */
};

/* A place in a device buffer, held by the request that names it. */
struct request_place {
	struct engine_buffer *buffer; /* NULL: none */
	uint8_t *at;
};

struct request {
	struct session *session;
	struct runner *runner;
	enum request_state state;
	uint32_t index, generation;
	uint64_t user_data;
	uint16_t op;
	uint32_t sequence, argument; /* as in the entry */
	struct slot_sampling sampling;
	struct mimeo_mask mask;
	const uint8_t *mask_words; /* uint64 [tokens of all rows] in the session's mirror; NULL: none */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
	/* generate */
	uint32_t max_tokens, n_stop, n_prompt, n_generated;
	int32_t stop[MIMEO_STOP_MAX];
	bool ignore_eos;
	uint32_t n_drafts; /* drafts a step that it may have */
	/* both; a generate request has one row */
	uint32_t n_rows, n_rows_left;
	struct request_row *rows; /* [max_rows] */
	bool want_tokens, want_logits, want_hidden;
	int32_t *out_tokens; /* in the region's arena: written, never read */
	float *out_logits, *out_hidden;
	struct request_place logits, hidden; /* in place of out_logits and out_hidden */
	struct request_place embeddings;     /* [tokens of all rows, hidden] act, in place of ids' */
	uint32_t n_places;                   /* of these three that are there */
	uint64_t last_launch;                /* the last launched step that names them */
	struct { /* of one that is ENDING */
		int status;
		unsigned finish;
		bool has_detail;
		struct msg_detail detail;
		struct request *next;
	} end;
	struct event *fence;                 /* to record behind the last row; NULL: none */
	uint32_t n_rows_unlaunched;          /* whose last token has not been launched */
	struct request *previous, *next; /* in session.waiting */
};

struct session {
	struct engine *engine;
	struct engine_port *port;
	struct loop_source *source;
	bool failed;   /* broke the protocol: its ring is not looked at any more */
	bool detached; /* being taken apart */
	bool publish;  /* completions were pushed */
	bool stuffed;  /* no room for another final completion: its ring is left alone */
	uint32_t n_in_flight, n_waiting, n_open;
	uint32_t n_busy; /* sequences that are not IDLE */
	uint32_t max_sequences, n_requests, max_seq_len;
	struct sequence *sequences; /* [max_sequences] by id - 1, then [n_requests] ephemeral ones */
	struct request *requests;   /* [n_requests] */
	struct request *waiting_first, *waiting_last;
	uint8_t *mirror; /* private copies of payloads, at their arena offsets */
	void *memory;
	size_t memory_bytes;
};

struct runner {
	struct engine *engine;
	struct engine_model_options options;
	struct model *model;
	struct kv_cache *kv;
	struct inputs inputs;
	void *pool;
	uint64_t pool_bytes;
	struct forward_context context;
	struct executor executor;
	struct graph_set graphs;
	struct speculator speculator; /* of a model with a draft */
	struct kv_cache *draft_kv;    /* its draft's memory; pages are `kv`'s */
	uint32_t max_pages; /* of a sequence */
	enum dtype activation_dtype;
	uint32_t *query_lens, *seq_lens; /* [max_rows] of the batch being built */
	int32_t *free_slots;
	uint32_t n_free_slots;
	struct sequence **running; /* [max_rows] */
	uint32_t n_running, turn;
	struct sequence *releasing;
	uint32_t (*copies)[2]; /* [max_rows] pages to copy ahead of the next step */
	uint32_t n_copies;
	uint32_t *dropped; /* [max_pages] scratch */
	uint64_t launched, completed; /* step numbers, from 1 */
	struct request *head; /* waits for pages or slots that will come back; nobody passes it */
	bool warned_too_wide;
	bool whole_waits; /* what must be computed in one step had no room in the last one */
	bool chunks_wait; /* prompts had no room in the last step for decodes */
	bool drafts;      /* the step being built has rows that draft */
	uint32_t n_guesses; /* the most that one of them wants for the step behind it */
	_Atomic uint32_t pages_free;
	_Atomic uint64_t n_tokens_out, n_steps;
	/* engine.h, struct engine_speculation */
	_Atomic uint64_t n_verified, n_verified_tokens, draft_ns, n_draft_steps;
	_Atomic uint64_t n_offered[SPECULATE_MAX], n_accepted[SPECULATE_MAX];
	_Atomic uint64_t n_undrafted[N_UNDRAFTED];
	_Atomic uint64_t n_eager[N_EAGER_REASONS];
};

struct flight_row {
	struct sequence *sequence;
	bool sample;
	bool last;      /* completes the sequence's target */
	bool verify;    /* its drafts are verified: one token at least, 1 + n_drafts at most */
	int32_t result; /* index into the slot's logits and hidden, or -1 */
};

struct flight {
	struct runner *runner;
	struct inputs_slot *slot;
	uint64_t step;
	uint32_t n_rows;
	struct flight_row *rows; /* [max_rows] */
	uint32_t *sources;       /* [max_rows] copied pages to release */
	uint32_t n_sources;
	bool notify;  /* a host function wakes the engine behind it */
	struct event *end; /* recorded behind it where it is to notify */
	struct event *told; /* the same behind its results, where drafts go on */
	struct graph_entry *entry; /* NULL: eager */
	uint64_t expected_ns; /* the lane's time for the last steps like it; 0: there was none */
	bool follows; /* a generating row of it was in the runner's step before */
	bool drafts;  /* the draft's passes are part of it */
	bool read;    /* its results are; it is in the lane as long as the draft's passes are */
	uint64_t told_ns; /* expected_ns, up to the results */
};

/* Captures and drops while serving: late.c. */
struct late {
	struct builder_task base; /* first */
	struct engine *engine;
	struct builder *builder;
	struct stream *stream; /* the builder's, for uploads */
	/* of the one task that the builder has, if busy */
	bool busy;
	struct graph_entry *entry;
	int task, rc;
	_Atomic bool done;
	/* the engine's alone */
	struct graph_entry *wanted, *dropping; /* in order; the builder's is in neither */
	bool relieving;         /* the builder waits for memory */
	bool due;               /* a capture waits for the lane, and no step is launched before */
	uint64_t generation_ns; /* its length */
	uint64_t quiet_ns;      /* after the last step captures need no share */
	uint64_t active_ns;     /* a step was launched */
	uint64_t next_ns;       /* no capture before, while requests come */
	uint64_t window;        /* the last launch whose gap a capture may have caused */
};

struct mail;

struct engine {
	struct engine_options options;
	struct device *device;
	struct stream *lane, *bell; /* bell: host functions that wake the engine */
	struct loop *loop;
	struct msg_codec *codec;
	pthread_t thread;
	bool started;
	struct runner *runners; /* [n_models] */
	uint32_t n_runners, runner_turn;
	struct session *sessions[ENGINE_SESSIONS_MAX];
	uint32_t n_sessions, session_turn;
	uint32_t max_seq_len, max_pages; /* over all models */
	struct flight flights[ENGINE_FLIGHTS];
	uint32_t first_flight, n_flights;
	uint64_t launched, completed; /* flights, of all runners; they complete in order */
	struct engine_buffer *closing; /* buffers that something may still name */
	struct request *ending;
	bool admit;       /* something changed that waiting requests may wait for */
	uint64_t pass;    /* admission passes */
	bool sleepy;      /* spinning did not suffice for the last step: launches come with a notification */
	bool slept;       /* since the last step was read */
	bool draining, drained, stop, lost;
	uint32_t n_deadlines, n_requests;
	uint64_t next_deadline_ns; /* none is earlier */
	uint32_t n_ports;          /* attached, as the loop thread counts */
	uint64_t idle_since_ns, idle_turns;
	bool watching; /* the last look found nothing, and was just now */
	bool lag_known;
	uint64_t lane_lag_ns;   /* the host's clock less the lane's */
	uint64_t lane_since_ns; /* when the oldest flight began, on the host's clock */
	uint64_t work_since_ns; /* this turn's work with steps; 0: none yet */
	uint64_t lane_ended_ns; /* the last step read, on the device's clock */
	struct late late;
	uint64_t seed_state;
	_Atomic bool sleeping;
	struct engine_stats stats;
	/* mailbox.c */
	pthread_mutex_t lock;
	struct mail *mail_first, *mail_last;
	struct engine_report *reports_first, *reports_last;
	struct engine_report drained_report, lost_report;
	struct engine_buffer *closed; /* to be taken by the loop thread */
	_Atomic bool mail_waits;
	int report_fd;
};

static inline void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* The first work with steps in a turn; its end is the turn's. */
static inline void engine_work_begins(struct engine *engine)
{
	if (!engine->work_since_ns)
		engine->work_since_ns = clock_ns();
}

/* ---- runner.c ---- */
int runner_init(struct runner *runner, struct engine *engine, const struct engine_model_options *options,
	struct model_error *error);
/* Phases of all runners, in this order: warm_up, (device lock), capture, map. */
int runner_warm_up(struct runner *runner, struct model_error *error);
/* Where graphs are captured as they are wanted, the draft's alone. */
int runner_capture(struct runner *runner, struct model_error *error);
void runner_deinit(struct runner *runner);

/* ---- runner_memory.c ---- */
/* Returns rc, and says what of which model it was. */
int runner_fail(struct model_error *error, const struct runner *runner, const char *what, int rc);
/* Engine, options, model and activation_dtype are set; what there is stays for runner_deinit. */
int runner_allocate(struct runner *runner, const struct device_info *info,
	struct model_buffers *ret_draft, struct model_error *error);
/* Pages that the warm-up's one real row may write. */
uint32_t runner_warm_up_pages(const struct runner *runner);
/* The last phase. */
int runner_map(struct runner *runner, struct model_error *error);
/* Of a page of its KV cache, the draft's part counted in. */
uint64_t runner_page_bytes(const struct runner *runner);

/* ---- session.c ---- */
/* Called on the loop thread; allocates all that the session will ever need. */
int engine_session_new(struct engine *engine, struct engine_port *port, struct session **ret);
void engine_session_free(struct session *session);
struct sequence *engine_session_sequence(struct session *session, uint32_t id);
/* The client broke the rings: report it once, look at its ring no more. */
void engine_session_fail(struct session *session, const char *text);
/* End its requests without a word, let its sequences go. */
void engine_session_detach(struct session *session);
/* Nothing launched names it any more? */
bool engine_session_is_idle(const struct session *session);
void engine_session_wait_push(struct session *session, struct request *request);
void engine_session_wait_remove(struct session *session, struct request *request);

/* ---- sequence.c ---- */
void sequence_reset(struct sequence *sequence, struct runner *runner);
/* Where the tokens begin that the sequence's request brought: before them all may be computed, or not. */
uint32_t sequence_request_start(const struct sequence *sequence);
/* Tokens from there on that see one another in both directions. */
uint32_t sequence_prefix(const struct sequence *sequence);
/* The request has ended: out of the running ones, back to IDLE when no launched step names it. */
void sequence_stop(struct sequence *sequence);
/* Give an IDLE sequence's pages back and forget it. */
void sequence_forget(struct sequence *sequence);
/* Show anybody how many pages are free now. */
void runner_show_pages(struct runner *runner);
/* After runner.completed has grown. */
void runner_release(struct runner *runner);

/* ---- intake.c ---- */
/* Take what the session submitted. True if there was anything. */
bool intake(struct session *session);

/* ---- buffer.c ---- */
/* Find the place and hold its buffer: 0, or a status and what is wrong with it. Of buffer 0: none. */
int request_place_take(struct request *request, const struct mimeo_place *place, uint64_t bytes,
	struct request_place *ret, struct msg_detail *ret_detail);
/* Let go of the request's buffers. */
void request_places_drop(struct request *request);
/* A step that names the request's buffers is being launched. */
void request_places_launched(struct request *request);
void buffer_close(struct session *session, uint32_t id);
/* Forget the closings of a session that is taken apart: its buffers go with it. */
void buffers_forget(struct session *session);
/* Hand over what nothing names any more. */
void buffers_release(struct engine *engine);

/* ---- admit.c ---- */
/* Start what may start. True if anything was started or ended. */
bool admit(struct engine *engine);

/* ---- schedule.c ---- */
/* Fill the flight with rows that can run now. False if there are none. */
bool schedule(struct runner *runner, struct flight *flight, struct batch_shape *ret_shape);

/* ---- speculation.c ---- */
/* The sequence's request begins: how many drafts its steps may have, or why none. A draft knows causal
 * attention alone, and only sequences that it has been at from the beginning. */
void speculation_begin(struct sequence *sequence);
/* A row of one token, or of one that verifies, is launched. */
void speculation_count_decode(const struct sequence *sequence);
/* Of a row that had n_drafts, n_held of which held; its request took so many tokens, and if that ended it,
 * it had no room for drafts behind them. Says once of a model if its draft is no good. */
void speculation_count_verified(
	struct runner *runner, uint32_t n_drafts, uint32_t n_held, uint32_t taken, bool ended);
/* From any thread. */
struct engine_speculation speculation_facts(const struct runner *runner);

/* ---- step.c ---- */
/* Launch steps until ENGINE_FLIGHTS are in flight or nothing can run. True if any was launched. */
bool step_launch(struct engine *engine);

/* ---- late.c ---- */
/* Go on with captures and drops. True if anything moved. */
bool late_turn(struct engine *engine);
/* May the gap ahead of the step that was read last be a capture's? */
bool late_in_gap(const struct engine *engine);
/* A step could have replayed it. */
void late_want(struct runner *runner, struct graph_entry *entry);
/* The builder needs memory. */
void late_relieve(struct engine *engine);
void late_order(struct engine *engine, const struct engine_graphs_order *order);

/* ---- results.c ---- */
/* Read the results of steps; those that completed leave the lane. True if there was anything. */
bool step_complete(struct engine *engine);
/* The oldest flight's results are there and not read, or it has ended. */
bool step_ready(const struct engine *engine);

/* ---- idle.c ---- */
/* On the engine's thread, before all others. */
void idle_init(void);
/* A turn found something to do. */
void idle_reset(struct engine *engine);
/* A turn found nothing: wait for something, or return to look again. */
void idle(struct engine *engine);
/* The step before the oldest flight has been read; its end on the lane's clock. */
void idle_follow(struct engine *engine, uint64_t ended_ns);
/* What is launched now runs at once. */
void idle_begin(struct engine *engine);
/* Is the engine to be woken behind a step that is expected to take so long? */
bool idle_wants_bell(const struct engine *engine, uint64_t expected_ns);

/* ---- finish.c ---- */
void post_final(struct request *request, int status, unsigned finish, const struct msg_detail *detail);
/* For a submission that never became a request. */
void post_refusal(struct session *session, const struct ring_sqe *sqe, int status,
	const struct msg_detail *detail);
void post_tokens(struct request *request);
/* The request's fence has been recorded. */
void post_recorded(struct request *request);
/* End a WAITING or RUNNING request: stops its sequences, posts the final completion. */
void request_finish(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail);
/* Tell of those whose last step has completed. */
void requests_end(struct engine *engine);
/* End all of everybody's. */
void engine_end_all(struct engine *engine, int status);
/* End what is past its deadline. True if anything was. */
bool engine_check_deadlines(struct engine *engine);
void engine_lose_device(struct engine *engine, int rc);
void engine_publish(struct engine *engine);

/* ---- mailbox.c ---- */
int mailbox_init(struct engine *engine);
void mailbox_deinit(struct engine *engine);
/* Handle what the loop thread posted. True if there was anything. */
bool mailbox_take(struct engine *engine);
/* Hand a closed buffer to the loop thread. */
void buffer_post(struct engine *engine, struct engine_buffer *buffer);
/* Never fails; each kind once for its port or engine. */
void report_post(struct engine *engine, enum engine_report_kind kind, struct engine_port *port,
	const char *text);

#endif
