/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_COST_H
#define MIMEO_TESTS_BENCH_COST_H

/* Kernels beside a floor that is made of bytes and operations. */

#include "daemon/bench/bench.h"
#include "daemon/bench/probe.h"

/* The rates of a device that floors are made of. */
struct rates {
	double copy;    /* bytes read and written a second by a large device copy */
	double product; /* operations a second of a large GEMM */
};

/* What is timed; the floor is the time of its bytes or of its operations at these rates, whichever is
 * longer. seconds NAN: not measured. */
struct cost {
	double bytes, flop, seconds;
};

/* Measure the rates of the device, which the results name from now on; the memory that this takes is
 * released. 0 or what went wrong. */
int cost_rates(struct probe *probe, struct results *results, struct rates *ret);
/* The row's values of time, floor and rates. */
void cost_values(struct results *results, const struct rates *rates, const struct cost *cost);

/* The weights that products are measured with, by number: plain ones, then enum packed_kind's in groups. */
struct cost_form {
	const char *name;
	enum dtype dtype; /* BF16: the device's activations' */
};
extern const struct cost_form cost_forms[3];
/* Bytes of a matrix. */
uint64_t cost_weight_bytes(uint32_t rows, uint32_t cols, enum dtype dtype);

/* Device memory full of random numbers, as probe_take; *ret is a pointer to an object. */
struct cost_memory {
	void *ret;
	uint64_t bytes;
	enum dtype dtype;
};
int cost_take(struct probe *probe, const struct cost_memory *memory, uint32_t n);

#endif
