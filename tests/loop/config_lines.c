/* SPDX-License-Identifier: MIT */
#include "tests/loop/config_lines.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct config_error error;

int without_environment(void **state)
{
	options_clear_environment(NULL);
	return 0;
}

int parse_with(const char *line, const char *file, FILE *out, struct config *ret)
{
	char *copy = strdup(line), *argv[64] = { (char *)"mimeod" }, *save = NULL;
	int argc = 1, rc;

	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		assert_true(argc < 63);
		argv[argc++] = word;
	}
	error.text[0] = '\0';
	rc = options_parse(argc, argv, file, out, ret, &error);
	free(copy);
	return rc;
}

int parse(const char *line, struct config *ret)
{
	return parse_with(line, NULL, stdout, ret);
}

int parse_file(const char *text, const char *line, struct config *ret)
{
	char path[] = "/tmp/test_config.XXXXXX";
	int fd = mkstemp(path), rc;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	rc = parse_with(line, path, stdout, ret);
	unlink(path);
	return rc;
}

const struct config_key *key_named(const char *name)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (strcmp(config_keys[i].name, name) == 0)
			return &config_keys[i];
	}
	fail_msg("no key %s", name);
	return NULL;
}
