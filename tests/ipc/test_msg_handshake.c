/* SPDX-License-Identifier: MIT */
#include "tests/ipc/raw_msg.h"

static void test_msg_handshake_of_another_version_is_named_whatever_else_it_holds(void **state)
{
	static const struct refused cases[] = {
		REFUSED(HELLO_MSG, "\x82\x20\x01\x63\xc0", MIMEO_E_VERSION, RING_DETAIL_RANGE,
			MSG_VERSION, 1),
		REFUSED(HELLO_MSG, "\x80", MIMEO_E_VERSION, RING_DETAIL_RANGE, MSG_VERSION, 0),
		REFUSED(WELCOME_MSG, "\x82\xa1x\x00\x20" U64_MAX, MIMEO_E_VERSION,
			RING_DETAIL_RANGE, MSG_VERSION, INT32_MAX),
	};

	check_refused(cases, ARRAY_SIZE(cases));
}

static void test_msg_hello_that_no_region_fits_is_refused_by_name(void **state)
{
	static const struct refused cases[] = {
		REFUSED(HELLO_MSG, "\x81\x20\x06", MIMEO_E_INVALID, RING_DETAIL_RANGE,
			MSG_ENTRIES),
		REFUSED(HELLO_MSG, "\x83\x20\x06\x22\x03\x23\xce\0\1\0\0", MIMEO_E_INVALID,
			RING_DETAIL_RANGE, MSG_ENTRIES),
		REFUSED(HELLO_MSG, "\x83\x20\x06\x22\xcd\x20\0\x23\xce\0\1\0\0", MIMEO_E_INVALID,
			RING_DETAIL_RANGE, MSG_ENTRIES),
		REFUSED(HELLO_MSG, "\x82\x20\x06\x22\x02", MIMEO_E_INVALID, RING_DETAIL_RANGE,
			MSG_ARENA_BYTES),
		REFUSED(HELLO_MSG, "\x83\x20\x06\x22\x02\x23\xce\0\1\0\1", MIMEO_E_INVALID,
			RING_DETAIL_RANGE, MSG_ARENA_BYTES),
		REFUSED(HELLO_MSG, "\x83\x20\x06\x22\x02\x23\xce\x80\0\0\0", MIMEO_E_INVALID,
			RING_DETAIL_RANGE, MSG_ARENA_BYTES),
		REFUSED(HELLO_MSG, "\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x21\x01", MIMEO_E_INVALID,
			RING_DETAIL_RANGE, MSG_FEATURES),
	};

	check_refused(cases, ARRAY_SIZE(cases));
}

static void test_msg_names_with_control_characters_or_broken_utf8_are_refused(void **state)
{
	static const struct extra bad[] = {
		EXTRA(MSG_NAME, "\xa2\x1b["),
		EXTRA(MSG_NAME, "\xa1\0"),
		EXTRA(MSG_NAME, "\xa1\x7f"),
		EXTRA(MSG_NAME, "\xa1\xff"),
		EXTRA(MSG_NAME, "\xa2\xc2\x9b"),
		EXTRA(MSG_NAME, "\xa2\xc0\x80"),
		EXTRA(MSG_NAME, "\xa1\xc3"),
		EXTRA(MSG_NAME, "\xa3\xed\xa0\x80"),
		EXTRA(MSG_NAME, "\xa3\xe0\x80\x80"),
		EXTRA(MSG_NAME, "\xa4\xf4\x90\x80\x80"),
		EXTRA(MSG_NAME, "\xa4\xf0\x80\x80\x80"),
		EXTRA(MSG_NAME, "\xa3\xe2\x82x"),
		EXTRA(MSG_NAME, "\xa3\xe2\x80\xae"), /* right to left */
		EXTRA(MSG_NAME, "\xa3\xe2\x80\xa8"), /* line separator */
		EXTRA(MSG_NAME, "\xc4\x01x"),
		EXTRA(MSG_NAME, "\xd9\x20"
				"aaaaaaaabbbbbbbbccccccccdddddddd"),
	};
	static const struct extra good[] = {EXTRA(MSG_NAME, "\xa0"),
		EXTRA(MSG_NAME, "\xa2\xc2\xa0"), EXTRA(MSG_NAME, "\xa3\xe2\x82\xac"),
		EXTRA(MSG_NAME, "\xa4\xf0\x9f\x96\xa8"),
		EXTRA(MSG_NAME, "\xbf"
				"aaaaaaaabbbbbbbbccccccccddddddd")};

	check_extras(HELLO_MSG, MIMEO_E_INVALID, bad, ARRAY_SIZE(bad));
	check_extras(HELLO_MSG, 0, good, ARRAY_SIZE(good));
}

/* One model, a map of so many: a name, three sizes, pages, and what else is given. */
#define MODEL(map, rest)                                                                           \
	"\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x28\x91" map                                            \
	"\x24\xa1m\x40\x01\x41\x01\x42\x01\x45\x01" rest

static void test_msg_welcome_with_a_bad_model_is_a_broken_protocol(void **state)
{
	static const struct extra extras[] = {
		EXTRA(MSG_MODELS, "\x01"),
		EXTRA(MSG_STATUS, "\x01"),
		EXTRA(MSG_STATUS, "\xd1\xfe\x00"),
		EXTRA(MSG_MODELS, "\x91\x01"),
	};
	static const struct refused cases[] = {
		REFUSED(WELCOME_MSG, "\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x28\x91\x80",
			MIMEO_E_PROTOCOL, RING_DETAIL_RANGE, MSG_NAME),
		REFUSED(WELCOME_MSG, "\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x28\x91\x81\x40\x00",
			MIMEO_E_PROTOCOL, RING_DETAIL_RANGE, MSG_VOCAB_SIZE),
		REFUSED(WELCOME_MSG, "\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x28\x91\x81\x24\xa1m",
			MIMEO_E_PROTOCOL, RING_DETAIL_RANGE, MSG_VOCAB_SIZE),
		REFUSED(WELCOME_MSG, "\x84\x20\x06\x22\x02\x23\xce\0\1\0\0\x28\x91\x81\x44\xfe",
			MIMEO_E_PROTOCOL, RING_DETAIL_RANGE, MSG_BOS),
		REFUSED(WELCOME_MSG, MODEL("\x85", ""), MIMEO_E_PROTOCOL, RING_DETAIL_RANGE,
			MSG_MAX_BATCH_TOKENS),
		REFUSED(WELCOME_MSG, MODEL("\x86", "\x48\x01"), MIMEO_E_PROTOCOL, RING_DETAIL_RANGE,
			MSG_MAX_ROWS),
		REFUSED(WELCOME_MSG, MODEL("\x88", "\x48\x01\x4b\x01\x17\x01"), MIMEO_E_PROTOCOL,
			RING_DETAIL_RANGE, MSG_MASK_WINDOW, 1), /* of no window */
		REFUSED(WELCOME_MSG, MODEL("\x86", "\x16\x03"), MIMEO_E_PROTOCOL, RING_DETAIL_RANGE,
			MSG_MASK), /* documents are requests' */
		REFUSED(WELCOME_MSG, MODEL("\x86", "\x47\x02"), MIMEO_E_PROTOCOL, RING_DETAIL_RANGE,
			MSG_MASKS),
		REFUSED(WELCOME_MSG, MODEL("\x86", "\x1a\x09"), MIMEO_E_PROTOCOL, RING_DETAIL_RANGE,
			MSG_DRAFT_TOKENS),
	};

	check_extras(WELCOME_MSG, MIMEO_E_PROTOCOL, extras, ARRAY_SIZE(extras));
	check_refused(cases, ARRAY_SIZE(cases));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_msg_handshake_of_another_version_is_named_whatever_else_it_holds),
		cmocka_unit_test(test_msg_hello_that_no_region_fits_is_refused_by_name),
		cmocka_unit_test(test_msg_names_with_control_characters_or_broken_utf8_are_refused),
		cmocka_unit_test(test_msg_welcome_with_a_bad_model_is_a_broken_protocol),
	};

	return cmocka_run_group_tests_name("msg_handshake", tests, setup_codec, teardown_codec);
}
