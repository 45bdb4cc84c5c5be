/* SPDX-License-Identifier: MIT */
#include "tests/ipc/raw_msg.h"

#include <string.h>

struct msg_codec *codec;

int setup_codec(void **state)
{
	return msg_codec_new(&codec);
}

int teardown_codec(void **state)
{
	msg_codec_free(codec);
	msg_codec_free(NULL);
	return 0;
}

int decode(enum kind kind, const void *bytes, size_t n, struct msg_detail *ret_detail)
{
	static struct msg_welcome welcome;
	struct msg_generate generate;
	struct msg_step step;
	struct msg_hello hello;

	switch (kind) {
	case GENERATE_MSG:
		return msg_generate_decode(codec, bytes, n, &generate, ret_detail);
	case STEP_MSG:
		return msg_step_decode(codec, bytes, n, &step, ret_detail);
	case HELLO_MSG:
		return msg_hello_decode(codec, bytes, n, &hello, ret_detail);
	case WELCOME_MSG:
		return msg_welcome_decode(codec, bytes, n, &welcome, ret_detail);
	}
	return 1;
}

/* Raw bytes of one map: its first bytes, then one more field. */
struct raw {
	uint8_t bytes[MSG_SOCKET_MAX];
	size_t n;
};

static struct raw raw_with(
	const char *base, size_t base_n, unsigned key, const char *value, size_t n)
{
	static struct raw raw;

	memcpy(raw.bytes, base, base_n);
	raw.n = base_n;
	if (value) {
		raw.bytes[0]++;
		raw.bytes[raw.n++] = (uint8_t)key;
		memcpy(raw.bytes + raw.n, value, n);
		raw.n += n;
	}
	return raw;
}

void check_extras(enum kind kind, int status, const struct extra *extras, size_t n)
{
	static const struct {
		const char *bytes;
		size_t n;
	} least[] = {{GENERATE, sizeof(GENERATE) - 1}, {STEP, sizeof(STEP) - 1},
		{HELLO, sizeof(HELLO) - 1}, {WELCOME, sizeof(WELCOME) - 1}};

	for (size_t i = 0; i < n; i++) {
		struct raw raw = raw_with(least[kind].bytes, least[kind].n, extras[i].key,
			extras[i].value, extras[i].n);
		struct msg_detail detail = {.detail = 99};
		int r = decode(kind, raw.bytes, raw.n, &detail);

		if (r != status)
			fail_msg("%s (%zu): status %d", msg_field_name(extras[i].key), i, r);
		assert_int_equal(detail.detail, status ? RING_DETAIL_RANGE : RING_DETAIL_NONE);
		assert_int_equal(detail.values[0], status ? (int)extras[i].key : 0);
	}
}

void check_refused(const struct refused *cases, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct msg_detail detail = {.detail = 99};
		int r = decode(cases[i].kind, cases[i].bytes, cases[i].n, &detail);

		if (r != cases[i].status)
			fail_msg("case %zu: status %d", i, r);
		assert_int_equal(detail.detail, cases[i].detail.detail);
		assert_memory_equal(detail.values, cases[i].detail.values, sizeof(detail.values));
	}
}
