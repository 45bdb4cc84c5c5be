/* SPDX-License-Identifier: MIT */
/* Requests of a rig's clients, from the arena to the last completion. */
#include "tests/daemon/rig.h"

#include "ipc/doorbell.h"
#include "ipc/msg_table.h"

static uint32_t take_arena(struct rig_client *client, uint64_t bytes)
{
	uint32_t at = (client->used + 63) & ~63u;

	/* Round again from the start: tests keep few requests alive. */
	if (at + bytes > client->region.arena_bytes)
		at = 0;
	assert_true(bytes <= client->region.arena_bytes);
	client->used = at + (uint32_t)bytes;
	return at;
}

static struct rig_request new_request(struct rig_client *client, uint32_t index, unsigned op)
{
	struct rig_request request = {.index = index};

	request.sqe.request = index;
	request.sqe.generation = ++client->generation;
	request.sqe.op = (uint16_t)op;
	request.sqe.user_data = 1000 + index;
	return request;
}

static void place(struct rig_client *client, struct rig_request *request, const void *header,
	uint32_t header_length, const void *payload, uint32_t payload_length, uint64_t output)
{
	struct ring_sqe *sqe = &request->sqe;

	sqe->header_offset = take_arena(client, MSG_HEADER_MAX);
	sqe->header_length = header_length;
	memcpy(client->region.arena + sqe->header_offset, header, header_length);
	sqe->payload_offset = take_arena(client, payload_length);
	sqe->payload_length = payload_length;
	if (payload_length)
		memcpy(client->region.arena + sqe->payload_offset, payload, payload_length);
	sqe->output_offset = take_arena(client, output);
	sqe->output_length = (uint32_t)output;
	memset(client->region.arena + sqe->output_offset, 0xee, output);
}

struct rig_request rig_generate(struct rig_client *client, uint32_t index, const int32_t *tokens,
	uint32_t n_tokens, const struct msg_generate *msg)
{
	struct rig_request request = new_request(client, index, RING_OP_GENERATE);
	const uint32_t max_seq_len = client->rig->runner->options.max_seq_len;
	struct msg_output layout = msg_output_layout(msg->max_tokens ? msg->max_tokens : max_seq_len - n_tokens,
		msg->flags & MIMEO_GENERATE_PROMPT_LOGITS ? 1 : 0, 256, 0, 160);
	uint8_t header[MSG_HEADER_MAX];
	int length = msg_table_write(&msg_generate_table, msg, header, sizeof(header));

	assert_true(length > 0);
	place(client, &request, header, (uint32_t)length, tokens, n_tokens * 4, layout.bytes);
	return request;
}

struct msg_output rig_generate_layout(const struct rig_client *client, const struct msg_generate *msg)
{
	const struct runner *runner = client->rig->runner;
	const uint32_t most = msg->max_tokens ? msg->max_tokens : runner->options.max_seq_len - msg->n_tokens;
	struct msg_output layout = msg_output_layout(most, msg->flags & MIMEO_GENERATE_PROMPT_LOGITS ? 1 : 0,
		runner->model->config.vocab_size, 0, 0);

	msg_output_add_logprobs(&layout, msg->flags & MIMEO_GENERATE_LOGPROBS ? most : 0,
		msg->flags & MIMEO_GENERATE_PROMPT_LOGPROBS ? msg->n_tokens : 0, msg->top_logprobs);
	return layout;
}

struct rig_request rig_generate_adjusted(struct rig_client *client, uint32_t index, const int32_t *tokens,
	const struct msg_generate *msg, const struct mimeo_bias *bias, const uint32_t *allowed)
{
	struct rig_request request = new_request(client, index, RING_OP_GENERATE);
	const struct msg_output layout = rig_generate_layout(client, msg);
	const size_t parts[] = {
		msg->n_tokens * sizeof(*tokens), msg->n_bias * sizeof(*bias), msg->n_allowed * sizeof(*allowed)};
	const void *const from[] = {tokens, bias, allowed};
	uint8_t header[MSG_HEADER_MAX], payload[32768];
	int length = msg_table_write(&msg_generate_table, msg, header, sizeof(header));
	uint32_t at = 0;

	assert_true(length > 0 && parts[0] + parts[1] + parts[2] <= sizeof(payload));
	for (int i = 0; i < 3; at += (uint32_t)parts[i++]) {
		if (parts[i])
			memcpy(payload + at, from[i], parts[i]);
	}
	place(client, &request, header, (uint32_t)length, payload, at, layout.bytes);
	return request;
}

struct msg_output rig_step_layout(const struct msg_step *msg, uint64_t n_positions)
{
	const uint64_t n_logits = msg->outputs & MIMEO_STEP_ALL_LOGITS ? n_positions : msg->n_rows;
	const uint64_t n_hidden = msg->outputs & MIMEO_STEP_ALL_HIDDEN ? n_positions : msg->n_rows;
	struct msg_output layout =
		msg_output_layout(msg->outputs & MIMEO_STEP_TOKENS ? msg->n_rows : 0,
			msg->outputs & MSG_STEP_LOGITS ? n_logits : 0, 256,
			msg->outputs & MSG_STEP_HIDDEN ? n_hidden : 0, 160);

	msg_output_add_logprobs(
		&layout, 0, msg->outputs & MIMEO_STEP_LOGPROBS ? n_positions : 0, msg->top_logprobs);
	return layout;
}

static struct msg_output larger(const struct msg_output a, const struct msg_output b)
{
	return a.bytes > b.bytes ? a : b;
}

struct rig_request rig_step(struct rig_client *client, uint32_t index, const struct msg_step *msg,
	const struct msg_row *rows, const int32_t *tokens)
{
	struct rig_request request = new_request(client, index, RING_OP_STEP);
	struct msg_output layout = msg_output_layout(msg->n_rows, msg->n_rows, 256, msg->n_rows, 160);
	uint8_t header[MSG_HEADER_MAX], payload[16384];
	uint32_t at = msg->n_rows * (uint32_t)sizeof(rows[0]), n = 0;
	int length = msg_table_write(&msg_step_table, msg, header, sizeof(header));

	assert_true(length > 0);
	memcpy(payload, rows, at);
	for (uint32_t i = 0; i < msg->n_rows; i++)
		n += rows[i].n_tokens;
	layout = larger(layout, rig_step_layout(msg, n));
	n *= msg_mask_has_words(&msg->mask) ? 3 : 1;
	assert_true(at + n * 4 <= sizeof(payload));
	memcpy(payload + at, tokens, n * 4);
	place(client, &request, header, (uint32_t)length, payload, at + n * 4, layout.bytes);
	return request;
}

struct rig_request rig_call(struct rig_client *client, uint32_t index, unsigned op,
	uint32_t sequence, uint32_t argument)
{
	struct rig_request request = new_request(client, index, op);

	request.sqe.sequence = sequence;
	request.sqe.argument = argument;
	return request;
}

void rig_submit(struct rig_client *client, struct rig_request request)
{
	uint32_t n;

	assert_int_equal(ring_sq_push(&client->region.ring, &request.sqe), 1);
	if (ring_sq_publish(&client->region.ring, &n))
		doorbell_ring(client->port->sq_bell);
}

static void take(struct rig_result *result, const struct ring_cqe *cqe)
{
	assert_false(result->done);
	assert_true(cqe->n_generated >= result->n_generated);
	*result = (struct rig_result){
		.status = cqe->status,
		.finish = cqe->finish,
		.detail = cqe->detail,
		.n_prompt = cqe->n_prompt,
		.n_generated = cqe->n_generated,
		.n_cached = cqe->n_cached,
		.n_sequence = cqe->n_sequence,
		.n_events = result->n_events + 1,
		.done = cqe->kind == RING_CQE_FINAL,
	};
	memcpy(result->values, cqe->values, sizeof(result->values));
}

bool rig_poll(struct rig_client *client, struct rig_result *results)
{
	struct ring_cqe cqe;
	bool any = false;

	while (ring_cq_peek(&client->region.ring, &cqe)) {
		assert_int_equal(cqe.user_data, 1000 + cqe.request);
		take(&results[cqe.request], &cqe);
		ring_cq_advance(&client->region.ring);
		any = true;
	}
	return any;
}

void rig_wait(struct rig_client *client, struct rig_result *results, uint32_t index)
{
	double end = rig_now() + RIG_TIMEOUT_S;

	while (!results[index].done) {
		if (rig_poll(client, results))
			continue;
		if (rig_now() > end)
			fail_msg("request %u did not end", index);
		rig_pause();
	}
}

struct rig_result rig_do(struct rig_client *client, struct rig_request request)
{
	static struct rig_result results[RING_ENTRIES_MAX];

	results[request.index] = (struct rig_result){0};
	rig_submit(client, request);
	rig_wait(client, results, request.index);
	return results[request.index];
}

struct rig_result rig_must(struct rig_client *client, struct rig_request request)
{
	struct rig_result result = rig_do(client, request);

	assert_int_equal(result.status, 0);
	return result;
}

void rig_expect(struct rig_client *client, const struct rig_request *request,
	struct rig_expected expected)
{
	struct rig_result result = rig_do(client, *request);

	assert_int_equal(result.status, expected.status);
	assert_int_equal(result.detail, expected.detail);
	assert_int_equal(result.values[0], expected.a);
	assert_int_equal(result.values[1], expected.b);
	assert_int_equal(result.values[2], expected.c);
	assert_int_equal(result.values[3], expected.d);
	assert_int_equal(result.n_events, 1);
	assert_int_equal(result.n_generated, 0);
	assert_int_equal(result.finish, request->sqe.op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR : 0);
}

void rig_nonsense(int32_t *tokens, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i ? (int32_t)(32 + (i * 7 + seed * 13) % 90) : 1;
}

void rig_ok(struct rig_client *client, uint32_t index, unsigned op, uint32_t sequence,
	uint32_t argument)
{
	rig_must(client, rig_call(client, index, op, sequence, argument));
}

void rig_open_histories(struct rig_client *client, uint32_t n, const char *text)
{
	for (uint32_t i = 1; i <= n; i++) {
		rig_ok(client, 0, RING_OP_OPEN, i, 0);
		rig_must(client, rig_step_text(client, 0, i, text, true));
	}
}

void rig_close_histories(struct rig_client *client, uint32_t n)
{
	for (uint32_t i = 1; i <= n; i++)
		rig_ok(client, 0, RING_OP_CLOSE, i, 0);
}

struct rig_request rig_decode(struct rig_client *client, uint32_t n, uint32_t outputs)
{
	const struct msg_step msg = {.n_rows = n, .outputs = outputs};
	struct msg_row rows[16];
	int32_t tokens[16];

	assert_true(n <= 16);
	for (uint32_t i = 0; i < n; i++) {
		rows[i] = (struct msg_row){i + 1, 1};
		tokens[i] = 'x';
	}
	return rig_step(client, 0, &msg, rows, tokens);
}

void rig_cancel(struct rig_client *client, uint32_t index, const struct rig_request *target)
{
	struct rig_request cancel = rig_call(client, index, RING_OP_CANCEL, 0, target->index);

	cancel.sqe.generation2 = target->sqe.generation;
	rig_submit(client, cancel);
}

const int32_t *rig_tokens(const struct rig_client *client, const struct rig_request *request)
{
	return (const int32_t *)(client->region.arena + request->sqe.output_offset);
}

const void *rig_output(const struct rig_client *client, const struct rig_request *request, uint64_t offset)
{
	return client->region.arena + request->sqe.output_offset + offset;
}

const float *rig_logits(const struct rig_client *client, const struct rig_request *request,
	const struct msg_output *layout)
{
	return (const float *)(client->region.arena + request->sqe.output_offset + layout->logits);
}

struct msg_generate rig_greedy(uint32_t n_tokens, uint32_t max_tokens)
{
	return (struct msg_generate){.n_tokens = n_tokens, .max_tokens = max_tokens};
}

uint32_t rig_prompt(const char *text, int32_t *ret)
{
	uint32_t n = 0;

	ret[n++] = 1;
	while (*text)
		ret[n++] = (unsigned char)*text++;
	return n;
}

struct rig_request rig_ask(struct rig_client *client, uint32_t index, uint32_t sequence,
	const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens, uint32_t flags)
{
	struct msg_generate msg = rig_greedy(n_tokens, max_tokens);

	msg.sequence = sequence;
	msg.flags = flags;
	return rig_generate(client, index, tokens, n_tokens, &msg);
}

struct rig_request rig_ask_sampled(struct rig_client *client, const int32_t *tokens, uint32_t n_tokens,
	uint32_t max_tokens, uint64_t seed)
{
	struct msg_generate msg = rig_greedy(n_tokens, max_tokens);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.sampling = (struct mimeo_sampling){
		.temperature = 50, .top_p = 1, .seed = seed, .flags = MIMEO_SAMPLING_SEEDED};
	return rig_generate(client, 0, tokens, n_tokens, &msg);
}

struct rig_request rig_endless(struct rig_client *client, uint32_t index, uint32_t sequence,
	uint32_t max_tokens)
{
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);

	return rig_ask(client, index, sequence, tokens, n, max_tokens, MIMEO_GENERATE_IGNORE_EOS);
}

struct rig_request rig_ask_text(struct rig_client *client, uint32_t index, uint32_t sequence,
	const char *text)
{
	int32_t tokens[256];
	uint32_t n = rig_prompt(text, tokens), skip = sequence != 0;

	return rig_ask(client, index, sequence, tokens + skip, n - skip, 40, 0);
}

struct rig_request rig_step_text(struct rig_client *client, uint32_t index, uint32_t sequence,
	const char *text, bool first)
{
	int32_t tokens[256];
	uint32_t n = rig_prompt(text, tokens), skip = !first;
	struct msg_row row = {sequence, n - skip};
	struct msg_step msg = {.n_rows = 1,
		.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN};

	return rig_step(client, index, &msg, &row, tokens + skip);
}

void rig_assert_text(const struct rig_client *client, const struct rig_request *request,
	const struct rig_result *result, const char *answer)
{
	char text[256] = "";

	assert_true(result->done);
	assert_int_equal(result->status, 0);
	assert_int_equal(result->finish, MIMEO_FINISH_STOP);
	for (uint32_t i = 0; i + 1 < result->n_generated; i++)
		text[i] = (char)rig_tokens(client, request)[i];
	assert_string_equal(text, answer);
	assert_int_equal(rig_tokens(client, request)[result->n_generated - 1], 2);
}

void rig_assert_answer(struct rig_client *client, uint32_t index, const char *prompt,
	const char *answer)
{
	int32_t tokens[256];
	uint32_t n = rig_prompt(prompt, tokens);
	struct rig_request request = rig_ask(client, index, 0, tokens, n, 200, 0);
	struct rig_result result = rig_do(client, request);

	assert_int_equal(result.n_prompt, n);
	rig_assert_text(client, &request, &result, answer);
}
