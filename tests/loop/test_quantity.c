/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/config/config.h"
#include "daemon/config/quantity.h"

struct line {
	const char *text;
	uint64_t value; /* 0 where it is refused */
	int rc;
};

static void test_quantity_sizes_with_i_and_without_b_are_powers_of_1024_others_of_1000(void **state)
{
	static const struct line lines[] = {
		{"1", 1}, {"2k", 2048}, {"2KiB", 2048}, {"2KB", 2000}, {"3M", 3 << 20}, {"3MiB", 3 << 20},
		{"3MB", 3000000}, {"4g", UINT64_C(4) << 30}, {"4 GiB", UINT64_C(4) << 30},
		{"4GB", UINT64_C(4000000000)},
		{"5T", UINT64_C(5) << 40}, {"5TiB", UINT64_C(5) << 40}, {"5TB", UINT64_C(5000000000000)},
		{"18446744073709551615", UINT64_MAX}, {"16777215T", UINT64_C(16777215) << 40},
	};
	uint64_t value;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(quantity_parse_size(lines[i].text, &value), 0);
		assert_int_equal(value, lines[i].value);
	}
}

static void test_quantity_sizes_have_decimals_which_are_exact(void **state)
{
	static const struct line lines[] = {
		{"1.5G", UINT64_C(3) << 29}, {"0.5K", 512}, {"1.3GB", 1300000000}, {"0.1K", 102},
		{"0.000001T", 1099511},
		{"9.999999TB", UINT64_C(9999999000000)}, {"1.0K", 1024},
	};
	uint64_t value;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(quantity_parse_size(lines[i].text, &value), 0);
		assert_int_equal(value, lines[i].value);
	}
}

static void test_quantity_sizes_that_are_none_are_refused(void **state)
{
	static const struct line lines[] = {
		{"", .rc = -EINVAL}, {"K", .rc = -EINVAL}, {"1KK", .rc = -EINVAL}, {"1P", .rc = -EINVAL},
		{" 1", .rc = -EINVAL},
		{"0x10", .rc = -EINVAL}, {"1.5", .rc = -EINVAL}, {"1.K", .rc = -EINVAL}, {".5K", .rc = -EINVAL},
		{"1.0000001K", .rc = -EINVAL}, {"1  K", .rc = -EINVAL}, {"1 ", .rc = -EINVAL}, {"-1K", .rc = -EINVAL},
		{"1s", .rc = -EINVAL}, {"1e3", .rc = -EINVAL}, {"1.5.5K", .rc = -EINVAL},
		{"18446744073709551616", .rc = -ERANGE}, {"16777216T", .rc = -ERANGE},
		{"18446744073709551615.9K", .rc = -ERANGE},
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		uint64_t value = 7;

		assert_int_equal(quantity_parse_size(lines[i].text, &value), lines[i].rc);
		assert_int_equal(value, 7);
	}
}

static void test_quantity_durations_are_whole_numbers_of_their_setting(void **state)
{
	static const struct {
		const char *text;
		uint64_t unit_us;
		int rc;
		uint64_t value;
	} lines[] = {
		{"50", 1, 0, 50}, {"50ms", 1, 0, 50000}, {"0.5 ms", 1, 0, 500}, {"2 s", 1, 0, 2000000},
		{"90", 1000000, 0, 90},
		{"1.5min", 1000000, 0, 90}, {"2h", 1000000, 0, 7200}, {"3000ms", 1000000, 0, 3}, {"0us", 1000000, 0, 0},
		{"1.5s", 1000000, -EINVAL, 7}, {"1ms", 1000000, -EINVAL, 7}, {"0.1us", 1, -EINVAL, 7},
		{"1.5", 1, -EINVAL, 7},
		{"1M", 1, -EINVAL, 7}, {"1d", 1, -EINVAL, 7}, {"s", 1, -EINVAL, 7}, {"6000000000h", 1, -ERANGE, 7},
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		uint64_t value = 7;

		assert_int_equal(quantity_parse_duration(lines[i].text, lines[i].unit_us, &value), lines[i].rc);
		assert_int_equal(value, lines[i].value);
	}
}

static void test_quantity_settings_take_them(void **state)
{
	static struct config config;

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];

		if (key->kind == CONFIG_SIZE)
			assert_true(config_store(key, "1.5MiB", &config, NULL));
		if (key->kind == CONFIG_DURATION || key->kind == CONFIG_SPIN)
			assert_true(config_store(key, key->unit_us == 1 ? "0.5ms" : "0.5min", &config, NULL));
	}
	assert_int_equal(config.max_shared_bytes, 3 << 19);
	assert_int_equal(config.spin_us, 500);
	assert_int_equal(config.drain_timeout_s, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantity_sizes_with_i_and_without_b_are_powers_of_1024_others_of_1000),
		cmocka_unit_test(test_quantity_sizes_have_decimals_which_are_exact),
		cmocka_unit_test(test_quantity_sizes_that_are_none_are_refused),
		cmocka_unit_test(test_quantity_durations_are_whole_numbers_of_their_setting),
		cmocka_unit_test(test_quantity_settings_take_them),
	};

	return cmocka_run_group_tests_name("quantity", tests, NULL, NULL);
}
