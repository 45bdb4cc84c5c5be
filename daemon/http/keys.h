/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_KEYS_H
#define MIMEO_DAEMON_HTTP_KEYS_H

/*
 * API keys, from a file with one in a line: the key, and behind a space a name for the log. Empty lines and
 * lines that begin with # are skipped. The file must be a regular one, owned by root or this process's user,
 * that others cannot access and its group cannot write.
 */

#include <stddef.h>

#define KEYS_MAX 256u
#define KEY_LEAST 16u /* characters of a key, so that it cannot be guessed */
#define KEY_MAX 255u
#define KEY_NAME_MAX 63u

struct keys;

/* 0, or -errno with a sentence in message[size]. */
int keys_load(const char *path, struct keys **ret, char *message, size_t size);
void keys_free(struct keys *keys);
/* The name of the key in "Bearer KEY" (the header's value), or NULL. Takes as long for any wrong key of the
 * same length as for a right one. The name lives as long as `keys`. */
const char *keys_find(const struct keys *keys, const char *authorization);

#endif
