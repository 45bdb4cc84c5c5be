/* SPDX-License-Identifier: MIT */
/*
 * What device buffers cost: the calls that make and close them, a step that leaves its logits in
 * one with a fence behind them, and what other clients notice when memory is given back.
 *
 * Steps with logits in a buffer and in the arena take turns with the same step without logits, on
 * the same sequences.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/bench/child.h"
#include "daemon/bench/bench_client.h"
#include "tests/bench/internals.h"

#define KV_PAGES 512u
#define ROWS_MAX 8u
#define STEPS_A_COUNT 10u
#define WARM_UPS 3u
#define ARENA_BYTES (64ull << 20) /* for the logits of a large vocabulary */
#define STEP_FLOOR "of steps: the same step with sampled tokens only, by turns"
#define ON_CPU RESULTS_ON_CPU ", and a buffer has no pages until they are touched"

/* Times of a step: sampled tokens alone; logits in the arena; in a buffer with a fence, until the lane
 * has passed that (where the host can wait for it) and until the end. MIMEO_EVENT_RECORDED is no such
 * time: it comes when the fence is queued on the lane. */
enum step { BARE, ARENA, PASSED, FENCED, N_STEPS };

static const char *const names[N_STEPS] = {
	[ARENA] = "step, logits in the arena",
	[PASSED] = "step, logits in a buffer, to the fence",
	[FENCED] = "step, logits in a buffer, to the end",
};

int buffer_fail(const struct buffer_bench *bench, const char *what, int status)
{
	const char *message = mimeo_buffer_message(bench->m);

	return bench_fail(status, "%s: %s (%s)%s%s", what, mimeo_strerror(status),
		mimeo_status_name(status), *message ? ": " : "", message);
}

int buffer_samples(struct samples **ret, uint32_t n, uint32_t capacity)
{
	for (uint32_t i = 0; i < n; i++) {
		ret[i] = samples_new(capacity);
		if (!ret[i])
			return bench_fail(-ENOMEM, "no memory");
	}
	return 0;
}

void buffer_row(const struct buffer_bench *bench, const char *name, struct samples *result,
	struct samples *floor, const char *floor_name)
{
	results_row(bench->results);
	results_text(bench->results, "measure", "MEASURE", name);
	results_samples(bench->results, result, floor);
	results_floor(bench->results, floor_name);
	results_note(bench->results, results_on_cpu(bench->results) ? ON_CPU : NULL);
}

/* ---- steps ---- */

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
	uint64_t start = stats_now();
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
			samples_add(s->samples[PASSED], stats_now() - start);
		}
		mimeo_event_seen(s->m, &event);
	}
	samples_add(s->samples[way], stats_now() - start);
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
		snprintf(name, sizeof(name), "%s, %u row%s", names[way], s->n_rows,
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

/* ---- all of it ---- */

static int buffer_child(void *arg, int fd)
{
	struct buffer_bench *bench = arg;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256] = "";

	config.socket_path = bench->target->socket;
	config.arena_bytes = ARENA_BYTES;
	config.message = message;
	config.message_size = sizeof(message);
	if (mimeo_connect(&bench->m, &config) < 0)
		return bench_fail(1, "%s: %s", bench->target->socket, message);
	int rc = buffer_calls(bench);
	if (rc == 0)
		rc = buffer_steps(bench);
	if (rc == 0 && bench->target->admin >= 0)
		rc = buffer_gaps(bench);
	mimeo_close(bench->m);
	return rc != 0;
}

int bench_buffer(const struct bench_options *options, struct results *results)
{
	struct target target;
	struct buffer_bench bench = {options, results, &target, NULL};
	int rc = target_open(options, &(struct spawn_needs){.kv_pages = KV_PAGES}, results, &target);

	if (rc == 0)
		rc = child_run("buffers", buffer_child, &bench, options->timeout_s);
	target_close(&target);
	results_explain(results, "more: beyond the floor; saved: bytes a step that are not copied to "
		"the host and into the arena");
	return rc;
}
