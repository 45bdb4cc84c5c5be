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
	struct device_handle handle, wrong;
	void *memory, *again;

	assert_int_equal(f->ops->export_alloc(f->device, MIB, &memory, &handle), 0);
	wrong = handle;
	wrong.bytes[0] ^= 1;
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong = handle;
	wrong.bytes[16] ^= 1; /* another device's */
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong = handle;
	wrong.size = 0;
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong.size = UINT64_MAX;
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong.size = 64 * MIB; /* more than there is */
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong = handle;
	wrong.fd = STDERR_FILENO;
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	wrong.fd = -1;
	assert_int_equal(f->ops->import(f->device, &wrong, &again), DEVICE_E_INVALID);
	assert_int_equal(f->ops->status(f->device), 0);
	close(handle.fd);
	f->ops->export_free(f->device, memory);
}

/* ---- a lost device ---- */

/* The child: only `status` is asked, again and again. */
static int child_poll(void)
{
	struct op_to_f32 args = {.n = 64};
	struct stream *stream;
	struct device *device;
	void *nothing, *memory;
	size_t unit;
	int rc;

	if (device_open("cuda", NULL, &device) != 0 ||
		device->ops->stream_new(device, &stream) != 0 ||
		device->ops->mem_alloc(device, MIB, &memory) != 0 ||
		device->ops->reserve(device, MIB, &nothing, &unit) != 0)
		return 2;
	args.x = nothing;
	args.out = memory;
	if (device->kernels->to_f32(stream, &args) != 0)
		return 3;
	while ((rc = device->ops->status(device)) == 0)
		;
	return device_is_lost(rc) ? 0 : 4;
}

/* The child: a product over a weight that is not mapped. */
static int child_fault(void)
{
	struct device_fault fault;
	struct stream *stream, *other;
	struct device *device;
	struct op_gemm gemm = {.n_rows = 1,
		.y_dtype = DTYPE_BF16,
		.w = {.dtype = DTYPE_BF16, .rows = 256, .cols = 256}};
	const struct device_ops *ops;
	void *memory, *nothing, *pinned;
	size_t unit;
	sem_t called, open;
	int rc;

	sem_init(&called, 0, 0);
	sem_init(&open, 0, 0);
	if (device_open("cuda", NULL, &device) != 0)
		return 2;
	ops = device->ops;
	if (ops->stream_new(device, &stream) != 0 || ops->stream_new(device, &other) != 0 ||
		ops->mem_alloc(device, MIB, &memory) != 0 ||
		ops->host_alloc(device, 4096, &pinned) != 0 ||
		ops->reserve(device, MIB, &nothing, &unit) != 0)
		return 3;
	gemm.x = memory;
	gemm.w.data = memory;
	gemm.y = (uint8_t *)memory + MIB / 2;
	if (device->kernels->gemm(stream, &gemm) != 0 || ops->stream_sync(stream) != 0)
		return 4;
	gemm.w.data = nothing;
	ops->stream_host_func(stream, gate, &open);
	if (device->kernels->gemm(stream, &gemm) != 0 ||
		ops->stream_host_func(stream, post, &called) != 0)
		return 5;
	sem_post(&open);
	while (sem_wait(&called) != 0)
		;
	/* the host function has recorded the loss */
	if (!device_is_lost(ops->status(device)))
		return 9;
	rc = ops->stream_sync(stream);
	if (!device_is_lost(rc))
		return 6;
	if (ops->status(device) != rc || ops->stream_query(other) != rc ||
		ops->mem_alloc(device, 1, &memory) != rc || ops->capture_begin(other) != rc ||
		ops->fill_async(other, pinned, 1, 1) != rc ||
		device->kernels->gemm(other, &gemm) != rc)
		return 7;
	ops->last_fault(device, &fault);
	if (fault.condition != rc || fault.call == NULL || fault.file == NULL || fault.line == 0)
		return 8;
	fprintf(stderr, "# lost: %s in %s at %s:%d\n", device_strerror(rc), fault.call, fault.file,
		fault.line);
	ops->stream_free(other);
	ops->stream_free(stream);
	ops->free(device);
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
