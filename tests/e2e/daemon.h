/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_DAEMON_H
#define MIMEO_TESTS_E2E_DAEMON_H

/*
 * A private mimeod: made in a folder of its own, with options, started, looked at, stopped, killed,
 * started again. Functions fail the running test (cmocka) if the daemon does not do as it should.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "tests/e2e/process.h"

#define DAEMON_OPTIONS_MAX 48

struct mimeo;

struct daemon {
	char folder[64];
	char socket[96], log[96];
	const char *argv[DAEMON_OPTIONS_MAX + 1];
	unsigned argc;
	pid_t pid; /* 0: not running */
	int admin; /* connection to the operators' socket, -1: none yet */
	unsigned n_passed; /* listening sockets, as of a service manager */
	int passed[2];     /* stay the test's */
	bool takes_rights; /* as on kernels before 6.16, where any process may send descriptors */
};

/* The model of MIMEO_MODEL, one of those in examples/models; tinycalc unless it says another. */
const char *test_model(void);
/* A folder, and the command line: that model on the device of MIMEO_DEVICE, four graphs, 512
 * pages. */
void daemon_init(struct daemon *daemon);
/* Add an option; a later one replaces an earlier one. The strings must live on. */
void daemon_option(struct daemon *daemon, const char *name, const char *value);
/* Another of the shipped models in its place; the last one named is every daemon's. */
void daemon_model(struct daemon *daemon, const char *name);
/* Kill it if it runs, remove the folder. */
void daemon_deinit(struct daemon *daemon);

/* Start the process and do not wait. */
void daemon_launch(struct daemon *daemon);
/* Start it and wait until it serves. */
void daemon_start(struct daemon *daemon);
/* SIGTERM, and it must end with status 0. */
void daemon_stop(struct daemon *daemon);
void daemon_kill(struct daemon *daemon);
/* Wait for its end by itself: its exit status, 128 + a signal, or -1. */
int daemon_wait(struct daemon *daemon);
/* Stop the process where it is (SIGSTOP), and wait until it stands; let it go on. */
void daemon_pause(struct daemon *daemon);
void daemon_go_on(struct daemon *daemon);
bool daemon_is_alive(const struct daemon *daemon);
bool daemon_log_has(const struct daemon *daemon, const char *text);
void daemon_log_show(const struct daemon *daemon);

/* A number of mimeoctl's listing `op`, in the given row; -1 where it is not there. */
int64_t daemon_number(struct daemon *daemon, const char *op, unsigned row, const char *key);
/* status, row 0 */
int64_t daemon_count(struct daemon *daemon, const char *key);
/* The sum of a metric's values, by its name with the prefix mimeo_; -1 if the daemon does not answer or has no such
 * metric. */
int64_t daemon_metric(struct daemon *daemon, const char *name);

/* What clients hold of the daemon. */
struct holdings {
	int64_t pages_free, slots_free, sequences, running, waiting, sessions;
	int64_t n_fds;
};
struct holdings daemon_holdings(struct daemon *daemon);
/* Wait until they are as they were, else fail the test and say what differs. */
void daemon_assert_settles(struct daemon *daemon, const struct holdings *before);

/*
 * One daemon for all tests of a program. The first four are a group's setups and teardown: made with
 * these options (name, value, ..., NULL) or none, started, and *state of each test. The others are
 * a test's own: whatever it tried, what clients hold of the daemon is in the end what it was.
 */
extern struct daemon group_daemon;
extern struct holdings group_idle; /* when the test began */
int group_daemon_start_with(void **state, const char *const *options);
int group_daemon_start(void **state);
/* No token comes while group_hold_file exists. */
int group_daemon_start_held(void **state);
extern char group_hold_file[96];
int group_daemon_end(void **state);
int group_daemon_begin(void **state);
int group_daemon_settle(void **state);
#define GROUP_TEST(test) cmocka_unit_test_setup_teardown(test, group_daemon_begin, group_daemon_settle)

/* In a child: attach, or end it. */
struct mimeo *daemon_connect_child(const struct daemon *daemon, uint32_t spin_us);
/* Attach with these settings (0: default), or fail the test. */
struct mimeo *daemon_connect(struct daemon *daemon, uint32_t entries, uint64_t arena_bytes);

#endif
