/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_fixture.h"

#include "tests/kernels/device_claims.h"


/* ---- opening ---- */

static void test_open_of_a_device_that_is_not_there_is_refused(void **state)
{
	struct device *device = NULL;

	assert_int_equal(device_open("cuda:4096", NULL, &device), -ENODEV);
	assert_int_equal(device_open("cuda:99999999999999999999", NULL, &device), -ENODEV);
	assert_int_equal(device_open("cuda:x", NULL, &device), -ENODEV);
	assert_null(device);
}

static void test_open_auto_is_cuda_where_there_is_one(void **state)
{
	struct device_info info;
	struct device *device;

	assert_int_equal(device_open("auto", NULL, &device), 0);
	assert_int_equal(device->ops->info(device, &info), 0);
	assert_string_equal(info.kind, "cuda");
	assert_true(info.name[0] != '\0');
	assert_int_equal(info.activation_dtype, DTYPE_BF16);
	assert_int_equal(info.kv_dtype, DTYPE_BF16);
	assert_true(info.free_bytes > 0 && info.free_bytes <= info.total_bytes);
	device->ops->free(device);
}

static void test_strerror_knows_all_that_cuda_says(void **state)
{
	assert_string_equal(device_strerror(719), "cudaErrorLaunchFailure");
	assert_string_equal(device_strerror(716), "cudaErrorMisalignedAddress");
	assert_string_equal(device_strerror(4242), "unknown device condition");
}

static void test_conditions_of_one_call_are_not_a_lost_device(void **state)
{
	assert_false(device_is_lost(cuda_condition(cudaErrorLaunchOutOfResources)));
	assert_false(device_is_lost(cuda_condition(cudaErrorHostMemoryAlreadyRegistered)));
	assert_false(device_is_lost(cuda_condition(cudaErrorPeerAccessAlreadyEnabled)));
	assert_true(device_is_lost(cuda_condition(cudaErrorIllegalAddress)));
	assert_true(device_is_lost(cuda_condition(cudaErrorECCUncorrectable)));
}

/* ---- memory ---- */

static void test_part_of_a_mapped_piece_is_not_unmapped(void **state)
{
	struct fixture *f = *state;
	size_t unit;
	void *range;

	assert_int_equal(f->ops->reserve(f->device, 10 * MIB, &range, &unit), 0);
	assert_int_equal(f->ops->map(f->device, range, unit, 2 * unit), 0);
	assert_int_equal(f->ops->unmap(f->device, range, unit, unit), DEVICE_E_INVALID);
	f->ops->release(f->device, range, 10 * MIB);
}

/* ---- between processes ---- */

static void hex_of(char *to, const struct device_handle *handle)
{
	for (size_t i = 0; i < DEVICE_HANDLE_BYTES; i++)
		sprintf(to + 2 * i, "%02x", handle->bytes[i]);
}

/* The child: maps a megabyte that holds `expected` throughout, and writes 0x5a over it. */
static int child_import(const char *hex, int fd, int expected)
{
	static uint8_t bytes[MIB];
	struct device_handle handle = {.fd = fd, .size = MIB};
	struct device *device;
	void *memory;

	for (size_t i = 0; i < DEVICE_HANDLE_BYTES; i++) {
		unsigned int byte;

		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return 2;
		handle.bytes[i] = (uint8_t)byte;
	}
	if (device_open("cuda", NULL, &device) != 0)
		return 3;
	if (device->ops->import(device, &handle, &memory) != 0)
		return 4;
	if (device->ops->copy(device, bytes, memory, MIB) != 0)
		return 5;
	for (size_t i = 0; i < MIB; i++) {
		if (bytes[i] != expected)
			return 6;
	}
	memset(bytes, 0x5a, MIB);
	if (device->ops->copy(device, memory, bytes, MIB) != 0)
		return 7;
	device->ops->import_free(device, memory);
	device->ops->free(device);
	return 0;
}

static void test_exported_memory_is_another_process_s_too(void **state)
{
	struct fixture *f = *state;
	char hex[2 * DEVICE_HANDLE_BYTES + 1];
	char *argv[] = {"child", "import", hex, NULL};
	struct device_handle handle;
	uint8_t byte = 0;
	void *memory;

	assert_int_equal(f->ops->export_alloc(f->device, MIB, &memory, &handle), 0);
	assert_true(handle.fd >= 0);
	assert_int_equal(handle.size, MIB);
	hex_of(hex, &handle);
	assert_int_equal(run_child(argv, handle.fd), 0);
	assert_int_equal(f->ops->copy(f->device, &byte, (uint8_t *)memory + MIB - 1, 1), 0);
	assert_int_equal(byte, 0x5a);
	close(handle.fd);
	f->ops->export_free(f->device, memory);
}

static void test_cuda_ipc_memory_is_imported_by_its_handle_alone(void **state)
{
	struct fixture *f = *state;
	char hex[2 * DEVICE_HANDLE_BYTES + 1];
	char *argv[] = {"child", "import-ipc", hex, NULL};
	struct device_handle handle;
	cudaIpcMemHandle_t ipc;
	uint8_t byte = 0;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 2 * MIB, &memory), 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 1, 2 * MIB), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(cudaIpcGetMemHandle(&ipc, memory), cudaSuccess);
	memcpy(handle.bytes, &ipc, sizeof(ipc));
	hex_of(hex, &handle);
	assert_int_equal(run_child(argv, -1), 0);
	assert_int_equal(f->ops->copy(f->device, &byte, (uint8_t *)memory + MIB - 1, 1), 0);
	assert_int_equal(byte, 0x5a);
	assert_int_equal(f->ops->copy(f->device, &byte, (uint8_t *)memory + MIB, 1), 0);
	assert_int_equal(byte, 1);
	f->ops->mem_free(f->device, memory);
}

static void test_import_within_the_process_sees_the_same_bytes(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	uint8_t byte = 0;
	void *memory, *again;

	assert_int_equal(f->ops->export_alloc(f->device, 100, &memory, &handle), 0);
	assert_int_equal(f->ops->import(f->device, &handle, &again), 0);
	assert_ptr_not_equal(memory, again);
	close(handle.fd);
	f->ops->export_free(f->device, memory);
	assert_int_equal(f->ops->fill_async(f->stream, again, 8, 100), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, &byte, (uint8_t *)again + 99, 1), 0);
	assert_int_equal(byte, 8);
	f->ops->import_free(f->device, again);
}

static void test_import_of_what_is_no_such_memory_is_refused(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle, wrong[7];
	void *memory, *again;

	assert_int_equal(f->ops->export_alloc(f->device, MIB, &memory, &handle), 0);
	for (size_t i = 0; i < 7; i++)
		wrong[i] = handle;
	wrong[0].bytes[0] ^= 1;
	wrong[1].bytes[16] ^= 1; /* another device's */
	wrong[2].size = 0;
	wrong[3].size = UINT64_MAX;
	wrong[4].size = 64 * MIB; /* more than there is */
	wrong[5].fd = STDERR_FILENO;
	wrong[6].fd = -1;
	for (size_t i = 0; i < 7; i++)
		assert_int_equal(
			f->ops->import(f->device, &wrong[i], &again), DEVICE_E_INVALID);
	assert_int_equal(f->ops->status(f->device), 0);
	close(handle.fd);
	f->ops->export_free(f->device, memory);
}

/* ---- a lost device ---- */

/* The child: only `status` is asked, again and again. */
static int child_poll(void)
{
	struct op_to_f32 args = {.n = 64};
	struct fixture *f;
	void *state = NULL, *nothing, *memory;
	size_t unit;
	int rc;

	if (fixture_setup(&state) != 0)
		return 2;
	f = state;
	if (f->ops->mem_alloc(f->device, MIB, &memory) != 0 ||
		f->ops->reserve(f->device, MIB, &nothing, &unit) != 0)
		return 2;
	args.x = nothing;
	args.out = memory;
	if (f->device->kernels->to_f32(f->stream, &args) != 0)
		return 3;
	while ((rc = f->ops->status(f->device)) == 0)
		;
	return device_is_lost(rc) ? 0 : 4;
}

/* The device is lost with rc, and says so in every call. */
static int child_lost(struct fixture *f, const struct op_gemm *gemm, int rc)
{
	const struct device_ops *ops = f->ops;
	struct device_fault fault;
	void *memory;

	if (ops->status(f->device) != rc || ops->stream_query(f->other) != rc ||
		ops->mem_alloc(f->device, 1, &memory) != rc ||
		ops->capture_begin(f->other) != rc || fill(f, f->other, 0, 1) != rc ||
		f->device->kernels->gemm(f->other, gemm) != rc)
		return 7;
	ops->last_fault(f->device, &fault);
	if (fault.condition != rc || fault.call == NULL || fault.file == NULL || fault.line == 0)
		return 8;
	fprintf(stderr, "# lost: %s in %s at %s:%d\n", device_strerror(rc), fault.call, fault.file,
		fault.line);
	return 0;
}

/* The child: a product over a weight that is not mapped. */
static int child_fault(void)
{
	struct op_gemm gemm = {.n_rows = 1,
		.y_dtype = DTYPE_BF16,
		.w = {.dtype = DTYPE_BF16, .rows = 256, .cols = 256}};
	struct fixture *f;
	void *state = NULL, *memory, *nothing;
	size_t unit;
	sem_t called;
	int rc;

	sem_init(&called, 0, 0);
	if (fixture_setup(&state) != 0)
		return 2;
	f = state;
	if (f->ops->mem_alloc(f->device, MIB, &memory) != 0 ||
		f->ops->reserve(f->device, MIB, &nothing, &unit) != 0)
		return 3;
	gemm.x = memory;
	gemm.w.data = memory;
	gemm.y = (uint8_t *)memory + MIB / 2;
	if (f->device->kernels->gemm(f->stream, &gemm) != 0 || f->ops->stream_sync(f->stream) != 0)
		return 4;
	gemm.w.data = nothing;
	gate_close(f, f->stream);
	if (f->device->kernels->gemm(f->stream, &gemm) != 0 ||
		f->ops->stream_host_func(f->stream, post, &called) != 0)
		return 5;
	gates_open(f);
	while (sem_wait(&called) != 0)
		;
	/* the host function has recorded the loss */
	if (!device_is_lost(f->ops->status(f->device)))
		return 9;
	rc = f->ops->stream_sync(f->stream);
	if (!device_is_lost(rc))
		return 6;
	rc = child_lost(f, &gemm, rc);
	if (rc != 0)
		return rc;
	f->ops->release(f->device, nothing, MIB);
	f->ops->stream_free(f->other);
	f->ops->stream_free(f->stream);
	f->ops->free(f->device);
	return 0;
}

static void test_illegal_access_loses_the_device_for_good(void **state)
{
	char *argv[] = {"child", "fault", NULL};

	assert_int_equal(run_child(argv, -1), 0);
}

static void test_status_alone_learns_of_a_lost_device(void **state)
{
	char *argv[] = {"child", "poll", NULL};

	assert_int_equal(run_child(argv, -1), 0);
}

static int child_main(char **argv)
{
	alarm(60); /* one that waits for what never comes fails, and does not hang its parent */
	if (strcmp(argv[1], "fault") == 0)
		return child_fault();
	if (strcmp(argv[1], "poll") == 0)
		return child_poll();
	if (strcmp(argv[1], "import") == 0 && argv[2] != NULL)
		return child_import(argv[2], CHILD_FD, 0);
	if (strcmp(argv[1], "import-ipc") == 0 && argv[2] != NULL)
		return child_import(argv[2], -1, 1);
	return 1;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_of_a_device_that_is_not_there_is_refused),
		cmocka_unit_test(test_open_auto_is_cuda_where_there_is_one),
		cmocka_unit_test(test_strerror_knows_all_that_cuda_says),
		cmocka_unit_test(test_conditions_of_one_call_are_not_a_lost_device),
		DEVICE_CLAIMS,
		ON_DEVICE(test_part_of_a_mapped_piece_is_not_unmapped),
		ON_DEVICE(test_exported_memory_is_another_process_s_too),
		ON_DEVICE(test_cuda_ipc_memory_is_imported_by_its_handle_alone),
		ON_DEVICE(test_import_within_the_process_sees_the_same_bytes),
		ON_DEVICE(test_import_of_what_is_no_such_memory_is_refused),
		cmocka_unit_test(test_illegal_access_loses_the_device_for_good),
		cmocka_unit_test(test_status_alone_learns_of_a_lost_device),
	};

	if (argc > 1)
		return child_main(argv);
	if (no_cuda())
		return 0;
	return cmocka_run_group_tests_name("cuda_device", tests, NULL, NULL);
}
