/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_IPC_RAW_MSG_H
#define MIMEO_TESTS_IPC_RAW_MSG_H

/* Messages as bytes, for what the encoders would refuse to write. */

#include <mimeo/types.h>

#include "ipc/msg_table.h"
#include "tests/ipc/test.h"

/* The least that each decoder takes. */
#define GENERATE "\x82\x0f\x01\x03\x01"
#define STEP "\x82\x0e\x01\x0d\x01"
#define HELLO "\x83\x20\x06\x22\x02\x23\xce\0\1\0\0"
#define WELCOME "\x83\x20\x06\x22\x02\x23\xce\0\1\0\0"

#define U64_MAX "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"

enum kind { GENERATE_MSG, STEP_MSG, HELLO_MSG, WELCOME_MSG };

extern struct msg_codec *codec; /* from setup_codec to teardown_codec */
int setup_codec(void **state);
int teardown_codec(void **state);

int decode(enum kind kind, const void *bytes, size_t n, struct msg_detail *ret_detail);

/* A field: its key, and the bytes of its value. */
struct extra {
	unsigned key;
	const char *value;
	size_t n;
};
#define EXTRA(key, value)                                                                          \
	{                                                                                          \
		key, value, sizeof(value) - 1                                                      \
	}
/* Each value, added to the least message, is accepted (status 0), or refused as that field. */
void check_extras(enum kind kind, int status, const struct extra *extras, size_t n);

struct refused {
	enum kind kind;
	const char *bytes;
	size_t n;
	int status;
	struct msg_detail detail;
};
#define REFUSED(kind, bytes, status, detail, ...)                                                  \
	{                                                                                          \
		kind, bytes, sizeof(bytes) - 1, status,                                            \
		{                                                                                  \
			detail,                                                                    \
			{                                                                          \
				__VA_ARGS__                                                        \
			}                                                                          \
		}                                                                                  \
	}
void check_refused(const struct refused *cases, size_t n);

#endif
