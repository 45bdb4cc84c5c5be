/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_ERROR_H
#define MIMEO_DAEMON_MODEL_ERROR_H

/*
 * Errors of models and their files: one sentence, which names file and field.
 */

struct model_error {
	char text[512]; /* "/models/x/config.json: rope_scaling.rope_type \"dynamic\" is not ..." */
};

/* Write the sentence and return rc. Control bytes, which an untrusted file may have in names, become
 * '?'. error may be NULL. */
int model_fail(struct model_error *error, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
