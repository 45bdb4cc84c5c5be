/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_PREPARE_H
#define MIMEO_SDK_PREPARE_H

/* What the prepare calls share. Each check returns 0, or the negative status of prepare_refuse. */

#include "sdk/client.h"

/* Refuse a prepare call: keep the sentence for mimeo_request_message. Returns the status. */
__attribute__((format(printf, 3, 4))) int prepare_refuse(
	struct mimeo_request *request, int status, const char *format, ...);
/* The first thing of every prepare call. */
int prepare_begin(struct mimeo_request *request);
/* Copy the caller's struct, `init` being the macro that initialises it. */
int prepare_read(struct mimeo_request *request, void *known, size_t known_size, const void *given,
	size_t least, const char *init);
int prepare_check_model(struct mimeo_request *request, uint32_t model);
int prepare_check_reserved(struct mimeo_request *request, const char *name, uint32_t reserved);
/* The daemon checks whether the buffer is open and large enough. */
int prepare_check_place(
	struct mimeo_request *request, const char *name, const struct mimeo_place *place);
int prepare_check_words(struct mimeo_request *request, const struct mimeo_mask *mask);
int prepare_check_mask_row(struct mimeo_request *request, const struct mimeo_mask *mask, uint32_t row,
	uint32_t n_tokens);
int prepare_check_sequence(struct mimeo_request *request, uint32_t sequence, uint32_t model);
/* Bytes of a mask's words for so many tokens. */
uint64_t prepare_words_bytes(const struct mimeo_mask *mask, uint64_t n_tokens);
/*
 * Take the request's block, write the header, and fill in entry and result pointers; *ret_payload is
 * where to write the payload. 0, or FULL.
 */
int prepare_place(struct mimeo_request *request, const void *header, size_t header_bytes,
	uint64_t payload_bytes, const struct msg_output *output, uint8_t **ret_payload);

#endif
