/* SPDX-License-Identifier: MIT */
/*
 * Sampled output of a model with a draft, end to end: the first tokens behind a fixed prompt, of many
 * seeds, against the law that the model's logits give without a draft; Pearson's test, no bin expecting
 * less than 5. The draft is wrong often enough for residuals to count: the test fails where they are
 * replaced by the target's own distribution.
 */
#include "tests/daemon/rig.h"

#include "tests/kernels/distribution.h"

/* tinycalc, or what another program of this file sets */
#ifdef LAW_MTP
#define LAW_FOLDER rig_source("examples/models/tinycalc-mtp")
#define LAW_MODEL .model = LAW_FOLDER, .draft = LAW_FOLDER, .attention = "mla_planned"
#define LAW_HEAT 2.f /* surer of itself than tinycalc */
#else
#define LAW_MODEL
#define LAW_HEAT 1.f
#endif

enum { K = 4, VOCAB = 256, N = 1600, TOGETHER = 16, DEPTH = 3, LEAVES_MAX = N / 5 + 1 };

static struct rig plain_rig, drafting_rig;
static struct rig_client plain, drafting;

/* ---- the law ---- */

struct law {
	const struct mimeo_sampling *sampling;
	const int32_t *prompt;
	uint32_t n_prompt, depth;
	struct {
		int32_t tokens[DEPTH];
	} leaves[LEAVES_MAX];
	double p[LEAVES_MAX + 1]; /* the last: of all else */
	uint32_t counts[LEAVES_MAX + 1], n;
};

static const float *logits_behind(const int32_t *tokens, uint32_t n)
{
	const struct msg_generate msg = {
		.n_tokens = n, .max_tokens = 1, .flags = MIMEO_GENERATE_PROMPT_LOGITS};
	const struct msg_output layout = msg_output_layout(1, 1, VOCAB, 0, 160);
	struct rig_request request = rig_generate(&plain, 0, tokens, n, &msg);

	rig_must(&plain, request);
	return rig_logits(&plain, &request, &layout);
}

struct share {
	double p;
	int32_t id;
};

static int by_weight(const void *a, const void *b)
{
	const struct share *x = a, *y = b;

	return x->p != y->p ? (x->p < y->p) - (x->p > y->p) : (x->id > y->id) - (x->id < y->id);
}

static uint32_t scale(struct share *w, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += w[i].p;
	for (uint32_t i = 0; i < n; i++)
		w[i].p /= sum;
	return n;
}

/* Temperature, top-k, top-p, min-p one after the other, by falling weight. Number of tokens left. */
static uint32_t distribution(
	const float *logits, const struct mimeo_sampling *s, struct share ret[VOCAB])
{
	uint32_t n = VOCAB, left = 0;
	double before = 0;

	for (int32_t i = 0; i < VOCAB; i++)
		ret[i] = (struct share){exp((double)logits[i] / (double)s->temperature), i};
	qsort(ret, VOCAB, sizeof(ret[0]), by_weight);
	n = scale(ret, s->top_k ? s->top_k : n);
	for (; left < n && before < (double)s->top_p; left++)
		before += ret[left].p;
	n = scale(ret, left);
	for (left = 0; left < n && ret[left].p >= (double)s->min_p * ret[0].p; left++)
		;
	return scale(ret, left);
}

/* All continuations that are expected five times or more. */
static void grow(struct law *law, int32_t *tokens, uint32_t depth, double p)
{
	struct share weights[VOCAB];
	uint32_t n = distribution(
		logits_behind(tokens, law->n_prompt + depth), law->sampling, weights);

	for (uint32_t i = 0; i < n && p * weights[i].p * N >= 5; i++) {
		tokens[law->n_prompt + depth] = weights[i].id;
		if (depth + 1 < law->depth) {
			grow(law, tokens, depth + 1, p * weights[i].p);
			continue;
		}
		memcpy(law->leaves[law->n].tokens, tokens + law->n_prompt,
			law->depth * sizeof(tokens[0]));
		law->p[law->n++] = p * weights[i].p;
	}
}

static void make_law(struct law *law)
{
	int32_t tokens[64];
	double rest = 1;

	memcpy(tokens, law->prompt, law->n_prompt * sizeof(tokens[0]));
	grow(law, tokens, 0, 1);
	for (uint32_t i = 0; i < law->n; i++)
		rest -= law->p[i];
	law->p[law->n] = rest > 0 ? rest : 0;
}

static void count_tokens(struct law *law, const int32_t *tokens)
{
	uint32_t i = 0;

	while (i < law->n && memcmp(law->leaves[i].tokens, tokens, law->depth * sizeof(tokens[0])))
		i++;
	law->counts[i]++;
}

/* ---- draws ---- */

static struct engine_speculation speculation(void)
{
	struct engine_model_facts facts;

	engine_model_facts(drafting_rig.engine, 0, &facts);
	return facts.speculation;
}

static void draw_all(const int32_t *prompt, uint32_t n_prompt, const struct mimeo_sampling *sampling,
	struct law laws[DEPTH])
{
	struct rig_result results[TOGETHER];
	struct rig_request requests[TOGETHER];

	for (uint32_t seed = 0; seed < N; seed += TOGETHER) {
		memset(results, 0, sizeof(results));
		for (uint32_t i = 0; i < TOGETHER; i++) {
			struct msg_generate msg = {.n_tokens = n_prompt, .max_tokens = DEPTH,
				.sampling = *sampling, .flags = MIMEO_GENERATE_IGNORE_EOS};

			msg.sampling.seed = 77777 + seed + i;
			msg.sampling.flags = MIMEO_SAMPLING_SEEDED;
			requests[i] = rig_generate(&drafting, i, prompt, n_prompt, &msg);
			rig_submit(&drafting, requests[i]);
		}
		for (uint32_t i = 0; i < TOGETHER; i++) {
			rig_wait(&drafting, results, i);
			assert_int_equal(results[i].n_generated, DEPTH);
			for (uint32_t d = 0; d < DEPTH; d++)
				count_tokens(&laws[d], rig_tokens(&drafting, &requests[i]));
		}
	}
}

static void check_law(const char *text, const struct mimeo_sampling *sampling)
{
	const struct engine_speculation before = speculation();
	struct law *laws = calloc(DEPTH, sizeof(*laws));
	struct engine_speculation after;
	int32_t prompt[32];
	uint32_t n_prompt = rig_prompt(text, prompt);
	double held;

	assert_non_null(laws);
	for (uint32_t d = 0; d < DEPTH; d++) {
		laws[d].sampling = sampling;
		laws[d].prompt = prompt;
		laws[d].n_prompt = n_prompt;
		laws[d].depth = d + 1;
		make_law(&laws[d]);
	}
	draw_all(prompt, n_prompt, sampling, laws);
	after = speculation();
	held = (double)(after.n_accepted[0] - before.n_accepted[0]) /
	       (double)(after.n_rows - before.n_rows);
	for (uint32_t d = 0; d < DEPTH; d++) {
		double p = goodness_of_fit(laws[d].counts, laws[d].p, laws[d].n + 1);

		printf("# temperature %.1f, top-k %u, top-p %.2f, min-p %.2f: %u tokens, %u bins, "
		       "p = %.4f; the first draft holds in %.0f %%\n",
			(double)sampling->temperature, sampling->top_k, (double)sampling->top_p,
			(double)sampling->min_p, d + 1, laws[d].n, p, 100 * held);
		assert_in_range(laws[d].n, 2, LEAVES_MAX);
		assert_true(p > 1e-4);
	}
	assert_true(held > 0.05 && held < 0.95);
	free(laws);
}

static const struct mimeo_sampling settings[] = {
	{.temperature = LAW_HEAT * 1, .top_p = 1},
	{.temperature = LAW_HEAT * 1.5f, .top_p = 1, .top_k = 12},
	{.temperature = LAW_HEAT * 1.5f, .top_p = 0.8f},
	{.temperature = LAW_HEAT * 2, .top_p = 1, .min_p = 0.05f},
	{.temperature = LAW_HEAT * 1.5f, .top_p = 0.9f, .top_k = 20, .min_p = 0.02f},
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static void test_tokens_behind_a_prompt_are_distributed_as_without_a_draft(void **state)
{
	check_law("sort 5", *state);
}

/* ---- the same tokens, verified or not ---- */

/* On a sequence whose prompt a client's own loop computed, so that it has no drafts. */
static void sampled_text(struct rig_client *client, uint32_t index, uint32_t sequence,
	const struct mimeo_sampling *sampling, int32_t *ret, uint32_t n)
{
	struct rig_result results[64] = {0};
	struct msg_generate msg = {.sequence = sequence, .n_tokens = 1, .max_tokens = n,
		.sampling = *sampling, .flags = MIMEO_GENERATE_IGNORE_EOS};
	struct rig_request request = rig_step_text(client, index, sequence, "count 4 3", true);

	rig_submit(client, request);
	rig_wait(client, results, index);
	msg.sampling.flags = MIMEO_SAMPLING_SEEDED;
	msg.sampling.seed = 5;
	request = rig_generate(client, index, &(int32_t){'\n'}, 1, &msg);
	results[index] = (struct rig_result){0};
	rig_submit(client, request);
	rig_wait(client, results, index);
	assert_int_equal(results[index].n_generated, n);
	memcpy(ret, rig_tokens(client, &request), n * sizeof(ret[0]));
}

static void test_rows_without_drafts_sample_the_same_beside_verifications(void **state)
{
	enum { LENGTH = 60 };
	int32_t expected[LENGTH], alone[LENGTH], beside[LENGTH];
	struct rig_result results[64] = {0};
	struct rig_client other;
	struct rig_request endless;

	for (uint32_t i = 0; i < N_SETTINGS; i++) {
		rig_ok(&plain, 0, RING_OP_OPEN, 1, 0);
		sampled_text(&plain, 0, 1, &settings[i], expected, LENGTH);
		rig_ok(&plain, 0, RING_OP_CLOSE, 1, 0);
		rig_ok(&drafting, 0, RING_OP_OPEN, 1, 0);
		rig_ok(&drafting, 0, RING_OP_OPEN, 2, 0);
		sampled_text(&drafting, 0, 1, &settings[i], alone, LENGTH);
		rig_attach(&drafting_rig, &other, 8);
		endless = rig_endless(&other, 0, 0, 480);
		results[0] = (struct rig_result){0};
		rig_submit(&other, endless);
		sampled_text(&drafting, 0, 2, &settings[i], beside, LENGTH);
		rig_wait(&other, results, 0);
		rig_detach(&other);
		rig_ok(&drafting, 0, RING_OP_CLOSE, 1, 0);
		rig_ok(&drafting, 0, RING_OP_CLOSE, 2, 0);
		assert_memory_equal(alone, expected, sizeof(expected));
		assert_memory_equal(beside, expected, sizeof(expected));
	}
}

/* ---- */

static int open_rigs(void **state)
{
	rig_open(&plain_rig, &(struct rig_options){.mode = GRAPH_NONE, LAW_MODEL});
	rig_attach(&plain_rig, &plain, 8);
	rig_open(&drafting_rig, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,
		.n_drafts = K, .max_batch_tokens = TOGETHER * (1 + K), LAW_MODEL});
	rig_attach(&drafting_rig, &drafting, 64);
	return 0;
}

static int close_rigs(void **state)
{
	rig_detach(&drafting);
	rig_close(&drafting_rig);
	rig_detach(&plain);
	rig_close(&plain_rig);
	return 0;
}

int main(void)
{
	static struct CMUnitTest tests[N_SETTINGS + 1];
	static char names[N_SETTINGS][96];

	for (size_t i = 0; i < N_SETTINGS; i++) {
		snprintf(names[i], sizeof(names[i]),
			"test_tokens_behind_a_prompt_are_distributed_as_without_a_draft_%zu", i);
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = test_tokens_behind_a_prompt_are_distributed_as_without_a_draft,
			.initial_state = (void *)(uintptr_t)&settings[i]};
	}
	tests[N_SETTINGS] = (struct CMUnitTest)cmocka_unit_test(
		test_rows_without_drafts_sample_the_same_beside_verifications);
	static const char cut[] = "whether a token is cut off turns on the last bits of its logit";
	static const struct test_cpu_only only[] = {
		{"without_a_draft_2", cut},
		{"without_a_draft_3", cut},
		{"without_a_draft_4", cut},
		{"test_rows_without_drafts_sample_the_same",
			"float32 sums go by what else is in the step, and draws by their last bits"},
	};

	return TEST_RUN_GROUP("engine speculation's law", tests, only, open_rigs, close_rigs);
}
