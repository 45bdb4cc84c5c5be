/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_MODELS_H
#define MIMEO_DAEMON_HTTP_MODELS_H

/* Models by name. Each returns NULL after filling in the error. */

#include "daemon/http/api_error.h"
#include "daemon/http/http.h"

/* mimeod's session, or 503. */
struct mimeo *models_session(const struct http *http, struct api_error *error);
const struct upstream_model *models_find(const struct http *http, const char *name, struct api_error *error);
/* That of the field "model", which may be absent if there is one model only. */
const struct upstream_model *models_of(const struct http *http, const json_t *object, struct api_error *error);
/* The model's tokenizer. */
const struct mimeo_text *models_text(const struct upstream_model *model, struct api_error *error);

#endif
