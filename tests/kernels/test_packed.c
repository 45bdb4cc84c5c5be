/* SPDX-License-Identifier: MIT */

/* Packed weights: where packed.h says that codes, factors and zeros lie, and that they come back. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/convert.h"
#include "kernels/packed.h"

#define ROWS 16u
#define COLS 256u
#define UNITS_A_BAND (COLS / PACKED_COLS)

/* ---- where codes lie ---- */

/* A unit all of whose codes are 0 but one. */
static void unit_of_one(uint8_t *unit, enum dtype dtype, uint32_t row, uint32_t col, uint8_t code)
{
	uint8_t codes[PACKED_ROWS * PACKED_COLS] = {0}, zeros[PACKED_GROUPS_MAX * PACKED_ROWS] = {0};
	const float factors[PACKED_GROUPS_MAX * PACKED_ROWS] = {0};

	codes[row * PACKED_COLS + col] = code;
	memset(unit, 0xff, packed_unit_bytes(dtype, true));
	packed_unit(unit, dtype, codes, PACKED_COLS, factors, packed_is_u4(dtype) ? zeros : NULL);
}

/* The only byte that is not 0, and it is `value`. */
static uint32_t only_byte(const uint8_t *unit, uint32_t bytes, uint8_t value)
{
	uint32_t found = UINT32_MAX;

	for (uint32_t i = 0; i < bytes; i++) {
		if (!unit[i])
			continue;
		assert_int_equal(found, UINT32_MAX);
		assert_int_equal(unit[i], value);
		found = i;
	}
	assert_true(found != UINT32_MAX);
	return found;
}

/* Lane 4 r + i has columns 16 j + {2 i, 2 i + 1, 2 i + 8, 2 i + 9} of row r: the four are `at` in both tables. */
static const uint32_t offsets[4] = {0, 1, 8, 9};

static void test_e4m3_code_is_in_the_byte_that_the_header_names(void **state)
{
	static const uint32_t bytes[4] = {1, 3, 0, 2};
	uint8_t unit[1056];

	assert_int_equal(packed_unit_bytes(DTYPE_E4M3, true), sizeof(unit));
	for (uint32_t fragment = 0; fragment < 2; fragment++)
		for (uint32_t r = 0; r < 8; r++)
			for (uint32_t i = 0; i < 4; i++)
				for (uint32_t j = 0; j < 4; j++)
					for (uint32_t at = 0; at < 4; at++) {
						unit_of_one(unit, DTYPE_E4M3, r, 64 * fragment + 16 * j + 2 * i + offsets[at], 0xa7);
						assert_int_equal(only_byte(unit, sizeof(unit), 0xa7),
							512 * fragment + 16 * (4 * r + i) + 4 * j + bytes[at]);
					}
}

static void test_u4_code_is_in_the_nibble_that_the_header_names(void **state)
{
	static const uint32_t nibbles[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}};
	uint8_t unit[544];

	assert_int_equal(packed_unit_bytes(DTYPE_U4, true), sizeof(unit));
	for (uint32_t r = 0; r < 8; r++)
		for (uint32_t i = 0; i < 4; i++)
			for (uint32_t j = 0; j < 8; j++)
				for (uint32_t at = 0; at < 4; at++) {
					const uint32_t nibble = nibbles[j % 2][at];

					unit_of_one(unit, DTYPE_U4, r, 16 * j + 2 * i + offsets[at], 0xb);
					assert_int_equal(only_byte(unit, sizeof(unit), nibble % 2 ? 0xb0 : 0xb),
						16 * (4 * r + i) + 4 * (j / 2) + nibble / 2);
				}
}

/* Codes of a larger matrix, rows `pitch` bytes apart, and what lies between them is not read into the unit. */
static void test_unit_is_taken_out_of_wider_rows(void **state)
{
	uint8_t wide[PACKED_ROWS * 300], narrow[PACKED_ROWS * PACKED_COLS], units[2][1024];

	memset(wide, 0xee, sizeof(wide));
	for (uint32_t i = 0; i < sizeof(narrow); i++)
		wide[i / PACKED_COLS * 300 + i % PACKED_COLS] = narrow[i] = (uint8_t)(i * 37 % 251);
	packed_unit(units[0], DTYPE_E4M3, wide, 300, NULL, NULL);
	packed_unit(units[1], DTYPE_E4M3, narrow, PACKED_COLS, NULL, NULL);
	assert_memory_equal(units[0], units[1], sizeof(units[0]));
}

static void test_u4_factor_has_its_zero_in_its_lowest_bits(void **state)
{
	uint8_t unit[544], codes[PACKED_ROWS * PACKED_COLS] = {0};
	const float factors[8] = {1, -0.5f, 0x1p-24f, 65504, 0, 3, 0x1.fep127f, 0x1.ffcp-15f};
	const uint8_t zeros[8] = {0, 1, 8, 15, 16, 31, 7, 9};

	packed_unit(unit, DTYPE_U4, codes, PACKED_COLS, factors, zeros);
	for (uint32_t r = 0; r < 8; r++) {
		uint32_t bits;

		memcpy(&bits, unit + 512 + 4 * r, sizeof(bits));
		assert_int_equal(bits, bits_of_float(factors[r]) | zeros[r]);
		assert_int_equal(bits & 31, zeros[r]);
	}
}

/* The factors of columns 0 to 31 first. */
static void test_u4_32_has_its_factors_by_group(void **state)
{
	uint8_t unit[640], codes[PACKED_ROWS * PACKED_COLS] = {0}, zeros[32];
	float factors[32];

	assert_int_equal(packed_unit_bytes(DTYPE_U4_32, true), sizeof(unit));
	for (uint32_t i = 0; i < 32; i++) {
		factors[i] = (float)(i + 1);
		zeros[i] = (uint8_t)(i % 16);
	}
	packed_unit(unit, DTYPE_U4_32, codes, PACKED_COLS, factors, zeros);
	for (uint32_t group = 0; group < 4; group++)
		for (uint32_t r = 0; r < 8; r++) {
			uint32_t bits;

			memcpy(&bits, unit + 512 + 32 * group + 4 * r, sizeof(bits));
			assert_int_equal(bits, bits_of_float((float)(group * 8 + r + 1)) | (group * 8 + r) % 16);
		}
}

static void test_u4_32_comes_back(void **state)
{
	uint8_t unit[640], codes[PACKED_ROWS * PACKED_COLS], zeros[32];
	const struct weight w = {unit, DTYPE_U4_32, PACKED_ROWS, PACKED_COLS, NULL};
	float factors[32], have[PACKED_COLS];

	for (uint32_t i = 0; i < sizeof(codes); i++)
		codes[i] = (uint8_t)((i * 7 + i / PACKED_COLS) % 16);
	for (uint32_t i = 0; i < 32; i++) {
		factors[i] = bf16_to_f32((uint16_t)(0x3c01 + i * 97));
		zeros[i] = (uint8_t)(i % 17);
	}
	packed_unit(unit, DTYPE_U4_32, codes, PACKED_COLS, factors, zeros);
	for (uint32_t r = 0; r < PACKED_ROWS; r++) {
		packed_to_f32(&w, r, have);
		for (uint32_t k = 0; k < PACKED_COLS; k++) {
			const uint32_t i = k / 32 * 8 + r;

			assert_true(have[k] == (float)(codes[r * PACKED_COLS + k] - zeros[i]) * factors[i]);
		}
	}
}

static void test_factors_of_all_float16_and_bfloat16_are_taken(void **state)
{
	for (uint32_t i = 0; i <= UINT16_MAX; i++) {
		assert_true(packed_takes_factor(f16_to_f32((uint16_t)i)));
		assert_true(packed_takes_factor(bf16_to_f32((uint16_t)i)));
	}
	assert_false(packed_takes_factor(0.1f));
}

/* ---- and back ---- */

struct matrix {
	uint8_t codes[ROWS * COLS];
	float factors[ROWS][UNITS_A_BAND]; /* without groups all of a row are the same */
	uint8_t zeros[ROWS][UNITS_A_BAND];
	float rows[ROWS];
	uint8_t units[ROWS * COLS / 8 * 9];
};

static struct weight pack(struct matrix *m, enum dtype dtype, bool grouped)
{
	const uint32_t bytes = packed_unit_bytes(dtype, grouped);

	assert_true(packed_bytes(ROWS, COLS, dtype, grouped) <= sizeof(m->units));
	memset(m->units, 0xff, sizeof(m->units));
	for (uint32_t band = 0; band < ROWS / 8; band++) {
		for (uint32_t g = 0; g < UNITS_A_BAND; g++) {
			float factors[8];
			uint8_t zeros[8];

			for (uint32_t r = 0; r < 8; r++) {
				factors[r] = m->factors[band * 8 + r][g];
				zeros[r] = m->zeros[band * 8 + r][g];
			}
			packed_unit(m->units + (band * UNITS_A_BAND + g) * bytes, dtype,
				m->codes + band * 8 * COLS + g * 128, COLS, grouped ? factors : NULL,
				dtype == DTYPE_U4 ? zeros : NULL);
		}
	}
	for (uint32_t row = 0; row < ROWS; row++)
		m->rows[row] = m->factors[row][0];
	return (struct weight){m->units, dtype, ROWS, COLS, grouped ? NULL : m->rows};
}

/* Each weight is (q - zero) * factor, bit for bit. */
static void assert_returns(struct matrix *m, enum dtype dtype, bool grouped)
{
	const struct weight w = pack(m, dtype, grouped);
	float have[COLS];

	for (uint32_t row = 0; row < ROWS; row++) {
		packed_to_f32(&w, row, have);
		for (uint32_t k = 0; k < COLS; k++) {
			const uint8_t code = m->codes[row * COLS + k];
			const float q = dtype == DTYPE_U4 ? (float)(code - m->zeros[row][k / 128]) : e4m3_to_f32(code);

			if (bits_of_float(have[k]) != bits_of_float(q * m->factors[row][k / 128]))
				fail_msg("[%u, %u], code %u, is %g", row, k, code, (double)have[k]);
		}
	}
}

/* All codes in each row, in another order, but for the two NaNs. */
static void fill_e4m3(struct matrix *m, bool grouped)
{
	for (uint32_t i = 0; i < ROWS * COLS; i++) {
		const uint8_t code = (uint8_t)(i % COLS * 77 + i / COLS * 13);

		m->codes[i] = (code & 0x7f) == 0x7f ? 0 : code;
	}
	for (uint32_t i = 0; i < ROWS * UNITS_A_BAND; i++)
		m->factors[i / UNITS_A_BAND][i % UNITS_A_BAND] =
			0.1f * (float)(1 + (grouped ? i : i / UNITS_A_BAND));
}

static void test_e4m3_without_groups_comes_back(void **state)
{
	static struct matrix m;

	fill_e4m3(&m, false);
	assert_returns(&m, DTYPE_E4M3, false);
}

static void test_e4m3_in_groups_comes_back(void **state)
{
	static struct matrix m;

	fill_e4m3(&m, true);
	assert_returns(&m, DTYPE_E4M3, true);
}

static void test_u4_with_zeros_from_0_to_16_comes_back(void **state)
{
	static struct matrix m;

	for (uint32_t i = 0; i < ROWS * COLS; i++)
		m.codes[i] = (uint8_t)((i * 7 + i / COLS) % 16);
	for (uint32_t i = 0; i < ROWS * UNITS_A_BAND; i++) {
		m.factors[i / UNITS_A_BAND][i % UNITS_A_BAND] = bf16_to_f32((uint16_t)(0x3c01 + i * 97));
		m.zeros[i / UNITS_A_BAND][i % UNITS_A_BAND] = (uint8_t)(i % 17);
	}
	assert_returns(&m, DTYPE_U4, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_e4m3_code_is_in_the_byte_that_the_header_names),
		cmocka_unit_test(test_u4_code_is_in_the_nibble_that_the_header_names),
		cmocka_unit_test(test_unit_is_taken_out_of_wider_rows),
		cmocka_unit_test(test_u4_factor_has_its_zero_in_its_lowest_bits),
		cmocka_unit_test(test_u4_32_has_its_factors_by_group),
		cmocka_unit_test(test_u4_32_comes_back),
		cmocka_unit_test(test_factors_of_all_float16_and_bfloat16_are_taken),
		cmocka_unit_test(test_e4m3_without_groups_comes_back),
		cmocka_unit_test(test_e4m3_in_groups_comes_back),
		cmocka_unit_test(test_u4_with_zeros_from_0_to_16_comes_back),
	};

	return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}
