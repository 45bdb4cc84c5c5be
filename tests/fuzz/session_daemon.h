/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_FUZZ_SESSION_DAEMON_H
#define MIMEO_TESTS_FUZZ_SESSION_DAEMON_H

/* The daemon of fuzz_session.c: all of mimeod, on threads of the fuzzer's process. */

#include <stdio.h>
#include <stdlib.h>

#define CLAIM(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "not so: %s\n", #condition);                               \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

extern char session_daemon_socket[96];

/* Made and serving, or the process ends. */
void session_daemon_start(void);
/* After a first session: what is there now is what each input has to leave. */
void session_daemon_settle(void);
/* Wait until no session holds resources; abort if that does not happen. */
void session_daemon_await_idle(void);

#endif
