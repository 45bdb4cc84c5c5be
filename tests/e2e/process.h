/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_PROCESS_H
#define MIMEO_TESTS_E2E_PROCESS_H

/*
 * Processes of a test: they die with it (PR_SET_PDEATHSIG), they are waited for with a limit, and
 * the test itself ends by a watchdog, so that a deadlock is a failure and never a hang.
 *
 * The limits are against hangs only; no test is meant to come near one on a slow machine.
 */

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PATIENCE_MS 60000u /* for whatever has to happen */
#define WATCHDOG_SECONDS 540

/* After so many seconds the program ends with status 1, and with it all its children. */
void watchdog(unsigned seconds);

uint64_t now_ns(void);
uint64_t now_ms(void);
void pause_ms(unsigned ms);

/* Wait until the expression is true: false after PATIENCE_MS. */
#define EVENTUALLY(expression)                                                                     \
	__extension__({                                                                            \
		uint64_t until_ = now_ms() + PATIENCE_MS;                                          \
		bool true_;                                                                        \
		while (!(true_ = (expression)) && now_ms() < until_)                               \
			pause_ms(1);                                                               \
		true_;                                                                             \
	})

/* In a child, where cmocka's assertions would go on with the parent's tests. */
#define CHILD_EXPECT(expression)                                                                   \
	do {                                                                                       \
		if (!(expression)) {                                                               \
			fprintf(stderr, "%s:%d: child: not so: %s\n", __FILE__, __LINE__,          \
				#expression);                                                      \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* fork; the child is killed when this process ends. */
pid_t process_fork(void);
/* fork, and the child ends with fn's value. */
pid_t process_run(int (*fn)(void *arg), void *arg);
/* The wait status, or -1 if it has not ended within timeout_ms. */
int process_wait(pid_t pid, unsigned timeout_ms);
/* Its exit status, 128 + the signal that killed it, or -1. */
int process_exit_status(pid_t pid, unsigned timeout_ms);
/* kill -9 and wait. */
void process_kill(pid_t pid);
uint32_t process_n_fds(pid_t pid);
/* To standard error: what each is open on. */
void process_show_fds(pid_t pid);
uint32_t process_n_threads(pid_t pid);

/* A memfd of so many bytes with these seals (F_SEAL_...), or -1. MEMFD_SEALS: those that the daemon wants
 * of what it imports. */
#define MEMFD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
int memfd_of(size_t bytes, int seals);

/* Zeroed memory shared with children forked later. */
void *shared_new(size_t bytes);
void shared_free(void *memory, size_t bytes);

struct program_output {
	int status;          /* as process_exit_status */
	char text[64 << 10]; /* standard output and error together */
};
/* Run a program to its end. argv[0] is a path; NULL-terminated. */
void program_run(const char *const *argv, struct program_output *ret);

/* The file's text (malloc), or NULL. */
char *file_text(const char *path, size_t *ret_size);
void file_write(const char *path, const void *data, size_t size);
void folder_remove(const char *path);
/* $MIMEO_BUILD or $MIMEO_SOURCE, a slash and the name; static storage for 8 of them. */
const char *build_path(const char *name);
const char *source_path(const char *name);

#endif
