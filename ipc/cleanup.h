/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_CLEANUP_H
#define MIMEO_IPC_CLEANUP_H

/*
 * Release what a function holds when it returns, by the compiler's cleanup attribute:
 *
 *	CLEANUP(cleanup_close) int fd = open(...);
 *	CLEANUP(cleanup_free) char *text = strdup(...);
 *	...
 *	*ret_fd = STEAL_FD(fd);
 *	return 0;
 */

#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

/* Defines cleanup_NAME for pointers to TYPE: calls FUNCTION unless the pointer is NULL. */
#define DEFINE_CLEANUP(name, type, function)          \
	static inline void cleanup_##name(type **held) \
	{                                              \
		if (*held)                             \
			function(*held);               \
	}

/* Hand over what is held: the variable becomes NULL or -1 and its old value is returned. */
#define STEAL(pointer)                                   \
	__extension__({                                  \
		__typeof__(pointer) stolen_ = (pointer); \
		(pointer) = NULL;                        \
		stolen_;                                 \
	})
#define STEAL_FD(fd)                \
	__extension__({             \
		int stolen_ = (fd); \
		(fd) = -1;          \
		stolen_;            \
	})

static inline void cleanup_free(void *held)
{
	free(*(void **)held);
}

static inline void cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#endif
