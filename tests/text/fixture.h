/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_TEXT_FIXTURE_H
#define MIMEO_TESTS_TEXT_FIXTURE_H

/* The tokenizers of tokenizers.json, and tokenizers that a test writes. */

#include <jansson.h>

#include <mimeo/text.h>

#include "tests/ipc/test.h"

/* tokenizers.json. Fails the test if it cannot be read. */
json_t *fixture_load(void);
/* The entry with that claim; owned by `table`. */
const json_t *fixture_find(const json_t *table, const char *claim);
/* Open the tokenizer of an entry. */
struct mimeo_text *fixture_open(const json_t *table, const json_t *entry);

/* Open a tokenizer.json from text; the status and the message of a failure. */
int fixture_open_json(struct mimeo_text **ret, const char *json, char *message, size_t size);
/* A descriptor of a file with this content. */
int fixture_file(const char *content, size_t length);

/* A tokenizer of bytes: BPE without merges, decoder ByteLevel, and special tokens <a> and <b> with
 * the ids 256 and 257. */
struct mimeo_text *fixture_open_bytes(void);

#endif
