/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_TABLE_FORMAT_H
#define MIMEO_DAEMON_TABLE_FORMAT_H

/* Quantities as people read them, to three digits unless said otherwise. Each writes into `ret` and returns it. */

#include <stdint.h>

#define TABLE_FORMAT_MAX 32

/* "512 B", "3.53 MiB" */
const char *table_format_bytes(char ret[static TABLE_FORMAT_MAX], double bytes);
/* "12.3 us", "4.56 s", "2h05m", "3d04h" */
const char *table_format_seconds(char ret[static TABLE_FORMAT_MAX], double seconds);
/* "0.123", "4.56", "78.9", "1234" */
const char *table_format_number(char ret[static TABLE_FORMAT_MAX], double value);
/* Six digits, zeros at the end included: "14.2350", "1234.50", "1.23450e+07" */
const char *table_format_precise(char ret[static TABLE_FORMAT_MAX], double value);

#endif
