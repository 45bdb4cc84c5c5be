/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "ipc/msg.h"
#include "ipc/region.h"
#include "tests/allocations.h"
#include "tests/ipc/test.h"

/* ---- helpers ---- */

static struct msg_codec *codec;

static int setup_codec(void **state)
{
	allocations_watch();
	return msg_codec_new(&codec);
}

static int teardown_codec(void **state)
{
	msg_codec_free(codec);
	msg_codec_free(NULL);
	return 0;
}

static struct msg_generate full_generate(void)
{
	return (struct msg_generate){
		.model = 31,
		.sequence = UINT32_MAX,
		.n_tokens = 70000,
		.max_tokens = 1,
		.sampling = {.temperature = 0.7f,
			.top_p = 0.95f,
			.min_p = 0.05f,
			.top_k = 40,
			.seed = UINT64_MAX,
			.flags = MIMEO_SAMPLING_SEEDED},
		.n_stop = MIMEO_STOP_MAX,
		.stop = {0, 1, 2, 3, 127, 128, 65536, INT32_MAX},
		.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS |
			MIMEO_GENERATE_LOGPROBS | MIMEO_GENERATE_PROMPT_LOGPROBS,
		.deadline_ms = 60000,
		.mask = {.kind = MIMEO_MASK_WINDOW, .window = UINT32_MAX, .sinks = 4},
		.draft_tokens = MIMEO_DRAFT_NONE,
		.first_token_ms = UINT32_MAX,
		.request_class = MIMEO_CLASS_BATCH,
		.repetition_penalty = 1.25f,
		.presence_penalty = -2,
		.frequency_penalty = 0.5f,
		.penalty_start = 70001,
		.n_bias = MIMEO_BIAS_MAX,
		.n_allowed = 4008,
		.min_tokens = 1,
		.top_logprobs = MIMEO_TOP_LOGPROBS_MAX,
	};
}

static struct msg_welcome full_welcome(uint32_t n_models)
{
	struct msg_welcome msg = {.version = MSG_PROTOCOL_VERSION,
		.nonce = 0xfedcba9876543210u,
		.session = 7,
		.max_sequences = 256,
		.entries = 64,
		.arena_bytes = 8u << 20,
		.n_models = n_models,
		.n_model_ids = n_models};

	for (uint32_t i = 0; i < n_models; i++) {
		struct mimeo_model_info *model = &msg.models[i];

		msg.model_ids[i] = INT32_MAX - (int32_t)i;
		*model = (struct mimeo_model_info){.vocab_size = 256 + i,
			.hidden_size = 64,
			.max_seq_len = 1024,
			.page_tokens = 16,
			.masks = i % 2,
			.mask = {.kind = MIMEO_MASK_WINDOW, .window = UINT32_MAX, .sinks = 1 + i},
			.max_batch_tokens = 1 + i,
			.max_rows = 64 + i,
			.draft_tokens = i % (MIMEO_DRAFT_MAX + 1),
			.n_eos = i % (MIMEO_STOP_MAX + 1),
			.bos = (int32_t)i - 1,
			.sampling = {.temperature = 1.0f, .top_p = 0.5f}};
		for (uint32_t k = 0; k < model->n_eos; k++)
			model->eos[k] = (int32_t)(i + k);
		memset(model->name, 'a' + (int)(i % 26), MIMEO_NAME_MAX - 1);
	}
	return msg;
}

static void check_sampling(const struct mimeo_sampling *a, const struct mimeo_sampling *b)
{
	assert_memory_equal(&a->temperature, &b->temperature, sizeof(float));
	assert_memory_equal(&a->top_p, &b->top_p, sizeof(float));
	assert_memory_equal(&a->min_p, &b->min_p, sizeof(float));
	assert_int_equal(a->top_k, b->top_k);
	assert_true(a->seed == b->seed);
	assert_int_equal(a->flags, b->flags);
}

/* ---- round trips ---- */

static void test_msg_generate_is_decoded_as_it_was_encoded(void **state)
{
	struct msg_generate sent = full_generate(), got;
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	int n = msg_generate_encode(&sent, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(msg_generate_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.model, sent.model);
	assert_true(got.sequence == sent.sequence);
	assert_int_equal(got.n_tokens, sent.n_tokens);
	assert_int_equal(got.max_tokens, sent.max_tokens);
	assert_int_equal(got.n_stop, sent.n_stop);
	assert_memory_equal(got.stop, sent.stop, sizeof(sent.stop));
	assert_int_equal(got.flags, sent.flags);
	assert_int_equal(got.deadline_ms, sent.deadline_ms);
	assert_true(got.draft_tokens == sent.draft_tokens);
	assert_true(got.first_token_ms == sent.first_token_ms);
	assert_int_equal(got.request_class, sent.request_class);
	assert_true(got.repetition_penalty == 1.25f);
	assert_true(got.presence_penalty == -2);
	assert_true(got.frequency_penalty == 0.5f);
	assert_int_equal(got.penalty_start, 70001);
	assert_int_equal(got.n_bias, 1024);
	assert_int_equal(got.n_allowed, 4008);
	assert_int_equal(got.min_tokens, 1);
	assert_int_equal(got.top_logprobs, 20);
	assert_memory_equal(&got.mask, &sent.mask, sizeof(sent.mask));
	check_sampling(&got.sampling, &sent.sampling);
}

static void test_msg_step_is_decoded_as_it_was_encoded(void **state)
{
	struct msg_step got, sent = {.model = 3,
				     .n_rows = 17,
				     .outputs = 15,
				     .deadline_ms = 1,
				     .request_class = MIMEO_CLASS_INTERACTIVE,
				     .top_logprobs = 5,
				     .mask = {.kind = MIMEO_MASK_PREFIX, .prefix = 9},
				     .sampling = {.temperature = FLT_MIN, .top_k = UINT32_MAX}};
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	int n = msg_step_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(msg_step_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.model, 3);
	assert_int_equal(got.n_rows, 17);
	assert_int_equal(got.request_class, MIMEO_CLASS_INTERACTIVE);
	assert_int_equal(got.outputs, 15);
	assert_int_equal(got.top_logprobs, 5);
	assert_int_equal(got.deadline_ms, 1);
	assert_memory_equal(&got.mask, &sent.mask, sizeof(sent.mask));
	check_sampling(&got.sampling, &sent.sampling);
}

static void test_msg_hello_is_decoded_as_it_was_encoded(void **state)
{
	struct msg_hello got, sent = {.version = MSG_PROTOCOL_VERSION,
				      .entries = 4096,
				      .arena_bytes = REGION_ARENA_MAX,
				      .name = "na\xc3\xafve agent"};
	uint8_t bytes[256];
	struct msg_detail detail;

	int n = msg_hello_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(msg_hello_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.entries, 4096);
	assert_true(got.arena_bytes == REGION_ARENA_MAX);
	assert_string_equal(got.name, sent.name);
}

static void test_msg_welcome_of_the_most_models_is_decoded_as_it_was_encoded(void **state)
{
	static struct msg_welcome sent, got;
	static uint8_t bytes[MSG_SOCKET_MAX];
	struct msg_detail detail;

	sent = full_welcome(MSG_MODELS_MAX);
	int n = msg_welcome_encode(&sent, bytes, sizeof(bytes));
	assert_true(n > 0);
	assert_int_equal(msg_welcome_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_true(got.nonce == sent.nonce);
	assert_int_equal(got.session, 7);
	assert_int_equal(got.max_sequences, 256);
	assert_int_equal(got.n_models, MSG_MODELS_MAX);
	for (uint32_t i = 0; i < MSG_MODELS_MAX; i++) {
		assert_string_equal(got.models[i].name, sent.models[i].name);
		assert_int_equal(got.models[i].vocab_size, 256 + i);
		assert_int_equal(got.models[i].page_tokens, 16);
		assert_int_equal(got.models[i].n_eos, sent.models[i].n_eos);
		assert_memory_equal(
			got.models[i].eos, sent.models[i].eos, sizeof(got.models[i].eos));
		assert_int_equal(got.models[i].bos, (int32_t)i - 1);
		check_sampling(&got.models[i].sampling, &sent.models[i].sampling);
		assert_int_equal(got.models[i].masks, i % 2);
		assert_memory_equal(
			&got.models[i].mask, &sent.models[i].mask, sizeof(got.models[i].mask));
		assert_int_equal(got.models[i].max_batch_tokens, 1 + i);
		assert_int_equal(got.models[i].max_rows, 64 + i);
		assert_int_equal(got.models[i].draft_tokens, i % (MIMEO_DRAFT_MAX + 1));
	}
}

static void test_msg_welcome_that_refuses_carries_status_and_text_alone(void **state)
{
	static struct msg_welcome got;
	struct msg_welcome sent = {.status = MIMEO_E_QUOTA,
		.version = MSG_PROTOCOL_VERSION,
		.text = "user 1000 has 64 sessions"};
	uint8_t bytes[512];
	struct msg_detail detail;

	int n = msg_welcome_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(msg_welcome_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.status, MIMEO_E_QUOTA);
	assert_string_equal(got.text, sent.text);
	assert_int_equal(got.entries, 0);
}

static void test_msg_models_own_sampling_hides_the_rest_but_the_seed(void **state)
{
	struct msg_generate got, sent = full_generate();
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	sent.sampling.temperature = NAN;
	sent.sampling.top_p = -3;
	sent.sampling.flags = MIMEO_SAMPLING_MODEL | MIMEO_SAMPLING_SEEDED;
	int n = msg_generate_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(msg_generate_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_true(got.sampling.temperature == 0 && got.sampling.top_p == 0);
	assert_int_equal(got.sampling.top_k, 0);
	assert_true(got.sampling.seed == UINT64_MAX);
	assert_int_equal(got.sampling.flags, MIMEO_SAMPLING_MODEL | MIMEO_SAMPLING_SEEDED);
}

static void test_msg_text_that_decoders_refuse_is_sent_as_question_marks(void **state)
{
	struct msg_hello got, sent = {.version = MSG_PROTOCOL_VERSION,
				      .entries = 2,
				      .arena_bytes = REGION_ARENA_MIN,
				      .name = "a\x1b[2J\xff\xc3\xc2\x9b"
					      "z\xe2\x82"};
	uint8_t bytes[256];
	struct msg_detail detail;

	int n = msg_hello_encode(&sent, bytes, sizeof(bytes));
	assert_int_equal(msg_hello_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_string_equal(got.name, "a?[2J????z??");
}

/* ---- bounds of the encoders ---- */

static void test_msg_encode_into_every_shorter_buffer_says_no_space(void **state)
{
	struct msg_generate msg = full_generate();
	uint8_t bytes[MSG_HEADER_MAX];

	int n = msg_generate_encode(&msg, bytes, sizeof(bytes));
	for (int size = 0; size < n; size++) {
		memset(bytes, 0x5a, sizeof(bytes));
		assert_int_equal(msg_generate_encode(&msg, bytes, (size_t)size), -ENOSPC);
		assert_int_equal(bytes[size], 0x5a);
	}
	assert_int_equal(msg_generate_encode(&msg, bytes, (size_t)n), n);
}

static void test_msg_encode_refuses_counts_beyond_the_arrays(void **state)
{
	static struct msg_welcome welcome;
	static uint8_t bytes[MSG_SOCKET_MAX];
	struct msg_generate generate = full_generate();

	generate.n_stop = MIMEO_STOP_MAX + 1;
	assert_int_equal(msg_generate_encode(&generate, bytes, sizeof(bytes)), -EINVAL);
	welcome = full_welcome(2);
	welcome.n_models = MSG_MODELS_MAX + 1;
	assert_int_equal(msg_welcome_encode(&welcome, bytes, sizeof(bytes)), -EINVAL);
	welcome.n_models = 2;
	welcome.models[1].n_eos = MIMEO_STOP_MAX + 1;
	assert_int_equal(msg_welcome_encode(&welcome, bytes, sizeof(bytes)), -EINVAL);
}

/* ---- memory ---- */

#define LEAST_STEP "\x82\x0e\x01\x0d\x01"

/* One array a byte: the most objects that a header of that length can make. */
static size_t densest_header(uint8_t bytes[MSG_HEADER_MAX])
{
	size_t n = 0;

	bytes[n++] = 0xde; /* map 16 */
	bytes[n++] = 0;
	bytes[n++] = 2;
	bytes[n++] = MSG_STOP;
	bytes[n++] = 0xdc; /* array 16 of everything that fits */
	bytes[n++] = (MSG_HEADER_MAX - 10) >> 8;
	bytes[n++] = (MSG_HEADER_MAX - 10) & 0xff;
	memset(bytes + n, 0, MSG_HEADER_MAX - 10);
	n += MSG_HEADER_MAX - 10;
	bytes[n++] = MSG_N_TOKENS;
	bytes[n++] = 1;
	return n;
}

static void test_msg_requests_are_read_and_written_without_allocation(void **state)
{
	struct msg_generate msg = full_generate(), got;
	uint8_t bytes[MSG_HEADER_MAX], densest[MSG_HEADER_MAX];
	size_t densest_n = densest_header(densest);
	struct msg_detail detail;
	bool wrong = false;

	free(malloc(1));
	assert_true(n_allocations > 0); /* it does count */
	n_allocations = 0;
	for (int i = 0; i < 1000; i++) {
		int n = msg_generate_encode(&msg, bytes, sizeof(bytes));

		wrong |= msg_generate_decode(codec, bytes, (size_t)n, &got, &detail) != 0;
		wrong |= msg_step_decode(codec, LEAST_STEP, sizeof(LEAST_STEP) - 1,
				 &(struct msg_step){0}, &detail) != 0;
		wrong |= msg_generate_decode(codec, densest, densest_n, &got, &detail) !=
			 MIMEO_E_INVALID;
		wrong |= detail.detail != RING_DETAIL_RANGE || detail.values[0] != MSG_STOP;
	}
	unsigned long n = n_allocations;
	assert_false(wrong);
	assert_int_equal(n, 0);
}

static void test_msg_request_after_a_large_welcome_allocates_nothing(void **state)
{
	static struct msg_welcome welcome, got_welcome;
	static uint8_t bytes[MSG_SOCKET_MAX];
	uint8_t densest[MSG_HEADER_MAX];
	size_t densest_n = densest_header(densest);
	struct msg_generate got;
	struct msg_detail detail;

	welcome = full_welcome(MSG_MODELS_MAX);
	int n = msg_welcome_encode(&welcome, bytes, sizeof(bytes));
	assert_int_equal(msg_welcome_decode(codec, bytes, (size_t)n, &got_welcome, &detail), 0);
	n_allocations = 0;
	msg_generate_decode(codec, densest, densest_n, &got, &detail);
	unsigned long allocated = n_allocations;
	assert_int_equal(allocated, 0);
}

/* ---- the rest ---- */

static void test_msg_output_parts_start_on_lines_and_do_not_overlap(void **state)
{
	struct msg_output output = msg_output_layout(17, 2, 33, 1, 5);

	assert_int_equal(output.tokens, 0);
	assert_int_equal(output.logits, 128);
	assert_int_equal(output.hidden, 128 + 320);
	assert_int_equal(output.bytes, 128 + 320 + 64);
	output = msg_output_layout(0, 0, 0, 0, 0);
	assert_int_equal(output.bytes, 0);
	output = msg_output_layout(0, 1, 16, 0, 1024);
	assert_int_equal(output.logits, 0);
	assert_int_equal(output.bytes, 64);
}

static void test_msg_output_too_large_for_a_number_is_more_than_any_area(void **state)
{
	assert_true(msg_output_layout(UINT64_MAX, 0, 0, 0, 0).bytes == UINT64_MAX);
	assert_true(msg_output_layout(0, 1ull << 62, 4, 0, 0).bytes == UINT64_MAX);
	assert_true(msg_output_layout(UINT64_MAX / 4 - 16, 1, 64, 0, 0).bytes == UINT64_MAX);
	assert_true(msg_output_layout(0, 0, 0, 1ull << 40, UINT32_MAX).bytes == UINT64_MAX);

	struct msg_output output = msg_output_layout(3, 0, 0, 0, 0);
	msg_output_add_logprobs(&output, 3, 5, 20);
	assert_int_equal(output.logprobs, 64);
	assert_int_equal(output.prompt_logprobs, 64 + 512); /* 3 x 21 x 8 bytes */
	assert_int_equal(output.bytes, 64 + 512 + 896);
	msg_output_add_logprobs(&output, 0, UINT64_MAX / 8, 0);
	assert_true(output.bytes == UINT64_MAX);
	msg_output_add_logprobs(&output, 1, 1, 0);
	assert_true(output.bytes == UINT64_MAX);
}

static void test_msg_fields_have_names(void **state)
{
	assert_string_equal(msg_field_name(MSG_MAX_TOKENS), "max_tokens");
	assert_string_equal(msg_field_name(MSG_PAGE_TOKENS), "page_tokens");
	assert_string_equal(msg_field_name(0), "?");
	for (unsigned i = MSG_MODEL; i <= MSG_REQUEST_CLASS; i++)
		assert_string_not_equal(msg_field_name(i), "?");
	assert_string_equal(msg_field_name(MSG_MAX_BATCH_TOKENS), "max_batch_tokens");
	for (unsigned kind = 0; kind <= MIMEO_MASK_TREE; kind++)
		assert_string_not_equal(msg_mask_name(kind), "?");
	assert_string_equal(msg_mask_name(MIMEO_MASK_TREE + 1), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_msg_generate_is_decoded_as_it_was_encoded),
		cmocka_unit_test(test_msg_step_is_decoded_as_it_was_encoded),
		cmocka_unit_test(test_msg_hello_is_decoded_as_it_was_encoded),
		cmocka_unit_test(test_msg_welcome_of_the_most_models_is_decoded_as_it_was_encoded),
		cmocka_unit_test(test_msg_welcome_that_refuses_carries_status_and_text_alone),
		cmocka_unit_test(test_msg_models_own_sampling_hides_the_rest_but_the_seed),
		cmocka_unit_test(test_msg_text_that_decoders_refuse_is_sent_as_question_marks),
		cmocka_unit_test(test_msg_encode_into_every_shorter_buffer_says_no_space),
		cmocka_unit_test(test_msg_encode_refuses_counts_beyond_the_arrays),
		cmocka_unit_test(test_msg_requests_are_read_and_written_without_allocation),
		cmocka_unit_test(test_msg_request_after_a_large_welcome_allocates_nothing),
		cmocka_unit_test(test_msg_output_parts_start_on_lines_and_do_not_overlap),
		cmocka_unit_test(test_msg_output_too_large_for_a_number_is_more_than_any_area),
		cmocka_unit_test(test_msg_fields_have_names),
	};

	return cmocka_run_group_tests_name("msg", tests, setup_codec, teardown_codec);
}
