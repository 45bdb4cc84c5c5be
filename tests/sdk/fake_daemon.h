/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_SDK_FAKE_DAEMON_H
#define MIMEO_TESTS_SDK_FAKE_DAEMON_H

/*
 * A daemon without a model, in the test's process. fake_init listens in a folder of its own and
 * answers HELLOs on a thread; the newest connection is the session. From then on either
 *
 *	the test plays the daemon: fake_pop, fake_push, fake_hang_up: nothing happens unasked; or
 *	fake_serve starts a thread that answers, until fake_deinit or the session's end.
 *
 * Its "model" continues a prompt by counting: after token t come t + 1, t + 2, ... modulo 256.
 * Logits of a row are 1000 * row + index, hidden values 0.5 more.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ipc/msg.h"
#include "ipc/region.h"
#include "ipc/socket.h"

#define FAKE_VOCAB 256u
#define FAKE_HIDDEN 16u
#define FAKE_MAX_SEQ_LEN 512u
#define FAKE_BATCH_TOKENS 64u
#define FAKE_DRAFT_TOKENS 4u
#define FAKE_BOS 1
#define FAKE_EOS 2

/* How it greets, and how it answers when it serves. */
struct fake_script {
	int32_t welcome_status;
	const char *welcome_text;    /* NULL: none */
	uint32_t max_sequences;      /* 0: 8 */
	uint32_t tokens_a_completion; /* of a generate; 0: all in the final one */
	const void *raw_welcome;     /* sent in WELCOME's place */
	size_t raw_welcome_bytes;
	unsigned n_fds;              /* sent with WELCOME; 0: 3, with lives 5 */
	bool lives;                  /* it sends descriptors that report its death (fake_life_end) */
	bool silent;                 /* never answers HELLO */
	bool stalled;                /* greets, and then does nothing: the caller heeds it */
	bool wide;                   /* its second model, of a larger vocabulary, comes first */
	bool hang_up_midway;         /* after the first tokens of a generate */
	bool spin;                   /* never sleeps while serving */
	uint32_t claim_entries;      /* WELCOME's entries; 0: the truth */
	bool no_masks;               /* its models take none */
	struct mimeo_mask default_mask; /* of its models */
	bool no_draft;               /* its models have none; else FAKE_DRAFT_TOKENS */
	struct mimeo_mask *ret_mask;   /* where that of a generate it serves goes; NULL: nowhere */
};

struct fake {
	struct fake_script script;
	char folder[64];
	char path[SOCKET_PATH_MAX];
	int listener, lock, stop;
	pthread_t greeter, server;
	bool serving;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* the session, under the mutex until greeted, the server's or the test's afterwards */
	bool greeted;
	int socket, sq_bell, cq_bell;
	int lives[MSG_LIFE_FDS]; /* with script.lives */
	struct region region;
	struct msg_hello hello;
	struct msg_codec *codec;
	_Atomic bool quit;
	uint32_t draft_tokens, first_token_ms; /* of the last generate request that was answered */
	_Atomic uint32_t n_rings; /* doorbells rung for the client */
};

void fake_init(struct fake *fake, const struct fake_script *script);
/* Ends serving and the session, removes the folder. */
void fake_deinit(struct fake *fake);
/* Remove the folder now: no client can connect any more. For a process that will not come to
 * fake_deinit. */
void fake_folder_remove(const struct fake *fake);

/* Wait until a session stands. Call after mimeo_connect, before any of the following. */
void fake_session(struct fake *fake);
/* The next submission: 1, or 0. */
int fake_pop(struct fake *fake, struct ring_sqe *ret);
/* Post one completion and ring if the client sleeps. */
void fake_push(struct fake *fake, const struct ring_cqe *cqe);
/* A completion for a submission, FINAL, status 0, everything else zero. */
struct ring_cqe fake_final(const struct ring_sqe *sqe);
/* Write n_tokens counted on from the prompt into the output area, and logits if asked for. */
void fake_write(struct fake *fake, const struct ring_sqe *sqe, uint32_t n_tokens);
/* Answer a submission wholly, as the serving thread does. False if it hung up. */
bool fake_answer(struct fake *fake, const struct ring_sqe *sqe);
void fake_ring(struct fake *fake);
void fake_hang_up(struct fake *fake);
/* One of the two descriptors reports its death while the socket is still open. */
void fake_life_end(struct fake *fake, unsigned which);
/* Send bytes on the socket. */
void fake_say(struct fake *fake, const void *data, size_t size);
void fake_serve(struct fake *fake);

#endif
