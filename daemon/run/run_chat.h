/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_CHAT_H
#define MIMEO_DAEMON_RUN_CHAT_H

#include "daemon/run/run_session.h"

/*
 * A chat: one message of the user, if there is a prompt or standard input is no terminal; else lines from the terminal
 * until its end or "/quit". The daemon keeps the history's tokens in a sequence: a turn sends what is new. RUN_OK, or
 * another enum run_exit after a line.
 */
int run_chat(const struct run_session *session);

#endif
