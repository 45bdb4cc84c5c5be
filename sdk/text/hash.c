/* SPDX-License-Identifier: MIT */
#include "sdk/text/hash.h"

#include <sys/random.h>
#include <time.h>

uint64_t hash_seed(void)
{
	uint64_t seed;

	if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == sizeof(seed))
		return seed;
	/* Early at boot there is no randomness yet. */
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return hash_word((uint64_t)now.tv_sec, (uint64_t)now.tv_nsec);
}
