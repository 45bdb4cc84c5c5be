/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/socket.h"
#include "tests/ipc/listen.h"
#include "tests/ipc/socket_fixture.h"

struct place {
	char folder[64];
	char path[SOCKET_PATH_MAX];
	int fd, lock_fd; /* of listen_at; -1: none, or closed */
};

static int setup(void **state)
{
	static struct place place;

	strcpy(place.folder, "/tmp/mimeo-test-socket-XXXXXX");
	if (!mkdtemp(place.folder))
		return -1;
	snprintf(place.path, sizeof(place.path), "%s/run/d.sock", place.folder);
	char run[SOCKET_PATH_MAX];
	snprintf(run, sizeof(run), "%s/run", place.folder);
	mkdir(run, 0700);
	place.fd = place.lock_fd = -1;
	*state = &place;
	return 0;
}

static void listen_end(struct place *place)
{
	if (place->fd >= 0)
		close(place->fd);
	if (place->lock_fd >= 0)
		close(place->lock_fd);
	place->fd = place->lock_fd = -1;
}

static int teardown(void **state)
{
	static const char *const names[] = {
		"run/d.sock", "run/d.sock.lock", "run/other", "run", ""};
	struct place *place = *state;
	char name[SOCKET_PATH_MAX + 32];

	listen_end(place);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(name, sizeof(name), "%s/%s", place->folder, names[i]);
		remove(name);
	}
	return 0;
}

/* ---- listening and connecting ---- */

static void listen_at(struct place *place)
{
	place->fd = socket_listen(place->path, &place->lock_fd);
	if (place->fd < 0)
		fail_msg("%s: %s", place->path, strerror(-place->fd));
}

/* A connection is accepted there; it is closed again. */
static void assert_listens(const struct place *place)
{
	int client = socket_connect(place->path, LONG_MS);

	assert_true(client >= 0);
	close(client);
}

static void test_socket_listen_gives_mode_0660(void **state)
{
	struct place *place = *state;
	struct stat st;

	mode_t before = umask(0077);
	listen_at(place);
	umask(before);
	assert_int_equal(stat(place->path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_true(fcntl(place->fd, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(place->fd, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(place->lock_fd, F_GETFD) & FD_CLOEXEC);
}

static void test_socket_listen_makes_no_folder(void **state)
{
	struct place *place = *state;
	char path[SOCKET_PATH_MAX];
	int lock_fd;

	snprintf(path, sizeof(path), "%s/run/deep/d.sock", place->folder);
	assert_int_equal(socket_listen(path, &lock_fd), -ENOENT);
}

static void test_socket_folder_is_made_for_the_default_place_only(void **state)
{
	struct place *place = *state;
	char path[SOCKET_PATH_MAX], folder[SOCKET_PATH_MAX];
	struct stat st;

	snprintf(folder, sizeof(folder), "%s/run", place->folder);
	setenv("XDG_RUNTIME_DIR", folder, 1);
	unsetenv("MIMEO_SOCKET");
	snprintf(path, sizeof(path), "%s/run/other/mimeod.sock", place->folder);
	assert_int_equal(socket_folder_make(path), 0);
	snprintf(folder, sizeof(folder), "%s/run/other", place->folder);
	assert_int_equal(stat(folder, &st), -1);

	assert_int_equal(socket_path(path, NULL), 0);
	setenv("MIMEO_SOCKET", path, 1);
	assert_int_equal(socket_folder_make(path), 0);
	snprintf(folder, sizeof(folder), "%s/run/mimeo", place->folder);
	assert_int_equal(stat(folder, &st), -1);

	unsetenv("MIMEO_SOCKET");
	mode_t before = umask(0022);
	assert_int_equal(socket_folder_make(path), 0);
	assert_int_equal(socket_folder_make(path), 0);
	umask(before);
	assert_int_equal(stat(folder, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(rmdir(folder), 0);
	unsetenv("XDG_RUNTIME_DIR");
}

static void lock_name(const struct place *place, char ret[static SOCKET_PATH_MAX + 8])
{
	snprintf(ret, SOCKET_PATH_MAX + 8, "%s" SOCKET_LOCK_SUFFIX, place->path);
}

static void test_socket_unlock_leaves_no_file_and_frees_the_place(void **state)
{
	struct place *place = *state;
	char name[SOCKET_PATH_MAX + 8];
	int lock_fd, other;

	lock_name(place, name);
	assert_int_equal(socket_lock(place->path, &lock_fd), 0);
	assert_int_equal(access(name, F_OK), 0);
	socket_unlock(place->path, lock_fd);
	assert_int_equal(access(name, F_OK), -1);
	assert_int_equal(socket_lock(place->path, &other), 0);
	socket_unlock(place->path, other);
}

/* The removed lock file of a daemon that has ended excludes no other, and unlocking it removes no file. */
static void test_socket_lock_of_a_removed_file_is_not_a_lock(void **state)
{
	struct place *place = *state;
	char name[SOCKET_PATH_MAX + 8];
	int old, new, third;

	lock_name(place, name);
	assert_int_equal(socket_lock(place->path, &old), 0);
	assert_int_equal(unlink(name), 0);
	assert_int_equal(socket_lock(place->path, &new), 0);
	socket_unlock(place->path, old);
	assert_int_equal(access(name, F_OK), 0);
	assert_int_equal(socket_lock(place->path, &third), -EADDRINUSE);
	socket_unlock(place->path, new);
}

static void test_socket_of_a_dead_daemon_is_taken_over(void **state)
{
	struct place *place = *state;

	listen_at(place);
	listen_end(place);
	assert_int_equal(access(place->path, F_OK), 0);
	assert_int_equal(socket_connect(place->path, LONG_MS), -ECONNREFUSED);
	listen_at(place);
	assert_listens(place);
}

static void test_socket_of_a_live_daemon_is_refused(void **state)
{
	struct place *place = *state;
	int other;

	listen_at(place);
	int fds = count_fds();
	assert_int_equal(socket_listen(place->path, &other), -EADDRINUSE);
	assert_int_equal(count_fds(), fds);
	assert_listens(place);

	/* also of one that does not take part in the lock */
	close(place->lock_fd);
	place->lock_fd = -1;
	assert_int_equal(socket_listen(place->path, &other), -EADDRINUSE);
	assert_listens(place);
}

static void test_socket_of_a_daemon_that_has_the_lock_but_no_socket_yet_is_refused(void **state)
{
	struct place *place = *state;
	int other, lock_fd;

	assert_int_equal(socket_lock(place->path, &lock_fd), 0);
	assert_int_equal(socket_lock(place->path, &other), -EADDRINUSE);
	assert_int_equal(socket_listen(place->path, &other), -EADDRINUSE);
	assert_int_equal(access(place->path, F_OK), -1);
	assert_int_equal(socket_connect(place->path, LONG_MS), -ENOENT);
	int fd = socket_bind(place->path);
	assert_true(fd >= 0);
	assert_listens(place);
	close(fd);
	close(lock_fd);
}

static void test_socket_lock_removes_a_dead_daemons_socket(void **state)
{
	struct place *place = *state;

	listen_at(place);
	listen_end(place);
	assert_int_equal(socket_lock(place->path, &place->lock_fd), 0);
	assert_int_equal(access(place->path, F_OK), -1);
}

static void test_socket_bind_to_a_taken_path_is_refused_and_leaves_it(void **state)
{
	struct place *place = *state;

	listen_at(place);
	int fds = count_fds();
	assert_int_equal(socket_bind(place->path), -EADDRINUSE);
	assert_int_equal(count_fds(), fds);
	assert_listens(place);
}

static void test_socket_listen_leaves_other_files_alone(void **state)
{
	struct place *place = *state;
	char path[SOCKET_PATH_MAX];

	listen_at(place);
	listen_end(place);
	snprintf(path, sizeof(path), "%s/run/other", place->folder);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(socket_listen(path, &place->lock_fd), -ENOTSOCK);
	assert_int_equal(access(path, F_OK), 0);
	strncat(path, ".lock", sizeof(path) - strlen(path) - 1);
	unlink(path);
}

static void test_socket_connect_without_listener_says_why(void **state)
{
	struct place *place = *state;
	char long_path[200];

	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	assert_int_equal(socket_connect(place->path, LONG_MS), -ENOENT);
	assert_int_equal(socket_connect(long_path, LONG_MS), -ENAMETOOLONG);
	assert_int_equal(socket_connect("", LONG_MS), -EINVAL);
}

static void test_socket_connect_gives_up_on_a_full_backlog(void **state)
{
	struct place *place = *state;

	listen_at(place);
	assert_int_equal(listen(place->fd, 0), 0);
	int first = socket_connect(place->path, LONG_MS);
	assert_true(first >= 0);
	int fds = count_fds();
	assert_int_equal(socket_connect(place->path, 20), -ETIMEDOUT);
	assert_int_equal(count_fds(), fds);
	assert_false(fcntl(first, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(first, F_GETFD) & FD_CLOEXEC);
	close(first);
}

/* ---- the peer ---- */

static void test_socket_peer_is_as_the_kernel_knows_it_and_its_pidfd_reports_its_end(void **state)
{
	struct place *place = *state;
	struct socket_peer peer;

	listen_at(place);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int client = socket_connect(place->path, LONG_MS);
		char byte;

		_exit(client >= 0 && read(client, &byte, 1) == 0 ? 0 : 1);
	}
	struct pollfd poll_fd = {.fd = place->fd, .events = POLLIN};
	assert_int_equal(poll(&poll_fd, 1, (int)LONG_MS), 1);
	int client = accept(place->fd, NULL, NULL);
	assert_true(client >= 0);
	assert_int_equal(socket_peer(client, &peer), 0);
	assert_int_equal(peer.pid, child);
	assert_int_equal(peer.uid, getuid());
	close(client);
	if (peer.pidfd >= 0) {
		struct pollfd death = {.fd = peer.pidfd, .events = POLLIN};

		assert_true(fcntl(peer.pidfd, F_GETFD) & FD_CLOEXEC);
		assert_int_equal(poll(&death, 1, (int)LONG_MS), 1);
		close(peer.pidfd);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

#define AT_PLACE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		AT_PLACE(test_socket_listen_gives_mode_0660),
		AT_PLACE(test_socket_listen_makes_no_folder),
		AT_PLACE(test_socket_folder_is_made_for_the_default_place_only),
		AT_PLACE(test_socket_unlock_leaves_no_file_and_frees_the_place),
		AT_PLACE(test_socket_lock_of_a_removed_file_is_not_a_lock),
		AT_PLACE(test_socket_of_a_dead_daemon_is_taken_over),
		AT_PLACE(test_socket_of_a_live_daemon_is_refused),
		AT_PLACE(test_socket_of_a_daemon_that_has_the_lock_but_no_socket_yet_is_refused),
		AT_PLACE(test_socket_lock_removes_a_dead_daemons_socket),
		AT_PLACE(test_socket_bind_to_a_taken_path_is_refused_and_leaves_it),
		AT_PLACE(test_socket_listen_leaves_other_files_alone),
		AT_PLACE(test_socket_connect_without_listener_says_why),
		AT_PLACE(test_socket_connect_gives_up_on_a_full_backlog),
		AT_PLACE(test_socket_peer_is_as_the_kernel_knows_it_and_its_pidfd_reports_its_end),
	};

	return cmocka_run_group_tests_name("socket", tests, NULL, NULL);
}
