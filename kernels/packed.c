/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "kernels/convert.h"
#include "kernels/packed.h"

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

bool packed_takes_factor(float factor)
{
	return !(bits_of_float(factor) & PACKED_ZERO_BITS);
}

static void packed_factors(uint8_t *ret, enum dtype dtype, const float *factors, const uint8_t *zeros)
{
	for (uint32_t r = 0; r < PACKED_ROWS; r++) {
		uint32_t bits = bits_of_float(factors[r]);

		if (dtype == DTYPE_U4) {
			assert(packed_takes_factor(factors[r]) && zeros[r] <= PACKED_ZERO_BITS);
			bits |= zeros[r];
		}
		memcpy(ret + r * sizeof(bits), &bits, sizeof(bits));
	}
}

void packed_unit(uint8_t *ret, enum dtype dtype, const uint8_t *codes, size_t pitch, const float *factors,
	const uint8_t *zeros)
{
	const uint32_t bytes = packed_unit_bytes(dtype, false);

	assert(packed_is(dtype) && (dtype == DTYPE_U4) == (zeros != NULL) && (!zeros || factors));
	memset(ret, 0, bytes);
	for (uint32_t row = 0; row < PACKED_ROWS; row++) {
		for (uint32_t col = 0; col < PACKED_COLS; col++) {
			const struct packed_place place = packed_place_of(dtype, row, col);

			ret[place.byte] |= (uint8_t)(codes[row * pitch + col] << place.shift);
		}
	}
	if (factors)
		packed_factors(ret + bytes, dtype, factors, zeros);
}

void packed_to_f32(const struct weight *w, uint32_t row, float *ret)
{
	const bool is_u4 = w->dtype == DTYPE_U4, grouped = !w->factors;
	const uint32_t unit_bytes = packed_unit_bytes(w->dtype, grouped), in_unit = row % PACKED_ROWS;
	const uint8_t *units = (const uint8_t *)w->data +
			       (uint64_t)(row / PACKED_ROWS) * (w->cols / PACKED_COLS) * unit_bytes;

	assert(packed_is(w->dtype) && packed_fits(w->rows, w->cols) && row < w->rows);
	for (uint32_t col = 0; col < w->cols; col++) {
		const uint8_t *unit = units + (size_t)(col / PACKED_COLS) * unit_bytes;
		const struct packed_place place = packed_place_of(w->dtype, in_unit, col % PACKED_COLS);
		const uint32_t code = unit[place.byte] >> place.shift & (is_u4 ? 15 : 255);
		uint32_t bits = grouped ? 0 : bits_of_float(w->factors[row]);

		if (grouped)
			memcpy(&bits, unit + packed_unit_bytes(w->dtype, false) + in_unit * sizeof(bits), sizeof(bits));
		ret[col] = is_u4 ? ((float)code - (float)(bits & PACKED_ZERO_BITS)) *
					   float_of_bits(bits & ~PACKED_ZERO_BITS)
				 : e4m3_to_f32((uint8_t)code) * float_of_bits(bits);
	}
}
