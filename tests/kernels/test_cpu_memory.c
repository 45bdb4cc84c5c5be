/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs fn in a child; its exit status, or -1 if it died of a signal. */
static int in_child(int (*fn)(struct fixture *f, void *arg), struct fixture *f, void *arg)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL); /* cmocka's would run the tests on in the child */
		_exit(fn(f, arg));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- device and pinned memory ---- */

static void test_device_memory_is_aligned_and_poisoned_with_nan(void **state)
{
	struct fixture *f = *state;
	float *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 1000 * sizeof(float), (void **)&memory), 0);
	assert_int_equal((uintptr_t)memory % 256, 0);
	for (int i = 0; i < 1000; i++)
		assert_true(isnan(memory[i]));
	f->ops->mem_free(f->device, memory);
}

static void test_allocating_more_than_there_is_fails_before_it_is_touched(void **state)
{
	struct fixture *f = *state;
	struct device_info info;
	void *memory = NULL;

	f->ops->info(f->device, &info);
	assert_int_equal(f->ops->mem_alloc(f->device, info.total_bytes, &memory), DEVICE_E_MEMORY);
	assert_int_equal(f->ops->mem_alloc(f->device, SIZE_MAX, &memory), DEVICE_E_MEMORY);
	assert_null(memory);
}

/* ---- reserved ranges ---- */

static int touch(struct fixture *f, void *arg)
{
	*(volatile uint8_t *)arg = 1;
	return 0;
}

static void test_reserved_range_has_no_memory_until_mapped(void **state)
{
	const size_t size = (size_t)1 << 36;
	struct fixture *f = *state;
	size_t granularity;
	uint8_t *range;

	assert_int_equal(f->ops->reserve(f->device, size, (void **)&range, &granularity), 0);
	assert_int_not_equal(in_child(touch, f, range), 0);
	assert_int_equal(f->ops->map(f->device, range, granularity, granularity), 0);
	assert_int_equal(in_child(touch, f, range + granularity), 0);
	assert_int_not_equal(in_child(touch, f, range), 0);
	assert_int_not_equal(in_child(touch, f, range + 2 * granularity), 0);
	assert_int_equal(f->ops->unmap(f->device, range, granularity, granularity), 0);
	assert_int_not_equal(in_child(touch, f, range + granularity), 0);
	f->ops->release(f->device, range, size);
}

static void test_mapping_again_does_not_bring_old_contents_back(void **state)
{
	struct fixture *f = *state;
	size_t granularity;
	uint8_t *range, before;

	f->ops->reserve(f->device, 1, (void **)&range, &granularity);
	f->ops->map(f->device, range, 0, granularity);
	before = range[5];
	assert_true(before == 0 || before == 0xff);
	range[5] = 42;
	f->ops->unmap(f->device, range, 0, granularity);
	f->ops->map(f->device, range, 0, granularity);
	assert_int_equal(range[5], before);
	f->ops->release(f->device, range, 1);
}

static int setup_poisoning(void **state)
{
	int rc;

	setenv("MIMEO_CPU_POISON", "1", 1);
	rc = fixture_setup(state);
	unsetenv("MIMEO_CPU_POISON");
	return rc;
}

static void test_mapped_memory_is_poisoned_where_asked(void **state)
{
	struct fixture *f = *state;
	size_t granularity;
	uint8_t *range;

	f->ops->reserve(f->device, 1, (void **)&range, &granularity);
	f->ops->map(f->device, range, 0, granularity);
	assert_int_equal(range[0], 0xff);
	assert_int_equal(range[granularity - 1], 0xff);
	f->ops->release(f->device, range, 1);
}

/* ---- memory of several processes ---- */

/* The child's own device imports the handle, reads and writes. */
static int import_main(struct fixture *f, void *arg)
{
	const struct device_handle *handle = arg;
	struct device *device;
	uint8_t *memory;

	if (device_open("cpu", NULL, &device) != 0)
		return 1;
	if (device->ops->import(device, handle, (void **)&memory) != 0)
		return 2;
	if (memory[0] != 0 || memory[99] != 17)
		return 3;
	memory[50] = 23;
	device->ops->import_free(device, memory);
	device->ops->free(device);
	return 0;
}

static void test_exported_memory_is_shared_with_another_process(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	uint8_t *memory;

	f->ops->lock(f->device);
	assert_int_equal(f->ops->export_alloc(f->device, 100, (void **)&memory, &handle), 0);
	assert_int_equal(handle.size, 100);
	memory[99] = 17;
	assert_int_equal(in_child(import_main, f, &handle), 0);
	assert_int_equal(memory[50], 23);
	f->ops->export_free(f->device, memory);
	close(handle.fd);
}

static void test_import_outlives_the_export_and_the_fd(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	uint8_t *memory, *imported;

	f->ops->export_alloc(f->device, 5000, (void **)&memory, &handle);
	memory[4999] = 3;
	assert_int_equal(f->ops->import(f->device, &handle, (void **)&imported), 0);
	close(handle.fd);
	f->ops->export_free(f->device, memory);
	assert_int_equal(imported[4999], 3);
	f->ops->import_free(f->device, imported);
}

static void test_exported_memory_cannot_shrink_under_anyone(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	void *memory;

	f->ops->export_alloc(f->device, 5000, &memory, &handle);
	assert_int_equal(ftruncate(handle.fd, 0), -1);
	assert_int_equal(ftruncate(handle.fd, 10000), -1);
	assert_int_equal(fcntl(handle.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	f->ops->export_free(f->device, memory);
	close(handle.fd);
}

static void test_import_refuses_a_size_that_the_file_has_not(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	void *memory, *imported = NULL;

	f->ops->export_alloc(f->device, 5000, &memory, &handle);
	handle.size = 5001;
	assert_int_equal(f->ops->import(f->device, &handle, &imported), DEVICE_E_INVALID);
	handle.size = 0;
	assert_int_equal(f->ops->import(f->device, &handle, &imported), DEVICE_E_INVALID);
	assert_null(imported);
	f->ops->export_free(f->device, memory);
	close(handle.fd);
}

/* A true handle's bytes over another file. */
static int import_of(struct fixture *f, int fd, uint64_t size)
{
	struct device_handle handle;
	void *memory, *imported;
	int rc;

	assert_int_equal(f->ops->export_alloc(f->device, 1, &memory, &handle), 0);
	f->ops->export_free(f->device, memory);
	close(handle.fd);
	handle.fd = fd;
	handle.size = size;
	rc = f->ops->import(f->device, &handle, &imported);
	if (!rc)
		f->ops->import_free(f->device, imported);
	return rc;
}

static void test_import_refuses_a_file_that_could_shrink(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(import_of(f, fd, 4096), DEVICE_E_INVALID);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
	assert_int_equal(import_of(f, fd, 4096), DEVICE_E_INVALID);
	close(fd);
}

static void test_import_accepts_any_sealed_memfd_of_its_size(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
	assert_int_equal(import_of(f, fd, 4096), 0);
	close(fd);
}

static void test_import_refuses_what_is_not_a_memfd(void **state)
{
	struct fixture *f = *state;
	int fds[2], file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(import_of(f, fds[0], 4096), DEVICE_E_INVALID);
	assert_int_equal(import_of(f, file, 4096), DEVICE_E_INVALID);
	assert_int_equal(import_of(f, -1, 4096), DEVICE_E_INVALID);
	close(fds[0]);
	close(fds[1]);
	close(file);
}

static void test_import_refuses_a_memfd_that_cannot_be_written(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(
		fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL),
		0);
	assert_int_equal(import_of(f, fd, 4096), DEVICE_E_INVALID);
	close(fd);
}

/* The kernel makes one even where no huge page is free. */
static void test_import_refuses_a_memfd_of_huge_pages(void **state)
{
	struct fixture *f = *state;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

	if (fd < 0)
		skip(); /* a kernel without them */
	assert_int_equal(ftruncate(fd, 2 << 20), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
	assert_int_equal(import_of(f, fd, 4096), DEVICE_E_INVALID);
	close(fd);
}

static void test_import_refuses_a_handle_of_another_kind(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	void *memory, *imported = NULL;

	f->ops->export_alloc(f->device, 64, &memory, &handle);
	handle.bytes[0] ^= 1;
	assert_int_equal(f->ops->import(f->device, &handle, &imported), DEVICE_E_INVALID);
	assert_null(imported);
	f->ops->export_free(f->device, memory);
	close(handle.fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_device_memory_is_aligned_and_poisoned_with_nan),
		ON_DEVICE(test_allocating_more_than_there_is_fails_before_it_is_touched),
		ON_DEVICE(test_reserved_range_has_no_memory_until_mapped),
		ON_DEVICE(test_mapping_again_does_not_bring_old_contents_back),
		cmocka_unit_test_setup_teardown(test_mapped_memory_is_poisoned_where_asked,
			setup_poisoning, fixture_teardown),
		ON_DEVICE(test_exported_memory_is_shared_with_another_process),
		ON_DEVICE(test_import_outlives_the_export_and_the_fd),
		ON_DEVICE(test_exported_memory_cannot_shrink_under_anyone),
		ON_DEVICE(test_import_refuses_a_size_that_the_file_has_not),
		ON_DEVICE(test_import_refuses_a_file_that_could_shrink),
		ON_DEVICE(test_import_accepts_any_sealed_memfd_of_its_size),
		ON_DEVICE(test_import_refuses_what_is_not_a_memfd),
		ON_DEVICE(test_import_refuses_a_memfd_that_cannot_be_written),
		ON_DEVICE(test_import_refuses_a_memfd_of_huge_pages),
		ON_DEVICE(test_import_refuses_a_handle_of_another_kind),
	};

	return cmocka_run_group_tests_name("cpu_memory", tests, NULL, NULL);
}
