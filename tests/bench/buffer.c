/* SPDX-License-Identifier: MIT */
/*
 * What device buffers cost: the calls that make and close them, a step that leaves its logits in
 * one with a fence behind them, and what other clients notice when memory is given back. What the
 * device does not have, or the daemon does not allow, has no row.
 *
 * A call is one on the socket and its reply. A close is answered when no request can name the buffer
 * any more; the memory goes back behind it, in the daemon's builder. The floor of calls is the same
 * memory without a daemon: the device makes it and gives it back in this process.
 *
 * Steps with logits in a buffer and in the arena take turns with the same step without logits, on
 * the same sequences.
 *
 * Two clients generate without end, so that the lane does not run empty between two requests: what
 * waits for an empty lane would run there and cost no client anything. In ROUNDS by turns a third one
 * closes buffers, or does not, and the daemon says how long its lane was idle between steps that
 * generate.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <math.h>
#include <mimeo/mimeo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/probe.h"
#include "daemon/engine/builder.h"
#include "tests/bench/stream.h"

#define KV_PAGES 512u
#define ARENA_BYTES (64ull << 20) /* for the logits of a large vocabulary */
#define ON_CPU RESULTS_ON_CPU ", and a buffer has no pages until they are touched"

/* A client of the daemon, in a child that adds rows to the results. */
struct buffer_bench {
	const struct bench_options *options;
	struct results *results;
	const struct target *target;
	struct mimeo *m;
};

/* A message on standard error, with the daemon's own words; returns the status. */
static int buffer_fail(const struct buffer_bench *bench, const char *what, int status)
{
	const char *message = mimeo_buffer_message(bench->m);

	return bench_fail(status, "%s: %s (%s)%s%s", what, mimeo_strerror(status),
		mimeo_status_name(status), *message ? ": " : "", message);
}

/* For the child's life. */
static int buffer_samples(struct samples **ret, uint32_t n, uint32_t capacity)
{
	return samples_make(ret, n, capacity) < 0 ? bench_fail(-ENOMEM, "no memory") : 0;
}

static void buffer_pause(uint32_t ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* Begin the row of a result and its floor; more of its values may follow. */
static void buffer_row(const struct buffer_bench *bench, const char *name, struct samples *result,
	struct samples *floor, const char *floor_name)
{
	results_row(bench->results);
	results_text(bench->results, "measure", "MEASURE", name);
	results_samples(bench->results, result, floor);
	results_floor(bench->results, floor_name);
	results_note(bench->results, results_on_cpu(bench->results) ? ON_CPU : NULL);
}

/* ---- calls ---- */

#define BACK_NS 5000000000ull /* for what was closed to come back */
#define CALLS_FLOOR                                                                                \
	"of calls: the same memory made or given back by the device in one process, by turns"

static const struct {
	const char *make, *close;
	uint32_t kind;
} kinds[] = {
	{"allocate memfd", "close memfd", MIMEO_HANDLE_MEMFD},
	{"allocate VMM fd", "close VMM fd", MIMEO_HANDLE_VMM_FD},
	{"allocate CUDA IPC", "close CUDA IPC", MIMEO_HANDLE_CUDA_IPC},
};

static const struct {
	const char *name;
	uint64_t bytes;
} sizes[] = {{"4 KiB", 4096}, {"2 MiB", 2u << 20}, {"64 MiB", 64u << 20}};

enum call { MAKE, CLOSE, FLOOR_MAKE, FLOOR_CLOSE, N_CALLS };

struct calls {
	const struct buffer_bench *bench;
	struct device *device;
	struct samples *samples[N_CALLS]; /* of a kind and a size */
};

/* A device's condition or -errno. */
static int calls_floor(const struct calls *calls, uint32_t kind, uint64_t bytes)
{
	const struct device_ops *ops = calls->device->ops;
	struct device_handle handle = {.fd = -1};
	bool ipc = kind == MIMEO_HANDLE_CUDA_IPC;
	void *memory;

	uint64_t start = clock_ns();
	int rc = ipc ? ops->export_ipc_alloc(calls->device, bytes, &memory, &handle)
		     : ops->export_alloc(calls->device, bytes, &memory, &handle);
	if (rc)
		return rc;
	samples_add(calls->samples[FLOOR_MAKE], clock_ns() - start);
	start = clock_ns();
	if (ipc)
		ops->export_ipc_free(calls->device, memory);
	else
		ops->export_free(calls->device, memory);
	if (handle.fd >= 0)
		close(handle.fd);
	samples_add(calls->samples[FLOOR_CLOSE], clock_ns() - start);
	return 0;
}

/* What was closed counts against the limits until the daemon has it back: a refusal for that is
 * waited out and not timed. */
static int calls_once(const struct calls *calls, uint32_t kind, uint64_t bytes)
{
	struct mimeo *m = calls->bench->m;
	uint64_t start = clock_ns(), until = start + BACK_NS;
	uint32_t buffer;

	int rc = mimeo_buffer_alloc(m, kind, bytes, &buffer);
	while (rc == MIMEO_E_QUOTA && start < until) {
		buffer_pause(1);
		start = clock_ns();
		rc = mimeo_buffer_alloc(m, kind, bytes, &buffer);
	}
	if (rc < 0)
		return rc;
	samples_add(calls->samples[MAKE], clock_ns() - start);
	start = clock_ns();
	rc = mimeo_buffer_close(m, buffer);
	if (rc == 0)
		samples_add(calls->samples[CLOSE], clock_ns() - start);
	return rc;
}

static void calls_row(const struct calls *calls, const char *what, size_t size, enum call call)
{
	char name[64];

	snprintf(name, sizeof(name), "%s, %s", what, sizes[size].name);
	buffer_row(calls->bench, name, calls->samples[call],
		calls->samples[call + FLOOR_MAKE - MAKE], CALLS_FLOOR);
	results_count(calls->bench->results, "bytes", NULL, sizes[size].bytes);
}

/* Result and floor by turns. 0, 1 if there is no such thing, or a negative number, reported. */
static int calls_measure(const struct calls *calls, size_t kind, size_t size)
{
	for (enum call call = 0; call < N_CALLS; call++)
		calls->samples[call]->n = 0;
	for (uint32_t i = 0; i < calls->bench->options->count; i++) {
		int rc = calls_once(calls, kinds[kind].kind, sizes[size].bytes);

		if (rc == MIMEO_E_UNSUPPORTED)
			return 1;
		if (rc < 0)
			return buffer_fail(calls->bench, "a buffer", rc);
		rc = calls_floor(calls, kinds[kind].kind, sizes[size].bytes);
		if (rc)
			return -abs(bench_fail_device(rc, "the floor", ""));
	}
	calls_row(calls, kinds[kind].make, size, MAKE);
	calls_row(calls, kinds[kind].close, size, CLOSE);
	return 0;
}

static int calls_all(const struct calls *calls)
{
	uint32_t n_measured = 0;

	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
		int rc = 0;

		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && rc == 0; i++)
			rc = calls_measure(calls, kind, i);
		if (rc < 0)
			return rc;
		n_measured += rc == 0;
	}
	return n_measured ? 0 : bench_fail(-ENOTSUP, "the daemon has no device buffers for clients");
}

static int buffer_calls(const struct buffer_bench *bench)
{
	struct calls calls = {.bench = bench};
	struct device_info info;
	char why[256] = "";
	int rc = buffer_samples(calls.samples, N_CALLS, bench->options->count);

	if (rc < 0)
		return rc;
	rc = probe_device(bench->options->device, &calls.device, &info, why, sizeof(why));
	rc = rc ? bench_fail_device(rc, "the floor", why) : calls_all(&calls);
	if (calls.device)
		calls.device->ops->free(calls.device);
	return rc;
}

/* ---- steps ---- */

#define ROWS_MAX 8u
#define STEPS_A_COUNT 10u
#define WARM_UPS 3u
#define STEP_FLOOR "of steps: the same step with sampled tokens only, by turns"

/* Times of a step: sampled tokens alone; logits in the arena; in a buffer with a fence, until the lane
 * has passed that (where the host can wait for it) and until the end. MIMEO_EVENT_RECORDED is no such
 * time: it comes when the fence is queued on the lane. */
enum step { BARE, ARENA, PASSED, FENCED, N_STEPS };

static const char *const step_names[N_STEPS] = {
	[ARENA] = "step, logits in the arena",
	[PASSED] = "step, logits in a buffer, to the fence",
	[FENCED] = "step, logits in a buffer, to the end",
};

struct stepper {
	const struct buffer_bench *bench;
	struct mimeo *m;
	const struct mimeo_model_info *info;
	uint32_t model, n_rows;
	uint32_t sequences[ROWS_MAX];
	uint32_t buffer; /* has space for all rows' logits */
	struct samples *samples[N_STEPS];
};

static int stepper_submit(struct stepper *s, enum step way, struct mimeo_request *request)
{
	static const int32_t token = ' ';
	struct mimeo_step_row rows[ROWS_MAX];
	struct mimeo_step step = MIMEO_STEP_INIT;

	for (uint32_t i = 0; i < s->n_rows; i++)
		rows[i] = (struct mimeo_step_row){s->sequences[i], 1, &token};
	step.model = s->model;
	step.rows = rows;
	step.n_rows = s->n_rows;
	step.outputs = MIMEO_STEP_TOKENS | (way == BARE ? 0 : MIMEO_STEP_LOGITS);
	step.logits.buffer = way == FENCED ? s->buffer : 0;
	step.flags = way == FENCED ? MIMEO_STEP_FENCE : 0;
	int rc = mimeo_request_prep_step(request, &step);
	return rc < 0 ? rc : mimeo_submit(s->m);
}

/* The fence is asked for before the clock starts: that happens once a request. */
static int stepper_step(struct stepper *s, enum step way)
{
	const struct mimeo_handle *fence = NULL;
	struct mimeo_request *request = mimeo_request_get(s->m);
	struct mimeo_event event = {0};
	int rc = request ? 0 : MIMEO_E_FULL;

	if (rc == 0 && way == FENCED)
		rc = mimeo_request_fence(request, &fence);
	if (rc < 0)
		return buffer_fail(s->bench, "a fence", rc);
	uint64_t start = clock_ns();
	rc = stepper_submit(s, way, request);
	if (rc < 0)
		return buffer_fail(s->bench, "step", rc);
	while (event.kind != MIMEO_EVENT_FINAL) {
		rc = client_next(s->m, &event);
		if (rc < 0)
			return rc;
		if (event.kind == MIMEO_EVENT_RECORDED && fence->kind == MIMEO_HANDLE_MEMFD) {
			rc = mimeo_fence_wait(s->m, fence, -1);
			if (rc < 0)
				return buffer_fail(s->bench, "waiting for a fence", rc);
			samples_add(s->samples[PASSED], clock_ns() - start);
		}
		mimeo_event_seen(s->m, &event);
	}
	samples_add(s->samples[way], clock_ns() - start);
	return 0;
}

/* Cut the sequences to their first token, so that each round sees the same lengths; with the null
 * request this is done before the next step's time begins. */
static int stepper_cut(struct stepper *s)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->n_rows && rc == 0; i++)
		rc = mimeo_sequence_truncate(s->m, s->sequences[i], 1);
	if (rc == 0)
		rc = mimeo_submit(s->m);
	return rc < 0 ? buffer_fail(s->bench, "cutting a sequence", rc) : client_null(s->m);
}

static int stepper_run(struct stepper *s, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->n_rows && rc == 0; i++)
		rc = mimeo_sequence_open(s->m, s->model, &s->sequences[i]);
	if (rc < 0)
		return buffer_fail(s->bench, "opening a sequence", rc);
	for (uint32_t i = 0; i < n + WARM_UPS && rc == 0; i++) {
		for (enum step way = 0; way < N_STEPS && i <= WARM_UPS; way++)
			s->samples[way]->n = 0;
		if (i > 0)
			rc = stepper_cut(s);
		if (rc == 0)
			rc = stepper_step(s, BARE);
		if (rc == 0)
			rc = stepper_step(s, ARENA);
		if (rc == 0)
			rc = stepper_step(s, FENCED);
	}
	for (uint32_t i = 0; i < s->n_rows && rc == 0; i++)
		rc = mimeo_sequence_close(s->m, s->sequences[i]);
	return rc;
}

static void stepper_rows(const struct stepper *s)
{
	const struct buffer_bench *bench = s->bench;
	uint64_t bytes = sizeof(float) * s->n_rows * (uint64_t)s->info->vocab_size;
	double bare = samples_quantile(s->samples[BARE], 0.5);

	for (enum step way = ARENA; way < N_STEPS; way++) {
		struct samples *samples = s->samples[way];
		char name[80];

		if (samples->n == 0)
			continue;
		snprintf(name, sizeof(name), "%s, %u row%s", step_names[way], s->n_rows,
			s->n_rows == 1 ? "" : "s");
		buffer_row(bench, name, samples, s->samples[BARE], STEP_FLOOR);
		results_count(bench->results, "bytes", NULL, bytes);
		results_count(bench->results, "n_rows", NULL, s->n_rows);
		results_seconds(bench->results, "extra_s", "MORE",
			samples_quantile(samples, 0.5) - bare);
		results_value(bench->results, "saved_bytes", "SAVED", TABLE_BYTES,
			way == ARENA ? 0 : (double)bytes);
	}
}

static int buffer_steps(const struct buffer_bench *bench)
{
	struct stepper s = {.bench = bench, .m = bench->m};
	const char *name = bench->options->model_name;
	int index = name ? mimeo_model_find(s.m, name) : 0;
	uint32_t n = STEPS_A_COUNT * bench->options->count;

	s.model = (uint32_t)index;
	s.info = index < 0 ? NULL : mimeo_model_get(s.m, s.model);
	if (!s.info)
		return buffer_fail(bench, name ? name : "the first model", MIMEO_E_UNKNOWN_MODEL);
	int rc = mimeo_buffer_alloc(s.m, MIMEO_HANDLE_DEFAULT,
		sizeof(float) * ROWS_MAX * (uint64_t)s.info->vocab_size, &s.buffer);
	if (rc < 0)
		return buffer_fail(bench, "a buffer for logits", rc);
	rc = buffer_samples(s.samples, N_STEPS, n);
	for (s.n_rows = 1; s.n_rows <= ROWS_MAX && rc == 0; s.n_rows += ROWS_MAX - 1) {
		rc = stepper_run(&s, n);
		if (rc == 0)
			stepper_rows(&s);
	}
	return rc;
}

/* ---- idle time ---- */

#define CLOSED 4u /* buffers in a round */
#define CLOSED_BYTES (2ull << 20)
#define ROUNDS 5u /* of each closing */
#define SHORT_ROUND_MS 300u
#define LONG_ROUND_MS (BUILDER_CLOSE_LIMIT_MS + 500u) /* to see memory given back */
#define SETTLE_MS 20u
#define FLOW_NS 20000000000ull /* for a gap to come at all */
#define IDLE_FLOOR "of idle time: that of a round in which nothing is closed"

enum closing { NOTHING, DESCRIPTORS, HANDLES, N_CLOSINGS };

static const char *const closing_names[N_CLOSINGS] = {
	[DESCRIPTORS] = "idle time, descriptors closed", [HANDLES] = "idle time, CUDA IPC closed"};

struct gaps {
	const struct buffer_bench *bench;
	struct samples *idle[N_CLOSINGS]; /* of the decoder, in each round */
};

static int gaps_look(const struct gaps *gaps, struct answer **ret)
{
	int rc = target_ask(gaps->bench->target, "metrics", ret);

	return rc < 0 ? bench_fail(rc, "the daemon's counters: %s", strerror(-rc)) : 0;
}

/* A round lasts until there was a gap: on a busy machine no token may have come before. */
static int gaps_count(
	const struct gaps *gaps, uint32_t ms, enum closing closing, const struct answer *before)
{
	static const char n[] = "mimeo_lane_gaps_total", time[] = "mimeo_lane_gap_seconds_total";
	const double first = answer_metric(before, n, NULL);
	uint64_t until = clock_ns() + FLOW_NS;

	while (clock_ns() < until) {
		CLEANUP(cleanup_answer) struct answer *now = NULL;

		buffer_pause(ms);
		int rc = gaps_look(gaps, &now);
		if (rc < 0)
			return rc;
		if (answer_metric(now, n, NULL) == first)
			continue;
		samples_add(gaps->idle[closing], (uint64_t)llround(
			1e9 * (answer_metric(now, time, NULL) - answer_metric(before, time, NULL))));
		return 0;
	}
	return bench_fail(-1, "no tokens while buffers are closed");
}

static int gaps_round(const struct gaps *gaps, enum closing closing, uint32_t ms)
{
	struct mimeo *m = gaps->bench->m;
	CLEANUP(cleanup_answer) struct answer *before = NULL;
	uint32_t kind = closing == HANDLES ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_DEFAULT;
	uint32_t buffers[CLOSED], n = closing == NOTHING ? 0 : CLOSED;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_alloc(m, kind, CLOSED_BYTES, &buffers[i]);
	if (rc < 0)
		return buffer_fail(gaps->bench, "a buffer", rc);
	buffer_pause(SETTLE_MS);
	rc = gaps_look(gaps, &before);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_close(m, buffers[i]);
	return rc < 0 ? buffer_fail(gaps->bench, "closing a buffer", rc)
		      : gaps_count(gaps, ms, closing, before);
}

/* With buffers that have no descriptor, rounds last until they are given back. */
static int gaps_rounds(const struct gaps *gaps)
{
	struct mimeo *m = gaps->bench->m;
	uint32_t buffer;
	int rc = mimeo_buffer_alloc(m, MIMEO_HANDLE_CUDA_IPC, CLOSED_BYTES, &buffer);
	bool handles = rc == 0;
	uint32_t n = handles ? N_CLOSINGS : HANDLES, ms = handles ? LONG_ROUND_MS : SHORT_ROUND_MS;

	if (handles)
		rc = mimeo_buffer_close(m, buffer);
	rc = rc == MIMEO_E_UNSUPPORTED || rc == 0 ? 0 : buffer_fail(gaps->bench, "a buffer", rc);
	for (uint32_t i = 0; i < ROUNDS * n && rc == 0; i++)
		rc = gaps_round(gaps, (enum closing)(i % n), ms);
	return rc;
}

static int buffer_gaps(const struct buffer_bench *bench)
{
	CLEANUP(child_kill) struct child first = {0}, second = {0};
	struct gaps gaps = {.bench = bench};
	int rc = buffer_samples(gaps.idle, N_CLOSINGS, ROUNDS);

	if (rc == 0)
		rc = stream_start(&first, bench->options, bench->target);
	if (rc == 0)
		rc = stream_start(&second, bench->options, bench->target);
	if (rc == 0)
		rc = gaps_rounds(&gaps);
	for (uint32_t i = DESCRIPTORS; i < N_CLOSINGS && rc == 0; i++) {
		if (gaps.idle[i]->n > 0)
			buffer_row(bench, closing_names[i], gaps.idle[i], gaps.idle[NOTHING], IDLE_FLOOR);
	}
	return rc;
}

/* ---- all of it ---- */

static int buffer_child(void *arg, int fd)
{
	const struct target_work *work = arg;
	struct buffer_bench bench = {work->options, work->results, work->target, NULL};
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256] = "";

	config.socket_path = work->target->socket;
	config.arena_bytes = ARENA_BYTES;
	config.message = message;
	config.message_size = sizeof(message);
	if (mimeo_connect(&bench.m, &config) < 0)
		return bench_fail(1, "%s: %s", work->target->socket, message);
	int rc = buffer_calls(&bench);
	if (rc == 0)
		rc = buffer_steps(&bench);
	if (rc == 0 && work->target->admin >= 0)
		rc = buffer_gaps(&bench);
	mimeo_close(bench.m);
	return rc != 0;
}

int bench_buffer(const struct bench_options *options, struct results *results)
{
	int rc = target_run(options, &(struct spawn_needs){.kv_pages = KV_PAGES}, results, "buffers",
		buffer_child, NULL);

	results_explain(results, "more: beyond the floor; saved: bytes a step that are not copied to "
		"the host and into the arena");
	return rc;
}
