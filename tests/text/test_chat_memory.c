/* SPDX-License-Identifier: MIT */

/* A chat whose 1st, 2nd, ... allocation of the library fails, by --wrap. */

#include "sdk/text/chat_config.h"
#include "tests/text/chat.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);

static size_t n_left; /* allocations until one fails; 0: none fails */

static bool fails_now(void)
{
	return n_left && !--n_left;
}

void *__wrap_malloc(size_t size)
{
	return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails_now() ? NULL : __real_calloc(n, size);
}

static const char config[] =
	"{\"bos_token\": \"<s>\", \"chat_template\": [{\"name\": \"default\", "
	"\"template\": \"{% for m in messages %}{{ m | tojson * 3000 }}{% endfor %}\"}]}";
static const char request[] =
	"{\"messages\": [{\"role\": \"user\", \"content\": null, \"reasoning\": \"r\"}]}";

static int open_and_render(char message[256])
{
	struct chat_set *set;
	char *text;
	uint8_t *foreign;
	size_t length;
	int rc;

	message[0] = 0;
	rc = chat_set_new(&set, config, strlen(config), NULL, 0, message, 256);
	if (rc)
		return rc;
	rc = chat_set_render(set, request, strlen(request), &text, &foreign, &length, message, 256);
	if (!rc) {
		free(text);
		free(foreign);
	}
	chat_set_free(set);
	return rc;
}

static void test_each_failed_allocation_is_reported(void **state)
{
	char message[256];
	size_t n = 0;
	int rc;

	do {
		n_left = ++n;
		rc = open_and_render(message);
		if (rc && (rc != MIMEO_E_NO_MEMORY || !*message))
			fail_msg("allocation %zu: status %d, \"%s\"", n, rc, message);
	} while (rc);
	assert_true(n > 5);
	n_left = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_failed_allocation_is_reported),
	};

	return cmocka_run_group_tests_name("chat_memory", tests, NULL, NULL);
}
