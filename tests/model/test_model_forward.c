/* SPDX-License-Identifier: MIT */

/*
 * Forward passes against what transformers computed in float32 on the same weights: golden.json of
 * the tinycalc models, and reference.json of each checkpoint in tests/data (make_checkpoints.py), or
 * the .json beside a GGUF file (make_gguf.py).
 *
 * On a device with bf16 activations tokens are compared for trained models alone: logits of random
 * checkpoints are so close together that rounding chooses among them.
 */

#include "tests/model/reference.h"

#include "tests/device.h"
#include "tests/model/rig.h"

#define CASES_MAX 8
#define GREEDY_MAX 256
#define CHUNK 7

struct checkpoint {
	const char *below, *file;
	bool trained, latent;
};

struct reference {
	json_t *root;
	bool same_tokens; /* the device has to choose the reference's tokens ... */
	bool near_ties;   /* ... but for those within a prompt */
	double tolerance; /* of logits, of the largest */
	uint32_t n_cases;
	struct reference_case {
		uint32_t n_prompt, n_greedy;
		int32_t prompt[RIG_TOKENS], argmax[RIG_TOKENS], greedy[GREEDY_MAX];
		const json_t *logits;
	} cases[CASES_MAX];
};

static void reference_init(
	struct reference *reference, const char *directory, const char *name, bool trained)
{
	const json_t *cases;
	char path[600];

	reference->same_tokens = trained || !test_on_cuda();
	/* Two of its logits within a prompt are so close together that bf16 rounding chooses. */
	reference->near_ties = test_on_cuda() && strstr(directory, "/tinycalc-mtp");
	reference->tolerance = test_logits_tolerance(trained);
	/* Rounding alone is so large here: the same ops with float32 sums and bf16 between them,
	 * computed apart from any device, are 8.0 % off, and 7.5 % with gate and up not rounded. */
	if (test_on_cuda() && strstr(directory, "/llama-bias"))
		reference->tolerance = TEST_LOGITS_CUDA_BIASED;
	snprintf(path, sizeof(path), "%s%s%s", directory, *name == '.' ? "" : "/", name);
	reference->root = load_reference(path);
	cases = json_object_get(reference->root, "cases");
	reference->n_cases = (uint32_t)json_array_size(cases);
	assert_in_range(reference->n_cases, 1, CASES_MAX);
	for (uint32_t i = 0; i < reference->n_cases; i++) {
		const json_t *json = json_array_get(cases, i);
		struct reference_case *c = &reference->cases[i];

		c->n_prompt = integers(json_object_get(json, "prompt"), c->prompt, RIG_TOKENS);
		c->n_greedy = integers(json_object_get(json, "greedy"), c->greedy, GREEDY_MAX);
		assert_int_equal(integers(json_object_get(json, "argmax_per_position"), c->argmax,
					 RIG_TOKENS), c->n_prompt);
		c->logits = json_object_get(json, "logits_last");
	}
}

static void reference_deinit(struct reference *reference)
{
	json_decref(reference->root);
}

static void assert_row(const struct rig *rig, uint32_t row, const struct reference *reference,
	const json_t *want, const char *what)
{
	assert_logits(rig_logits(rig, row), rig->model->config.vocab_size, want,
		reference->tolerance, what);
}

/* The prompt in steps of `chunk` tokens; each step's last position has the right argmax. */
static void run_prompt(struct rig *rig, const struct reference *reference,
	const struct reference_case *c, uint32_t chunk)
{
	rig_reset(rig);
	for (uint32_t at = 0; at < c->n_prompt; at += chunk) {
		uint32_t n = c->n_prompt - at < chunk ? c->n_prompt - at : chunk;

		rig_step(rig, &(struct rig_row){1, n, c->prompt + at}, 1);
		if (reference->same_tokens && (!reference->near_ties || at + n == c->n_prompt))
			assert_int_equal(rig_argmax(rig, 0), c->argmax[at + n - 1]);
	}
}

/* As far as the rig's cache goes. */
static void run_greedy(struct rig *rig, const struct reference_case *c)
{
	for (uint32_t i = 0; i < c->n_greedy && rig->lengths[1] < RIG_LENGTH; i++) {
		int32_t token = rig_argmax(rig, 0);

		assert_int_equal(token, c->greedy[i]);
		rig_step(rig, &(struct rig_row){1, 1, &token}, 1);
	}
}

static void check_case(
	struct rig *rig, const struct reference *reference, const struct reference_case *c)
{
	run_prompt(rig, reference, c, c->n_prompt);
	assert_row(rig, 0, reference, c->logits, "whole prompt");
	rig->last_alone = true;
	run_prompt(rig, reference, c, c->n_prompt);
	assert_row(rig, 0, reference, c->logits, "whole prompt, its last token alone behind the last attention");
	rig->last_alone = false;
	if (reference->same_tokens)
		run_greedy(rig, c);
	run_prompt(rig, reference, c, CHUNK);
	assert_row(rig, 0, reference, c->logits, "prompt in chunks");
	run_prompt(rig, reference, c, 1);
	assert_row(rig, 0, reference, c->logits, "prompt token by token");
}

static void check_model(const struct checkpoint *checkpoint, const char *attention)
{
	static struct reference reference;
	struct rig rig;
	char directory[512];

	source_path(checkpoint->below, directory);
	reference_init(&reference, directory, checkpoint->file, checkpoint->trained);
	rig_init(&rig, directory, attention);
	for (uint32_t i = 0; i < reference.n_cases; i++)
		check_case(&rig, &reference, &reference.cases[i]);
	rig_deinit(&rig);
	reference_deinit(&reference);
}

/* ---- one test a checkpoint and backend ---- */

#define CHECKPOINT(name) {"tests/data/checkpoints/" name, "reference.json", false, false}
#define GGUF(name) {"tests/data/gguf/" name ".gguf", ".json", false, false}
#define LATENT(name) {"tests/data/checkpoints/" name, "reference.json", false, true}
static struct checkpoint checkpoints[] = {
	{"examples/models/tinycalc", "golden.json", true, false},
	{"examples/models/tinycalc-mla", "golden.json", true, true},
	{"examples/models/tinycalc-moe", "golden.json", true, true},
	{"examples/models/tinycalc-mtp", "golden.json", true, true},
	CHECKPOINT("llama-old-rope-theta"),
	CHECKPOINT("llama-rope-linear"),
	CHECKPOINT("llama-rope-llama3"),
	CHECKPOINT("llama-rope-yarn"),
	CHECKPOINT("llama-rope-yarn-mscale"),
	CHECKPOINT("llama-head-dim"),
	CHECKPOINT("llama-tied"),
	CHECKPOINT("llama-bias"),
	CHECKPOINT("llama-sharded"),
	CHECKPOINT("llama-f16"),
	CHECKPOINT("llama-f32"),
	CHECKPOINT("mistral-window"),
	CHECKPOINT("mistral-no-window"),
	CHECKPOINT("qwen2"),
	CHECKPOINT("qwen2-window"),
	CHECKPOINT("qwen2-mixed"),
	CHECKPOINT("qwen3"),
	CHECKPOINT("qwen3-bias-window"),
	CHECKPOINT("qwen3-embedding"),
	CHECKPOINT("qwen3-moe"),
	CHECKPOINT("qwen3-moe-step"),
	CHECKPOINT("phi3-window"),
	CHECKPOINT("phi3-short"),
	CHECKPOINT("phi3-long"),
	CHECKPOINT("gemma2"),
	CHECKPOINT("gemma2-types"),
	CHECKPOINT("gemma3"),
	CHECKPOINT("gemma3-types"),
	LATENT("deepseek-v2"),
	LATENT("deepseek-v2-groups"),
	LATENT("deepseek-v2-yarn"),
	LATENT("deepseek-v3"),
	LATENT("deepseek-v3-halves"),
	CHECKPOINT("fp8-blocks"),
	CHECKPOINT("fp8-tensor"),
	CHECKPOINT("compressed-channel"),
	CHECKPOINT("compressed-tensor"),
	CHECKPOINT("compressed-block"),
	CHECKPOINT("compressed-int4"),
	CHECKPOINT("compressed-int4-channel"),
	CHECKPOINT("compressed-int4-order"),
	CHECKPOINT("gptq"),
	CHECKPOINT("gptq-order"),
	CHECKPOINT("gptq-v2"),
	CHECKPOINT("awq"),
	LATENT("fp8-blocks-deepseek"),
	CHECKPOINT("fp8-blocks-128"),
	LATENT("fp8-blocks-deepseek-128"),
	CHECKPOINT("fp8-tensor-128"),
	CHECKPOINT("compressed-channel-128"),
	CHECKPOINT("compressed-int4-128"),
	CHECKPOINT("compressed-int4-channel-128"),
	CHECKPOINT("gptq-128"),
	CHECKPOINT("gptq-order-128"),
	CHECKPOINT("awq-128"),
	LATENT("fp8-blocks-experts-128"),
	CHECKPOINT("gptq-order-256"),
	CHECKPOINT("gptq-order-gemma2-32"),
	CHECKPOINT("compressed-mixed-128"),
	CHECKPOINT("modelopt-128"),
	CHECKPOINT("compressed-int4-32"),
	CHECKPOINT("awq-64"),
	CHECKPOINT("fp8-blocks-qwen3-moe-128"),
	GGUF("llama"),
	GGUF("llama-bias"),
	GGUF("qwen2"),
	GGUF("qwen3"),
};

/* A case of the group: a checkpoint with a backend. */
struct pairing {
	const struct checkpoint *checkpoint;
	const char *attention;
	char name[96];
};

static void test_matches_reference(void **state)
{
	const struct pairing *pairing = *state;

	check_model(pairing->checkpoint, pairing->attention);
}

/* ---- batches ---- */

struct world {
	struct reference reference;
	struct rig rig;
};

/* Of tinycalc, with paged attention. */
static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	char directory[512];

	if (!w)
		return -1;
	source_path(checkpoints[0].below, directory);
	reference_init(&w->reference, directory, checkpoints[0].file, true);
	rig_init(&w->rig, directory, "paged");
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;

	rig_deinit(&w->rig);
	reference_deinit(&w->reference);
	free(w);
	return 0;
}

static void test_rows_of_a_batch_get_the_logits_they_get_alone(void **state)
{
	struct world *w = *state;
	const struct reference_case *cases = w->reference.cases;
	struct rig_row rows[3];

	/* 9 + 5 + 13 tokens in one pass, sequences in no order */
	for (uint32_t i = 0; i < 3; i++)
		rows[i] = (struct rig_row){(i + 2) % 3, cases[i].n_prompt, cases[i].prompt};
	rig_step(&w->rig, rows, 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_row(&w->rig, i, &w->reference, cases[i].logits, "a row of three");
}

static void test_prompt_beside_a_decode_disturbs_neither(void **state)
{
	struct world *w = *state;
	const struct reference_case *a = &w->reference.cases[0], *b = &w->reference.cases[1];

	rig_step(&w->rig, &(struct rig_row){1, a->n_prompt, a->prompt}, 1);
	rig_step(&w->rig, (struct rig_row[]){{1, 1, a->greedy}, {0, b->n_prompt, b->prompt}}, 2);
	assert_int_equal(rig_argmax(&w->rig, 0), a->greedy[1]);
	assert_row(&w->rig, 1, &w->reference, b->logits, "the prompt");
}

static void test_last_tokens_alone_get_the_hidden_states_they_get_among_all(void **state)
{
	struct world *w = *state;
	const struct reference_case *cases = w->reference.cases;
	const size_t row = w->rig.model->config.hidden_size * dtype_bytes(w->rig.info.activation_dtype);
	struct rig_row rows[2];
	uint8_t *all = calloc(2, row), *alone = calloc(2, row);

	for (uint32_t i = 0; i < 2; i++)
		rows[i] = (struct rig_row){i, cases[i].n_prompt, cases[i].prompt};
	rig_step(&w->rig, rows, 2);
	MUST(w->rig.device->ops->copy(w->rig.device, all, w->rig.buffers.last_hidden, 2 * row));
	rig_reset(&w->rig);
	w->rig.last_alone = true;
	rig_step(&w->rig, rows, 2);
	MUST(w->rig.device->ops->copy(w->rig.device, alone, w->rig.buffers.last_hidden, 2 * row));
	if (!test_on_cuda())
		assert_memory_equal(alone, all, 2 * row);
	for (uint32_t i = 0; i < 2; i++)
		assert_row(&w->rig, i, &w->reference, cases[i].logits, "a row of two");
	free(alone);
	free(all);
}

#define BACKENDS_MAX 3

/* Every backend that can serve the checkpoint. */
static uint32_t pair_up(const struct checkpoint *checkpoint, struct pairing *ret)
{
	static const char *const backends[2][BACKENDS_MAX] = {
		{"naive", "paged", "flex"}, {"naive", "mla", "mla_planned"}};
	uint32_t n = 0;

	for (; n < BACKENDS_MAX && backends[checkpoint->latent][n]; n++) {
		ret[n].checkpoint = checkpoint;
		ret[n].attention = backends[checkpoint->latent][n];
		snprintf(ret[n].name, sizeof(ret[n].name),
			"test_%s_matches_reference_with_%s_attention",
			strrchr(checkpoint->below, '/') + 1, ret[n].attention);
	}
	return n;
}

int main(void)
{
	enum { N = ARRAY_SIZE(checkpoints) };
	static struct pairing pairings[BACKENDS_MAX * N];
	static struct CMUnitTest tests[BACKENDS_MAX * N + 3];
	static const struct test_cpu_only only[] = {
		{"with_naive_attention", "the naive backend is for the cpu device"},
	};
	uint32_t n = 0;
	int failed;

	for (size_t i = 0; i < N; i++)
		n += pair_up(&checkpoints[i], &pairings[n]);
	for (uint32_t i = 0; i < n; i++)
		tests[i] = (struct CMUnitTest){
			.name = pairings[i].name,
			.test_func = test_matches_reference,
			.initial_state = &pairings[i],
		};
	tests[n] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		test_rows_of_a_batch_get_the_logits_they_get_alone, world_setup, world_teardown);
	tests[n + 1] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		test_prompt_beside_a_decode_disturbs_neither, world_setup, world_teardown);
	tests[n + 2] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		test_last_tokens_alone_get_the_hidden_states_they_get_among_all, world_setup, world_teardown);
	failed = test_run_group("model", tests, n + 3, only, ARRAY_SIZE(only), NULL, NULL);
	for (size_t i = 0; i < N && test_on_cuda(); i++)
		if (!checkpoints[i].trained)
			printf("# skipped: greedy tokens of %s: bf16 on a random checkpoint\n",
				strrchr(checkpoints[i].below, '/') + 1);
	return failed;
}
