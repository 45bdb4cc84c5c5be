/* SPDX-License-Identifier: MIT */
#include "sdk/prepare.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* ---- checks that need no daemon ---- */

/* Rows of a step's results. */
struct prepare_results {
	uint64_t logits, hidden;
};

static struct prepare_results prepare_step_results(const struct mimeo_step *step, uint64_t n_positions)
{
	struct prepare_results n = {0};

	if (step->outputs & MSG_STEP_LOGITS)
		n.logits = step->outputs & MIMEO_STEP_ALL_LOGITS ? n_positions : step->n_rows;
	if (step->outputs & MSG_STEP_HIDDEN)
		n.hidden = step->outputs & MIMEO_STEP_ALL_HIDDEN ? n_positions : step->n_rows;
	return n;
}

/* Two results of a step would be written over each other. Only places in one buffer are compared: two
 * buffers of the same memory cannot be recognised here. */
static bool prepare_step_overlaps(
	const struct mimeo_model_info *model, const struct mimeo_step *step, uint64_t n_positions)
{
	const struct mimeo_place *logits = &step->logits, *hidden = &step->hidden;
	const struct prepare_results n = prepare_step_results(step, n_positions);
	uint64_t n_logits = n.logits * model->vocab_size * sizeof(float);
	uint64_t n_hidden = n.hidden * model->hidden_size * sizeof(float);

	if (logits->buffer == 0 || logits->buffer != hidden->buffer)
		return false;
	return logits->offset < hidden->offset ? hidden->offset - logits->offset < n_logits
					       : logits->offset - hidden->offset < n_hidden;
}

static int prepare_step_check_row(
	struct mimeo_request *request, const struct mimeo_step *step, uint32_t index)
{
	const struct mimeo_step_row *row = &step->rows[index];
	uint32_t most = request->m->models[step->model].max_seq_len;

	if (row->n_tokens == 0)
		return prepare_refuse(request, MIMEO_E_INVALID, "row %u has no tokens", index);
	if (!row->tokens && step->embeddings.buffer == 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"row %u: tokens is NULL, and the step has no embeddings", index);
	int rc = prepare_check_mask_row(request, &step->mask, index, row->n_tokens);
	if (rc < 0)
		return rc;
	rc = prepare_check_sequence(request, row->sequence, step->model);
	if (rc < 0)
		return rc;
	if (row->n_tokens > most)
		return prepare_refuse(request, MIMEO_E_TOO_LONG,
			"row %u has %u tokens: the model's sequences have at most %u", index,
			row->n_tokens, most);
	return 0;
}

/* What the header does not say of a step; and the tokens of all rows. */
static int prepare_step_check(
	struct mimeo_request *request, const struct mimeo_step *step, uint64_t *ret_n_tokens)
{
	int rc;

	*ret_n_tokens = 0;
	if ((rc = prepare_check_reserved(request, "sampling.reserved", step->sampling.reserved)) < 0)
		return rc;
	if ((rc = prepare_check_reserved(request, "reserved", step->reserved)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "logits", &step->logits)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "hidden", &step->hidden)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "embeddings", &step->embeddings)) < 0)
		return rc;
	if ((rc = prepare_check_words(request, &step->mask)) < 0)
		return rc;
	for (uint32_t i = 0; i < step->n_rows; i++) {
		if ((rc = prepare_step_check_row(request, step, i)) < 0)
			return rc;
		*ret_n_tokens += step->rows[i].n_tokens;
	}
	if (prepare_step_overlaps(&request->m->models[step->model], step, *ret_n_tokens))
		return prepare_refuse(request, MIMEO_E_INVALID,
			"logits and hidden overlap in buffer %u", step->logits.buffer);
	return 0;
}

/* ---- prepare ---- */

static void prepare_step_payload(uint8_t *payload, const struct mimeo_step *step)
{
	uint8_t *tokens = payload + step->n_rows * sizeof(struct msg_row);

	for (uint32_t i = 0; i < step->n_rows; i++) {
		const struct mimeo_step_row *from = &step->rows[i];
		struct msg_row row = {.sequence = from->sequence, .n_tokens = from->n_tokens};
		size_t bytes = from->n_tokens * sizeof(int32_t);

		memcpy(payload + i * sizeof(row), &row, sizeof(row));
		if (from->tokens && step->embeddings.buffer == 0)
			memcpy(tokens, from->tokens, bytes);
		else
			memset(tokens, 0, bytes);
		tokens += bytes;
	}
}

/* As prepare_generate_header. */
static int prepare_step_header(struct mimeo_request *request, const struct mimeo_step *step,
	uint8_t header[static MSG_HEADER_MAX])
{
	const struct msg_step msg = {
		.model = (uint32_t)request->m->model_ids[step->model],
		.n_rows = step->n_rows,
		.outputs = step->outputs,
		.deadline_ms = step->deadline_ms,
		.sampling = step->sampling,
		.logits = step->logits,
		.hidden = step->hidden,
		.embeddings = step->embeddings,
		.flags = step->flags,
		.mask = step->mask,
		.request_class = step->request_class,
		.top_logprobs = step->top_logprobs,
	};
	char text[MSG_TEXT_MAX];
	struct msg_detail detail;

	int n = msg_step_encode(&msg, header, MSG_HEADER_MAX);
	if (n > 0)
		return n;
	assert(n == -EINVAL);
	msg_step_explain(&msg, &detail, text);
	return prepare_refuse(request, MIMEO_E_INVALID, "%s", text);
}

int mimeo_request_prep_step(struct mimeo_request *request, const struct mimeo_step *given)
{
	uint8_t header[MSG_HEADER_MAX], *payload;
	struct mimeo_step step;
	uint64_t n_tokens;

	int rc = prepare_begin(request);
	if (rc < 0)
		return rc;
	rc = prepare_read(request, &step, sizeof(step), given, offsetof(struct mimeo_step, logits),
		"MIMEO_STEP_INIT");
	if (rc < 0)
		return rc;
	rc = prepare_check_model(request, step.model);
	if (rc < 0)
		return rc;
	if (!step.rows || step.n_rows == 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			step.rows ? "the step has no rows: n_rows is 0" : "rows is NULL");
	int n = prepare_step_header(request, &step, header);
	if (n < 0)
		return n;
	rc = prepare_step_check(request, &step, &n_tokens);
	if (rc < 0)
		return rc;

	const struct mimeo_model_info *model = &request->m->models[step.model];
	uint32_t n_sampled = step.outputs & MIMEO_STEP_TOKENS ? step.n_rows : 0;
	struct prepare_results results = prepare_step_results(&step, n_tokens);
	if (step.logits.buffer != 0)
		results.logits = 0;
	if (step.hidden.buffer != 0)
		results.hidden = 0;
	struct msg_output output = msg_output_layout(
		n_sampled, results.logits, model->vocab_size, results.hidden, model->hidden_size);
	msg_output_add_logprobs(
		&output, 0, step.outputs & MIMEO_STEP_LOGPROBS ? n_tokens : 0, step.top_logprobs);
	uint64_t bytes = step.n_rows * sizeof(struct msg_row) + n_tokens * sizeof(int32_t);
	uint64_t words = prepare_words_bytes(&step.mask, n_tokens);
	rc = prepare_place(request, header, (size_t)n, bytes + words, &output, &payload);
	if (rc < 0)
		return rc;
	prepare_step_payload(payload, &step);
	if (words > 0)
		memcpy(payload + bytes, step.mask.words, words);
	request->sqe.op = RING_OP_STEP;
	request->capacity = n_sampled;
	request->n_rows = step.n_rows;
	request->fenced = step.flags & MIMEO_STEP_FENCE;
	request->timed = step.deadline_ms;
	request->n_positions = (uint32_t)n_tokens;
	request->n_logprobs = 1 + step.top_logprobs;
	request->logprobs = NULL;
	if (!(step.outputs & MIMEO_STEP_LOGPROBS))
		request->prompt_logprobs = NULL;
	if (results.logits == 0)
		request->logits = NULL;
	if (results.hidden == 0)
		request->hidden = NULL;
	request_prepare(request);
	return 0;
}
