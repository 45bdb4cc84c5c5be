/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_STATUS_H
#define MIMEO_IPC_STATUS_H

/*
 * The one list of statuses that cross the wire: name, value, sentence. The public header repeats
 * the values (it is self-contained); sdk/status.c asserts that they agree.
 */

#define STATUS_LIST(X)                                                                             \
	X(OK, 0, "done")                                                                           \
	X(E_FULL, -1, "no room in the ring or the arena")                                          \
	X(E_INVALID, -2, "an argument is out of range")                                            \
	X(E_DEADLINE, -3, "the deadline passed before the request was done")                       \
	X(E_CANCELLED, -4, "the request was cancelled")                                            \
	X(E_TOO_LONG, -5, "more tokens than the model or its KV cache can hold")                   \
	X(E_NO_MEMORY, -6, "no memory: KV pages, or this process's own")                           \
	X(E_UNKNOWN_MODEL, -7, "the daemon serves no such model")                                  \
	X(E_UNKNOWN_SEQUENCE, -8, "the sequence is not open in this session")                      \
	X(E_UNKNOWN_REQUEST, -9, "the request is not in flight")                                   \
	X(E_UNSUPPORTED, -10, "this daemon or model cannot do that")                               \
	X(E_UNKNOWN_BUFFER, -11, "the device buffer is not open in this session")                  \
	X(E_DENIED, -12, "the daemon's configuration does not allow that")                         \
	X(E_GONE, -100, "the daemon is gone, or it closed this session")                           \
	X(E_QUOTA, -101, "a limit of this user or session is reached")                             \
	X(E_PROTOCOL, -102, "the peer sent what is not Mimeo's protocol")                          \
	X(E_UNREACHABLE, -200, "no daemon answers on the socket")                                  \
	X(E_VERSION, -201, "client and daemon speak different protocol versions")                  \
	X(E_DEVICE_LOST, -202, "the device failed; the daemon has to restart")                     \
	X(E_DRAINING, -203, "the daemon is shutting down and takes no new work")

#define STATUS_ENUM_(name, value, sentence) STATUS_##name = value,
enum status { STATUS_LIST(STATUS_ENUM_) };
#undef STATUS_ENUM_

/* "MIMEO_E_FULL"; "MIMEO_E_?" if unknown. */
const char *status_name(int status);
/* The sentence; "unknown status" if unknown. */
const char *status_sentence(int status);

#endif
