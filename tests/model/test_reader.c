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
	uint32_t multiple;   /* of the chunks of segment 0 but for its last; 0: CHUNK */
	bool misaligned;
};

static int take(void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct sink *sink = userdata;

	if (++sink->n_chunks == sink->fail_at)
		return -ECANCELED;
	sink->misaligned |= bytes > CHUNK ||
		offset % (sink->multiple && !segment ? sink->multiple : CHUNK) != 0;
	memcpy(sink->bytes[segment] + offset, data, bytes);
	sink->n_bytes += bytes;
	return 0;
}

/* A file whose byte i is hash(i), and readers that put chunks into `memory`. */
struct world {
	struct scratch *scratch;
	char path[256];
	int fd;
	uint8_t contents[FILE_BYTES], memory[CHUNK * DEPTH];
	uint8_t bytes[3][FILE_BYTES]; /* the sink's */
	struct sink sink;
	struct model_error error;
};

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	void *scratch = NULL;

	if (!w || scratch_setup(&scratch))
		return -1;
	w->scratch = scratch;
	for (uint32_t i = 0; i < FILE_BYTES; i++)
		w->contents[i] = (uint8_t)((i * 2654435761u) >> 24);
	for (int i = 0; i < 3; i++)
		w->sink.bytes[i] = w->bytes[i];
	scratch_write(scratch, "file", w->contents, FILE_BYTES);
	scratch_path(scratch, "file", w->path);
	w->fd = open(w->path, O_RDONLY | O_CLOEXEC);
	*state = w;
	return w->fd < 0 ? -1 : 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	void *scratch = w->scratch;

	close(w->fd);
	free(w);
	return scratch_teardown(&scratch);
}

static int run(struct world *w, const struct reader_segment *segments, uint32_t n,
	const char **ret_name)
{
	const struct reader_options options = {
		.memory = w->memory,
		.chunk_bytes = CHUNK,
		.depth = DEPTH,
		.deliver = take,
		.userdata = &w->sink,
	};

	return reader_run(segments, n, &options, ret_name, &w->error);
}

static void check_everything_arrives(void **state)
{
	struct world *w = *state;
	const struct reader_segment segments[] = {{w->fd, w->path, 7, 50001},
		{w->fd, w->path, 60000, 0}, {w->fd, w->path, 61000, 39000}};
	const char *name = NULL;

	assert_int_equal(run(w, segments, 3, &name), 0);
	assert_int_equal(w->sink.n_bytes, 50001 + 39000);
	assert_int_equal(w->sink.n_chunks, 13 + 10);
	assert_false(w->sink.misaligned);
	for (int i = 0; i < 3; i++)
		assert_memory_equal(
			w->bytes[i], w->contents + segments[i].offset, segments[i].bytes);
	assert_true(!strcmp(name, "pread") || !strcmp(name, "io_uring"));
}

static void check_shrunken_file_is_an_error(void **state)
{
	struct world *w = *state;
	const struct reader_segment segment = {w->fd, w->path, 0, FILE_BYTES};

	assert_int_equal(truncate(w->path, 50000), 0);
	assert_int_equal(run(w, &segment, 1, NULL), -EIO);
	assert_contains(w->error.text, w->path);
	assert_contains(w->error.text, "ends at byte ");
	assert_true(w->sink.n_bytes <= 50000);
}

static void check_failed_delivery_ends_the_reading(void **state)
{
	struct world *w = *state;
	const struct reader_segment segment = {w->fd, w->path, 0, FILE_BYTES};

	w->sink.fail_at = 3;
	assert_int_equal(run(w, &segment, 1, NULL), -ECANCELED);
	assert_int_equal(w->sink.n_chunks, 3);
}

static void check_unreadable_fd_is_an_error(void **state)
{
	struct world *w = *state;
	CLEANUP(cleanup_close) int write_only = open(w->path, O_WRONLY | O_CLOEXEC);
	const struct reader_segment segment = {write_only, w->path, 0, 10};

	assert_int_equal(run(w, &segment, 1, NULL), -EBADF);
	assert_contains(w->error.text, "cannot be read: Bad file descriptor");
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

static int run_keeping(struct world *w, struct keeper *keeper)
{
	const struct reader_segment segment = {w->fd, w->path, 0, FILE_BYTES};
	const struct reader_options options = {
		.memory = w->memory,
		.chunk_bytes = CHUNK,
		.depth = DEPTH,
		.deliver = keep,
		.release = let_go,
		.userdata = keeper,
	};
	int rc;

	keeper->contents = w->contents;
	rc = reader_run(&segment, 1, &options, NULL, &w->error);
	for (uint32_t i = 0; i < keeper->n_kept; i++)
		keeper->spoilt |= memcmp(keeper->data[i], w->contents + keeper->offset[i],
					  keeper->bytes[i]) != 0;
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
	struct world *w = *state;

	assert_int_equal(run(w, NULL, 0, NULL), 0);
	assert_int_equal(w->sink.n_chunks, 0);
}

static void check_chunks_hold_multiples_where_a_segment_asks_for_them(void **state)
{
	struct world *w = *state;
	const struct reader_segment segments[] = {
		{w->fd, w->path, 7, 210 * 100, 210}, {w->fd, w->path, 50000, 9000}};

	w->sink.multiple = 210;
	assert_int_equal(run(w, segments, 2, NULL), 0);
	assert_false(w->sink.misaligned);
	assert_int_equal(w->sink.n_chunks, 6 + 3);
	for (int i = 0; i < 2; i++)
		assert_memory_equal(
			w->bytes[i], w->contents + segments[i].offset, segments[i].bytes);
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

/* A pipe that stays empty for LATE_MS blocks the worker that reads it; a file is read beside
 * it. */
static const char *read_beside_a_late_pipe(struct world *w)
{
	int ends[2];
	const struct reader_options options = {.memory = w->memory, .chunk_bytes = CHUNK,
		.depth = DEPTH, .stall_ms = STALL_MS, .deliver = take, .userdata = &w->sink};
	struct writer writer = {.contents = w->contents};
	const char *name = NULL;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	writer.fd = ends[1];
	const struct reader_segment segments[] = {
		{ends[0], "pipe", 0, CHUNK}, {w->fd, w->path, 0, FILE_BYTES}};

	assert_int_equal(pthread_create(&writer.thread, NULL, write_late, &writer), 0);
	assert_int_equal(reader_run(segments, 2, &options, &name, &w->error), 0);
	assert_int_equal(pthread_join(writer.thread, NULL), 0);
	assert_int_equal(w->sink.n_bytes, CHUNK + FILE_BYTES);
	assert_memory_equal(w->bytes[0], w->contents, CHUNK);
	assert_memory_equal(w->bytes[1], w->contents, FILE_BYTES);
	close(ends[0]);
	close(ends[1]);
	return name;
}

static void test_reads_that_workers_do_not_end_are_done_without_them(void **state)
{
	struct world *w = *state;
	const char *name = NULL;

	assert_int_equal(run(w, NULL, 0, &name), 0);
	if (!strcmp(name, "pread"))
		skip(); /* no io_uring here */
	assert_string_equal(read_beside_a_late_pipe(w), "io_uring without workers");
}

/* ---- both ways ---- */

static int with_auto(void **state)
{
	setenv("MIMEO_LOOP", "auto", 1);
	return world_setup(state);
}

static int with_epoll(void **state)
{
	setenv("MIMEO_LOOP", "epoll", 1);
	return world_setup(state);
}

static void test_epoll_asks_for_pread(void **state)
{
	struct world *w = *state;
	const struct reader_segment segment = {w->fd, w->path, 5, 1};
	const char *name = NULL;

	assert_int_equal(run(w, &segment, 1, &name), 0);
	assert_string_equal(name, "pread");
	assert_int_equal(w->bytes[0][0], w->contents[5]);
}

static void test_opened_file_is_one_that_reads_may_wait_for(void **state)
{
	struct world *w = *state;
	CLEANUP(cleanup_close) int fd = -1;
	uint64_t size;

	assert_int_equal(file_open(AT_FDCWD, w->path, w->path, &fd, &size, &w->error), 0);
	assert_int_equal(size, FILE_BYTES);
	assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
}

#define BOTH(claim)                                                                                \
	{"test_" #claim "_auto", check_##claim, with_auto, world_teardown, NULL},                \
	{                                                                                          \
		"test_" #claim "_pread", check_##claim, with_epoll, world_teardown, NULL         \
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
		BOTH(chunks_hold_multiples_where_a_segment_asks_for_them),
		cmocka_unit_test_setup_teardown(test_opened_file_is_one_that_reads_may_wait_for,
			world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(
			test_reads_that_workers_do_not_end_are_done_without_them, with_auto,
			world_teardown),
		cmocka_unit_test_setup_teardown(
			test_epoll_asks_for_pread, with_epoll, world_teardown),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
