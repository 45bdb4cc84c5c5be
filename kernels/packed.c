/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "kernels/convert.h"
#include "kernels/packed.h"

bool packed_takes_factor(float factor)
{
	return !(bits_of_float(factor) & PACKED_ZERO_BITS);
}

static void packed_factors(uint8_t *ret, enum dtype dtype, const float *factors, const uint8_t *zeros)
{
	for (uint32_t r = 0; r < packed_groups(dtype) * PACKED_ROWS; r++) {
		uint32_t bits = bits_of_float(factors[r]);

		if (zeros) {
			assert(packed_takes_factor(factors[r]) && zeros[r] <= PACKED_ZERO_BITS);
			bits |= zeros[r];
		}
		memcpy(ret + r * sizeof(bits), &bits, sizeof(bits));
	}
}

static uint64_t packed_load(const uint8_t *codes)
{
	uint64_t eight;

	memcpy(&eight, codes, sizeof(eight));
	return eight;
}

/* The four low bytes at the even places of eight. */
static uint64_t packed_spread(uint64_t bytes)
{
	bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffu;
	return (bytes | bytes << 8) & 0x00ff00ff00ff00ffu;
}

/* The same word of a row's four lanes: word i has bytes 2 i and 2 i + 1 of `even` in its bytes 0 and 2, those of
 * `odd` in its bytes 1 and 3. */
static void packed_words(uint8_t *ret, uint64_t even, uint64_t odd)
{
	const uint64_t halves[] = {packed_spread(even & UINT32_MAX) | packed_spread(odd & UINT32_MAX) << 8,
		packed_spread(even >> 32) | packed_spread(odd >> 32) << 8};

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t word = (uint32_t)(halves[i / 2] >> i % 2 * 32);

		memcpy(ret + i * 16, &word, sizeof(word));
	}
}

/* A row's four lanes of a fragment of 64 columns, from its codes. */
static void packed_e4m3_row(uint8_t *ret, const uint8_t *codes)
{
	for (uint32_t j = 0; j < 4; j++)
		packed_words(ret + j * 4, packed_load(codes + j * 16 + 8), packed_load(codes + j * 16));
}

/* Of 128 columns. */
static void packed_u4_row(uint8_t *ret, const uint8_t *codes)
{
	for (uint32_t j = 0; j < 8; j += 2) {
		const uint64_t even = packed_load(codes + j * 16) | packed_load(codes + j * 16 + 8) << 4;
		const uint64_t odd = packed_load(codes + j * 16 + 16) | packed_load(codes + j * 16 + 24) << 4;

		packed_words(ret + j * 2, even, odd);
	}
}

void packed_unit(uint8_t *ret, enum dtype dtype, const uint8_t *codes, size_t pitch, const float *factors,
	const uint8_t *zeros)
{
	assert(packed_is(dtype) && packed_is_u4(dtype) == (zeros != NULL) && (!zeros || factors));
	for (uint32_t row = 0; row < PACKED_ROWS; row++) {
		const uint8_t *from = codes + row * pitch;
		uint8_t *lanes = ret + row * 4 * 16;

		if (zeros) {
			packed_u4_row(lanes, from);
			continue;
		}
		packed_e4m3_row(lanes, from);
		packed_e4m3_row(lanes + PACKED_FRAGMENT_BYTES, from + PACKED_COLS / 2);
	}
	if (factors)
		packed_factors(ret + packed_unit_bytes(dtype, false), dtype, factors, zeros);
}

/* ---- and back ---- */

/* A column's place in a unit's row. */
struct packed_place {
	uint32_t byte;  /* of the unit */
	uint32_t shift; /* of the code in the byte */
};

static struct packed_place packed_place_of(enum dtype dtype, uint32_t row, uint32_t col)
{
	const uint32_t step = col / 16, lane = row * 4 + col % 8 / 2, odd = col % 2, upper = col % 16 / 8;

	if (dtype == DTYPE_E4M3)
		return (struct packed_place){
			.byte = step / 4 * PACKED_FRAGMENT_BYTES + lane * 16 + step % 4 * 4 + odd * 2 + !upper};
	const uint32_t nibble = odd * 4 + step % 2 * 2 + upper;

	return (struct packed_place){.byte = lane * 16 + step / 2 * 4 + nibble / 2, .shift = nibble % 2 * 4};
}

void packed_to_f32(const struct weight *w, uint32_t row, float *ret)
{
	const bool is_u4 = packed_is_u4(w->dtype), grouped = !w->factors;
	const uint32_t unit_bytes = packed_unit_bytes(w->dtype, grouped), in_unit = row % PACKED_ROWS;
	const uint8_t *units = (const uint8_t *)w->data +
			       (uint64_t)(row / PACKED_ROWS) * (w->cols / PACKED_COLS) * unit_bytes;

	assert(packed_is(w->dtype) && packed_fits(w->rows, w->cols) && row < w->rows);
	for (uint32_t col = 0; col < w->cols; col++) {
		const uint8_t *unit = units + (size_t)(col / PACKED_COLS) * unit_bytes;
		const struct packed_place place = packed_place_of(w->dtype, in_unit, col % PACKED_COLS);
		const uint32_t code = unit[place.byte] >> place.shift & (is_u4 ? 15 : 255);
		const uint32_t group = col % PACKED_COLS / (PACKED_COLS / packed_groups(w->dtype));
		uint32_t bits = grouped ? 0 : bits_of_float(w->factors[row]);

		if (grouped)
			memcpy(&bits,
				unit + packed_unit_bytes(w->dtype, false) +
					(group * PACKED_ROWS + in_unit) * sizeof(bits),
				sizeof(bits));
		ret[col] = is_u4 ? ((float)code - (float)(bits & PACKED_ZERO_BITS)) *
					   float_of_bits(bits & ~PACKED_ZERO_BITS)
				 : e4m3_to_f32((uint8_t)code) * float_of_bits(bits);
	}
}
