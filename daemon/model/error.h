/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_ERROR_H
#define MIMEO_DAEMON_MODEL_ERROR_H

#include "daemon/model/model.h"

/* Write the sentence and return rc. Bytes that are not printable, which a hostile file may have put
 * into a name, become '?'. error may be NULL. */
int model_fail(struct model_error *error, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
