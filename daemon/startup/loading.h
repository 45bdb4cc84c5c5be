/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_LOADING_H
#define MIMEO_DAEMON_STARTUP_LOADING_H

/*
 * The sockets while the daemon loads its models. Both are bound: clients connect and wait until the daemon
 * serves, and a thread answers operators: `status` has the state "loading" and the progress; any other
 * request is refused. A connection carries one request, and is closed.
 */

#include "daemon/serve/serve.h"

struct loading;

struct loading_options {
	const char *socket, *admin_socket; /* their locks are held; outlive the loading */
	const char *device;
	uint32_t n_models;
	uint64_t since_ns; /* when the daemon started */
	/* Sockets that were passed; fd -1: it is bound. Taken over, whatever loading_new returns. */
	struct serve_listener clients, operators;
};

/* 0 or -errno. */
int loading_new(const struct loading_options *options, struct loading **ret);
/* Ends the thread and hands the sockets over. */
void loading_end(struct loading *loading, struct serve_listener *ret_clients,
	struct serve_listener *ret_operators);
/* Ends the thread; closes and removes sockets that were not handed over. NULL is allowed. */
void loading_free(struct loading *loading);
/* The process is about to end without loading_free: remove the sockets. From any thread. */
void loading_abandon(void);

#endif
