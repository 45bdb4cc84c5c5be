/* SPDX-License-Identifier: MIT */

/* Each claim is tried with io_uring (where the kernel grants it) and with pread. */

#include "tests/model/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "daemon/model/file.h"
#include "daemon/model/reader.h"

#define CHUNK 4096
#define DEPTH 4
#define FILE_BYTES 100000

struct sink {
	uint8_t *bytes[3];   /* where each segment goes */
	uint64_t n_bytes;
	uint32_t n_chunks, fail_at;
	bool misaligned;
};

static int take(void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct sink *sink = userdata;

	if (++sink->n_chunks == sink->fail_at)
		return -ECANCELED;
	sink->misaligned |= offset % CHUNK != 0 || bytes > CHUNK;
	memcpy(sink->bytes[segment] + offset, data, bytes);
	sink->n_bytes += bytes;
	return 0;
}

/* A file whose byte i is hash(i), opened; its contents in ret_contents. */
static int make_file(const struct scratch *scratch, uint8_t **ret_contents, char path[256])
{
	uint8_t *contents = malloc(FILE_BYTES);

	assert_non_null(contents);
	for (uint32_t i = 0; i < FILE_BYTES; i++)
		contents[i] = (uint8_t)((i * 2654435761u) >> 24);
	scratch_write(scratch, "file", contents, FILE_BYTES);
	scratch_path(scratch, "file", path);
	*ret_contents = contents;
	return open(path, O_RDONLY | O_CLOEXEC);
}

static int run(const struct reader_segment *segments, uint32_t n, struct sink *sink,
	const char **ret_name, struct model_error *error)
{
	struct reader_options options = {
		.memory = malloc(CHUNK * DEPTH),
		.chunk_bytes = CHUNK,
		.depth = DEPTH,
		.deliver = take,
		.userdata = sink,
	};
	int rc;

	assert_non_null(options.memory);
	rc = reader_run(segments, n, &options, ret_name, error);
	free(options.memory);
	return rc;
}

static void check_everything_arrives(void **state)
{
	char path[256];
	uint8_t *contents;
	int fd = make_file(*state, &contents, path);
	const struct reader_segment segments[] = {
		{fd, path, 7, 50001}, {fd, path, 60000, 0}, {fd, path, 61000, 39000}};
	struct sink sink = {0};
	struct model_error error = {""};
	const char *name = NULL;

	for (int i = 0; i < 3; i++) {
		sink.bytes[i] = calloc(1, segments[i].bytes + 1);
		assert_non_null(sink.bytes[i]);
	}
	assert_int_equal(run(segments, 3, &sink, &name, &error), 0);
	assert_int_equal(sink.n_bytes, 50001 + 39000);
	assert_int_equal(sink.n_chunks, 13 + 10);
	assert_false(sink.misaligned);
	for (int i = 0; i < 3; i++) {
		assert_memory_equal(
			sink.bytes[i], contents + segments[i].offset, segments[i].bytes);
		free(sink.bytes[i]);
	}
	assert_true(!strcmp(name, "pread") || !strcmp(name, "io_uring"));
	free(contents);
	close(fd);
}

static void check_shrunken_file_is_an_error(void **state)
{
	char path[256];
	uint8_t *contents;
	int fd = make_file(*state, &contents, path);
	const struct reader_segment segment = {fd, path, 0, FILE_BYTES};
	struct sink sink = {.bytes = {malloc(FILE_BYTES)}};
	struct model_error error = {""};

	assert_int_equal(truncate(path, 50000), 0);
	assert_int_equal(run(&segment, 1, &sink, NULL, &error), -EIO);
	assert_contains(error.text, path);
	assert_contains(error.text, "ends at byte ");
	assert_true(sink.n_bytes <= 50000);
	free(sink.bytes[0]);
	free(contents);
	close(fd);
}

static void check_failed_delivery_ends_the_reading(void **state)
{
	char path[256];
	uint8_t *contents;
	int fd = make_file(*state, &contents, path);
	const struct reader_segment segment = {fd, path, 0, FILE_BYTES};
	struct sink sink = {.bytes = {malloc(FILE_BYTES)}, .fail_at = 3};
	struct model_error error = {""};

	assert_int_equal(run(&segment, 1, &sink, NULL, &error), -ECANCELED);
	assert_int_equal(sink.n_chunks, 3);
	free(sink.bytes[0]);
	free(contents);
	close(fd);
}

static void check_unreadable_fd_is_an_error(void **state)
{
	char path[256];
	uint8_t *contents;
	int fd = make_file(*state, &contents, path), write_only = open(path, O_WRONLY | O_CLOEXEC);
	const struct reader_segment segment = {write_only, path, 0, 10};
	struct sink sink = {.bytes = {contents}};
	struct model_error error = {""};

	assert_int_equal(run(&segment, 1, &sink, NULL, &error), -EBADF);
	assert_contains(error.text, "cannot be read: Bad file descriptor");
	free(contents);
	close(write_only);
	close(fd);
}

/* Keeps each chunk until it is asked for it back, and looks whether it is as it was delivered. */
struct keeper {
	const uint8_t *contents;
	const void *data[DEPTH];
	uint64_t offset[DEPTH];
	size_t bytes[DEPTH];
	uint32_t n_kept, most_kept, n_releases, fail_at;
	uint64_t n_bytes;
	bool spoilt, out_of_order;
};

static int keep(void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct keeper *keeper = userdata;

	(void)segment;
	if (keeper->n_kept == DEPTH)
		return -ECANCELED;
	keeper->data[keeper->n_kept] = data;
	keeper->offset[keeper->n_kept] = offset;
	keeper->bytes[keeper->n_kept++] = bytes;
	keeper->most_kept =
		keeper->n_kept > keeper->most_kept ? keeper->n_kept : keeper->most_kept;
	keeper->n_bytes += bytes;
	return READER_KEPT;
}

static int let_go(void *userdata, const void *data)
{
	struct keeper *keeper = userdata;

	if (++keeper->n_releases == keeper->fail_at)
		return -ECANCELED;
	keeper->out_of_order |= keeper->n_kept == 0 || data != keeper->data[0];
	keeper->spoilt |= memcmp(data, keeper->contents + keeper->offset[0], keeper->bytes[0]) != 0;
	keeper->n_kept--;
	memmove(keeper->data, keeper->data + 1, keeper->n_kept * sizeof(keeper->data[0]));
	memmove(keeper->offset, keeper->offset + 1, keeper->n_kept * sizeof(keeper->offset[0]));
	memmove(keeper->bytes, keeper->bytes + 1, keeper->n_kept * sizeof(keeper->bytes[0]));
	return 0;
}

static int run_keeping(const struct scratch *scratch, struct keeper *keeper)
{
	char path[256];
	uint8_t *contents;
	int fd = make_file(scratch, &contents, path);
	const struct reader_segment segment = {fd, path, 0, FILE_BYTES};
	struct model_error error = {""};
	struct reader_options options = {
		.memory = malloc(CHUNK * DEPTH),
		.chunk_bytes = CHUNK,
		.depth = DEPTH,
		.deliver = keep,
		.release = let_go,
		.userdata = keeper,
	};
	int rc;

	assert_non_null(options.memory);
	keeper->contents = contents;
	rc = reader_run(&segment, 1, &options, NULL, &error);
	for (uint32_t i = 0; i < keeper->n_kept; i++)
		keeper->spoilt |= memcmp(keeper->data[i], contents + keeper->offset[i],
					  keeper->bytes[i]) != 0;
	free(options.memory);
	free(contents);
	close(fd);
	return rc;
}

static void check_kept_memory_is_not_read_into_until_released(void **state)
{
	struct keeper keeper = {0};

	assert_int_equal(run_keeping(*state, &keeper), 0);
	assert_int_equal(keeper.n_bytes, FILE_BYTES);
	/* 25 chunks, at most 4 of them never asked for again */
	assert_true(keeper.n_releases >= 25 - DEPTH);
	assert_true(keeper.most_kept > 0);
	assert_false(keeper.out_of_order);
	assert_false(keeper.spoilt);
}

static void check_failed_release_ends_the_reading(void **state)
{
	struct keeper keeper = {.fail_at = 3};

	assert_int_equal(run_keeping(*state, &keeper), -ECANCELED);
	assert_int_equal(keeper.n_releases, 3);
	assert_true(keeper.n_bytes < FILE_BYTES);
	assert_false(keeper.spoilt);
}

static void check_nothing_to_read_is_done_at_once(void **state)
{
	struct sink sink = {0};
	struct model_error error = {""};

	assert_int_equal(run(NULL, 0, &sink, NULL, &error), 0);
	assert_int_equal(sink.n_chunks, 0);
}

/* ---- a stall ---- */

#define STALL_MS 50
#define LATE_MS 400

struct writer {
	pthread_t thread;
	int fd;
	const uint8_t *contents;
};

static void *write_late(void *arg)
{
	const struct writer *writer = arg;
	const struct timespec delay = {.tv_nsec = LATE_MS * 1000000};

	nanosleep(&delay, NULL);
	assert_int_equal(write(writer->fd, writer->contents, CHUNK), CHUNK);
	return NULL;
}

/* A pipe that stays empty for LATE_MS holds up the one worker that reads it; a file is read beside it. */
static const char *read_beside_a_late_pipe(const struct scratch *scratch)
{
	char path[256];
	uint8_t *contents, *memory = malloc(CHUNK * DEPTH);
	int ends[2], fd = make_file(scratch, &contents, path);
	struct sink sink = {.bytes = {calloc(1, CHUNK), calloc(1, FILE_BYTES)}};
	const struct reader_options options = {.memory = memory, .chunk_bytes = CHUNK, .depth = DEPTH,
		.stall_ms = STALL_MS, .deliver = take, .userdata = &sink};
	struct writer writer = {.contents = contents};
	struct model_error error = {""};
	const char *name = NULL;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	writer.fd = ends[1];
	const struct reader_segment segments[] = {
		{ends[0], "pipe", 0, CHUNK}, {fd, path, 0, FILE_BYTES}};

	assert_int_equal(pthread_create(&writer.thread, NULL, write_late, &writer), 0);
	assert_int_equal(reader_run(segments, 2, &options, &name, &error), 0);
	assert_int_equal(pthread_join(writer.thread, NULL), 0);
	assert_int_equal(sink.n_bytes, CHUNK + FILE_BYTES);
	assert_memory_equal(sink.bytes[0], contents, CHUNK);
	assert_memory_equal(sink.bytes[1], contents, FILE_BYTES);
	for (int i = 0; i < 2; i++) {
		free(sink.bytes[i]);
		close(ends[i]);
	}
	free(memory);
	free(contents);
	close(fd);
	return name;
}

static void test_reads_that_workers_do_not_end_are_done_without_them(void **state)
{
	struct sink nothing = {0};
	struct model_error error = {""};
	const char *name = NULL;

	assert_int_equal(run(NULL, 0, &nothing, &name, &error), 0);
	if (!strcmp(name, "pread"))
		skip(); /* no io_uring here */
	assert_string_equal(read_beside_a_late_pipe(*state), "io_uring without workers");
}

/* ---- both ways ---- */

static int with_auto(void **state)
{
	setenv("MIMEO_LOOP", "auto", 1);
	return scratch_setup(state);
}

static int with_epoll(void **state)
{
	setenv("MIMEO_LOOP", "epoll", 1);
	return scratch_setup(state);
}

static void test_epoll_asks_for_pread(void **state)
{
	char path[256];
	uint8_t *contents, byte;
	int fd = make_file(*state, &contents, path);
	const struct reader_segment segment = {fd, path, 5, 1};
	struct sink sink = {.bytes = {&byte}};
	struct model_error error = {""};
	const char *name = NULL;

	assert_int_equal(run(&segment, 1, &sink, &name, &error), 0);
	assert_string_equal(name, "pread");
	assert_int_equal(byte, contents[5]);
	free(contents);
	close(fd);
}

static void test_opened_file_is_one_that_reads_may_wait_for(void **state)
{
	struct scratch *scratch = *state;
	struct model_error error = {""};
	char path[256];
	uint64_t size;
	int fd;

	scratch_write(scratch, "file", "12345", 5);
	scratch_path(scratch, "file", path);
	assert_int_equal(file_open(AT_FDCWD, path, path, &fd, &size, &error), 0);
	assert_int_equal(size, 5);
	assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	close(fd);
}

#define BOTH(claim)                                                                                \
	{"test_" #claim "_auto", check_##claim, with_auto, scratch_teardown, NULL},                \
	{                                                                                          \
		"test_" #claim "_pread", check_##claim, with_epoll, scratch_teardown, NULL         \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(everything_arrives),
		BOTH(shrunken_file_is_an_error),
		BOTH(failed_delivery_ends_the_reading),
		BOTH(unreadable_fd_is_an_error),
		BOTH(kept_memory_is_not_read_into_until_released),
		BOTH(failed_release_ends_the_reading),
		BOTH(nothing_to_read_is_done_at_once),
		scratch_test(test_opened_file_is_one_that_reads_may_wait_for),
		cmocka_unit_test_setup_teardown(
			test_reads_that_workers_do_not_end_are_done_without_them, with_auto,
			scratch_teardown),
		cmocka_unit_test_setup_teardown(
			test_epoll_asks_for_pread, with_epoll, scratch_teardown),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
