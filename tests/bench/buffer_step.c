/* SPDX-License-Identifier: MIT */
/*
 * A step whose logits stay on the device, in a buffer with a fence behind them, and one whose
 * logits come through the arena, against the same step without logits. They take turns on the same
 * sequences, so that each way sees the same lengths.
 */
#include "tests/bench/buffer.h"

#include <stdio.h>

#include "daemon/bench/client.h"

#define ROWS_MAX 8u
#define POSITIONS 256u /* of a sequence, before it is cut again */
#define WARM_UPS 3u
#define ARENA_BYTES (64ull << 20) /* for the logits of a large vocabulary */

const uint32_t buffer_batches[BUFFER_BATCHES] = {1, ROWS_MAX};

struct stepper {
	struct mimeo *m;
	uint32_t model, n_rows;
	uint32_t sequences[ROWS_MAX];
	uint32_t n_tokens, most; /* of each sequence */
	uint32_t buffer;         /* room for all rows' logits */
};

/* What the fence needs is asked for before the clock starts: it is asked for once a request. */
static int prepare(struct stepper *s, enum buffer_step way, struct mimeo_request *request)
{
	static const int32_t token = ' ';
	struct mimeo_step_row rows[ROWS_MAX];
	struct mimeo_step step = MIMEO_STEP_INIT;

	for (uint32_t i = 0; i < s->n_rows; i++)
		rows[i] = (struct mimeo_step_row){s->sequences[i], 1, &token};
	step.model = s->model;
	step.rows = rows;
	step.n_rows = s->n_rows;
	step.outputs = MIMEO_STEP_TOKENS | (way == BUFFER_BARE ? 0 : MIMEO_STEP_LOGITS);
	step.logits.buffer = way == BUFFER_FENCED ? s->buffer : 0;
	step.flags = way == BUFFER_FENCED ? MIMEO_STEP_FENCE : 0;
	return mimeo_request_prep_step(request, &step);
}

/* Takes the events of the one request in flight; the ends of both are from `start`. */
static int finish(struct mimeo *m, uint64_t start, uint64_t *ret_recorded, uint64_t *ret_end)
{
	struct mimeo_event event;
	bool last = false;
	int r = 0;

	while (r == 0 && !last) {
		r = client_next(m, &event);
		if (r < 0)
			break;
		*ret_end = stats_now() - start;
		if (event.kind == MIMEO_EVENT_RECORDED)
			*ret_recorded = *ret_end;
		last = event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	return r;
}

static int step_once(
	struct stepper *s, enum buffer_step way, struct samples *const samples[], bool counted)
{
	const struct mimeo_handle *fence;
	struct mimeo_request *request = mimeo_request_get(s->m);
	uint64_t recorded = 0, end = 0;
	int r = request ? 0 : MIMEO_E_FULL;

	if (r == 0 && way == BUFFER_FENCED)
		r = mimeo_request_fence(request, &fence);
	uint64_t start = stats_now();
	if (r == 0)
		r = prepare(s, way, request);
	if (r == 0)
		r = mimeo_submit(s->m);
	if (r < 0)
		return buffer_fail(s->m, "step", r);
	r = finish(s->m, start, &recorded, &end);
	if (r == 0 && way == BUFFER_FENCED && recorded == 0)
		return buffer_fail(s->m, "a fence that was never recorded", MIMEO_E_PROTOCOL);
	if (r == 0 && counted)
		samples_add(samples[way], end);
	if (r == 0 && counted && way == BUFFER_FENCED)
		samples_add(samples[BUFFER_RECORDED], recorded);
	s->n_tokens++;
	return r;
}

/* Cut the sequences to their first token if they have no room for another round; the null request
 * sees to it that this is done before the next step's time begins. */
static int make_room(struct stepper *s)
{
	int r = 0;

	if (s->n_tokens + BUFFER_STEPS <= s->most)
		return 0;
	for (uint32_t i = 0; i < s->n_rows && r == 0; i++)
		r = mimeo_sequence_truncate(s->m, s->sequences[i], 1);
	if (r == 0)
		r = mimeo_submit(s->m);
	if (r < 0)
		return buffer_fail(s->m, "cutting a sequence", r);
	s->n_tokens = 1;
	return client_null(s->m);
}

static int measure_batch(struct stepper *s, uint32_t n, struct samples *const samples[])
{
	static const enum buffer_step ways[] = {BUFFER_BARE, BUFFER_ARENA, BUFFER_FENCED};
	int r = 0;

	s->n_tokens = 0;
	for (uint32_t i = 0; i < s->n_rows && r == 0; i++)
		r = mimeo_sequence_open(s->m, s->model, &s->sequences[i]);
	if (r < 0)
		return buffer_fail(s->m, "opening a sequence", r);
	for (uint32_t i = 0; i < n + WARM_UPS && r == 0; i++) {
		r = make_room(s);
		for (uint32_t j = 0; j < sizeof(ways) / sizeof(ways[0]) && r == 0; j++)
			r = step_once(s, ways[j], samples, i >= WARM_UPS);
	}
	for (uint32_t i = 0; i < s->n_rows && r == 0; i++)
		r = mimeo_sequence_close(s->m, s->sequences[i]);
	return r;
}

static int measure(struct buffer_bench *bench, struct mimeo *m)
{
	const char *name = bench->options->model_name;
	int index = name ? mimeo_model_find(m, name) : 0;
	struct stepper s = {.m = m, .model = (uint32_t)index};

	if (index < 0)
		return buffer_fail(m, name, index);
	const struct mimeo_model_info *info = mimeo_model_get(m, s.model);
	if (!info)
		return buffer_fail(m, "the first model", MIMEO_E_UNKNOWN_MODEL);
	*bench->vocab_size = info->vocab_size;
	s.most = info->max_seq_len < POSITIONS ? info->max_seq_len : POSITIONS;
	int r = mimeo_buffer_alloc(m, MIMEO_HANDLE_DEFAULT,
		sizeof(float) * ROWS_MAX * (uint64_t)info->vocab_size, &s.buffer);
	if (r < 0)
		return buffer_fail(m, "a buffer for logits", r);
	for (uint32_t i = 0; i < BUFFER_BATCHES && r == 0; i++) {
		s.n_rows = buffer_batches[i];
		r = measure_batch(&s, bench->steps, bench->step[i]);
	}
	return r;
}

int buffer_steps_work(void *arg, int fd)
{
	struct buffer_bench *bench = arg;
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256] = "";
	struct mimeo *m;

	(void)fd;
	config.socket_path = bench->socket;
	config.arena_bytes = ARENA_BYTES;
	config.message = message;
	config.message_size = sizeof(message);
	int r = mimeo_connect(&m, &config);
	if (r < 0) {
		fprintf(stderr, "mimeo-bench: %s: %s\n", bench->socket, message);
		return 1;
	}
	r = measure(bench, m);
	mimeo_close(m);
	return r < 0;
}
