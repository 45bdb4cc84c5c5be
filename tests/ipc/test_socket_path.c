/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/socket.h"
#include "tests/ipc/test.h"

static void test_socket_path_prefers_argument_then_variable_then_runtime_folder(void **state)
{
	char path[SOCKET_PATH_MAX];

	setenv("MIMEO_SOCKET", "/a/b.sock", 1);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	assert_int_equal(socket_path(path, "/x.sock"), 0);
	assert_string_equal(path, "/x.sock");
	assert_int_equal(socket_path(path, NULL), 0);
	assert_string_equal(path, "/a/b.sock");
	setenv("MIMEO_SOCKET", "", 1);
	assert_int_equal(socket_path(path, NULL), 0);
	assert_string_equal(path, "/run/user/7/mimeo/mimeod.sock");
	unsetenv("MIMEO_SOCKET");
	unsetenv("XDG_RUNTIME_DIR");
	assert_int_equal(socket_path(path, NULL), 0);
	assert_string_equal(path, "/run/mimeo/mimeod.sock");
}

static void test_socket_path_too_long_is_refused_and_writes_nothing(void **state)
{
	char path[SOCKET_PATH_MAX] = "before", longest[SOCKET_PATH_MAX + 1];

	memset(longest, 'x', sizeof(longest));
	longest[SOCKET_PATH_MAX] = '\0';
	assert_int_equal(socket_path(path, longest), -ENAMETOOLONG);
	assert_int_equal(socket_admin_path(path, longest + 3), -ENAMETOOLONG);
	assert_string_equal(path, "before");
	assert_int_equal(socket_path(path, longest + 1), 0);
	assert_string_equal(path, longest + 1);
}

static void test_socket_admin_path_keeps_the_suffix(void **state)
{
	static const char *const pairs[][2] = {{"/r/x.sock", "/r/x-admin.sock"}, {"x", "x-admin"},
		{"/r.sock/x", "/r.sock/x-admin"}, {".sock", "-admin.sock"}, {"sock", "sock-admin"}};
	char path[SOCKET_PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		assert_int_equal(socket_admin_path(path, pairs[i][0]), 0);
		assert_string_equal(path, pairs[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_socket_path_prefers_argument_then_variable_then_runtime_folder),
		cmocka_unit_test(test_socket_path_too_long_is_refused_and_writes_nothing),
		cmocka_unit_test(test_socket_admin_path_keeps_the_suffix),
	};

	return cmocka_run_group_tests_name("socket_path", tests, NULL, NULL);
}
