/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_DRY_H
#define MIMEO_TESTS_DAEMON_DRY_H

/*
 * A rig whose engine computes nothing and has no thread: a test turns it by hand, and a launched step ends
 * when the test says so, on a clock of the test's own. All the rest is the engine's: rings, intake, admission,
 * scheduling, results.
 *
 * In place of keys and values each page has, for each of its tokens, the token and a hash of the sequence up
 * to it. A step writes those of its rows by the block tables that the device has, and looks whether the pages
 * before hold the row's own history: a page that was given to two sequences, evicted too early or copied too
 * late is found. The sampled token is made from the hash, so that dry_follow can compute the right answer of a
 * request. Preemption does not change it.
 *
 * Programs that use it are linked with the wraps of dry_wraps in meson.build. Always the cpu device.
 */

#include "tests/daemon/rig.h"

#include "daemon/engine/lane/lane.h"

#define DRY_SEED UINT64_C(0x6d696d656f) /* the hash of no tokens */
#define DRY_CLIENTS 256

struct dry_place {
	uint64_t before, hash; /* of the sequence ahead of the token, and with it */
	int32_t id;
};

struct dry {
	struct rig rig;
	struct engine *engine;
	struct dry_place *places; /* [pages, 16] */
	uint32_t *tables;         /* [slots, pages of a sequence] as the device has them */
	int32_t *last;            /* [slots] last tokens */
	uint32_t max_pages;
	struct {
		uint64_t *flag, step, *began, *ended, ns;
	} pending[LANE_STEPS]; /* launched steps, the oldest first */
	uint32_t n_pending;
	uint64_t n_rows, n_turns;
	uint64_t step_ns, token_ns; /* what the device's clock says a step took: step_ns and token_ns a token */
	uint32_t check_every; /* turns between two whole checks of the engine; 0: 1 */
	/* Each launched row; NULL is fine. */
	void (*on_row)(struct dry *dry, const struct sequence *sequence, const struct step_row *row);
	void *userdata;
};

/* The virtual clock, nanoseconds; each look at it takes one. */
extern _Atomic uint64_t dry_now_ns;

void dry_open(struct dry *dry, const struct rig_options *options);
/* All clients are detached. Checks that no page, slot or sequence is missing. */
void dry_close(struct dry *dry);
/* A client of a user, by rig.h; takes its place in a few turns. */
void dry_attach(struct dry *dry, struct rig_client *ret, uint32_t entries, uid_t uid, uint32_t weight);
void dry_detach(struct dry *dry, struct rig_client *client);
/* Turns until one finds nothing. Returns how many did something. */
uint32_t dry_turns(struct dry *dry);
/* The oldest launched step ends; false: there is none. */
bool dry_end_step(struct dry *dry);
/* n times: turns, and then the end of a step. */
void dry_steps(struct dry *dry, uint32_t n);
/* Until nothing is left to do. */
void dry_settle(struct dry *dry);

/* The hash with n tokens more. */
uint64_t dry_hash(uint64_t hash, const int32_t *ids, uint32_t n);
/* What is sampled behind such a sequence. */
int32_t dry_sample(uint64_t hash);
/* The n tokens are what is generated behind a sequence of that hash; returns the hash with them. */
uint64_t dry_follow(uint64_t hash, const int32_t *tokens, uint32_t n);

#endif
