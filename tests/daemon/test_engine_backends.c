/* SPDX-License-Identifier: MIT */
/*
 * The same requests give the same tokens with every attention backend that can serve the model, under
 * every mode (traffic.h). What they are compared with is computed by another backend, on the cpu device by
 * the reference: latent attention by expansion, and the keys' and values' of flex by paged.
 */
#include "tests/daemon/traffic.h"

struct backend_case {
	const char *attention;
	enum graph_mode mode;
	uint32_t chunk, ladder;
	const char *behind; /* of all layers but the first; NULL: the same */
};

static void run_cases(const char *model, const struct backend_case *cases, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct rig_options options = {
			.model = model, .attention = cases[i].attention, .mode = cases[i].mode,
			.attention_behind = cases[i].behind};

		traffic_run(&options, cases[i].mode, &traffic_ladders[cases[i].ladder],
			cases[i].chunk, i);
	}
}

#define RUN_CASES(model, cases) run_cases(model, cases, sizeof(cases) / sizeof((cases)[0]))

static void check_latent(const char *model)
{
	static const struct backend_case cases[] = {
		{"mla", GRAPH_NONE, 64, 0},
		{"mla", GRAPH_PIECEWISE, 7, 1},
		{"mla", GRAPH_PIECEWISE, 512, 0},
		{"mla", GRAPH_FULL_DECODE_ONLY, 64, 2},
		{"mla", GRAPH_FULL_AND_PIECEWISE, 64, 0},
		{"mla", GRAPH_FULL_AND_PIECEWISE, 7, 1},
		{"mla_planned", GRAPH_NONE, 512, 0},
		{"mla_planned", GRAPH_PIECEWISE, 64, 0},
		{"mla_planned", GRAPH_FULL_DECODE_ONLY, 512, 0},
		{"mla_planned", GRAPH_FULL_AND_PIECEWISE, 512, 0},
		{"mla_planned", GRAPH_FULL_AND_PIECEWISE, 64, 2},
		{"mla_planned", GRAPH_FULL_AND_PIECEWISE, 1, 0},
	};

	traffic_make(model, test_on_cuda() ? "mla" : "naive");
	RUN_CASES(model, cases);
}

static void test_latent_attention_gives_the_tokens_of_expansion_in_every_mode(void **state)
{
	check_latent(rig_source("examples/models/tinycalc-mla"));
}

static void test_experts_give_the_tokens_of_expansion_in_every_mode(void **state)
{
	check_latent(rig_source("examples/models/tinycalc-moe"));
}

static void test_flex_gives_the_tokens_of_paged_in_every_mode(void **state)
{
	static const struct backend_case cases[] = {
		{"flex", GRAPH_NONE, 64, 0},
		{"flex", GRAPH_PIECEWISE, 7, 1},
		{"flex", GRAPH_PIECEWISE, 64, 0},
		{"flex", GRAPH_FULL_DECODE_ONLY, 64, 0},
		{"flex", GRAPH_FULL_AND_PIECEWISE, 64, 2},
		{"flex", GRAPH_FULL_AND_PIECEWISE, 512, 0},
		{"flex", GRAPH_FULL, 64, 0},
		{"flex", GRAPH_FULL, 7, 1},
	};

	traffic_make(NULL, "paged");
	RUN_CASES(NULL, cases);
}

/* FULL where all layers can, else pieces: what the first layer's backend could have is not enough. */
static void test_layers_of_different_backends_give_the_tokens_of_paged_in_every_mode(void **state)
{
	static const struct backend_case cases[] = {
		{"flex", GRAPH_NONE, 64, 0, "paged"},
		{"flex", GRAPH_PIECEWISE, 7, 1, "paged"},
		{"paged", GRAPH_FULL_DECODE_ONLY, 64, 0, "flex"},
		{"flex", GRAPH_FULL_AND_PIECEWISE, 64, 2, "paged"},
		{"paged", GRAPH_FULL_AND_PIECEWISE, 512, 0, "flex"},
	};
	static const struct backend_case with_naive[] = {
		{"flex", GRAPH_NONE, 64, 0, "naive"},
		{"paged", GRAPH_PIECEWISE, 7, 1, "naive"},
		{"naive", GRAPH_PIECEWISE, 64, 0, "flex"},
	};

	traffic_make(NULL, "paged");
	RUN_CASES(NULL, cases);
	if (!test_on_cuda())
		RUN_CASES(NULL, with_naive);
}

static void test_level_of_different_backends_is_the_lower_one(void **state)
{
	struct rig rig;

	if (test_on_cuda())
		skip();
	rig_open(&rig, &(struct rig_options){
		.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "paged", .attention_behind = "naive"});
	assert_int_equal(rig.runner->options.mode.resolved, GRAPH_PIECEWISE);
	assert_non_null(strstr(rig.runner->options.mode.reason, "naive of layer 1 cannot run in a graph"));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_latent_attention_gives_the_tokens_of_expansion_in_every_mode),
		cmocka_unit_test(test_experts_give_the_tokens_of_expansion_in_every_mode),
		cmocka_unit_test(test_flex_gives_the_tokens_of_paged_in_every_mode),
		cmocka_unit_test(test_layers_of_different_backends_give_the_tokens_of_paged_in_every_mode),
		cmocka_unit_test(test_level_of_different_backends_is_the_lower_one),
	};

	return cmocka_run_group_tests_name("engine backends", tests, NULL, NULL);
}
