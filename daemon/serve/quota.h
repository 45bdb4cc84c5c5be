/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_QUOTA_H
#define MIMEO_DAEMON_SERVE_QUOTA_H

/*
 * Users' shares of the resources that the daemon divides: sessions, memory and descriptors, each with a total.
 *
 * A user may have the part of each that daemon/engine/quota_rule.h says.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/msg.h"

enum quota_resource {
	QUOTA_SESSIONS,
	QUOTA_SHARED_BYTES,   /* of regions */
	QUOTA_SEQUENCE_BYTES, /* of what sessions' sequences and requests may take in the daemon */
	QUOTA_BUFFER_BYTES,   /* of device buffers */
	QUOTA_DESCRIPTORS,
	QUOTA_N,
};

struct quota_amounts {
	uint64_t of[QUOTA_N];
};

struct quota;

/* 0 or -ENOMEM. */
int quota_new(const struct quota_amounts *totals, struct quota **ret);
/* Who holds more than these allow keeps it. */
void quota_set_totals(struct quota *quota, const struct quota_amounts *totals);
/* NULL is allowed. */
void quota_free(struct quota *quota);

/* How much more the user may have now. */
uint64_t quota_left(const struct quota *quota, uid_t uid, enum quota_resource resource);
/* Would these be granted now? Otherwise text[size] says what is asked for and what is left. */
bool quota_fits(const struct quota *quota, uid_t uid, const struct quota_amounts *amounts, char *text,
	size_t size);
/* text[size] says what a user may not have, by whatever limit; refusal->whom is not used. */
void quota_refuse(const struct msg_quota *refusal, uid_t uid, char *text, size_t size);
/* The same where a user asks for one more of `what` and already has the limit, `most`. */
void quota_refuse_one(const char *what, uint32_t most, uid_t uid, char *text, size_t size);
/* Could these be granted if all else were released? */
bool quota_may_fit(const struct quota *quota, const struct quota_amounts *amounts);

/* All of them or nothing. 0, -EDQUOT or -ENOMEM. */
int quota_charge(struct quota *quota, uid_t uid, const struct quota_amounts *amounts);
void quota_release(struct quota *quota, uid_t uid, const struct quota_amounts *amounts);

/* Each user who holds something. */
void quota_each(const struct quota *quota, void (*each)(void *userdata, uid_t uid), void *userdata);
/* "shared memory"; the setting that limits it; is it in bytes? */
const char *quota_name(enum quota_resource resource);
const char *quota_setting(enum quota_resource resource);
bool quota_in_bytes(enum quota_resource resource);

/* What all users hold; and one. */
uint64_t quota_used(const struct quota *quota, enum quota_resource resource);
uint64_t quota_used_by(const struct quota *quota, uid_t uid, enum quota_resource resource);

#endif
