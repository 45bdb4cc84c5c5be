/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_ERROR_H
#define MIMEO_DAEMON_STARTUP_ERROR_H

/* Why mimeod does not start: one sentence that says what to change. */

struct startup_error {
	char text[640];
};

/* Fills in *error. Returns rc if negative; -EIO for the positive statuses of devices. */
int startup_refuse(struct startup_error *error, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
