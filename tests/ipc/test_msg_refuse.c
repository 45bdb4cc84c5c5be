/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "ipc/region.h"
#include "tests/ipc/raw_msg.h"

static void test_msg_least_messages_are_taken(void **state)
{
	struct msg_detail detail;

	assert_int_equal(decode(GENERATE_MSG, GENERATE, sizeof(GENERATE) - 1, &detail), 0);
	assert_int_equal(decode(STEP_MSG, STEP, sizeof(STEP) - 1, &detail), 0);
	assert_int_equal(decode(HELLO_MSG, HELLO, sizeof(HELLO) - 1, &detail), 0);
	assert_int_equal(decode(WELCOME_MSG, WELCOME, sizeof(WELCOME) - 1, &detail), 0);
}

#define F32_INF "\xca\x7f\x80\0\0"
#define F32_NAN "\xca\x7f\xc0\0\0"
#define F64_HUGE "\xcb\x7e\x37\xe4\x3c\x88\x00\x75\x9c" /* 1e300 */
#define F64_NEG_INF "\xcb\xff\xf0\0\0\0\0\0\0"
#define U32_PLUS "\xcf\0\0\0\1\0\0\0\0"
#define F32_ONE "\xca\x3f\x80\0\0"
#define F32_HUNDREDTH "\xca\x3c\x23\xd7\x0a" /* 0.01f */
#define F64_THOUSANDTH "\xcb\x3f\x50\x62\x4d\xd2\xf1\xa9\xfc"
#define F64_ABOVE_ONE "\xcb\x3f\xf0\0\0\0\0\0\1"

static void test_msg_request_fields_in_range_are_taken(void **state)
{
	static const struct extra extras[] = {
		EXTRA(MSG_TEMPERATURE, "\x00"),
		EXTRA(MSG_TEMPERATURE, "\x02"),
		EXTRA(MSG_TEMPERATURE, U64_MAX),
		EXTRA(MSG_TEMPERATURE, "\xca\x7f\x7f\xff\xff"),
		EXTRA(MSG_TOP_P, "\x01"),
		EXTRA(MSG_TOP_P, F32_ONE),
		EXTRA(MSG_TOP_P, "\xcb\x3f\xd0\0\0\0\0\0\0"),
		EXTRA(MSG_TOP_P, "\x00"),
		EXTRA(MSG_MIN_P, F32_ONE),
		EXTRA(MSG_TOP_K, "\xce\xff\xff\xff\xff"),
		EXTRA(MSG_TOP_K, "\xcf\0\0\0\0\0\0\0\5"),
		EXTRA(MSG_SEED, U64_MAX),
		EXTRA(MSG_SAMPLING_FLAGS, "\x03"),
		EXTRA(MSG_STOP, "\x90"),
		EXTRA(MSG_STOP, "\x92\x00\xce\x7f\xff\xff\xff"),
		EXTRA(MSG_FLAGS, "\x3f"),
		EXTRA(MSG_MODEL, "\x05"),
		EXTRA(MSG_DEADLINE_MS, "\xd1\x01\x00"),
		EXTRA(MSG_MASK, "\x00"),
		EXTRA(MSG_MASK, "\x03"),
		EXTRA(MSG_MASK_WINDOW, "\x00"),
		EXTRA(MSG_MASK_SINKS, "\x00"),
		EXTRA(MSG_MASK_PREFIX, "\x00"),
		EXTRA(MSG_DRAFT_TOKENS, "\x00"),
		EXTRA(MSG_DRAFT_TOKENS, "\x08"),
		EXTRA(MSG_DRAFT_TOKENS, "\xce\xff\xff\xff\xff"),
		EXTRA(MSG_FIRST_TOKEN_MS, "\x00"),
		EXTRA(MSG_FIRST_TOKEN_MS, "\xce\xff\xff\xff\xff"),
		EXTRA(MSG_REQUEST_CLASS, "\x00"),
		EXTRA(MSG_REQUEST_CLASS, "\x02"),
		EXTRA(MSG_REPETITION_PENALTY, "\x00"),
		EXTRA(MSG_REPETITION_PENALTY, "\x64"),
		EXTRA(MSG_REPETITION_PENALTY, F32_HUNDREDTH),
		EXTRA(MSG_PRESENCE_PENALTY, "\x02"),
		EXTRA(MSG_PRESENCE_PENALTY, "\xfe"),
		EXTRA(MSG_FREQUENCY_PENALTY, "\x02"),
		EXTRA(MSG_FREQUENCY_PENALTY, "\xfe"),
		EXTRA(MSG_PENALTY_START, "\xce\xff\xff\xff\xff"),
		EXTRA(MSG_N_BIAS, "\xcd\x04\x00"),
		EXTRA(MSG_N_ALLOWED, "\xce\xff\xff\xff\xff"),
		EXTRA(MSG_MIN_TOKENS, "\x01"),
		EXTRA(MSG_TOP_LOGPROBS, "\x00"),
	};

	check_extras(GENERATE_MSG, 0, extras, ARRAY_SIZE(extras));
}

static void test_msg_request_fields_out_of_range_are_refused_by_name(void **state)
{
	static const struct extra generate[] = {
		EXTRA(MSG_TEMPERATURE, F32_INF),
		EXTRA(MSG_TEMPERATURE, F32_NAN),
		EXTRA(MSG_TEMPERATURE, F64_HUGE),
		EXTRA(MSG_TEMPERATURE, F64_NEG_INF),
		EXTRA(MSG_TEMPERATURE, "\xff"),
		EXTRA(MSG_TOP_P, "\x02"),
		EXTRA(MSG_TOP_P, F64_ABOVE_ONE),
		EXTRA(MSG_TOP_P, "\xff"),
		EXTRA(MSG_TOP_P, F32_NAN),
		EXTRA(MSG_MIN_P, "\x02"),
		EXTRA(MSG_MIN_P, "\xca\xbf\x80\0\0"),
		EXTRA(MSG_TOP_K, "\xff"),
		EXTRA(MSG_TOP_K, U32_PLUS),
		EXTRA(MSG_SEED, "\xff"),
		EXTRA(MSG_SAMPLING_FLAGS, "\x04"),
		EXTRA(MSG_SAMPLING_FLAGS, U32_PLUS),
		EXTRA(MSG_FLAGS, "\x40"),
		EXTRA(MSG_FLAGS, "\xff"),
		EXTRA(MSG_STOP, "\x99\0\0\0\0\0\0\0\0\0"),
		EXTRA(MSG_STOP, "\x91\xff"),
		EXTRA(MSG_STOP, "\x91\xce\x80\0\0\0"),
		EXTRA(MSG_MODEL, "\xff"),
		EXTRA(MSG_MODEL, U64_MAX),
		EXTRA(MSG_SEQUENCE, "\xd0\x80"),
		EXTRA(MSG_DEADLINE_MS, U32_PLUS),
		EXTRA(MSG_MASK, "\x04"), /* a tree is a step's */
		EXTRA(MSG_MASK, "\xff"),
		EXTRA(MSG_MASK_WINDOW, "\x01"), /* without its kind */
		EXTRA(MSG_MASK_WINDOW, U32_PLUS),
		EXTRA(MSG_MASK_SINKS, "\x01"),
		EXTRA(MSG_MASK_PREFIX, "\x01"),
		EXTRA(MSG_DRAFT_TOKENS, "\x09"),
		EXTRA(MSG_DRAFT_TOKENS, "\xff"),
		EXTRA(MSG_DRAFT_TOKENS, "\xce\xff\xff\xff\xfe"),
		EXTRA(MSG_DRAFT_TOKENS, U32_PLUS),
		EXTRA(MSG_FIRST_TOKEN_MS, "\xff"),
		EXTRA(MSG_FIRST_TOKEN_MS, U32_PLUS),
		EXTRA(MSG_REQUEST_CLASS, "\x03"),
		EXTRA(MSG_REQUEST_CLASS, "\xff"),
		EXTRA(MSG_REPETITION_PENALTY, "\xff"),
		EXTRA(MSG_REPETITION_PENALTY, "\x65"),
		EXTRA(MSG_REPETITION_PENALTY, F64_THOUSANDTH),
		EXTRA(MSG_REPETITION_PENALTY, F32_NAN),
		EXTRA(MSG_PRESENCE_PENALTY, "\x03"),
		EXTRA(MSG_PRESENCE_PENALTY, "\xfd"),
		EXTRA(MSG_PRESENCE_PENALTY, F32_NAN),
		EXTRA(MSG_FREQUENCY_PENALTY, "\x03"),
		EXTRA(MSG_FREQUENCY_PENALTY, F64_NEG_INF),
		EXTRA(MSG_PENALTY_START, "\xff"),
		EXTRA(MSG_N_BIAS, "\xcd\x04\x01"),
		EXTRA(MSG_N_ALLOWED, U32_PLUS),
		EXTRA(MSG_MIN_TOKENS, "\x02"), /* of 1 at most */
		EXTRA(MSG_TOP_LOGPROBS, "\x01"), /* without the flag */
		EXTRA(MSG_TOP_LOGPROBS, "\x15"),
	};
	static const struct extra step[] = {EXTRA(MSG_TEMPERATURE, F32_NAN),
		EXTRA(MSG_MODEL, "\xff"), EXTRA(MSG_MASK, "\x05"), EXTRA(MSG_MASK_SINKS, "\x01"),
		EXTRA(MSG_DRAFT_TOKENS, "\x01"), EXTRA(MSG_TOP_LOGPROBS, "\x01"),
		EXTRA(MSG_MIN_TOKENS, "\x01"), EXTRA(MSG_REQUEST_CLASS, "\x03")};

	check_extras(GENERATE_MSG, MIMEO_E_INVALID, generate, ARRAY_SIZE(generate));
	check_extras(STEP_MSG, MIMEO_E_INVALID, step, ARRAY_SIZE(step));
}

/* Each kind of mask has its number, and no other's. */
static void test_msg_masks_have_the_numbers_of_their_kind(void **state)
{
	static const struct {
		struct mimeo_mask mask;
		unsigned refused; /* 0: taken */
	} cases[] = {
		{{MIMEO_MASK_DEFAULT, 0, 0, 0}, 0},
		{{MIMEO_MASK_DEFAULT, 0, 0, 1}, MSG_MASK_PREFIX},
		{{MIMEO_MASK_WINDOW, 1, 0, 0}, 0},
		{{MIMEO_MASK_WINDOW, 1, 9, 0}, 0},
		{{MIMEO_MASK_WINDOW, 0, 9, 0}, MSG_MASK_WINDOW},
		{{MIMEO_MASK_WINDOW, 1, 9, 1}, MSG_MASK_PREFIX},
		{{MIMEO_MASK_PREFIX, 0, 0, 5}, 0},
		{{MIMEO_MASK_PREFIX, 0, 0, 0}, MSG_MASK_PREFIX},
		{{MIMEO_MASK_PREFIX, 2, 0, 5}, MSG_MASK_WINDOW},
		{{MIMEO_MASK_PREFIX, 0, 2, 5}, MSG_MASK_SINKS},
		{{MIMEO_MASK_DOCUMENTS, 0, 0, 0}, 0},
		{{MIMEO_MASK_DOCUMENTS, 2, 0, 0}, MSG_MASK_WINDOW},
		{{MIMEO_MASK_TREE, 0, 0, 0}, 0}, /* of a step */
		{{MIMEO_MASK_TREE, 0, 0, 3}, MSG_MASK_PREFIX},
		{{MIMEO_MASK_TREE + 1, 0, 0, 0}, MSG_MASK},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct msg_generate generate = {
			.n_tokens = 9, .max_tokens = 1, .mask = cases[i].mask};
		const struct msg_step step = {.n_rows = 1, .outputs = 1, .mask = cases[i].mask};
		bool tree = cases[i].mask.kind == MIMEO_MASK_TREE;

		for (enum kind kind = GENERATE_MSG; kind <= STEP_MSG; kind++) {
			unsigned refused = kind == GENERATE_MSG && tree ? MSG_MASK
									: cases[i].refused;
			uint8_t bytes[MSG_HEADER_MAX];
			struct msg_detail detail = {0};
			int n = kind == GENERATE_MSG
				? msg_generate_encode(&generate, bytes, sizeof(bytes))
				: msg_step_encode(&step, bytes, sizeof(bytes));

			assert_true(refused ? n == -EINVAL : n > 0);
			n = kind == GENERATE_MSG
				? msg_table_write(&msg_generate_table, &generate, bytes, sizeof(bytes))
				: msg_table_write(&msg_step_table, &step, bytes, sizeof(bytes));
			assert_int_equal(decode(kind, bytes, (size_t)n, &detail),
				refused ? MIMEO_E_INVALID : 0);
			assert_int_equal(detail.values[0], refused);
			if (refused && refused != MSG_MASK)
				assert_int_equal(detail.values[2], cases[i].mask.kind);
		}
	}
}

/* Values of details are i32. */
static void test_msg_mask_number_beyond_a_detail_is_clipped(void **state)
{
	const struct msg_generate generate = {
		.n_tokens = 9, .max_tokens = 1, .mask = {MIMEO_MASK_PREFIX, 0, UINT32_MAX, 5}};
	struct msg_detail detail = {0};
	uint8_t bytes[MSG_HEADER_MAX];

	int n = msg_table_write(&msg_generate_table, &generate, bytes, sizeof(bytes));
	assert_int_equal(decode(GENERATE_MSG, bytes, (size_t)n, &detail), MIMEO_E_INVALID);
	assert_int_equal(detail.values[0], MSG_MASK_SINKS);
	assert_int_equal(detail.values[1], INT32_MAX);
}

/* Encoders check the ranges that decoders check, and say which value is wrong. */
static void test_msg_encoders_refuse_what_decoders_refuse(void **state)
{
#define LEAST .n_tokens = 1, .max_tokens = 1
	static const struct {
		struct msg_generate msg;
		unsigned field; /* 0: RING_DETAIL_EMPTY */
		const char *text;
	} cases[] = {
		{{LEAST, .sampling.temperature = -1}, MSG_TEMPERATURE, "temperature is -1"},
		{{LEAST, .sampling.temperature = NAN}, MSG_TEMPERATURE, "temperature is nan"},
		{{LEAST, .sampling.temperature = INFINITY}, MSG_TEMPERATURE, "temperature is inf"},
		{{LEAST, .sampling.top_p = 1.5f}, MSG_TOP_P, "top_p is 1.5: it must be from 0 to 1"},
		{{LEAST, .sampling.min_p = -0.5f}, MSG_MIN_P, "min_p is -0.5"},
		{{LEAST, .sampling.flags = 5}, MSG_SAMPLING_FLAGS, "flag 0x4 is unknown"},
		{{LEAST, .flags = 64}, MSG_FLAGS, "flags is 0x40: flag 0x40 is unknown"},
		{{LEAST, .n_stop = 9}, MSG_STOP, "stop has 9 ids: at most 8"},
		{{LEAST, .n_stop = 2, .stop = {1, -7}}, MSG_STOP, "stop 1 is -7"},
		{{LEAST, .draft_tokens = 9}, MSG_DRAFT_TOKENS, "draft_tokens is 9: "},
		{{LEAST, .mask.kind = 4}, MSG_MASK, "mask is 4: it must be from 0 to 3"},
		{{LEAST, .mask.sinks = 2}, MSG_MASK_SINKS, "mask_sinks is 2, and"},
		{{LEAST, .logits.buffer = 1}, MSG_LOGITS_BUFFER, "logits_buffer is 1: "},
		{{LEAST, .repetition_penalty = 0.001f}, MSG_REPETITION_PENALTY,
			"repetition_penalty is 0.001: it must be 0, which is off, or from 0.01 to 100"},
		{{LEAST, .presence_penalty = -2.5f}, MSG_PRESENCE_PENALTY,
			"presence_penalty is -2.5: it must be from -2 to 2"},
		{{LEAST, .n_bias = 1025}, MSG_N_BIAS, "n_bias is 1025: it must be from 0 to 1024"},
		{{LEAST, .min_tokens = 2}, MSG_MIN_TOKENS, "min_tokens is 2: it must not be more than max_tokens"},
		{{LEAST, .top_logprobs = 2}, MSG_TOP_LOGPROBS,
			"top_logprobs is 2: log-probabilities are not requested"},
		{{.max_tokens = 1}, 0, ""},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct msg_generate *msg = &cases[i].msg;
		struct msg_detail encoding, decoding = {0};
		char text[MSG_TEXT_MAX];
		uint8_t bytes[MSG_HEADER_MAX];

		assert_int_equal(msg_generate_encode(msg, bytes, sizeof(bytes)), -EINVAL);
		msg_generate_explain(msg, &encoding, text);
		assert_int_equal(encoding.detail,
			cases[i].field ? RING_DETAIL_RANGE : RING_DETAIL_EMPTY);
		assert_int_equal(encoding.values[0], cases[i].field);
		if (!strstr(text, cases[i].text))
			fail_msg("case %zu: %s", i, text);
		int n = msg_table_write(&msg_generate_table, msg, bytes, sizeof(bytes));
		if (n < 0)
			continue; /* a count above its capacity cannot be written */
		assert_int_equal(
			decode(GENERATE_MSG, bytes, (size_t)n, &decoding), MIMEO_E_INVALID);
		assert_memory_equal(&encoding, &decoding, sizeof(encoding));
	}
#undef LEAST
}

static void test_msg_fields_of_a_wrong_type_are_refused_by_name(void **state)
{
	static const struct extra extras[] = {
		EXTRA(MSG_MODEL, "\xc0"),
		EXTRA(MSG_MODEL, "\xc2"),
		EXTRA(MSG_MODEL, F32_ONE),
		EXTRA(MSG_MODEL, "\xa1\x31"),
		EXTRA(MSG_MODEL, "\x80"),
		EXTRA(MSG_SEED, F32_ONE),
		EXTRA(MSG_SEED, "\xc4\x01x"),
		EXTRA(MSG_TEMPERATURE, "\xc3"),
		EXTRA(MSG_TEMPERATURE, "\xa1\x31"),
		EXTRA(MSG_TEMPERATURE, "\x91\x01"),
		EXTRA(MSG_STOP, "\x01"),
		EXTRA(MSG_STOP, "\x80"),
		EXTRA(MSG_STOP, "\x91\x90"),
		EXTRA(MSG_STOP, "\x91" F32_ONE),
		EXTRA(MSG_FLAGS, F32_ONE),
		EXTRA(MSG_FLAGS, "\xc3"),
	};

	check_extras(GENERATE_MSG, MIMEO_E_INVALID, extras, ARRAY_SIZE(extras));
}

static void test_msg_unknown_and_foreign_and_repeated_keys_are_refused_by_name(void **state)
{
	static const struct extra generate[] = {EXTRA(99, "\x01"), EXTRA(0, "\x01"),
		EXTRA(MSG_OUTPUTS, "\x01"), EXTRA(MSG_VERSION, "\x01"), EXTRA(MSG_N_TOKENS, "\x01"),
		EXTRA(MSG_MAX_TOKENS, "\x01")};
	static const struct extra step[] = {
		EXTRA(MSG_STOP, "\x90"), EXTRA(MSG_OUTPUTS, "\x01"), EXTRA(MSG_N_TOKENS, "\x01")};

	check_extras(GENERATE_MSG, MIMEO_E_INVALID, generate, ARRAY_SIZE(generate));
	check_extras(STEP_MSG, MIMEO_E_INVALID, step, ARRAY_SIZE(step));
}

static void test_msg_keys_that_are_no_field_numbers_are_refused(void **state)
{
	static const struct refused cases[] = {
		REFUSED(GENERATE_MSG, "\x81\xa1k\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE, 0),
		REFUSED(GENERATE_MSG, "\x81\xff\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE, 0),
		REFUSED(GENERATE_MSG, "\x81\x90\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE, 0),
		REFUSED(GENERATE_MSG, "\x81\xcd\x01\x03\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE,
			0),
		REFUSED(GENERATE_MSG, "\x81" F32_ONE "\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE,
			0),
	};

	check_refused(cases, ARRAY_SIZE(cases));
}

static void test_msg_missing_or_zero_counts_are_refused(void **state)
{
	static const struct refused cases[] = {
		REFUSED(GENERATE_MSG, "\x80", MIMEO_E_INVALID, RING_DETAIL_EMPTY, 0),
		REFUSED(GENERATE_MSG, "\x82\x0f\x00\x03\x01", MIMEO_E_INVALID, RING_DETAIL_EMPTY,
			0),
		REFUSED(STEP_MSG, "\x81\x0d\x01", MIMEO_E_INVALID, RING_DETAIL_EMPTY, 0),
		REFUSED(STEP_MSG, "\x82\x0e\x00\x0d\x01", MIMEO_E_INVALID, RING_DETAIL_EMPTY, 0),
		REFUSED(STEP_MSG, "\x81\x0e\x01", MIMEO_E_INVALID, RING_DETAIL_RANGE, MSG_OUTPUTS),
		REFUSED(STEP_MSG, "\x82\x0e\x01\x0d\xcc\x80", MIMEO_E_INVALID, RING_DETAIL_RANGE,
			MSG_OUTPUTS),
	};

	check_refused(cases, ARRAY_SIZE(cases));
}

static void test_msg_no_tokens_are_taken_of_a_sequence_alone(void **state)
{
	struct msg_generate msg = {.max_tokens = 1}, got;
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	assert_int_equal(msg_generate_encode(&msg, bytes, sizeof(bytes)), -EINVAL);
	msg.sequence = 3;
	int n = msg_generate_encode(&msg, bytes, sizeof(bytes));
	assert_int_equal(msg_generate_decode(codec, bytes, (size_t)n, &got, &detail), 0);
	assert_int_equal(got.n_tokens, 0);
	assert_int_equal(got.sequence, 3);
}

static void test_msg_outputs_that_exclude_each_other_are_refused(void **state)
{
	static const struct {
		struct msg_step msg;
		unsigned field; /* 0: taken */
	} cases[] = {
		{{.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_LOGPROBS}, 0},
		{{.outputs = MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_MEAN_HIDDEN}, 0},
		{{.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_ALL_LOGITS}, MSG_OUTPUTS},
		{{.outputs = MIMEO_STEP_HIDDEN | MIMEO_STEP_MEAN_HIDDEN}, MSG_OUTPUTS},
		{{.outputs = MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_MEAN_HIDDEN}, MSG_OUTPUTS},
		{{.outputs = MIMEO_STEP_LOGPROBS, .mask.kind = MIMEO_MASK_TREE}, MSG_OUTPUTS},
		{{.outputs = MIMEO_STEP_LOGPROBS, .embeddings.buffer = 1}, MSG_OUTPUTS},
		{{.outputs = MIMEO_STEP_LOGPROBS, .top_logprobs = 20}, 0},
		{{.outputs = MIMEO_STEP_LOGITS, .top_logprobs = 20}, MSG_TOP_LOGPROBS},
		{{.outputs = MIMEO_STEP_ALL_LOGITS, .logits.buffer = 1}, 0},
		{{.outputs = MIMEO_STEP_MEAN_HIDDEN, .hidden.buffer = 1}, 0},
		{{.outputs = MIMEO_STEP_LOGPROBS, .logits.buffer = 1}, MSG_LOGITS_BUFFER},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct msg_step msg = cases[i].msg;
		struct msg_detail detail = {0};
		uint8_t bytes[MSG_HEADER_MAX];

		msg.n_rows = 1;
		int n = msg_table_write(&msg_step_table, &msg, bytes, sizeof(bytes));
		assert_int_equal(decode(STEP_MSG, bytes, (size_t)n, &detail),
			cases[i].field ? MIMEO_E_INVALID : 0);
		assert_int_equal(detail.values[0], cases[i].field);
	}
}

static void test_msg_bias_lists_ascend_and_are_in_range(void **state)
{
	static const struct {
		struct mimeo_bias bias[3];
		int refused; /* -1: taken */
	} cases[] = {
		{{{0, 100}, {1, -100}, {9, -INFINITY}}, -1},
		{{{0, 0}, {0, 0}, {9, 0}}, 1},
		{{{3, 0}, {2, 0}, {9, 0}}, 1},
		{{{-1, 0}, {2, 0}, {9, 0}}, 0},
		{{{0, 0}, {2, 0}, {10, 0}}, 2},
		{{{0, 0}, {2, NAN}, {9, 0}}, 1},
		{{{0, 0}, {2, 0}, {9, INFINITY}}, 2},
		{{{0, 100.5f}, {2, 0}, {9, 0}}, 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const int refused = cases[i].refused;
		struct msg_detail detail = {0};

		assert_int_equal(msg_bias_check(cases[i].bias, 3, 10, &detail),
			refused < 0 ? 0 : MIMEO_E_INVALID);
		if (refused < 0)
			continue;
		assert_int_equal(detail.detail, RING_DETAIL_BIAS);
		assert_int_equal(detail.values[0], refused);
		assert_int_equal(detail.values[1], cases[i].bias[refused].token);
		assert_int_equal(detail.values[2], 10);
	}
	assert_int_equal(msg_bias_check(NULL, 0, 10, &(struct msg_detail){0}), 0);
}

static void test_msg_bytes_that_are_no_header_are_refused_with_their_offset(void **state)
{
	static const struct refused cases[] = {
		REFUSED(GENERATE_MSG, "", MIMEO_E_INVALID, RING_DETAIL_HEADER, 0),
		REFUSED(GENERATE_MSG, "\x92\x01\x02", MIMEO_E_INVALID, RING_DETAIL_HEADER, 0),
		REFUSED(GENERATE_MSG, "\x82\x0f\x01\x03\xc1", MIMEO_E_INVALID, RING_DETAIL_HEADER,
			4),
		REFUSED(GENERATE_MSG, GENERATE "\x00", MIMEO_E_INVALID, RING_DETAIL_HEADER, 5),
		REFUSED(STEP_MSG, "\xdf\xff\xff\xff\xff", MIMEO_E_INVALID, RING_DETAIL_HEADER, 0),
		REFUSED(HELLO_MSG, "garbage", MIMEO_E_PROTOCOL, RING_DETAIL_HEADER, 1),
		REFUSED(WELCOME_MSG, "\x81\x20", MIMEO_E_PROTOCOL, RING_DETAIL_HEADER, 0),
	};
	static uint8_t bytes[MSG_HEADER_MAX + 1] = {
		0xc5, (MSG_HEADER_MAX - 2) >> 8, (MSG_HEADER_MAX - 2) & 0xff};
	struct msg_detail detail;

	check_refused(cases, ARRAY_SIZE(cases));
	assert_int_equal(decode(GENERATE_MSG, bytes, sizeof(bytes), &detail), MIMEO_E_INVALID);
	assert_int_equal(detail.detail, RING_DETAIL_HEADER);
	assert_int_equal(detail.values[0], MSG_HEADER_MAX);
}

static void test_msg_refusal_writes_no_message(void **state)
{
	struct msg_generate got, before;
	struct msg_detail detail;

	memset(&got, 0x5a, sizeof(got));
	before = got;
	assert_int_equal(msg_generate_decode(codec, "\x82\x0f\x00\x03\x01", 5, &got, &detail),
		MIMEO_E_INVALID);
	assert_memory_equal(&got, &before, sizeof(got));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_msg_least_messages_are_taken),
		cmocka_unit_test(test_msg_request_fields_in_range_are_taken),
		cmocka_unit_test(test_msg_request_fields_out_of_range_are_refused_by_name),
		cmocka_unit_test(test_msg_masks_have_the_numbers_of_their_kind),
		cmocka_unit_test(test_msg_mask_number_beyond_a_detail_is_clipped),
		cmocka_unit_test(test_msg_encoders_refuse_what_decoders_refuse),
		cmocka_unit_test(test_msg_fields_of_a_wrong_type_are_refused_by_name),
		cmocka_unit_test(
			test_msg_unknown_and_foreign_and_repeated_keys_are_refused_by_name),
		cmocka_unit_test(test_msg_keys_that_are_no_field_numbers_are_refused),
		cmocka_unit_test(test_msg_missing_or_zero_counts_are_refused),
		cmocka_unit_test(test_msg_no_tokens_are_taken_of_a_sequence_alone),
		cmocka_unit_test(test_msg_outputs_that_exclude_each_other_are_refused),
		cmocka_unit_test(test_msg_bias_lists_ascend_and_are_in_range),
		cmocka_unit_test(test_msg_bytes_that_are_no_header_are_refused_with_their_offset),
		cmocka_unit_test(test_msg_refusal_writes_no_message),
	};

	return cmocka_run_group_tests_name("msg_refuse", tests, setup_codec, teardown_codec);
}
