/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_REQUEST_LOG_H
#define MIMEO_DAEMON_ENGINE_REQUEST_LOG_H

/*
 * Generate and step requests that have ended, from the engine's thread to the loop thread: a ring of fixed size, in
 * which nobody waits for the other. If the loop thread is late, records are lost and counted. Off until the loop thread
 * switches it on; then a record costs a copy: no allocation, lock or system call.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define REQUEST_LOG_SIZE 4096u

struct request_record {
	uint64_t id; /* as mimeoctl requests has it; 0: it was refused when it was submitted */
	uint32_t session;
	pid_t pid;
	uid_t uid;
	char client[32];
	char model[64]; /* a copy: the record may outlive the model; "": it was refused */
	const char *op, *class; /* "generate", "step"; "normal"; static; class NULL: it was refused */
	int status;
	unsigned finish;
	uint32_t n_prompt, n_cached, n_generated;
	/* CLOCK_MONOTONIC; 0: unknown, or it did not come so far */
	uint64_t submitted_ns, started_ns, first_token_ns, ended_ns;
};

struct request_log {
	_Atomic bool on;
	_Atomic uint64_t n_written, n_read, n_lost;
	struct request_record records[REQUEST_LOG_SIZE];
};

static inline bool request_log_is_on(const struct request_log *log)
{
	return atomic_load_explicit(&log->on, memory_order_relaxed);
}

/* The engine's thread. */
static inline void request_log_put(struct request_log *log, const struct request_record *record)
{
	uint64_t n = atomic_load_explicit(&log->n_written, memory_order_relaxed);

	if (n - atomic_load_explicit(&log->n_read, memory_order_acquire) == REQUEST_LOG_SIZE) {
		atomic_fetch_add_explicit(&log->n_lost, 1, memory_order_relaxed);
		return;
	}
	log->records[n % REQUEST_LOG_SIZE] = *record;
	atomic_store_explicit(&log->n_written, n + 1, memory_order_release);
}

/* The loop thread: take the oldest, or false. */
static inline bool request_log_take(struct request_log *log, struct request_record *ret)
{
	uint64_t n = atomic_load_explicit(&log->n_read, memory_order_relaxed);

	if (n == atomic_load_explicit(&log->n_written, memory_order_acquire))
		return false;
	*ret = log->records[n % REQUEST_LOG_SIZE];
	atomic_store_explicit(&log->n_read, n + 1, memory_order_release);
	return true;
}

#endif
