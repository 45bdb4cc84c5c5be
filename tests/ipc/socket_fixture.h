/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_IPC_SOCKET_FIXTURE_H
#define MIMEO_TESTS_IPC_SOCKET_FIXTURE_H

#include <dirent.h>

#include "tests/ipc/test.h"

/* Long enough that only a hang is as slow. */
#define LONG_MS 60000u

static inline int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

#endif
