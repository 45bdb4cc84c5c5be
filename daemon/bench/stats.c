/* SPDX-License-Identifier: MIT */
#include "daemon/bench/stats.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

static size_t stats_bytes(uint32_t capacity)
{
	return sizeof(struct samples) + capacity * sizeof(uint64_t);
}

struct samples *samples_new(uint32_t capacity)
{
	/* Populated, so that no page fault occurs while measuring. */
	struct samples *samples = mmap(NULL, stats_bytes(capacity), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (samples == MAP_FAILED)
		return NULL;
	samples->capacity = capacity;
	return samples;
}

int samples_make(struct samples **ret, uint32_t n, uint32_t capacity)
{
	int rc = 0;

	for (uint32_t i = 0; i < n; i++) {
		ret[i] = samples_new(capacity);
		rc = ret[i] ? rc : -ENOMEM;
	}
	return rc;
}

void samples_free(struct samples *samples)
{
	if (samples)
		munmap(samples, stats_bytes(samples->capacity));
}

void samples_add(struct samples *samples, uint64_t ns)
{
	uint32_t i = samples->n++;

	if (i < samples->capacity)
		samples->ns[i] = ns;
	else
		samples->n = samples->capacity;
	samples->sorted = false;
}

static int stats_compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

double samples_quantile(struct samples *samples, double fraction)
{
	if (samples->n == 0)
		return NAN;
	if (!samples->sorted)
		qsort(samples->ns, samples->n, sizeof(samples->ns[0]), stats_compare);
	samples->sorted = true;
	double rank = ceil(fraction * samples->n);
	uint32_t index = rank < 1 ? 0 : rank > samples->n ? samples->n - 1 : (uint32_t)rank - 1;
	return (double)samples->ns[index] * 1e-9;
}

double samples_mean(const struct samples *samples)
{
	double sum = 0;

	for (uint32_t i = 0; i < samples->n; i++)
		sum += (double)samples->ns[i] * 1e-9;
	return samples->n ? sum / samples->n : NAN;
}
