/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/region.h"
#include "tests/ipc/test.h"

#define SEALS (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

static void test_region_maps_to_the_same_memory_on_both_sides(void **state)
{
	struct region daemon, client;

	assert_int_equal(region_create(&daemon, 8, 1u << 16), 0);
	assert_int_equal(region_map(&client, dup(daemon.fd)), 0);
	assert_int_equal(client.ring.entries, 8);
	assert_int_equal(client.arena_bytes, 1u << 16);
	assert_ptr_not_equal(client.base, daemon.base);

	memcpy(client.arena + client.arena_bytes - 5, "hello", 5);
	assert_memory_equal(daemon.arena + daemon.arena_bytes - 5, "hello", 5);
	client.ring.cqes[7].user_data = 42;
	assert_int_equal(daemon.ring.cqes[7].user_data, 42);
	assert_ptr_equal((void *)(daemon.ring.sqes + 8), (void *)daemon.ring.cqes);
	assert_true((uint8_t *)(daemon.ring.cqes + 8) <= daemon.arena);
	assert_int_equal((uintptr_t)daemon.arena % 4096, 0);
	region_deinit(&client);
	region_deinit(&daemon);
}

static void test_region_refuses_sizes_outside_its_limits(void **state)
{
	static const struct {
		uint32_t entries;
		uint64_t arena;
	} bad[] = {{0, 1u << 16}, {1, 1u << 16}, {3, 1u << 16}, {8192, 1u << 16},
		{0x80000000u, 1u << 16}, {8, 0}, {8, 1u << 15}, {8, (1u << 16) + 4096},
		{8, 1ull << 31}, {8, 1ull << 63}};
	struct region region;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(region_create(&region, bad[i].entries, bad[i].arena), -EINVAL);
}

static void test_region_seals_refuse_every_resize(void **state)
{
	struct region region;

	assert_int_equal(region_create(&region, 8, 1u << 16), 0);
	off_t bytes = (off_t)region.bytes;
	assert_int_equal(ftruncate(region.fd, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(region.fd, bytes + 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(region.fd, 0, bytes, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fcntl(region.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(fcntl(region.fd, F_GET_SEALS) & SEALS, SEALS);
	assert_true(fcntl(region.fd, F_GETFD) & FD_CLOEXEC);
	region_deinit(&region);
}

/* A memfd of those bytes and seals. */
static int imitation(const void *bytes, size_t n, off_t size, int seals)
{
	int fd = memfd_create("imitation", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
	assert_int_equal(ftruncate(fd, size), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int map_imitation(const void *bytes, size_t n, off_t size, int seals)
{
	int fd = imitation(bytes, n, size, seals);
	struct region region;
	int r = region_map(&region, fd);

	if (r == 0)
		region_deinit(&region);
	else
		assert_int_equal(close(fd), 0); /* still the caller's */
	return r;
}

/* The first page of a real region, to be spoilt. */
static off_t genuine(uint8_t page[4096])
{
	struct region region;

	assert_int_equal(region_create(&region, 8, 1u << 16), 0);
	memcpy(page, region.base, 4096);
	off_t bytes = (off_t)region.bytes;
	region_deinit(&region);
	return bytes;
}

static void test_region_map_refuses_missing_seals(void **state)
{
	uint8_t page[4096];
	off_t bytes = genuine(page);

	assert_int_equal(map_imitation(page, sizeof(page), bytes, SEALS), 0);
	assert_int_equal(map_imitation(page, sizeof(page), bytes, 0), -EPROTO);
	assert_int_equal(
		map_imitation(page, sizeof(page), bytes, F_SEAL_GROW | F_SEAL_SHRINK), -EPROTO);
	assert_int_equal(
		map_imitation(page, sizeof(page), bytes, F_SEAL_GROW | F_SEAL_SEAL), -EPROTO);
	assert_int_equal(map_imitation(page, sizeof(page), bytes, SEALS | F_SEAL_WRITE), -EPROTO);
}

static void test_region_map_refuses_what_is_no_memfd(void **state)
{
	struct region region;
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(region_map(&region, fds[0]), -EPROTO);
	assert_int_equal(region_map(&region, -1), -EPROTO);
	close(fds[0]);
	close(fds[1]);
}

static void test_region_map_refuses_a_file_of_another_size(void **state)
{
	uint8_t page[4096];
	off_t bytes = genuine(page);

	assert_int_equal(map_imitation(page, sizeof(page), bytes - 4096, SEALS), -EPROTO);
	assert_int_equal(map_imitation(page, sizeof(page), bytes + 4096, SEALS), -EPROTO);
	assert_int_equal(map_imitation(page, sizeof(page), 4096, SEALS), -EPROTO);
	assert_int_equal(map_imitation(page, 100, 100, SEALS), -EPROTO);
	assert_int_equal(map_imitation(page, 0, 0, SEALS), -EPROTO);
}

static void test_region_map_refuses_another_version_by_name(void **state)
{
	uint8_t page[4096];
	off_t bytes = genuine(page);

	page[offsetof(struct ring_control, version)]++;
	assert_int_equal(map_imitation(page, sizeof(page), bytes, SEALS), -EPROTONOSUPPORT);
}

/* Line 0 has no byte that may differ; elsewhere only the seven words may. */
static void test_region_map_refuses_every_changed_byte_but_the_words(void **state)
{
	uint8_t page[4096];
	off_t bytes = genuine(page);

	for (size_t i = 0; i < sizeof(page); i += i < 512 ? 1 : 509) {
		bool word = i >= 64 && i < 512 && i % 64 < 4;
		int r;

		page[i] ^= 0x10;
		r = map_imitation(page, sizeof(page), bytes, SEALS);
		page[i] ^= 0x10;
		if (word)
			assert_int_equal(r, 0);
		else
			assert_true(r < 0);
	}
}

static void test_region_at_gives_only_what_lies_in_the_arena(void **state)
{
	struct region region;

	assert_int_equal(region_create(&region, 8, 1u << 16), 0);
	uint32_t n = 1u << 16;
	assert_ptr_equal(region_at(&region, 0, n), region.arena);
	assert_ptr_equal(region_at(&region, n - 1, 1), region.arena + n - 1);
	assert_ptr_equal(region_at(&region, n, 0), region.arena + n);
	assert_null(region_at(&region, n, 1));
	assert_null(region_at(&region, n + 1, 0));
	assert_null(region_at(&region, 1, n));
	assert_null(region_at(&region, 0, n + 1));
	/* sums that wrap in 32 bits */
	assert_null(region_at(&region, UINT32_MAX, 1));
	assert_null(region_at(&region, UINT32_MAX, 2));
	assert_null(region_at(&region, 16, UINT32_MAX));
	assert_null(region_at(&region, UINT32_MAX, UINT32_MAX));
	region_deinit(&region);
}

static void test_region_deinit_takes_nothing_and_twice(void **state)
{
	struct region region = {0};

	int standard_input = fcntl(0, F_GETFD);
	region_deinit(NULL);
	region_deinit(&region);
	assert_int_equal(fcntl(0, F_GETFD), standard_input); /* a zeroed region's fd is no fd */
	assert_int_equal(region_create(&region, 8, 1u << 16), 0);
	int fd = region.fd;
	region_deinit(&region);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	region_deinit(&region);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_region_maps_to_the_same_memory_on_both_sides),
		cmocka_unit_test(test_region_refuses_sizes_outside_its_limits),
		cmocka_unit_test(test_region_seals_refuse_every_resize),
		cmocka_unit_test(test_region_map_refuses_missing_seals),
		cmocka_unit_test(test_region_map_refuses_what_is_no_memfd),
		cmocka_unit_test(test_region_map_refuses_a_file_of_another_size),
		cmocka_unit_test(test_region_map_refuses_another_version_by_name),
		cmocka_unit_test(test_region_map_refuses_every_changed_byte_but_the_words),
		cmocka_unit_test(test_region_at_gives_only_what_lies_in_the_arena),
		cmocka_unit_test(test_region_deinit_takes_nothing_and_twice),
	};

	return cmocka_run_group_tests_name("region", tests, NULL, NULL);
}
