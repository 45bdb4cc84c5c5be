/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_RUN_H
#define MIMEO_TESTS_BENCH_RUN_H

/* mimeo-bench as a user runs it, and what it writes as JSON. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#define OUTPUT_MAX 65536

/* The program that all of these run, in the build folder: mimeo-bench unless a test says otherwise. */
extern const char *bench_program;

/* Shipped models, in a shell command. */
#define MODELS "\"$MIMEO_SOURCE\"/examples/models/"

/* A shell command's exit status and output. MIMEO_BUILD and MIMEO_SOURCE are set. */
int __attribute__((format(printf, 2, 3))) shell(char output[OUTPUT_MAX], const char *format, ...);
/* The program ends with that status, and the message is part of what it writes, or of the one line that
 * it writes, to either output. */
void assert_run(int status, const char *arguments, const char *message);
void assert_one_line(int status, const char *arguments, const char *message);
/* Run it with what it makes in a folder of its own, outputs redirected as the arguments say: its output,
 * then "status N", then "empty" if nothing is left in the folder. */
void run_in_folder(const char *arguments, char output[OUTPUT_MAX]);
/* A bench of tinycalc, which must succeed. */
void run_shipped(const char *arguments, char output[OUTPUT_MAX]);
/* The rows that it writes as JSON: of tinycalc, of one that make-checkpoint makes for the run, or of what
 * options say. */
json_t *rows_of(const char *arguments);
json_t *rows_of_tiny(const char *arguments);
json_t *rows_of_model(const char *model, const char *arguments);
double number(const json_t *rows, size_t row, const char *key);
const char *text(const json_t *rows, size_t row, const char *key);
/* But for rounding. */
void assert_near(double value, double expected);
/* The row's ratio is that of the two. */
void assert_ratio(const json_t *rows, size_t row, const char *value, const char *floor);
/* n rows: so many samples each, a median that is not above the P99, and the same of its floor. */
void assert_measured(const json_t *rows, const char *const *measures, size_t n, int samples);

#endif
