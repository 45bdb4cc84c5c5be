/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_SDK_SESSION_H
#define MIMEO_TESTS_SDK_SESSION_H

/* One fake daemon, one connection to it, and the shortest ways to ask and to look. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <mimeo/mimeo.h>

#include "tests/sdk/fake_daemon.h"

struct session {
	struct fake fake;
	struct mimeo *m;
	struct mimeo_event event; /* last looked at */
	unsigned variant;         /* of its options */
};

/* `config`: entries, arena_bytes and spin_us count; NULL: 8 entries, 64 KiB, no spinning. */
static inline void session_start(struct session *s, const struct fake_script *script,
	const struct mimeo_config *config)
{
	struct mimeo_config c = MIMEO_CONFIG_INIT;

	c.entries = 8;
	c.arena_bytes = 64u << 10;
	c.spin_us = 0;
	if (config)
		c = *config;
	fake_init(&s->fake, script);
	c.socket_path = s->fake.path;
	assert_int_equal(mimeo_connect(&s->m, &c), 0);
	fake_session(&s->fake);
}

static inline void session_stop(struct session *s)
{
	mimeo_close(s->m);
	fake_deinit(&s->fake);
}

/* What a test's session is to be like; NULL: as session_start says. */
struct session_options {
	struct fake_script script;
	uint32_t spin_us;
	unsigned variant; /* the test's own */
};

/* Fixture: *state, a const struct session_options or NULL, becomes a struct session. */
static inline int session_setup(void **state)
{
	static struct session session;
	const struct session_options *options = *state;
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	session = (struct session){.variant = options ? options->variant : 0};
	config.entries = 8;
	config.arena_bytes = 64u << 10;
	config.spin_us = options ? options->spin_us : 0;
	session_start(&session, options ? &options->script : NULL, &config);
	*state = &session;
	return 0;
}

static inline int session_teardown(void **state)
{
	session_stop(*state);
	return 0;
}

#define session_test(name) cmocka_unit_test_setup_teardown(name, session_setup, session_teardown)
/* With a session of these options, initialisers of a struct session_options. */
#define session_test_with(name, ...)                                                               \
	{#name, name, session_setup, session_teardown, &(struct session_options){__VA_ARGS__}}

/* A prepared generate of that many tokens after token 10; its user data is 100 + max_tokens. */
static inline struct mimeo_request *session_generate(struct session *s, uint32_t max_tokens)
{
	const int32_t prompt[] = {9, 10};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(s->m);

	generate.tokens = prompt;
	generate.n_tokens = 2;
	generate.max_tokens = max_tokens;
	assert_non_null(request);
	mimeo_request_set_data(request, 100 + max_tokens);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
	return request;
}

static inline int session_peek(struct session *s)
{
	return mimeo_event_peek(s->m, &s->event);
}

static inline int session_wait(struct session *s)
{
	return mimeo_event_wait(s->m, &s->event, -1);
}

static inline void session_seen(struct session *s)
{
	mimeo_event_seen(s->m, &s->event);
}

/* The daemon pops one entry, which must be there. */
static inline struct ring_sqe session_pop(struct session *s)
{
	struct ring_sqe sqe;

	assert_int_equal(fake_pop(&s->fake, &sqe), 1);
	return sqe;
}

/* The daemon says that n tokens of a generate are there. */
static inline void session_tokens(struct session *s, const struct ring_sqe *sqe, uint32_t n)
{
	struct ring_cqe cqe = fake_final(sqe);

	fake_write(&s->fake, sqe, n);
	cqe.kind = RING_CQE_TOKENS;
	cqe.n_generated = n;
	fake_push(&s->fake, &cqe);
}

/* The daemon ends a request with that status. */
static inline void session_final(struct session *s, const struct ring_sqe *sqe, int32_t status)
{
	struct ring_cqe cqe = fake_final(sqe);

	cqe.status = status;
	fake_push(&s->fake, &cqe);
}

#endif
