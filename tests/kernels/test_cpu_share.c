/* SPDX-License-Identifier: MIT */
/* Events that another process waits for, and handles of untrusted descriptors, on the cpu
 * device. */
#include "tests/kernels/cpu_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct event *event_of(struct fixture *f, int *ret_fd)
{
	struct device_handle handle;
	struct event *event;

	assert_int_equal(f->ops->event_new_shared(f->device, &event, &handle), 0);
	assert_true(handle.fd >= 0);
	*ret_fd = handle.fd;
	return event;
}

static const struct event_page *page_of(int fd)
{
	void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(page, MAP_FAILED);
	return page;
}

static bool is_done(const struct event_page *page)
{
	uint32_t recorded = __atomic_load_n(&page->recorded, __ATOMIC_SEQ_CST);

	return (int32_t)(__atomic_load_n(&page->completed, __ATOMIC_SEQ_CST) - recorded) >= 0;
}

static void test_page_tells_recorded_from_completed(void **state)
{
	struct fixture *f = *state;
	int fd, value = 0;
	struct event *event = event_of(f, &fd);
	const struct event_page *page = page_of(fd);

	/* Never recorded: there is nothing to wait for. */
	assert_true(is_done(page));
	assert_int_equal(launch_gate(f, f->stream), 0);
	gate_wait(f);
	assert_int_equal(launch_store(f->stream, &value, 7), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_false(is_done(page));
	assert_int_equal(f->ops->event_query(event), DEVICE_E_NOT_READY);
	sem_post(&f->open);
	while (!is_done(page))
		;
	assert_int_equal(f->ops->event_sync(event), 0);
	assert_int_equal(value, 7);
	/* And again. */
	assert_int_equal(launch_gate(f, f->stream), 0);
	gate_wait(f);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_false(is_done(page));
	sem_post(&f->open);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_true(is_done(page));
	munmap((void *)(uintptr_t)page, 4096);
	f->ops->event_free(event);
	close(fd);
}

static void test_streams_of_the_device_wait_for_it_as_for_any(void **state)
{
	struct fixture *f = *state;
	int fd, from = 0, to = 0;
	struct event *event = event_of(f, &fd);

	assert_int_equal(launch_gate(f, f->stream), 0);
	gate_wait(f);
	assert_int_equal(launch_store(f->stream, &from, 3), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_int_equal(f->ops->stream_wait_event(f->other, event), 0);
	assert_int_equal(launch_copy_int(f->other, &to, &from), 0);
	assert_int_equal(f->ops->stream_query(f->other), DEVICE_E_NOT_READY);
	sem_post(&f->open);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(to, 3);
	f->ops->event_free(event);
	close(fd);
}

static void test_others_can_only_read_the_page(void **state)
{
	struct fixture *f = *state;
	int fd;
	struct event *event = event_of(f, &fd);
	const uint32_t forged[2] = {1, 2};

	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(write(fd, forged, sizeof(forged)), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	f->ops->event_free(event);
	close(fd);
}

static void test_capture_refuses_to_record_it_and_is_spoilt(void **state)
{
	struct fixture *f = *state;
	struct graph *graph = NULL;
	int fd, value;
	struct event *event = event_of(f, &fd);
	const struct event_page *page = page_of(fd);

	assert_int_equal(launch_store(f->stream, &value, 1), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), DEVICE_E_CAPTURE_UNSUPPORTED);
	assert_int_equal(launch_store(f->stream, &value, 2), DEVICE_E_CAPTURE_INVALIDATED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
	assert_int_equal(page->recorded, 0);
	munmap((void *)(uintptr_t)page, 4096);
	f->ops->event_free(event);
	close(fd);
}

static void test_shared_events_are_made_after_lock(void **state)
{
	struct fixture *f = *state;
	int fd;

	f->ops->lock(f->device);
	f->ops->event_free(event_of(f, &fd));
	close(fd);
}

/* A descriptor that a client sends, with the size that it claims. */
static void test_handle_of_a_descriptor_is_as_large_as_was_asked_for(void **state)
{
	struct fixture *f = *state;
	struct device_handle made, handle;
	void *memory, *imported;

	assert_int_equal(f->ops->export_alloc(f->device, 5000, &memory, &made), 0);
	assert_int_equal(f->ops->handle_of_fd(f->device, made.fd, 100, &handle), 0);
	assert_int_equal(handle.fd, made.fd);
	assert_int_equal(handle.size, 100);
	assert_int_equal(f->ops->import(f->device, &handle, &imported), 0);
	assert_int_equal(f->ops->import_bytes(f->device, imported), 100);
	assert_int_equal(f->ops->import_bytes(f->device, memory), 0);
	f->ops->import_free(f->device, imported);
	assert_int_equal(f->ops->handle_of_fd(f->device, made.fd, 5001, &handle), DEVICE_E_INVALID);
	assert_int_equal(
		f->ops->handle_of_fd(f->device, made.fd, UINT64_MAX, &handle), DEVICE_E_INVALID);
	assert_int_equal(f->ops->handle_of_fd(f->device, -1, 1, &handle), DEVICE_E_INVALID);
	f->ops->export_free(f->device, memory);
	close(made.fd);
}

/* A file of holes costs its owner nothing; mapped whole it would cost us the address space. */
static void test_of_a_huge_file_only_what_was_asked_for_is_mapped(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *imported[64];

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)1 << 45), 0);
	assert_int_equal(
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	assert_int_equal(f->ops->handle_of_fd(f->device, fd, 4096, &handle), 0);
	for (int i = 0; i < 64; i++)
		assert_int_equal(f->ops->import(f->device, &handle, &imported[i]), 0);
	for (int i = 0; i < 64; i++)
		f->ops->import_free(f->device, imported[i]);
	close(fd);
}

static void test_memory_without_a_descriptor_is_unknown_here(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	void *memory = NULL;

	assert_int_equal(f->ops->export_ipc_alloc(f->device, 4096, &memory, &handle),
		DEVICE_E_UNSUPPORTED);
	assert_null(memory);
	assert_false(device_is_lost(DEVICE_E_UNSUPPORTED));
	f->ops->export_ipc_free(f->device, NULL);
}

/* MIMEO_CPU_HOLD keeps an op waiting while a file exists. */
static void test_held_op_waits_for_its_file_to_go(void **state)
{
	char path[] = "/tmp/mimeo-hold-XXXXXX", hold[64];
	struct device *device, *held;
	struct stream *stream;
	struct event *event;
	int value = 0, other = 0;

	close(mkstemp(path));
	snprintf(hold, sizeof(hold), "store:%s", path);
	setenv("MIMEO_CPU_HOLD", hold, 1);
	assert_int_equal(device_open("cpu", NULL, &held), 0);
	setenv("MIMEO_CPU_HOLD", "nothing", 1);
	assert_int_equal(device_open("cpu", NULL, &device), -EINVAL);
	unsetenv("MIMEO_CPU_HOLD");
	device = held;
	assert_int_equal(device->ops->stream_new(device, &stream), 0);
	assert_int_equal(device->ops->event_new(device, &event), 0);
	assert_int_equal(launch_copy_int(stream, &other, &value), 0);
	assert_int_equal(device->ops->event_record(event, stream), 0);
	assert_int_equal(launch_store(stream, &value, 1), 0);
	assert_int_equal(device->ops->event_sync(event), 0);
	usleep(20000);
	assert_int_equal(device->ops->stream_query(stream), DEVICE_E_NOT_READY);
	unlink(path);
	assert_int_equal(device->ops->stream_sync(stream), 0);
	assert_int_equal(value, 1);
	assert_int_equal(other, 0);
	device->ops->event_free(event);
	device->ops->stream_free(stream);
	device->ops->free(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_page_tells_recorded_from_completed),
		ON_DEVICE(test_streams_of_the_device_wait_for_it_as_for_any),
		ON_DEVICE(test_others_can_only_read_the_page),
		ON_DEVICE(test_capture_refuses_to_record_it_and_is_spoilt),
		ON_DEVICE(test_shared_events_are_made_after_lock),
		ON_DEVICE(test_handle_of_a_descriptor_is_as_large_as_was_asked_for),
		ON_DEVICE(test_of_a_huge_file_only_what_was_asked_for_is_mapped),
		ON_DEVICE(test_memory_without_a_descriptor_is_unknown_here),
		cmocka_unit_test(test_held_op_waits_for_its_file_to_go),
	};

	return cmocka_run_group_tests_name("cpu_share", tests, NULL, NULL);
}
