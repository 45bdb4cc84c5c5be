/* SPDX-License-Identifier: MIT */

/*
 * Passes of draft models: against make_drafts.py's dense arithmetic, and against themselves: in
 * chunks, in a batch, and behind draft tokens that the target rejected.
 */

#include "tests/model/draft_rig.h"
#include "tests/model/reference.h"

#include <errno.h>

#include "tests/device.h"
#include "tests/device_memory.h"

#define PROPOSED_MAX 8

/* A test's initial state; the test gets a struct world. */
struct setting {
	const char *draft, *attention;
};

struct world {
	struct draft_rig d;
	const char *draft;
};

static int world_setup(void **state)
{
	const struct setting *setting = *state;
	bool is_tinycalc = !strncmp(setting->draft, "tinycalc-", 9), is_mtp = strstr(setting->draft, "mtp");
	struct world *w = calloc(1, sizeof(*w));
	char target_path[512], draft_path[512], below[128];

	if (!w)
		return -1;
	snprintf(below, sizeof(below), "%s/%s",
		is_tinycalc ? "examples/models" : "tests/data/drafts", setting->draft);
	source_path(below, draft_path);
	source_path(is_tinycalc ? "examples/models/tinycalc" : "tests/data/drafts/target",
		target_path);
	if (is_mtp)
		strcpy(target_path, draft_path);
	w->draft = setting->draft;
	draft_rig_init(&w->d, target_path, draft_path, setting->attention);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;

	draft_rig_deinit(&w->d);
	free(w);
	return 0;
}

/* The target over tokens [0, n) of ids, and the draft model over those shifted by one. */
static void prefill(struct draft_rig *d, uint32_t sequence, const int32_t *ids, uint32_t n,
	uint32_t last)
{
	const struct draft_rig_row row = {sequence, 0, n, ids + 1, last};
	struct draft_pass pass = draft_rig_from_target(d, n);

	d->rig.lengths[sequence] = 0;
	draft_rig_target(d, sequence, ids, n);
	draft_rig_pass(d, &pass, &row, 1);
}

/* A decode at `position` from row `from` of a pass of n tokens. */
static void decode(struct draft_rig *d, uint32_t sequence, int32_t token, uint32_t position,
	uint32_t n, int32_t from)
{
	const struct draft_rig_row row = {sequence, position, 1, &token, 0};
	struct draft_pass pass = draft_rig_from_draft(d, n);

	pass.index = &from;
	draft_rig_pass(d, &pass, &row, 1);
}

/* ---- against the reference ---- */

struct reference {
	json_t *root;
	int32_t ids[RIG_TOKENS], proposed[PROPOSED_MAX];
	uint32_t n_ids, n_proposed;
};

static void reference_init(struct reference *r, const char *draft)
{
	const bool is_tinycalc = !strncmp(draft, "tinycalc-", 9);
	char below[128], path[512];
	json_t *file;

	if (is_tinycalc)
		snprintf(below, sizeof(below), "examples/models/%s/golden.json", draft);
	else
		snprintf(below, sizeof(below), "tests/data/drafts/%s/reference.json", draft);
	source_path(below, path);
	file = load_reference(path);
	r->root = json_incref(is_tinycalc ? json_object_get(file, "head") : file);
	json_decref(file);
	r->n_ids = integers(json_object_get(r->root, "ids"), r->ids, RIG_TOKENS);
	r->n_proposed = integers(json_object_get(r->root, "guesses"), r->proposed, PROPOSED_MAX);
}

static double tolerance(void)
{
	return test_on_cuda() ? TEST_LOGITS_CUDA_DRAFT : TEST_LOGITS_CPU;
}

/* The draft's last logits against those of a position, which the reference must have. */
static void assert_position(const struct draft_rig *d, const struct reference *r, uint32_t position)
{
	const json_t *entry;
	size_t i;
	char what[32];

	snprintf(what, sizeof(what), "position %u", position);
	json_array_foreach(json_object_get(r->root, "logits"), i, entry) {
		if (json_integer_value(json_object_get(entry, "position")) != position)
			continue;
		assert_logits(d->logits, d->draft->config.draft.vocab_size,
			json_object_get(entry, "row"), tolerance(), what);
		return;
	}
	fail_msg("the reference has no %s", what);
}

/* The reference's tokens go in, whatever this device would choose among logits so close. */
static void test_draft_matches_reference(void **state)
{
	struct world *w = *state;
	struct draft_rig *d = &w->d;
	struct reference r;
	uint32_t n, vocab = d->rig.model->config.vocab_size;

	reference_init(&r, w->draft);
	n = r.n_ids - 1;
	for (uint32_t i = 0; i < 3; i++) {
		prefill(d, 1, r.ids, n, i * (n - 1) / 2);
		assert_position(d, &r, i * (n - 1) / 2);
	}
	assert_logits(d->target_logits + (size_t)(n - 1) * vocab, vocab,
		json_object_get(r.root, "target_logits_last"), tolerance(), "the target");
	for (uint32_t i = 0; i < r.n_proposed; i++) {
		if (!test_on_cuda())
			assert_int_equal(draft_rig_token(d, 0), r.proposed[i]);
		decode(d, 1, r.proposed[i], n + i, i ? 1 : n, i ? 0 : (int32_t)n - 1);
		assert_position(d, &r, n + i);
	}
	json_decref(r.root);
}

/* ---- against itself ---- */

enum { TEXT = 40, KEPT = 24, K = 4 };

/* Any text within the vocabulary. */
static void write_text(const struct draft_rig *d, int32_t ids[TEXT + 1], uint32_t seed)
{
	for (uint32_t i = 0; i <= TEXT; i++) {
		seed = seed * 1664525u + 1013904223u;
		ids[i] = (int32_t)((seed >> 8) % d->rig.model->config.vocab_size);
	}
}

static float *copy_logits(const struct draft_rig *d, uint32_t n_rows)
{
	size_t bytes = (size_t)n_rows * d->draft->config.draft.vocab_size * sizeof(float);
	float *copy = malloc(bytes);

	assert_non_null(copy);
	memcpy(copy, d->logits, bytes);
	return copy;
}

/* The same bits; of latent attention nearly the same, because those of a prompt depend on how it is split. */
static void assert_same(const struct draft_rig *d, const float *have, const float *want, size_t n)
{
	float largest = 0;

	if (!d->draft->config.latent.rank) {
		assert_memory_equal(have, want, n * sizeof(*want));
		return;
	}
	for (size_t i = 0; i < n; i++)
		largest = fmaxf(largest, fabsf(want[i]));
	for (size_t i = 0; i < n; i++) {
		if (!(fabsf(have[i] - want[i]) <= (float)TEST_LOGITS_CPU * largest))
			fail_msg("element %zu is %g, not %g", i, (double)have[i], (double)want[i]);
	}
}

static void assert_same_logits(const struct draft_rig *d, uint32_t row, const float *want)
{
	uint32_t n = d->draft->config.draft.vocab_size;

	assert_same(d, d->logits + (size_t)row * n, want, n);
}

static void *fetch_hidden(const struct draft_rig *d, const void *hidden, uint32_t n)
{
	return test_fetch(d->rig.device, hidden,
		n * d->draft->config.hidden_size * dtype_bytes(d->rig.info.activation_dtype));
}

/* Of the tokens' outputs, all of them, and of the last logits. */
static void check_chunks(struct draft_rig *d, const int32_t *ids, uint32_t chunk)
{
	float *logits, *want, *have; /* cpu_only, whose activations are float32 */

	prefill(d, 0, ids, TEXT, TEXT - 1);
	logits = copy_logits(d, 1);
	want = fetch_hidden(d, draft_hidden(d->draft, &d->buffers), TEXT);
	d->rig.lengths[3] = 0;
	for (uint32_t at = 0; at < TEXT; at += chunk) {
		uint32_t n = TEXT - at < chunk ? TEXT - at : chunk;
		struct draft_pass pass = draft_rig_from_target(d, n);

		draft_rig_target(d, 3, ids + at, n);
		draft_rig_pass(d, &pass,
			&(struct draft_rig_row){3, at, n, ids + at + 1, n - 1}, 1);
		draft_rig_keep(d, draft_hidden(d->draft, &d->buffers), n, at);
	}
	assert_same_logits(d, 0, logits);
	have = fetch_hidden(d, d->states, TEXT);
	assert_same(d, have, want, (size_t)TEXT * d->draft->config.hidden_size);
	free(have);
	free(want);
	free(logits);
}

static void test_prompt_in_chunks_leaves_the_same_bits_as_in_one(void **state)
{
	struct world *w = *state;
	int32_t ids[TEXT + 1];

	write_text(&w->d, ids, 7);
	check_chunks(&w->d, ids, 1);
	check_chunks(&w->d, ids, 7);
	check_chunks(&w->d, ids, 16);
}

/* A decode and a longer prompt are the same function of ids and hidden states. */
static void test_decode_is_a_prompt_conditioned_on_its_own_output(void **state)
{
	struct draft_rig *d = &((struct world *)*state)->d;
	const size_t state_bytes =
		d->draft->config.hidden_size * dtype_bytes(d->rig.info.activation_dtype);
	struct draft_pass pass = {.n_hidden = TEXT, .hidden = d->states};
	int32_t ids[TEXT + 1];
	float *want;

	write_text(d, ids, 100);
	prefill(d, 0, ids, TEXT - 1, TEXT - 2);
	draft_rig_keep(d, d->rig.buffers.normed, TEXT - 1, 0);
	draft_rig_keep(d,
		(const uint8_t *)draft_hidden(d->draft, &d->buffers) + (TEXT - 2) * state_bytes, 1, TEXT - 1);
	decode(d, 0, ids[TEXT], TEXT - 1, TEXT - 1, TEXT - 2);
	want = copy_logits(d, 1);
	/* sequence 0 again: all of its keys are written again */
	draft_rig_pass(d, &pass, &(struct draft_rig_row){0, 0, TEXT, ids + 1, TEXT - 1}, 1);
	assert_same_logits(d, 0, want);
	free(want);
}

/* K draft tokens behind row `last` of a pass of n tokens, the first at `position`: their
 * logits, and what they were. The first's are there. */
static float *propose(struct draft_rig *d, uint32_t sequence, uint32_t position, uint32_t n,
	uint32_t last, int32_t proposed[K])
{
	uint32_t vocab = d->draft->config.draft.vocab_size;
	float *logits = malloc(K * vocab * sizeof(*logits));

	assert_non_null(logits);
	for (uint32_t i = 0;; i++) {
		memcpy(logits + (size_t)i * vocab, d->logits, vocab * sizeof(*logits));
		proposed[i] = draft_rig_token(d, 0);
		if (i == K - 1)
			return logits;
		decode(d, sequence, proposed[i], position + i, i ? 1 : n, i ? 0 : (int32_t)last);
	}
}

/* The target accepts `held` of K draft tokens, whatever its logits say: its answer is the text from
 * KEPT on. */
static void check_held(struct draft_rig *d, const int32_t *ids, uint32_t held)
{
	uint32_t now = KEPT + 1 + held;
	int32_t proposed[K], wanted[K], tokens[1 + K], next[1 + K];
	struct draft_pass pass = draft_rig_from_target(d, 1 + K);
	float *have, *want;

	prefill(d, 1, ids, KEPT, KEPT - 1);
	free(propose(d, 1, KEPT, KEPT, KEPT - 1, proposed));
	/* accepted tokens are the text's; those behind them are rejected draft tokens */
	memcpy(tokens, ids + KEPT, sizeof(tokens));
	memcpy(tokens + 1 + held, proposed + held, (K - held) * sizeof(*tokens));
	draft_rig_target(d, 1, tokens, 1 + K);
	memcpy(next, tokens + 1, K * sizeof(*next));
	next[K] = 0;
	next[held] = ids[now];
	draft_rig_pass(d, &pass, &(struct draft_rig_row){1, KEPT, 1 + K, next, held}, 1);
	have = propose(d, 1, now, 1 + K, held, proposed);
	prefill(d, 2, ids, now, now - 1);
	want = propose(d, 2, now, now, now - 1, wanted);
	assert_same(d, have, want, K * d->draft->config.draft.vocab_size);
	assert_memory_equal(proposed, wanted, sizeof(wanted));
	free(have);
	free(want);
}

static void test_draft_tokens_behind_rejected_ones_are_those_of_a_fresh_prompt(void **state)
{
	struct world *w = *state;
	int32_t ids[TEXT + 1];

	for (uint32_t held = 0; held <= K; held++) {
		write_text(&w->d, ids, 1000 + held);
		check_held(&w->d, ids, held);
	}
}

/* Ids, positions, lengths and states are what the replay before and the host leave in buffers. */
static void test_one_graph_of_a_decode_replays_all_of_them(void **state)
{
	struct draft_rig *d = &((struct world *)*state)->d;
	int32_t ids[TEXT + 1], proposed[2][K];
	float *eager, *replayed;

	write_text(d, ids, 77);
	prefill(d, 1, ids, TEXT, TEXT - 1);
	eager = propose(d, 1, TEXT, TEXT, TEXT - 1, proposed[0]);
	prefill(d, 1, ids, TEXT, TEXT - 1);
	draft_rig_capture(d);
	replayed = propose(d, 1, TEXT, TEXT, TEXT - 1, proposed[1]);
	assert_memory_equal(
		replayed, eager, K * d->draft->config.draft.vocab_size * sizeof(*eager));
	assert_memory_equal(proposed[1], proposed[0], sizeof(proposed[0]));
	free(eager);
	free(replayed);
}

/* ---- batches ---- */

static void test_rows_of_a_batch_get_the_logits_they_get_alone(void **state)
{
	enum { A = 13, B = 30 };
	struct draft_rig *d = &((struct world *)*state)->d;
	int32_t a[TEXT + 1], b[TEXT + 1], proposed[2];
	const int32_t from[2] = {B - 1, B + A - 1};
	struct draft_pass pass = draft_rig_from_target(d, A + B);
	float *want[2][2];

	write_text(d, a, 5);
	write_text(d, b, 6);
	prefill(d, 0, a, A, A - 1);
	want[0][1] = copy_logits(d, 1);
	decode(d, 0, a[TEXT], A, A, A - 1);
	want[1][1] = copy_logits(d, 1);
	prefill(d, 0, b, B, B - 1);
	want[0][0] = copy_logits(d, 1);
	decode(d, 0, b[TEXT], B, B, B - 1);
	want[1][0] = copy_logits(d, 1);
	rig_reset(&d->rig);
	rig_step(&d->rig, (struct rig_row[]){{3, B, b}, {1, A, a}}, 2);
	draft_rig_pass(d, &pass,
		(struct draft_rig_row[]){{3, 0, B, b + 1, B - 1}, {1, 0, A, a + 1, A - 1}}, 2);
	for (uint32_t r = 0; r < 2; r++)
		assert_same_logits(d, r, want[0][r]);
	proposed[0] = b[TEXT];
	proposed[1] = a[TEXT];
	pass = draft_rig_from_draft(d, A + B);
	pass.index = from;
	draft_rig_pass(d, &pass,
		(struct draft_rig_row[]){{3, B, 1, proposed, 0}, {1, A, 1, proposed + 1, 0}}, 2);
	for (uint32_t r = 0; r < 2; r++)
		assert_same_logits(d, r, want[1][r]);
	for (uint32_t i = 0; i < 4; i++)
		free(want[i / 2][i % 2]);
}

/* ---- features ---- */

static uint32_t n_gathers;
static const struct kernel_ops *whole;

static int count_gathers(struct stream *stream, const struct op_gather_rows *args)
{
	n_gathers++;
	return whole->gather_rows(stream, args);
}

/* One gather of a step is the logits'. */
static void test_target_keeps_features_only_where_they_are_asked_for(void **state)
{
	const int32_t ids[] = {5, 6, 7};
	const struct rig_row row = {0, 3, ids};
	struct draft_rig *d = &((struct world *)*state)->d;
	struct kernel_ops ops;

	whole = d->rig.device->kernels;
	ops = *whole;
	ops.gather_rows = count_gathers;
	d->rig.device->kernels = &ops;
	n_gathers = 0;
	rig_step(&d->rig, &row, 1);
	assert_int_equal(n_gathers, 1 + MODEL_FEATURES);
	d->rig.features = NULL;
	rig_step(&d->rig, &row, 1);
	assert_int_equal(n_gathers, 1 + MODEL_FEATURES + 1);
	d->rig.device->kernels = whole;
}

static void test_features_by_an_index_are_refused(void **state)
{
	const int32_t ids[] = {5, 6, 7, 8};
	struct draft_rig *d = &((struct world *)*state)->d;
	struct draft_pass pass;

	prefill(d, 0, ids, 3, 2);
	pass = draft_rig_from_target(d, 3);
	pass.model = draft_rig_model_pass(d, 3, 1);
	assert_int_equal(draft_forward(d->draft, d->rig.stream, &pass), 0);
	pass.index = d->hidden_index;
	assert_int_equal(draft_forward(d->draft, d->rig.stream, &pass), -EINVAL);
	MUST(d->rig.device->ops->stream_sync(d->rig.stream));
}

/* ---- inputs ---- */

static void test_drafts_read_their_own_inputs_and_no_masks_or_given_embeddings(void **state)
{
	const void *given[1] = {NULL};
	struct slot_mask mask[1];
	uint64_t words[1];
	int32_t theirs[10], ours[11];
	const struct step_inputs target = {.max_rows = 7, .max_drafts = 3, .input_ids = theirs,
		.embedding_from = given, .positions = theirs + 1, .slot_mapping = theirs + 2,
		.query_start = theirs + 3, .seq_lens = theirs + 4, .block_table = theirs + 5,
		.logit_index = theirs + 6, .row_slot = theirs + 7, .slot_mask = mask,
		.mask_words = words};
	const struct draft_inputs draft = {.input_ids = ours, .slot_mapping = ours + 1,
		.last_index = ours + 2, .decode_ids = ours + 3, .positions = ours + 4,
		.decode_slot_mapping = ours + 5, .query_start = ours + 6, .seq_lens = ours + 7};
	const struct step_inputs prefill = {.max_rows = 7, .input_ids = ours,
		.positions = theirs + 1, .slot_mapping = ours + 1, .query_start = theirs + 3,
		.seq_lens = theirs + 4, .block_table = theirs + 5, .logit_index = ours + 2,
		.row_slot = theirs + 7};
	const struct step_inputs decode = {.max_rows = 7, .input_ids = ours + 3,
		.positions = ours + 4, .slot_mapping = ours + 5, .query_start = ours + 6,
		.seq_lens = ours + 7, .block_table = theirs + 5, .row_slot = theirs + 7};
	const struct step_inputs have[] = {
		draft_prefill_inputs(&target, &draft), draft_decode_inputs(&target, &draft)};

	assert_memory_equal(&have[0], &prefill, sizeof(prefill));
	assert_memory_equal(&have[1], &decode, sizeof(decode));
}

#define IN_WORLD(name, test, draft, attention) \
	{name, test, world_setup, world_teardown, &(struct setting){draft, attention}}
#define REFERENCE(name, draft, attention) \
	IN_WORLD("test_" name, test_draft_matches_reference, draft, attention)
#define OF(test, draft) IN_WORLD(#test " (" draft ")", test, draft, "paged")
#define OF_MTP(test, attention) IN_WORLD(#test " (mtp, " attention ")", test, "mtp", attention)
#define OF_EACH(test)                                                                              \
	OF(test, "tinycalc-eagle"), OF(test, "eagle"), OF(test, "eagle3"), OF(test, "eagle3-own"), \
		OF_MTP(test, "mla"), OF_MTP(test, "mla_planned")

int main(void)
{
	const struct CMUnitTest tests[] = {
		REFERENCE("eagle_matches_reference", "eagle", "paged"),
		REFERENCE("eagle3_of_a_smaller_vocabulary_matches_reference", "eagle3", "paged"),
		REFERENCE("eagle3_with_its_own_embedding_matches_reference", "eagle3-own", "paged"),
		REFERENCE("eagle_matches_reference_with_naive_attention", "eagle", "naive"),
		REFERENCE("eagle3_matches_reference_with_naive_attention", "eagle3", "naive"),
		REFERENCE("mtp_matches_reference", "mtp", "mla"),
		REFERENCE("mtp_matches_reference_with_a_plan", "mtp", "mla_planned"),
		REFERENCE("shipped_mtp_matches_reference", "tinycalc-mtp", "mla"),
		OF_EACH(test_prompt_in_chunks_leaves_the_same_bits_as_in_one),
		OF(test_decode_is_a_prompt_conditioned_on_its_own_output, "tinycalc-eagle"),
		OF(test_decode_is_a_prompt_conditioned_on_its_own_output, "eagle"),
		OF_MTP(test_decode_is_a_prompt_conditioned_on_its_own_output, "mla"),
		OF_EACH(test_draft_tokens_behind_rejected_ones_are_those_of_a_fresh_prompt),
		OF_EACH(test_one_graph_of_a_decode_replays_all_of_them),
		OF_EACH(test_rows_of_a_batch_get_the_logits_they_get_alone),
		OF(test_target_keeps_features_only_where_they_are_asked_for, "eagle3"),
		OF(test_features_by_an_index_are_refused, "eagle3"),
		cmocka_unit_test(
			test_drafts_read_their_own_inputs_and_no_masks_or_given_embeddings),
	};
	static const struct test_cpu_only only[] = {
		{"with_naive_attention", "the naive backend is for the cpu device"},
		{"test_prompt_in_chunks", "products depend on the number of rows"},
		{"test_decode_is", "products depend on the number of rows"},
		{"test_draft_tokens_behind", "products depend on the number of rows"},
		{"test_rows_of_a_batch", "products depend on the number of rows"},
		{"test_mtp_matches_reference", "rounding to bf16 chooses other experts of a random head"},
	};

	return TEST_RUN_GROUP("draft forward", tests, only, NULL, NULL);
}
