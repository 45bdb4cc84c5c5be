/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_EXAMPLES_MAKE_CHECKPOINT_FILES_H
#define MIMEO_EXAMPLES_MAKE_CHECKPOINT_FILES_H

/* New files in a directory, and the sentence on standard error that every failure comes with. */

#include <stdint.h>
#include <stdio.h>

/* Says it; -1. */
int __attribute__((format(printf, 1, 2))) fail(const char *format, ...);

/* A new file in the directory, or -1 with a sentence: what is there is not overwritten. */
int file_create(const char *directory, const char *name);
/* A text file made by `print`. 0, or -1 with a sentence. */
int file_write_text(const char *directory, const char *name,
	void (*print)(const void *arg, FILE *file), const void *arg);
/* 0 or an errno. */
int file_write_all(int fd, const void *data, uint64_t bytes, uint64_t offset);

#endif
