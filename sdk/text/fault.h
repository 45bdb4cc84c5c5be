/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_FAULT_H
#define MIMEO_SDK_TEXT_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/* Where the sentence about a failure goes. */
struct fault {
	char *message; /* [size]; may be NULL if size is 0 */
	size_t size;
};

/* What a file or a chat contributed to a sentence may hold line ends, other control characters and
 * parts of characters: replace them. Part of a character at the end of a cut sentence goes. */
void fault_clean(char *message, bool is_cut);
/* Write the sentence and return `status`, a negative enum mimeo_status. */
int fault_set(const struct fault *fault, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
