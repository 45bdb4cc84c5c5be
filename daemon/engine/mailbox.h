/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_MAILBOX_H
#define MIMEO_DAEMON_ENGINE_MAILBOX_H

/* Commands from other threads to the engine's: the engine_post_* of engine.h. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct command;
struct engine;

struct mailbox {
	pthread_mutex_t lock;
	struct command *commands; /* in order of posting */
	_Atomic bool waits;       /* there is one */
	uint32_t n_ports;         /* attached, as the loop thread counts */
};

void mailbox_init(struct mailbox *mailbox);
void mailbox_deinit(struct mailbox *mailbox);
/* Carry out what was posted. True if there was anything. */
bool mailbox_take(struct engine *engine);

#endif
