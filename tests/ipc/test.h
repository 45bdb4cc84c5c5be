/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_IPC_TEST_H
#define MIMEO_TESTS_IPC_TEST_H

/* cmocka.h wants these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

#endif
