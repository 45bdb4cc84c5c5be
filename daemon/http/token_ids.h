/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_TOKEN_IDS_H
#define MIMEO_DAEMON_HTTP_TOKEN_IDS_H

/* Token ids of texts and of lists in JSON. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/http/api_error.h"
#include "daemon/http/upstream.h"

struct token_ids {
	int32_t *ids; /* [n], owned; NULL: none */
	size_t n;
};

void token_ids_deinit(struct token_ids *ids);
/* A list of ids of the model's vocabulary; `name` is the field's. */
bool token_ids_of_list(struct token_ids *ret, const json_t *list, const struct upstream_model *model,
	const char *name, struct api_error *error);
/* A text with the tokens that the tokenizer adds (MIMEO_TEXT_...). */
bool token_ids_of_text(struct token_ids *ret, const json_t *text, const struct upstream_model *model,
	uint32_t flags, struct api_error *error);
/* Either, as a prompt or an input of an embedding, with special tokens. */
bool token_ids_of_input(struct token_ids *ret, const json_t *input, const struct upstream_model *model,
	const char *name, struct api_error *error);
/* {"messages": ..., ...} by the model's template. */
bool token_ids_of_chat(struct token_ids *ret, const json_t *chat, const struct upstream_model *model,
	struct api_error *error);

#endif
