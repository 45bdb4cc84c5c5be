/* SPDX-License-Identifier: MIT */
#include <mimeo/types.h>

#define STATUSES(X)                                                                                \
	X(MIMEO_OK, "done")                                                                        \
	X(MIMEO_E_FULL, "no space in the ring or the arena")                                        \
	X(MIMEO_E_INVALID, "an argument is out of range")                                          \
	X(MIMEO_E_DEADLINE, "the deadline passed before the request was done")                     \
	X(MIMEO_E_CANCELLED, "the request was cancelled")                                          \
	X(MIMEO_E_TOO_LONG, "more tokens than the model or its KV cache can hold")                 \
	X(MIMEO_E_NO_MEMORY, "no memory: KV pages, or this process's own")                         \
	X(MIMEO_E_UNKNOWN_MODEL, "the daemon serves no such model")                                \
	X(MIMEO_E_UNKNOWN_SEQUENCE, "the sequence is not open in this session")                    \
	X(MIMEO_E_UNKNOWN_REQUEST, "the request is not in flight")                                 \
	X(MIMEO_E_UNSUPPORTED, "this daemon or model cannot do that")                              \
	X(MIMEO_E_UNKNOWN_BUFFER, "the device buffer is not open in this session")                 \
	X(MIMEO_E_DENIED, "the daemon's configuration does not allow that")                        \
	X(MIMEO_E_NOT_FINITE, "the model gave logits that are not finite")                         \
	X(MIMEO_E_NO_TOKEN, "no allowed token has a finite logit")                                 \
	X(MIMEO_E_GONE, "the daemon is gone, or it closed this session")                           \
	X(MIMEO_E_QUOTA, "a limit of this user or session is reached")                             \
	X(MIMEO_E_PROTOCOL, "the peer sent what is not Mimeo's protocol")                          \
	X(MIMEO_E_UNREACHABLE, "no daemon answers on the socket")                                  \
	X(MIMEO_E_VERSION, "client and daemon speak different protocol versions")                  \
	X(MIMEO_E_DEVICE_LOST, "the device failed; the daemon has to restart")                     \
	X(MIMEO_E_DRAINING, "the daemon is shutting down and takes no new work")

/* No default labels: the compiler warns of a status that is missing. */

const char *mimeo_status_name(int status)
{
	switch ((enum mimeo_status)status) {
#define NAME(status, sentence)                                                                     \
	case status:                                                                               \
		return #status;
		STATUSES(NAME)
#undef NAME
	}
	return "MIMEO_E_?";
}

const char *mimeo_strerror(int status)
{
	switch ((enum mimeo_status)status) {
#define SENTENCE(status, sentence)                                                                 \
	case status:                                                                               \
		return sentence;
		STATUSES(SENTENCE)
#undef SENTENCE
	}
	return "unknown status";
}
