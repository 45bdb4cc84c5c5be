/* SPDX-License-Identifier: MIT */

/*
 * Steps that speculate, as kernels/ops.h has them, without an engine: all of a step is queued at
 * once, each step before the one ahead of it has been read, and four sequences share it: one's
 * prompt beside the others' drafts. The host knows no lengths.
 *
 * Greedy; the answers are known ahead, so that nothing can be lost on the way.
 */

#include "tests/model/draft_rig.h"
#include "tests/model/fixture.h"

#include "daemon/graph/inputs.h"
#include "tests/device.h"
#include "tests/e2e/questions.h"

enum { K = 4, N_KINDS = 4, N_QUESTIONS = 120 };

/* A slot and the question that it has. */
struct place {
	const struct question *question; /* NULL: none */
	int32_t *record; /* NULL: tokens must be the answer's; else they are written here */
	uint32_t index, n_drafts;
	uint32_t bound; /* tokens that its cache may hold by now */
	uint32_t n_answer, n_steps;
	bool started;
};

/* The rows of a step: which slot, and of which question. */
struct launched {
	uint32_t n_rows, slots[RIG_ROWS], questions[RIG_ROWS];
};

/* One attention's metadata and what it reads. */
struct view {
	struct step_inputs inputs;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
};

struct world {
	struct draft_rig d;
	struct inputs inputs;
	struct view target, prefill, decode;
	struct place places[RIG_ROWS];
	struct launched launched[INPUTS_SLOTS];
	uint64_t step;
	uint32_t n_tokens[N_KINDS], n_steps[N_KINDS];
};

/* ---- the world ---- */

static void take_view(struct world *w, const struct model_config *model, struct view *view)
{
	struct attention_config config = rig_attention(&w->d.rig, model);

	config.max_decode_query = 1 + K;
	MUST(w->d.rig.attention->manager_new(
		w->d.rig.device, &config, &view->inputs, &view->manager));
	MUST(w->d.rig.attention->metadata_new(view->manager, &view->metadata));
}

static void give_view(struct world *w, struct view *view)
{
	w->d.rig.attention->metadata_free(view->metadata);
	w->d.rig.attention->manager_free(view->manager);
}

/* Paths below the repository's root. */
static void world_init(struct world *w, const char *model_below, const char *draft_below)
{
	const struct model_config *target;
	struct inputs_limits limits;
	char model[512], draft[512];

	*w = (struct world){0};
	source_path(model_below, model);
	source_path(draft_below, draft);
	draft_rig_init(&w->d, model, draft, "paged");
	target = &w->d.rig.model->config;
	limits = rig_limits(&w->d.rig, K);
	MUST(inputs_init(&w->inputs, w->d.rig.device, &limits));
	w->target.inputs = w->inputs.persistent;
	w->prefill.inputs = draft_prefill_inputs(&w->inputs.persistent, &w->inputs.draft);
	w->decode.inputs = draft_decode_inputs(&w->inputs.persistent, &w->inputs.draft);
	take_view(w, target, &w->target);
	take_view(w, &w->d.draft->config, &w->prefill);
	take_view(w, &w->d.draft->config, &w->decode);
}

static void world_deinit(struct world *w)
{
	give_view(w, &w->target);
	give_view(w, &w->prefill);
	give_view(w, &w->decode);
	inputs_deinit(&w->inputs);
	draft_rig_deinit(&w->d);
}

/* ---- a step ---- */

static void add_prompt(struct world *w, struct inputs_slot *slot, uint32_t s)
{
	struct place *place = &w->places[s];
	const struct question *q = place->question;
	const struct slot_sampling greedy = {.top_p = 1};
	uint32_t pages[RIG_PAGES_A_ROW];
	int32_t *ids;

	for (uint32_t i = 0; i < RIG_PAGES_A_ROW; i++)
		pages[i] = 1 + i * RIG_ROWS + s;
	inputs_add_init(slot, (int32_t)s, &greedy, pages, RIG_PAGES_A_ROW);
	inputs_set_drafts(slot, place->n_drafts);
	ids = inputs_add_row(slot,
		&(struct step_row){.slot = (int32_t)s, .flags = ROW_SAMPLE,
			.n_tokens = q->n_prompt, .next_id = -1});
	memcpy(ids, q->prompt, q->n_prompt * sizeof(*ids));
	place->bound = q->n_prompt;
	place->started = true;
}

/* Its start is not known, and not looked at. */
static void add_decode(struct world *w, struct inputs_slot *slot, uint32_t s)
{
	struct place *place = &w->places[s];
	uint32_t n = place->n_drafts ? 1 + K : 1;

	inputs_add_row(slot,
		&(struct step_row){.slot = (int32_t)s,
			.flags = ROW_SAMPLE | (place->n_drafts ? ROW_VERIFY : ROW_FROM_SLOT),
			.n_tokens = n, .start = 1000, .next_id = -1});
	place->bound = place->bound + n < RIG_LENGTH ? place->bound + n : RIG_LENGTH;
}

/* One prompt a step. */
static void fill(struct world *w, struct inputs_slot *slot)
{
	struct launched *launched = &w->launched[w->step % INPUTS_SLOTS];
	bool prompt = false;

	launched->n_rows = 0;
	for (uint32_t s = 0; s < RIG_ROWS; s++) {
		const struct place *place = &w->places[s];

		if (!place->question || (!place->started && prompt))
			continue;
		launched->slots[launched->n_rows] = s;
		launched->questions[launched->n_rows++] = place->index;
		if (place->started) {
			add_decode(w, slot, s);
			continue;
		}
		add_prompt(w, slot, s);
		prompt = true;
	}
}

/* The bounds stand for the lengths: `one`: a token a row. */
static void build(struct world *w, const struct view *view, const struct step_record *record,
	bool one)
{
	const struct launched *launched = &w->launched[w->step % INPUTS_SLOTS];
	uint32_t query_lens[RIG_ROWS], seq_lens[RIG_ROWS];
	struct attention_batch batch = {
		.phase = ATTENTION_EAGER,
		.n_rows = record->n_rows,
		.n_tokens = one ? record->n_rows : record->n_tokens,
		.padded_rows = record->n_rows,
		.padded_tokens = one ? record->n_rows : record->n_tokens,
		.query_lens = query_lens,
		.seq_lens = seq_lens,
	};

	for (uint32_t r = 0; r < record->n_rows; r++) {
		query_lens[r] = one ? 1 : record->rows[r].n_tokens;
		seq_lens[r] = w->places[launched->slots[r]].bound + (one ? K : 0);
		seq_lens[r] = seq_lens[r] < RIG_LENGTH ? seq_lens[r] : RIG_LENGTH;
		batch.max_query = query_lens[r] > batch.max_query ? query_lens[r] : batch.max_query;
	}
	MUST(w->d.rig.attention->build(view->metadata, &batch, w->d.rig.stream));
}

static struct model_pass pass_of(const struct world *w, const struct view *view,
	const struct model_buffers *buffers, void *const *kv, uint32_t n_rows, uint32_t n_tokens)
{
	return (struct model_pass){
		.inputs = &view->inputs,
		.buffers = buffers,
		.n_tokens = n_tokens,
		.n_rows = n_rows,
		.attention = w->d.rig.attention,
		.metadata = view->metadata,
		.kv_layers = kv,
		.page_tokens = RIG_PAGE_TOKENS,
	};
}

static void queue_target(struct world *w, const struct step_record *record)
{
	struct model_pass pass = pass_of(
		w, &w->target, &w->d.wide, w->d.rig.kv, record->n_rows, record->n_tokens);

	pass.features = w->d.buffers.features;
	build(w, &w->target, record, false);
	MUST(model_forward(w->d.rig.model, w->d.rig.stream, &pass));
	MUST(model_logits(w->d.rig.model, w->d.rig.stream, &pass));
	MUST(w->d.rig.device->kernels->verify(w->d.rig.stream,
		&(struct op_verify){
			.logits = w->d.wide.logits,
			.n_rows = record->n_rows,
			.vocab = w->inputs.limits.vocab_size,
			.inputs = w->inputs.persistent,
			.sampled = w->inputs.sampled,
		}));
}

static void queue_draft(struct world *w, const struct draft_pass *pass)
{
	MUST(draft_forward(w->d.draft, w->d.rig.stream, pass));
	MUST(draft_logits(w->d.draft, w->d.rig.stream, pass));
	MUST(w->d.rig.device->kernels->draft_advance(w->d.rig.stream,
		&(struct op_draft_advance){
			.logits = w->d.buffers.logits,
			.d2t = w->d.draft->d2t,
			.n_rows = pass->model.n_rows,
			.draft_vocab = w->d.draft->config.draft.vocab_size,
			.inputs = w->inputs.persistent,
			.draft = w->inputs.draft,
		}));
}

static void queue_drafts(struct world *w, const struct step_record *record)
{
	uint32_t n_rows = record->n_rows, n_tokens = record->n_tokens;
	struct draft_pass pass = draft_rig_from_target(&w->d, n_tokens);

	MUST(w->d.rig.device->kernels->draft_begin(w->d.rig.stream,
		&(struct op_draft_begin){
			.inputs = w->inputs.persistent,
			.sampled = w->inputs.sampled,
			.draft = w->inputs.draft,
			.n_rows = n_rows,
			.n_tokens = n_tokens,
		}));
	build(w, &w->prefill, record, false);
	pass.model = pass_of(w, &w->prefill, &w->d.buffers, &w->d.kv, n_rows, n_tokens);
	queue_draft(w, &pass);
	pass = draft_rig_from_draft(&w->d, RIG_TOKENS);
	pass.index = w->inputs.draft.hidden_index;
	pass.model = pass_of(w, &w->decode, &w->d.buffers, &w->d.kv, n_rows, n_rows);
	for (uint32_t i = 1; i < K; i++) {
		build(w, &w->decode, record, true);
		queue_draft(w, &pass);
	}
}

static void launch(struct world *w)
{
	struct inputs_slot *slot = inputs_begin(&w->inputs, ++w->step);
	const struct device *device = w->d.rig.device;
	struct descriptor descriptor = {0};

	assert_non_null(slot);
	fill(w, slot);
	descriptor.tokens = slot->record->n_tokens;
	MUST(inputs_prepare(&w->inputs, slot, w->d.rig.stream, &descriptor, slot->record->n_rows,
		RIG_PAGES));
	if (slot->record->n_rows) {
		queue_target(w, slot->record);
		queue_drafts(w, slot->record);
	}
	MUST(device->kernels->outbox(w->d.rig.stream,
		&(struct op_outbox){
			.sampled = w->inputs.sampled,
			.out = slot->sampled,
			.flag = slot->flag,
			.step = w->step,
			.n_rows = slot->record->n_rows * (1 + K),
		}));
}

/* ---- results ---- */

/* Asserts each token up to the answer's end; true: it is whole. */
static bool take_row(struct place *place, const int32_t *sampled)
{
	bool first = place->n_answer == 0;

	assert_true(sampled[0] >= 0);
	for (uint32_t i = 0; i <= K && sampled[i] >= 0; i++) {
		if (place->record)
			place->record[place->n_answer] = sampled[i];
		else
			assert_int_equal(sampled[i], place->question->answer[place->n_answer]);
		if (++place->n_answer == place->question->n_answer)
			break;
	}
	place->n_steps += !first;
	return place->n_answer == place->question->n_answer;
}

static void read_results(struct world *w, uint64_t step, uint32_t *done)
{
	const struct inputs_slot *slot = &w->inputs.slots[step % INPUTS_SLOTS];
	const struct launched *launched = &w->launched[step % INPUTS_SLOTS];

	while (!inputs_slot_done(slot))
		usleep(20);
	for (uint32_t r = 0; r < launched->n_rows; r++) {
		struct place *place = &w->places[launched->slots[r]];

		/* a step launched before the end was seen */
		if (!place->question || place->index != launched->questions[r])
			continue;
		if (!take_row(place, slot->sampled + (size_t)r * (1 + K)))
			continue;
		w->n_tokens[place->index % N_KINDS] += place->n_answer - 1;
		w->n_steps[place->index % N_KINDS] += place->n_steps;
		place->question = NULL;
		++*done;
	}
}

/* Each slot its own number of drafts. records: NULL, or where each question's tokens go. */
static void answer_all(struct world *w, const struct question *questions, uint32_t n,
	const uint32_t n_drafts[RIG_ROWS], int32_t (*records)[QUESTION_ANSWER_MAX])
{
	uint32_t next = 0, done = 0;

	for (uint32_t idle = 0; done < n; idle++) {
		for (uint32_t s = 0; s < RIG_ROWS && next < n; s++) {
			if (w->places[s].question)
				continue;
			w->places[s] = (struct place){.question = &questions[next], .index = next,
				.n_drafts = n_drafts[s],
				.record = records ? records[next] : NULL};
			next++;
		}
		launch(w);
		if (w->step > 1)
			read_results(w, w->step - 1, &done);
		assert_true(idle < 10000);
	}
	MUST(w->d.rig.device->ops->stream_sync(w->d.rig.stream));
}

/* ---- claims ---- */

static struct question questions[N_QUESTIONS];
static uint32_t all_tokens, all_steps;

static void test_drafts_change_no_answer_and_save_three_steps_of_four(void **state)
{
	struct world w;

	world_init(&w, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
	questions_make(questions, N_QUESTIONS, 2026);
	answer_all(&w, questions, N_QUESTIONS, (const uint32_t[RIG_ROWS]){K, K, K, K}, NULL);
	for (uint32_t i = 0; i < N_KINDS; i++) {
		all_tokens += w.n_tokens[i];
		all_steps += w.n_steps[i];
	}
	world_deinit(&w);
	assert_true(all_tokens >= 4.4 * all_steps);
}

static void test_rows_with_and_without_drafts_share_steps(void **state)
{
	struct world w;

	world_init(&w, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
	questions_make(questions, N_QUESTIONS, 7);
	answer_all(&w, questions, 24, (const uint32_t[RIG_ROWS]){K, 0, 2, 1}, NULL);
	world_deinit(&w);
}

enum { RANDOM_PROMPT = 11, RANDOM_ANSWER = 60, N_RANDOM = 8 };

static void random_prompt(const struct rig *rig, struct question *q, uint32_t seed)
{
	q->n_prompt = RANDOM_PROMPT;
	q->n_answer = RANDOM_ANSWER;
	for (uint32_t i = 0; i < RANDOM_PROMPT; i++) {
		seed = seed * 1664525u + 1013904223u;
		q->prompt[i] = (int32_t)((seed >> 8) % rig->model->config.vocab_size);
	}
}

/* Each token is what the target alone chooses behind the tokens before it. */
static void assert_target_chooses(
	struct rig *rig, const struct question *q, const int32_t answer[RANDOM_ANSWER])
{
	rig_reset(rig);
	rig_step(rig, &(struct rig_row){0, q->n_prompt, q->prompt}, 1);
	for (uint32_t i = 0; i < RANDOM_ANSWER; i++) {
		assert_true(test_same_choice(rig_logits(rig, 0), rig->model->config.vocab_size,
			answer[i], rig_argmax(rig, 0), false));
		rig_step(rig, &(struct rig_row){0, 1, &answer[i]}, 1);
	}
}

/* Random draft models: their tokens hold by chance alone. */
static void test_random_drafts_of_every_layout_change_nothing(void **state)
{
	static const char *const drafts[] = {"tests/data/drafts/eagle", "tests/data/drafts/eagle3",
		"tests/data/drafts/eagle3-own"};
	static int32_t answers[N_RANDOM][QUESTION_ANSWER_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(drafts); i++) {
		struct world w;

		world_init(&w, "tests/data/drafts/target", drafts[i]);
		for (uint32_t n = 0; n < N_RANDOM; n++)
			random_prompt(&w.d.rig, &questions[n], 50 * (uint32_t)i + n);
		answer_all(&w, questions, N_RANDOM, (const uint32_t[RIG_ROWS]){K, 0, 2, K}, answers);
		for (uint32_t n = 0; n < N_RANDOM; n++)
			assert_target_chooses(&w.d.rig, &questions[n], answers[n]);
		world_deinit(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drafts_change_no_answer_and_save_three_steps_of_four),
		cmocka_unit_test(test_rows_with_and_without_drafts_share_steps),
		cmocka_unit_test(test_random_drafts_of_every_layout_change_nothing),
	};
	int failed = cmocka_run_group_tests_name("speculation", tests, NULL, NULL);

	if (all_steps)
		printf("# %.2f tokens a step (%u in %u)\n", (double)all_tokens / all_steps,
			all_tokens, all_steps);
	return failed;
}
