/* SPDX-License-Identifier: MIT */
/*
 * What speculation is worth: tokens that a verification yields on the kinds of questions that model and
 * draft were trained on, cut at the end token; and that a broken draft shows there and nowhere else.
 * Drafts that hold in half the cases try what neither good nor random ones do: every length of what holds.
 */
#include "tests/daemon/traffic.h"

#include <math.h>

#include "tests/daemon/checkpoint.h"
#include "tests/e2e/questions.h"

enum { N = 120, N_KINDS = 4, K = 4 };
enum { HALF = 12 }; /* of one sign flipped in so many, half the drafts hold */

static const char *const kinds[N_KINDS] = {"add", "count", "sort", "rev"};
static struct question questions[N];

/* ---- a broken draft ---- */

static struct checkpoint broken; /* a copy of the draft, its weights noised */

/* One weight of `every` changes its sign. */
static void break_draft(uint32_t every)
{
	if (broken.folder[0])
		checkpoint_remove(&broken);
	checkpoint_copy(&broken, rig_draft());
	checkpoint_flip_signs(&broken, "", every);
}

static int make(void **state)
{
	questions_make(questions, N, 2026);
	return 0;
}

static int unmake(void **state)
{
	if (broken.folder[0])
		checkpoint_remove(&broken);
	return 0;
}

/* ---- asking ---- */

static struct engine_speculation speculation(const struct rig *rig)
{
	struct engine_model_facts facts;

	engine_model_facts(rig->engine, 0, &facts);
	return facts.speculation;
}

static void print_rates(enum graph_mode mode, const struct engine_speculation *s)
{
	printf("# %s: accepted of offered, by position:", graph_mode_name(mode));
	for (uint32_t i = 0; i < K; i++)
		printf(" %u of %u", (unsigned)s->n_accepted[i], (unsigned)s->n_offered[i]);
	printf("\n");
}

/* All questions, one after the other, each answered right; tokens a verification, of each kind and of all,
 * and the account of all. */
static struct engine_speculation ask_all_of(const struct rig_options *options, double ret[N_KINDS + 1])
{
	const enum graph_mode mode = options->mode;
	uint64_t rows[N_KINDS + 1] = {0}, tokens[N_KINDS + 1] = {0};
	struct engine_speculation all;
	struct rig rig;

	rig_open_client(&rig, options);
	for (uint32_t i = 0; i < N; i++) {
		const struct question *q = &questions[i];
		const struct engine_speculation before = speculation(&rig);
		struct rig_request request =
			rig_ask(&rig.client, 0, 0, q->prompt, q->n_prompt, QUESTION_ANSWER_MAX, 0);
		struct engine_speculation after;

		assert_int_equal(rig_do(&rig.client, request).n_generated, q->n_answer);
		assert_memory_equal(rig_tokens(&rig.client, &request), q->answer,
			q->n_answer * sizeof(q->answer[0]));
		after = speculation(&rig);
		rows[i % N_KINDS] += after.n_rows - before.n_rows;
		tokens[i % N_KINDS] += after.n_tokens - before.n_tokens;
	}
	all = speculation(&rig);
	print_rates(mode, &all);
	rig_close(&rig);
	for (uint32_t k = 0; k < N_KINDS; k++) {
		rows[N_KINDS] += rows[k];
		tokens[N_KINDS] += tokens[k];
	}
	for (uint32_t k = 0; k <= N_KINDS; k++) {
		ret[k] = (double)tokens[k] / (double)rows[k];
		printf("# %s, %s: %.2f tokens a verification (%u in %u)\n", graph_mode_name(mode),
			k < N_KINDS ? kinds[k] : "all", ret[k], (unsigned)tokens[k],
			(unsigned)rows[k]);
	}
	return all;
}

static struct engine_speculation ask_all(
	const char *draft, enum graph_mode mode, double ret[N_KINDS + 1])
{
	return ask_all_of(&(struct rig_options){.mode = mode, .draft = draft, .n_drafts = K}, ret);
}

static double acceptance(const struct engine_speculation *s, uint32_t i)
{
	return (double)s->n_accepted[i] / (double)s->n_offered[i];
}

static void test_a_verification_yields_4_4_tokens_whatever_graphs_run_it(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_NONE, GRAPH_FULL_AND_PIECEWISE};
	const char *draft = rig_draft();
	struct engine_speculation all[2];
	double yields[2][N_KINDS + 1];
	char path[512];

	snprintf(path, sizeof(path), "%s", draft);
	for (int i = 0; i < 2; i++)
		all[i] = ask_all(path, modes[i], yields[i]);
	assert_true(yields[0][N_KINDS] >= 4.4);
	for (uint32_t k = 0; k <= N_KINDS; k++)
		assert_true(yields[0][k] - yields[1][k] < 5e-4 && yields[1][k] - yields[0][k] < 5e-4);
	/* How many draft tokens the last verification of an answer has depends on how many results the host has read. */
	for (uint32_t i = 0; i < K; i++)
		assert_true(fabs(acceptance(&all[0], i) - acceptance(&all[1], i)) < 0.02);
}

/* K passes of one head; each mode of graphs, and each plan of latent attention. */
static void test_a_verification_of_an_mtp_heads_tokens_yields_3_whatever_graphs_run_it(void **state)
{
	static const enum graph_mode modes[] = {
		GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE};
	const char *folder = rig_source("examples/models/tinycalc-mtp");
	double first[N_KINDS + 1], more[N_KINDS + 1];

	for (uint32_t i = 0; i < 4; i++) {
		const struct rig_options options = {.mode = modes[i], .model = folder, .draft = folder,
			.attention = i % 2 ? "mla_planned" : "mla", .n_drafts = K};

		ask_all_of(&options, i ? more : first);
		/* Keys of a prompt's chunk depend on its length by 1e-7, and chunks on when requests come. */
		for (uint32_t k = 0; i && k <= N_KINDS; k++)
			assert_true(fabs(more[k] - first[k]) < 0.02);
	}
	assert_true(first[N_KINDS] >= 3);
}

static void test_broken_draft_shows_in_the_acceptance_alone(void **state)
{
	double yields[N_KINDS + 1];

	break_draft(6);
	ask_all(broken.folder, GRAPH_FULL_AND_PIECEWISE, yields);
	assert_true(yields[N_KINDS] > 1 && yields[N_KINDS] < 3.5);
	break_draft(2);
	ask_all(broken.folder, GRAPH_NONE, yields);
	assert_true(yields[N_KINDS] < 1.5);
}

static void test_output_of_half_and_of_never_accepted_drafts_is_that_without_one(void **state)
{
	static const struct {
		uint32_t every;
		double least, most;
	} drafts[] = {{HALF, 0.35, 0.65}, {2, 0, 0.1}};
	static const enum graph_mode modes[] = {
		GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE};

	traffic_make(NULL, NULL);
	for (uint32_t d = 0; d < 2; d++) {
		struct engine_speculation all;
		double yields[N_KINDS + 1], held;

		break_draft(drafts[d].every);
		all = ask_all(broken.folder, GRAPH_FULL_AND_PIECEWISE, yields);
		held = acceptance(&all, 0);
		printf("# one sign in %u flipped: the first draft holds in %.0f %%\n",
			drafts[d].every, 100 * held);
		assert_true(held >= drafts[d].least && held <= drafts[d].most);
		for (uint32_t m = 0; m < 4; m++) {
			const struct rig_options options = {
				.mode = modes[m], .draft = broken.folder, .n_drafts = 1 + 2 * m};

			traffic_run(&options, modes[m], &traffic_ladders[m % 3], 64, m);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_verification_yields_4_4_tokens_whatever_graphs_run_it),
		cmocka_unit_test(test_a_verification_of_an_mtp_heads_tokens_yields_3_whatever_graphs_run_it),
		cmocka_unit_test(test_broken_draft_shows_in_the_acceptance_alone),
		cmocka_unit_test(test_output_of_half_and_of_never_accepted_drafts_is_that_without_one),
	};

	return cmocka_run_group_tests_name("engine acceptance", tests, make, unmake);
}
