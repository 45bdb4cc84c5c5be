/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_FAIL_H
#define MIMEO_DAEMON_BENCH_FAIL_H

/* One sentence on standard error behind the program's name; returns rc. */
int __attribute__((format(printf, 2, 3))) bench_fail(int rc, const char *format, ...);
/* The same of a device's condition or -errno: "WHAT: WHY", or what rc says where `why` is empty.
 * Without an error it says nothing. */
int bench_fail_device(int rc, const char *what, const char *why);

#endif
