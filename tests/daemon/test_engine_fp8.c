/* SPDX-License-Identifier: MIT */
/*
 * A cache of fp8 changes what a model computes, but nothing else does: whatever a backend, a graph, another user of a
 * page or a draft does with the cache, requests have the tokens that they have alone, eager, in such a cache.
 */
#include "tests/daemon/traffic.h"

enum { N_PROMPT = 70, N_TOKENS = 24 }; /* four whole pages and a part of one */

static const struct load_case {
	const char *name;
	struct rig_options options;
	enum graph_mode resolved;
	uint32_t chunk, ladder;
	bool latent; /* of a model with latent attention */
} cases[] = {
	{"test_load_without_graphs_gives_the_tokens_of_each_request_alone", {.mode = GRAPH_NONE}, GRAPH_NONE, 7, 0,
		false},
	{"test_load_in_full_graphs_and_pieces_gives_the_tokens_of_eager", {.mode = GRAPH_FULL_AND_PIECEWISE},
		GRAPH_FULL_AND_PIECEWISE, 64, 2, false},
	{"test_load_under_full_with_flex_gives_the_tokens_of_paged", {.mode = GRAPH_FULL, .attention = "flex"},
		GRAPH_FULL, 64, 0, false},
	{"test_load_with_naive_gives_the_tokens_of_paged", {.mode = GRAPH_NONE, .attention = "naive"}, GRAPH_NONE, 64,
		0, false},
	{"test_preempted_load_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .preempt_every = 3}, GRAPH_FULL_AND_PIECEWISE, 64, 0, false},
	{"test_verified_load_gives_the_tokens_of_eager", {.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = 4},
		GRAPH_FULL_AND_PIECEWISE, 64, 0, false},
	{"test_preempted_and_verified_load_gives_the_tokens_of_eager",
		{.mode = GRAPH_NONE, .n_drafts = 3, .preempt_every = 3}, GRAPH_NONE, 64, 0, false},
	{"test_latent_load_without_graphs_gives_the_tokens_of_each_request_alone",
		{.mode = GRAPH_NONE, .attention = "mla_planned"}, GRAPH_NONE, 7, 0, true},
	{"test_latent_load_in_pieces_gives_the_tokens_of_eager", {.mode = GRAPH_PIECEWISE, .attention = "mla"},
		GRAPH_PIECEWISE, 64, 0, true},
	{"test_latent_load_in_full_graphs_and_pieces_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla"}, GRAPH_FULL_AND_PIECEWISE, 64, 2, true},
	{"test_preempted_and_planned_latent_load_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla_planned", .preempt_every = 3},
		GRAPH_FULL_AND_PIECEWISE, 64, 0, true},
	{"test_verified_latent_load_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla_planned", .n_drafts = 4},
		GRAPH_FULL_AND_PIECEWISE, 64, 0, true},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static const char *latent_model(void)
{
	static char path[512]; /* longer than rig_source keeps it */

	snprintf(path, sizeof(path), "%s", rig_source("examples/models/tinycalc-mla"));
	return path;
}

/* Once for the cases of a model, which follow each other. */
static void make_load(bool latent)
{
	static int made_of = -1;

	if (made_of == latent)
		return;
	traffic_make_by(&(struct rig_options){.mode = GRAPH_NONE, .kv_fp8 = true,
		.attention = latent ? "mla" : NULL, .model = latent ? latent_model() : NULL});
	made_of = latent;
}

static void run_load(void **state)
{
	const struct load_case *c = *state;
	struct rig_options options = c->options;

	make_load(c->latent);
	options.kv_fp8 = true;
	options.model = c->latent ? latent_model() : NULL;
	traffic_run(&options, c->resolved, &traffic_ladders[c->ladder], c->chunk, 0);
}

static uint64_t page_bytes(const struct rig *rig)
{
	const struct engine_model_facts facts = rig_facts(rig);

	return facts.kv_bytes / facts.pages_total;
}

static void test_page_takes_as_many_bytes_as_elements(void **state)
{
	const struct model_config *c;
	struct rig wide, narrow;

	rig_open(&wide, &(struct rig_options){.mode = GRAPH_NONE, .n_drafts = 2});
	rig_open(&narrow, &(struct rig_options){.mode = GRAPH_NONE, .n_drafts = 2, .kv_fp8 = true});
	c = &narrow.runner->model->config;
	assert_string_equal(rig_facts(&narrow).kv_dtype, "fp8");
	assert_string_equal(rig_facts(&wide).kv_dtype, test_on_cuda() ? "bf16" : "f32");
	assert_int_equal(page_bytes(&narrow) * (test_on_cuda() ? 2 : 4), page_bytes(&wide));
	assert_true(page_bytes(&narrow) > 2ull * 16 * c->n_layers * c->n_kv_heads * c->head_dim); /* the draft's, too */
	rig_close(&narrow);
	rig_close(&wide);
}

static void answer(struct rig_client *client, uint32_t sequence, const int32_t *prompt, uint32_t n, uint32_t n_cached,
	int32_t *ret)
{
	struct rig_request request =
		rig_ask(client, 0, sequence, prompt, n, N_TOKENS, MIMEO_GENERATE_IGNORE_EOS);
	struct rig_result result = rig_must(client, request);

	assert_int_equal(result.n_generated, N_TOKENS);
	assert_int_equal(result.n_cached, n_cached);
	memcpy(ret, rig_tokens(client, &request), N_TOKENS * sizeof(*ret));
}

static void test_cached_prompt_gives_the_same_tokens(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], first[N_TOKENS], second[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 1);
	answer(&rig->client, 0, prompt, N_PROMPT, 0, first);
	answer(&rig->client, 0, prompt, N_PROMPT, 64, second);
	assert_memory_equal(first, second, sizeof(first));
}

/* Both write to what they share: one of them gets a copy of the page. */
static void test_forks_go_on_as_one_that_shares_nothing(void **state)
{
	const struct msg_row row = {1, 40};
	const struct msg_step step = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	struct rig *rig = *state;
	int32_t prompt[N_PROMPT], other[N_PROMPT], alone[N_TOKENS], others[N_TOKENS], got[N_TOKENS];

	rig_nonsense(prompt, N_PROMPT, 2);
	memcpy(other, prompt, sizeof(other));
	other[45]++;
	answer(&rig->client, 0, prompt, N_PROMPT, 0, alone);
	answer(&rig->client, 0, other, N_PROMPT, 32, others);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_step(&rig->client, 0, &step, &row, prompt));
	rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
	answer(&rig->client, 2, other + 40, N_PROMPT - 40, 0, got);
	assert_memory_equal(got, others, sizeof(got));
	answer(&rig->client, 1, prompt + 40, N_PROMPT - 40, 0, got);
	assert_memory_equal(got, alone, sizeof(got));
	rig_close_histories(&rig->client, 2);
}

/* ---- well-formed texts, whose tokens the order of sums does not change on cuda ---- */

#define SORT "sort 41 17 86 23 59" /* with the begin token a whole page and a part of one */

struct answered {
	uint32_t n, n_cached;
	int32_t tokens[40];
};

static struct answered answered(struct rig_client *client, uint32_t sequence, const char *text)
{
	struct rig_request request = rig_ask_text(client, 0, sequence, text);
	const struct rig_result result = rig_must(client, request);
	struct answered ret = {result.n_generated, result.n_cached, {0}};

	assert_in_range(ret.n, 10, 40);
	memcpy(ret.tokens, rig_tokens(client, &request), ret.n * sizeof(ret.tokens[0]));
	return ret;
}

static void assert_same(const struct answered *a, const struct answered *b)
{
	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->tokens, b->tokens, a->n * sizeof(a->tokens[0]));
}

static void test_cached_page_gives_the_tokens_of_one_that_is_not(void **state)
{
	struct rig *rig = *state;
	const struct answered first = answered(&rig->client, 0, SORT "\n");
	const struct answered second = answered(&rig->client, 0, SORT "\n");

	assert_true(first.n_cached == 0 && second.n_cached == 16);
	assert_same(&first, &second);
}

/* The text as the history of an open sequence. */
static void remember(struct rig_client *client, uint32_t sequence)
{
	rig_ok(client, 0, RING_OP_OPEN, sequence, 0);
	rig_must(client, rig_step_text(client, 0, sequence, SORT, true));
}

static void test_forked_page_gives_the_tokens_of_one_that_is_not_shared(void **state)
{
	struct rig *rig = *state;
	const struct answered alone = answered(&rig->client, 0, SORT "\n");
	const struct answered other = answered(&rig->client, 0, SORT " 5\n");
	struct answered got;

	remember(&rig->client, 1);
	rig_ok(&rig->client, 0, RING_OP_FORK, 1, 2);
	got = answered(&rig->client, 2, " 5\n");
	assert_same(&got, &other);
	got = answered(&rig->client, 1, "\n");
	assert_same(&got, &alone);
	rig_close_histories(&rig->client, 2);
}

static void test_evicted_history_gives_the_tokens_of_one_that_stayed(void **state)
{
	struct rig *rig = *state;
	const struct answered stayed = answered(&rig->client, 0, SORT "\n");
	struct answered got;
	int32_t others[N_PROMPT * 2];

	remember(&rig->client, 1);
	rig_nonsense(others, N_PROMPT * 2, 3);
	rig_must(&rig->client, rig_ask(&rig->client, 0, 0, others, N_PROMPT * 2, 2, MIMEO_GENERATE_IGNORE_EOS));
	assert_int_equal(rig->runner->n_evicted, 1);
	got = answered(&rig->client, 1, "\n");
	assert_same(&got, &stayed);
	rig_close_histories(&rig->client, 1);
}

#define LATENT_TEST(test, ...)                                                                                         \
	{#test "_of_latent_attention", test, rig_setup, rig_teardown,                                                  \
		&(struct rig_options){.kv_fp8 = true, .mode = GRAPH_FULL_AND_PIECEWISE, .model = latent_model(),       \
			__VA_ARGS__}}

int main(void)
{
	enum { N_OWN = 9 };
	struct CMUnitTest tests[N_CASES + N_OWN] = {
		cmocka_unit_test(test_page_takes_as_many_bytes_as_elements),
		RIG_TEST(test_cached_prompt_gives_the_same_tokens, .kv_fp8 = true, .deterministic = true,
			.prefix_sharing = ENGINE_PREFIX_ALL),
		RIG_TEST(test_forks_go_on_as_one_that_shares_nothing, .kv_fp8 = true, .deterministic = true,
			.prefix_sharing = ENGINE_PREFIX_ALL),
		RIG_TEST(test_cached_page_gives_the_tokens_of_one_that_is_not, .kv_fp8 = true,
			.mode = GRAPH_FULL_AND_PIECEWISE, .prefix_sharing = ENGINE_PREFIX_ALL),
		RIG_TEST(test_forked_page_gives_the_tokens_of_one_that_is_not_shared, .kv_fp8 = true,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_TEST(test_evicted_history_gives_the_tokens_of_one_that_stayed, .kv_fp8 = true,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10),
		LATENT_TEST(test_cached_page_gives_the_tokens_of_one_that_is_not, .attention = "mla_planned",
			.prefix_sharing = ENGINE_PREFIX_ALL),
		LATENT_TEST(test_forked_page_gives_the_tokens_of_one_that_is_not_shared, .attention = "mla"),
		LATENT_TEST(test_evicted_history_gives_the_tokens_of_one_that_stayed, .attention = "mla_planned",
			.kv_pages = 10),
	};
	static const struct test_cpu_only only[] = {
		{"with_naive", "the naive backend is for the cpu device"},
	};

	for (size_t i = 0; i < N_CASES; i++)
		tests[N_OWN + i] = (struct CMUnitTest){
			cases[i].name, run_load, NULL, NULL, (void *)(uintptr_t)&cases[i]};
	return TEST_RUN_GROUP("engine fp8", tests, only, NULL, NULL);
}
