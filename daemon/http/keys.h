/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_KEYS_H
#define MIMEO_DAEMON_HTTP_KEYS_H

/*
 * API keys, from a file with one per line; the rest of a line, after a space, is a comment. Empty lines and
 * lines that begin with # are skipped. The file must be a regular one, owned by root or this process's user,
 * that others cannot access and its group cannot write.
 */

#include <stdbool.h>
#include <stddef.h>

#define KEYS_MAX 256u
#define KEY_LEAST 16u /* characters of a key, so that it cannot be guessed */
#define KEY_MAX 255u

struct keys;

/* 0, or -errno with a sentence in message[size]. */
int keys_load(const char *path, struct keys **ret, char *message, size_t size);
void keys_free(struct keys *keys);
/* Is the key of "Bearer KEY" (the header's value, or NULL) one of them? Takes as long for a wrong key as for a right
 * one of the same length. */
bool keys_have(const struct keys *keys, const char *authorization);

#endif
