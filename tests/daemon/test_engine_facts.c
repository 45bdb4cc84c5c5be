/* SPDX-License-Identifier: MIT */
/*
 * What the engine tells operators of a model with a draft: the draft's memory and graphs are in the sums,
 * and its graphs in the list, with what they did.
 */
#include "tests/daemon/rig.h"

enum { K = 4, N_OWNERS = 3 };

static const char *const owners[N_OWNERS] = {"target", "draft prefill", "draft decode"};

/* Of the graphs of one owner, or of all (NULL). */
struct sum {
	uint32_t n, n_ready, n_captures;
	uint64_t bytes, n_replays;
	double seconds;
};

static struct sum sum_of(const struct rig *rig, const char *owner)
{
	struct engine_graph_facts facts;
	struct sum sum = {0};

	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++) {
		assert_int_equal(facts.of_draft, strcmp(facts.owner, "target") != 0);
		if (owner && strcmp(facts.owner, owner) != 0)
			continue;
		sum.n++;
		sum.n_ready += strcmp(facts.state, "ready") == 0;
		sum.n_captures += facts.n_captures;
		sum.bytes += facts.bytes;
		sum.seconds += facts.seconds;
		sum.n_replays += facts.n_replays;
		assert_true(!facts.of_draft || !facts.n_shared_replays);
	}
	return sum;
}

static uint64_t sum_eager(const uint64_t n_eager[N_EAGER_REASONS])
{
	uint64_t n = 0;

	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++)
		n += n_eager[reason];
	return n;
}

static void generate(struct rig *rig)
{
	assert_int_equal(rig_do(&rig->client, rig_endless(&rig->client, 0, 0, 60)).n_generated, 60);
	rig_assert_all_free(rig); /* all steps are read */
}

/* ---- progress of start-up ---- */

static struct {
	struct engine_progress last[2]; /* of warm-up, of capture */
	uint32_t n[2];
} reported;

static void on_progress(void *userdata, const struct engine_progress *progress)
{
	reported.last[progress->capture] = *progress;
	reported.n[progress->capture]++;
	/* one by one, of one number */
	assert_int_equal(progress->done, reported.n[progress->capture]);
	assert_int_equal(progress->total, reported.last[progress->capture].total);
}

int __real_engine_new(
	const struct engine_options *options, struct engine **ret, struct model_error *error);
int __wrap_engine_new(
	const struct engine_options *options, struct engine **ret, struct model_error *error);

int __wrap_engine_new(
	const struct engine_options *options, struct engine **ret, struct model_error *error)
{
	struct engine_options own = *options;

	own.progress = on_progress;
	memset(&reported, 0, sizeof(reported));
	return __real_engine_new(&own, ret, error);
}

/* ---- tests ---- */

static void test_progress_of_start_up_goes_over_the_drafts_graphs_too(void **state)
{
	for (int lazy = 0; lazy < 2; lazy++) {
		struct rig rig;
		uint32_t n, n_captured;

		rig_open_client(&rig, &(struct rig_options){.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = lazy});
		n = rig_facts(&rig).n_graphs;
		n_captured = n - (lazy ? sum_of(&rig, "target").n : 0);
		assert_int_equal(reported.n[0], n);
		assert_int_equal(reported.last[0].total, n);
		assert_int_equal(reported.n[1], n_captured);
		assert_int_equal(reported.last[1].total, n_captured);
		assert_int_equal(rig_facts(&rig).n_ready, n_captured);
		rig_close(&rig);
	}
}

static void test_weights_and_pages_have_the_drafts_part(void **state)
{
	struct rig *rig = *state;
	struct engine_model_facts facts;
	const struct model *draft;

	facts = rig_facts(rig);
	draft = rig->runner->options.draft;
	assert_true(draft->bytes && draft->file_bytes && draft->load_seconds > 0);
	assert_int_equal(facts.weights_bytes, rig->runner->model->bytes + draft->bytes);
	assert_int_equal(facts.weights_read_bytes, rig->runner->model->file_bytes + draft->file_bytes);
	assert_true(facts.load_seconds == rig->runner->model->load_seconds + draft->load_seconds);
	assert_int_equal(facts.kv_bytes,
		facts.pages_total * (kv_page_bytes(kv_cache_config(rig->runner->kv)) +
					    kv_page_bytes(kv_cache_config(rig->runner->draft_kv))));
}

static void test_graphs_of_a_draft_are_listed_and_in_the_sums(void **state)
{
	const enum graph_mode modes[] = {GRAPH_FULL_AND_PIECEWISE, GRAPH_PIECEWISE, GRAPH_NONE};

	for (int m = 0; m < 3; m++) {
		struct engine_model_facts facts;
		struct sum all, of[N_OWNERS];
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.n_drafts = K, .mode = modes[m]});
		const struct graph_set *const sets[N_OWNERS] = {&rig.runner->graphs,
			&rig.runner->speculator.prefill.graphs, &rig.runner->speculator.decode.graphs};
		facts = rig_facts(&rig);
		all = sum_of(&rig, NULL);
		for (int i = 0; i < N_OWNERS; i++) {
			of[i] = sum_of(&rig, owners[i]);
			assert_int_equal(of[i].n, sets[i]->n);
			assert_int_equal(of[i].n_captures, of[i].n);
			/* CUDA takes memory in steps of megabytes */
			assert_true(!of[i].bytes == !of[i].n || (test_on_cuda() && !of[i].bytes));
		}
		assert_int_equal(of[0].n > 0 && of[1].n > 0, modes[m] != GRAPH_NONE);
		assert_int_equal(of[2].n > 0, modes[m] == GRAPH_FULL_AND_PIECEWISE);
		assert_int_equal(all.n, of[0].n + of[1].n + of[2].n);
		/* CUDA's free memory goes in steps of 2 MiB, and a process keeps memory of graphs
		 * that are gone: small graphs may take none of what is free. */
		if (test_on_cuda())
			fprintf(stderr, "# mode %d: %u graphs, %llu bytes\n", m, all.n, (unsigned long long)all.bytes);
		assert_true(!all.bytes == !all.n || (test_on_cuda() && !all.bytes));
		assert_int_equal(facts.n_graphs, all.n);
		assert_int_equal(facts.n_ready, all.n_ready);
		assert_int_equal(facts.n_ready, facts.n_graphs);
		assert_int_equal(facts.graph_bytes, all.bytes);
		assert_true(facts.capture_seconds >= 0.999 * all.seconds &&
			    facts.capture_seconds <= 1.001 * all.seconds);
		rig_close(&rig);
	}
}

/* A pass over the step's tokens, and one for each further draft. */
static void test_each_pass_of_a_draft_is_a_replay_or_an_eager_one_with_its_reason(void **state)
{
	static const uint32_t narrow[] = {1, 5};
	const struct {
		struct rig_options options;
		enum eager_reason reason; /* of all that are eager */
		bool replays, eager;
	} cases[] = {
		{{.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE}, EAGER_NO, true, false},
		{{.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true}, EAGER_NO, true,
			false},
		{{.n_drafts = K, .mode = GRAPH_FULL_DECODE_ONLY}, EAGER_MIXED, true, true},
		{{.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .capture_sizes = narrow,
			 .n_capture_sizes = 2}, EAGER_TOO_WIDE, true, true},
		{{.n_drafts = K, .mode = GRAPH_NONE}, EAGER_MODE, false, true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct engine_model_facts facts;
		uint64_t n_prefill, n_decode, n_replays;
		struct rig rig;

		rig_open_client(&rig, &cases[i].options);
		facts = rig_facts(&rig);
		/* start-up's passes belong to no step */
		assert_int_equal(sum_eager(facts.n_prefill_eager) + sum_eager(facts.n_decode_eager), 0);
		generate(&rig);
		facts = rig_facts(&rig);
		n_prefill = sum_eager(facts.n_prefill_eager);
		n_decode = sum_eager(facts.n_decode_eager);
		n_replays = sum_of(&rig, "draft prefill").n_replays;
		assert_true(facts.speculation.n_draft_steps > 0);
		assert_int_equal(n_replays + n_prefill, facts.speculation.n_draft_steps);
		assert_int_equal(n_replays > 0, cases[i].replays);
		n_replays = sum_of(&rig, "draft decode").n_replays;
		assert_int_equal(n_replays + n_decode, (K - 1) * facts.speculation.n_draft_steps);
		assert_int_equal(n_replays > 0, cases[i].replays);
		assert_int_equal(n_prefill + n_decode > 0, cases[i].eager);
		assert_int_equal(n_prefill, cases[i].eager ? facts.n_prefill_eager[cases[i].reason] : 0);
		assert_int_equal(n_decode, cases[i].eager ? facts.n_decode_eager[cases[i].reason] : 0);
		rig_close(&rig);
	}
}

static void test_padding_of_a_drafts_replays_is_counted(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	uint64_t n_padded = 0, n_replays;

	generate(rig);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		n_padded += strcmp(facts.owner, "draft decode") ? 0 : facts.n_padded_rows;
	n_replays = sum_of(rig, "draft decode").n_replays;
	assert_true(n_replays > 0);
	assert_int_equal(n_padded, 7 * n_replays); /* one row in a graph of 8 */
}

static void test_graphs_of_a_draft_are_there_from_the_start_and_no_order_drops_them(void **state)
{
	struct rig *rig = *state;
	const struct engine_graphs_order drop = {ENGINE_GRAPH_DROP, ENGINE_ALL, ENGINE_ALL};
	uint32_t n_draft;

	n_draft = sum_of(rig, "draft prefill").n + sum_of(rig, "draft decode").n;
	assert_true(n_draft > 0);
	assert_int_equal(rig_facts(rig).n_ready, n_draft);
	generate(rig);
	assert_int_equal(engine_post_graphs(rig->engine, &drop), 0);
	for (uint32_t i = n_draft + sum_of(rig, "target").n; i-- > 0;) {
		/* of each alone, too, one behind the last included */
		const struct engine_graphs_order one = {ENGINE_GRAPH_DROP, 0, i + 1};

		assert_int_equal(engine_post_graphs(rig->engine, &one), 0);
	}
	RIG_AWAIT(!engine_stats(rig->engine)->n_graph_orders && !sum_of(rig, "target").n_ready);
	assert_int_equal(rig_facts(rig).n_ready, n_draft);
	generate(rig); /* and they serve */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_progress_of_start_up_goes_over_the_drafts_graphs_too),
		RIG_TEST(test_weights_and_pages_have_the_drafts_part,
			.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE),
		cmocka_unit_test(test_graphs_of_a_draft_are_listed_and_in_the_sums),
		cmocka_unit_test(test_each_pass_of_a_draft_is_a_replay_or_an_eager_one_with_its_reason),
		RIG_TEST(test_padding_of_a_drafts_replays_is_counted,
			.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .capture_sizes = (const uint32_t[]){8, 64}, .n_capture_sizes = 2),
		RIG_TEST(test_graphs_of_a_draft_are_there_from_the_start_and_no_order_drops_them,
			.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
	};

	return cmocka_run_group_tests_name("engine facts", tests, NULL, NULL);
}
