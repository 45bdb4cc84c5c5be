/* SPDX-License-Identifier: MIT */
#include "tests/daemon/traffic.h"

#include "tests/random.h"

#define N_CLIENTS 3u
#define N_JOBS 27u
#define PROMPT_MAX 200u
#define TOKENS_MAX 80u

struct job {
	uint32_t n_prompt, max_tokens, flags;
	int32_t prompt[PROMPT_MAX];
	uint32_t arrival; /* in steps from the beginning */
	/* alone, eager */
	uint32_t n_expected;
	int32_t expected[TOKENS_MAX];
};

static struct job jobs[N_JOBS];

/* ---- the load ---- */

static uint64_t seed = 20240607;

static uint32_t draw(uint32_t n)
{
	return random_below(&seed, n);
}

static void well_formed(struct job *job, uint32_t which)
{
	char text[64];
	int at;

	switch (which % 4) {
	case 0:
		snprintf(text, sizeof(text), "%u+%u=", draw(1000), draw(1000));
		break;
	case 1:
		snprintf(text, sizeof(text), "count %u %u\n", 1 + draw(80), 1 + draw(16));
		break;
	case 2:
		at = snprintf(text, sizeof(text), "sort");
		for (uint32_t n = 3 + draw(3); n > 0; n--)
			at += snprintf(text + at, sizeof(text) - (size_t)at, " %u", 1 + draw(99));
		snprintf(text + at, sizeof(text) - (size_t)at, "\n");
		break;
	default:
		at = snprintf(text, sizeof(text), "rev ");
		for (uint32_t n = 4 + draw(7); n > 0; n--)
			text[at++] = (char)('a' + draw(26));
		snprintf(text + at, sizeof(text) - (size_t)at, "\n");
	}
	job->n_prompt = rig_prompt(text, job->prompt);
	job->max_tokens = TOKENS_MAX;
}

static void noise(struct job *job, uint32_t n_prompt)
{
	job->n_prompt = n_prompt;
	for (uint32_t i = 0; i < n_prompt; i++)
		job->prompt[i] = (int32_t)(3 + draw(253));
	job->max_tokens = 1 + draw(30);
	job->flags = MIMEO_GENERATE_IGNORE_EOS;
}

static struct rig_request request_of(
	struct rig_client *client, uint32_t index, const struct job *job)
{
	return rig_ask(client, index, 0, job->prompt, job->n_prompt, job->max_tokens, job->flags);
}

void traffic_make(const char *model, const char *attention)
{
	traffic_make_by(&(struct rig_options){.mode = GRAPH_NONE, .model = model, .attention = attention});
}

void traffic_make_by(const struct rig_options *options)
{
	static const uint32_t lengths[] = {1, 2, 17, 65, 130, PROMPT_MAX};
	struct rig rig;

	rig_open_client(&rig, options);
	for (uint32_t i = 0; i < N_JOBS; i++) {
		struct rig_request request;

		if (i % 4 == 3 && !test_on_cuda())
			noise(&jobs[i], lengths[i / 4 % 6]);
		else
			well_formed(&jobs[i], i);
		jobs[i].arrival = draw(40);
		request = request_of(&rig.client, 0, &jobs[i]);
		jobs[i].n_expected = rig_do(&rig.client, request).n_generated;
		assert_in_range(jobs[i].n_expected, 1, TOKENS_MAX);
		memcpy(jobs[i].expected, rig_tokens(&rig.client, &request),
			jobs[i].n_expected * sizeof(int32_t));
	}
	rig_close(&rig);
}

/* ---- runs ---- */

struct run {
	struct rig rig;
	struct rig_client clients[N_CLIENTS];
	struct rig_result results[N_CLIENTS][16];
	struct rig_request requests[N_JOBS];
	bool submitted[N_JOBS];
	char what[128];
};

static void assert_answer(const struct run *run, const struct rig_client *client,
	const struct rig_request *request, const struct rig_result *result, uint32_t i)
{
	if (result->status || result->n_generated != jobs[i].n_expected ||
		memcmp(rig_tokens(client, request), jobs[i].expected,
			jobs[i].n_expected * sizeof(int32_t)))
		fail_msg("%s: request %u, of %u tokens: status %d, %u tokens of %u, or others",
			run->what, i, jobs[i].n_prompt, result->status, result->n_generated,
			jobs[i].n_expected);
}

/* Job i is request i / N_CLIENTS of client i % N_CLIENTS. */
static struct rig_result *result_of(struct run *run, uint32_t i)
{
	return &run->results[i % N_CLIENTS][i / N_CLIENTS];
}

/* Submit what has come by now; with nothing under way, whatever comes next. */
static uint32_t submit(struct run *run, uint32_t n_under_way, uint64_t n_steps)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < N_JOBS; i++) {
		if (run->submitted[i] || (jobs[i].arrival > n_steps && n_under_way + n))
			continue;
		run->requests[i] =
			request_of(&run->clients[i % N_CLIENTS], i / N_CLIENTS, &jobs[i]);
		rig_submit(&run->clients[i % N_CLIENTS], run->requests[i]);
		run->submitted[i] = true;
		n++;
	}
	return n;
}

static void all_together(struct run *run)
{
	const struct engine_stats *stats = engine_stats(run->rig.engine);
	uint64_t begin = stats->n_steps;
	uint32_t n_submitted = 0, n_done = 0;
	time_t end = time(NULL) + RIG_TIMEOUT_S;

	while (n_done < N_JOBS) {
		if (time(NULL) > end)
			fail_msg("%s: %u requests of %u ended, and nothing came for %d s", run->what, n_done, N_JOBS,
				RIG_TIMEOUT_S);
		n_submitted += submit(run, n_submitted - n_done, stats->n_steps - begin);
		for (uint32_t c = 0; c < N_CLIENTS; c++) {
			if (rig_poll(&run->clients[c], run->results[c]))
				end = time(NULL) + RIG_TIMEOUT_S;
		}
		n_done = 0;
		for (uint32_t i = 0; i < N_JOBS; i++)
			n_done += result_of(run, i)->done;
		rig_pause();
	}
	for (uint32_t i = 0; i < N_JOBS; i++)
		assert_answer(run, &run->clients[i % N_CLIENTS], &run->requests[i],
			result_of(run, i), i);
}

static void each_alone(struct run *run, uint32_t first, uint32_t step)
{
	for (uint32_t i = first; i < N_JOBS; i += step) {
		struct rig_request request = request_of(&run->clients[0], 0, &jobs[i]);
		struct rig_result result = rig_do(&run->clients[0], request);

		assert_answer(run, &run->clients[0], &request, &result, i);
	}
}

const struct traffic_ladder traffic_ladders[TRAFFIC_LADDERS] = {
	{"default", 0, {0}}, {"1, 3, 7", 3, {1, 3, 7}}, {"5, 40", 2, {5, 40}}};

/* What may run eager with the default ladder, once all is captured. If requests are preempted after each token
 * there may be no decodes. */
static void assert_eager(const struct run *run, enum graph_mode mode)
{
	const struct engine_stats *stats = engine_stats(run->rig.engine);
	const bool preempted = run->rig.options.preempt_every > 0;

	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++) {
		bool may = (mode == GRAPH_NONE && reason == EAGER_MODE) ||
			(mode == GRAPH_FULL_DECODE_ONLY && reason == EAGER_MIXED);

		if (preempted ? stats->n_eager[reason] && !may : !stats->n_eager[reason] == may)
			fail_msg("%s: %u eager steps by %s", run->what,
				(unsigned)stats->n_eager[reason], eager_reason_name(reason));
	}
	if (mode != GRAPH_NONE && !(mode == GRAPH_FULL_DECODE_ONLY && preempted))
		assert_true(stats->n_replays > 0);
	if (mode != GRAPH_NONE && mode != GRAPH_FULL_DECODE_ONLY)
		assert_int_equal(stats->n_replays, stats->n_steps);
}

void traffic_run(const struct rig_options *base, enum graph_mode resolved,
	const struct traffic_ladder *ladder, uint32_t chunk, uint32_t count)
{
	struct run *run = calloc(1, sizeof(*run));
	struct rig_options options = *base;

	assert_non_null(run);
	options.max_batch_tokens = chunk;
	options.max_requests = chunk < 16 ? chunk : 16;
	options.n_capture_sizes = ladder->n;
	while (options.n_capture_sizes && ladder->sizes[options.n_capture_sizes - 1] > chunk)
		options.n_capture_sizes--; /* would be refused */
	options.capture_sizes = ladder->n ? ladder->sizes : NULL;
	snprintf(run->what, sizeof(run->what), "%s, ladder %s, chunks of %u",
		graph_mode_name(resolved), ladder->name, chunk);
	rig_open(&run->rig, &options);
	assert_int_equal(run->rig.engine->runners.all[0]->options.mode.resolved, resolved);
	for (uint32_t c = 0; c < N_CLIENTS; c++)
		rig_attach(&run->rig, &run->clients[c], 16);
	all_together(run);
	each_alone(run, count % 9, 9);
	for (uint32_t c = 0; c < N_CLIENTS; c++)
		rig_detach(&run->clients[c]);
	if (!ladder->n)
		assert_eager(run, resolved);
	if (options.preempt_every)
		assert_true(run->rig.runner->n_preempted >= N_JOBS);
	rig_close(&run->rig);
	free(run);
}
