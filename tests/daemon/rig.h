/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_RIG_H
#define MIMEO_TESTS_DAEMON_RIG_H

/*
 * An engine in this process, with tinycalc on the device of MIMEO_DEVICE, and clients that speak to
 * it through the rings as an untrusted client would: without socket and library, so that a test can
 * write any entry it likes.
 */

#include <pthread.h>
#include <time.h>

#include <mimeo/types.h>

#include "daemon/engine/state.h"
#include "ipc/clock.h"
#include "ipc/msg.h"
#include "tests/device.h"

#define RIG_TIMEOUT_S 60
#define RIG_ENTRIES 64

struct rig_options {
	enum graph_mode mode;
	const char *attention; /* NULL: paged */
	const char *attention_behind; /* of all layers but the first; NULL: that */
	const char *model;     /* folder; NULL: tinycalc */
	uint32_t kv_pages;     /* 0: 512 */
	uint32_t window;       /* of all layers; 0: the model's */
	uint32_t full_every;   /* each so manieth layer from the first on has none; 0: all have one */
	bool one_set;          /* layers with a window keep all pages, as the others do */
	uint32_t max_requests, max_batch_tokens; /* 0: 16, 64 */
	uint32_t n_capture_sizes;
	const uint32_t *capture_sizes;
	bool lazy_capture;
	enum engine_prefix_sharing prefix_sharing; /* 0: none */
	void (*on_device)(struct device *device); /* before the engine is made */
	uint32_t max_seq_len; /* 0: 512 */
	uint32_t spin_us;
	uint32_t token_us; /* 0: no target */
	uint32_t n_models; /* 0: 1; the same folder under the names of its index */
	bool no_pieces;    /* piecewise graphs are not available */
	bool deterministic;
	bool kv_fp8; /* keys and values of the model and its draft */
	struct mimeo_mask mask; /* of requests that bring none */
	const char *draft;    /* folder; NULL: tinycalc's, if n_drafts is not 0 */
	uint32_t n_drafts;    /* 0: no draft */
	bool draft_last_only; /* of several models the last alone has it */
	/* The level of the draft's attention; NULL: uniform batches. */
	const enum attention_support *draft_support;
	/* In place of the draft's and, if that is paged, the target's; NULL: paged itself. */
	const struct attention_backend *paged;
	uint32_t entries; /* of rig->client; 0: RIG_ENTRIES */
	uint32_t preempt_every; /* tokens: lane.h; where the build can */
};

/* Holds the lane until it is opened. */
struct rig_gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open, reached;
};

struct rig;

struct rig_client {
	struct rig *rig;
	struct engine_port *port;
	struct region region; /* the client's own mapping */
	uint32_t generation, used; /* bump allocation in the arena */
};

/* What a request brought. */
struct rig_result {
	int32_t status;
	unsigned finish, detail;
	int32_t values[4];
	uint32_t n_cached, n_sequence;
	uint32_t n_prompt, n_generated, n_events; /* completions, the final one counted in */
	bool done;
};

struct rig {
	struct device *device;
	struct rig_options options;
	struct rig_gate gate;
	struct engine *engine;
	struct builder *builder;
	struct engine_report reports[64]; /* taken while waiting, but for DETACHED */
	uint32_t n_reports, n_ports;
	struct runner *runner; /* the first model's */
	struct speculator *speculator;
	struct rig_client client; /* rig_open_client's; port NULL: not attached */
	struct rig_client others[4]; /* rig_other's */
	struct rig_result results[RIG_ENTRIES]; /* of its requests, for rig_wait */
};

/* Where a request's parts lie, for tests that lie about them. */
struct rig_request {
	struct ring_sqe sqe;
	uint32_t index;
};

/* Seconds. */
double rig_now(void);
/* Between two polls. It sleeps, because the tests that run beside this one need the processor. */
void rig_pause(void);
#define RIG_AWAIT(condition)                                                                       \
	do {                                                                                       \
		double end_ = rig_now() + RIG_TIMEOUT_S;                                           \
		while (!(condition)) {                                                             \
			if (rig_now() > end_)                                                      \
				fail_msg("in %d s: not " #condition, RIG_TIMEOUT_S);               \
			rig_pause();                                                             \
		}                                                                                  \
	} while (0)
/* A folder of the source's, by its path there; one of four that are kept. */
const char *rig_source(const char *below);
/* Of the draft for tinycalc. */
const char *rig_draft(void);

void rig_open(struct rig *rig, const struct rig_options *options);
/* With rig->client attached. */
void rig_open_client(struct rig *rig, const struct rig_options *options);
/* Detaches rig->client and rig_other's; the rest were detached before. Checks that no page, slot or sequence is
 * missing. */
void rig_close(struct rig *rig);

/* Fixtures: *state is the options, then an engine by rig_open_client or by rig_open. */
int rig_setup(void **state);
int rig_setup_engine(void **state);
int rig_teardown(void **state);
#define RIG_TEST(test, ...)                                                                        \
	{#test, test, rig_setup, rig_teardown, &(struct rig_options){__VA_ARGS__}}
#define RIG_FULL_TEST(test) RIG_TEST(test, .mode = GRAPH_FULL_AND_PIECEWISE)
#define RIG_ENGINE_TEST(test, ...)                                                                 \
	{#test, test, rig_setup_engine, rig_teardown, &(struct rig_options){__VA_ARGS__}}

void rig_attach(struct rig *rig, struct rig_client *ret, uint32_t entries);
/* The same for a user and its weight (0: 1), which the engine reads as it attaches. */
void rig_attach_as(struct rig *rig, struct rig_client *ret, uint32_t entries, uid_t uid, uint32_t weight);
/* Attach one more client, which rig_close detaches; 4 at most. */
struct rig_client *rig_other(struct rig *rig, uint32_t entries);
/* Make one more model like those of the options while the engine serves, named "loaded-" and a number that no other
 * one had; the caller posts it. */
struct runner *rig_make_model(struct rig *rig);
/* Make one and serve it; its id. */
uint32_t rig_load(struct rig *rig);
/* Unload it, wait until it is handed back, and free it. */
void rig_unload(struct rig *rig, uint32_t id);
/* Posts the detachment and waits for DETACHED. */
void rig_detach(struct rig_client *client);
/* Waits for DETACHED alone. */
void rig_detached(struct rig_client *client);
/* Wait for a report of that kind. */
struct engine_report rig_report(struct rig *rig, enum engine_report_kind kind);
/* Hold the lane: what is launched from now on waits. The engine has nothing in flight then. */
void rig_gate_close(struct rig *rig);
void rig_gate_open(struct rig *rig);
/* Wait until the engine has launched n steps in all; or sleeps with that many requests waiting. */
void rig_wait_steps(struct rig *rig, uint64_t n);
void rig_wait_waiting(struct rig *rig, uint32_t n);
/* Of the first model. */
struct engine_model_facts rig_facts(const struct rig *rig);
uint32_t rig_pages_free(struct rig *rig, uint32_t model);
/* All pages and slots are free (waits for it). */
void rig_assert_all_free(struct rig *rig);

/* ---- requests ---- */

/* Fill an entry: header, tokens and output area in the arena. index: the request index. */
struct rig_request rig_generate(struct rig_client *client, uint32_t index, const int32_t *tokens,
	uint32_t n_tokens, const struct msg_generate *msg);
/* The same, with the lists that msg counts (n_bias, n_allowed) behind its tokens. */
struct rig_request rig_generate_adjusted(struct rig_client *client, uint32_t index, const int32_t *tokens,
	const struct msg_generate *msg, const struct mimeo_bias *bias, const uint32_t *allowed);
/* Where its results lie. */
struct msg_output rig_generate_layout(const struct rig_client *client, const struct msg_generate *msg);
/* Of a step whose rows have n_positions tokens. */
struct msg_output rig_step_layout(const struct msg_step *msg, uint64_t n_positions);
/* Behind the tokens lie the words, if the mask has any. */
struct rig_request rig_step(struct rig_client *client, uint32_t index, const struct msg_step *msg,
	const struct msg_row *rows, const int32_t *tokens);
struct rig_request rig_call(struct rig_client *client, uint32_t index, unsigned op,
	uint32_t sequence, uint32_t argument);
/* Write the entry to the ring and publish. */
void rig_submit(struct rig_client *client, struct rig_request request);
/* Take completions until request `index` has its final one; others' are kept in results[]. */
void rig_wait(struct rig_client *client, struct rig_result *results, uint32_t index);
/* Open the sequences 1 ... n, each with the text as its history; and close them. */
void rig_open_histories(struct rig_client *client, uint32_t n, const char *text);
void rig_close_histories(struct rig_client *client, uint32_t n);
/* A step that appends one token to each of the sequences 1 ... n, 16 at most: n decodes at once. */
struct rig_request rig_decode(struct rig_client *client, uint32_t n, uint32_t outputs);
/* The tokens of a request that has ended. */
const int32_t *rig_tokens(const struct rig_client *client, const struct rig_request *request);
const float *rig_logits(const struct rig_client *client, const struct rig_request *request,
	const struct msg_output *layout);
/* At that offset of its results. */
const void *rig_output(const struct rig_client *client, const struct rig_request *request, uint64_t offset);

/* Submit, wait, and give the result: for tests of one request. */
struct rig_result rig_do(struct rig_client *client, struct rig_request request);
/* The same of one that must succeed. */
struct rig_result rig_must(struct rig_client *client, struct rig_request request);

/* What a request is refused with, and nothing else of it. */
struct rig_expected {
	int status;
	unsigned detail;
	int32_t a, b, c, d;
};
void rig_expect(struct rig_client *client, const struct rig_request *request,
	struct rig_expected expected);
/* A prompt without sense, the begin token in front. */
void rig_nonsense(int32_t *tokens, uint32_t n, uint32_t seed);

/* Take whatever completions there are; true if there was any. */
bool rig_poll(struct rig_client *client, struct rig_result *results);
/* Submit a call on a sequence, and expect success. */
void rig_ok(struct rig_client *client, uint32_t index, unsigned op, uint32_t sequence,
	uint32_t argument);
/* Submit a cancel of another request, under an index of its own. */
void rig_cancel(struct rig_client *client, uint32_t index, const struct rig_request *target);

/* A greedy generate message. */
struct msg_generate rig_greedy(uint32_t n_tokens, uint32_t max_tokens);
/* Byte 1, then the text. Number of tokens. */
uint32_t rig_prompt(const char *text, int32_t *ret);
/* A generate request on an open sequence (0: one of its own). */
struct rig_request rig_ask(struct rig_client *client, uint32_t index, uint32_t sequence,
	const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens, uint32_t flags);
/* Request 0, sampled at a temperature at which all tokens are about as likely, until its limit. */
struct rig_request rig_ask_sampled(struct rig_client *client, const int32_t *tokens, uint32_t n_tokens,
	uint32_t max_tokens, uint64_t seed);
/* One that runs until its limit, with a prompt of 12 tokens. */
struct rig_request rig_endless(struct rig_client *client, uint32_t index, uint32_t sequence,
	uint32_t max_tokens);
/* A generate request of a text, with the begin token in front if the sequence is 0; 40 tokens at most. */
struct rig_request rig_ask_text(struct rig_client *client, uint32_t index, uint32_t sequence,
	const char *text);
/* A step of one row of a text; first: with the begin token in front. All three outputs. */
struct rig_request rig_step_text(struct rig_client *client, uint32_t index, uint32_t sequence,
	const char *text, bool first);
/* The request has ended well, and the text before its end token is the answer. */
void rig_assert_text(const struct rig_client *client, const struct rig_request *request,
	const struct rig_result *result, const char *answer);
/* Ask, and compare the answer with text (which ends by the end token). */
void rig_assert_answer(struct rig_client *client, uint32_t index, const char *prompt,
	const char *answer);

#endif
