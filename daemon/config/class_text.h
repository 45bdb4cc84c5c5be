/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CLASS_TEXT_H
#define MIMEO_DAEMON_CLASS_TEXT_H

/* The names of classes of requests (enum mimeo_class), for command lines. */

#include <stdbool.h>
#include <stdint.h>

#define CLASS_TEXT_ACCEPTED "interactive, normal or batch"

/* False, and *ret unchanged, if it is none of them. */
bool class_text_parse(const char *text, uint32_t *ret);

#endif
