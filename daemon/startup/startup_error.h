/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_ERROR_H
#define MIMEO_DAEMON_STARTUP_ERROR_H

/* Why mimeod does not start: one sentence that names what to change. */

struct startup_error {
	char text[640];
};

/* Says it: r, or -EIO where r is a device's condition. */
int startup_refuse(struct startup_error *error, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
