/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/masks.h"

#include <string.h>

#include "daemon/engine/requests/completion.h"

_Static_assert((int)MIMEO_MASK_DEFAULT == MASK_CAUSAL && (int)MIMEO_MASK_WINDOW == MASK_WINDOW &&
	(int)MIMEO_MASK_PREFIX == MASK_PREFIX && (int)MIMEO_MASK_DOCUMENTS == MASK_DOCUMENTS &&
	(int)MIMEO_MASK_TREE == MASK_TREE && MIMEO_TREE_MAX == MASK_TREE_MAX, "masks");

/* Returns the status. */
static int masks_refuse(struct msg_detail *ret_detail, int status, struct msg_detail detail)
{
	*ret_detail = detail;
	return status;
}

/* More of the row's tokens under its mask than there can be: TOO_LONG where a daemon with another limit
 * would take them. */
static int masks_refuse_tokens(struct msg_detail *ret_detail, int status, const struct mimeo_mask *mask, uint32_t row,
	uint32_t n_tokens, uint32_t most)
{
	return masks_refuse(
		ret_detail, status, DETAIL(RING_DETAIL_MASK_TOKENS, row, n_tokens, most, mask->kind));
}

/* The model's attention has no masks: which one it is. */
static int masks_refuse_kind(
	struct msg_detail *ret_detail, const struct mimeo_mask *mask, const char *attention)
{
	struct msg_detail d = DETAIL(RING_DETAIL_MASK, mask->kind);
	size_t length = strlen(attention), most = sizeof(d.values) - sizeof(d.values[0]);

	memcpy(&d.values[1], attention, length < most ? length : most);
	return masks_refuse(ret_detail, MIMEO_E_UNSUPPORTED, d);
}

/* The model's, for a request that brings none: a prefix is all that each row has. */
static int masks_take_default(struct request *request, struct msg_detail *ret_detail)
{
	uint32_t most = request->session->accounting->options->max_batch_tokens;

	request->mask = request->runner->options.mask;
	for (uint32_t i = 0; request->mask.prefix && i < request->n_rows; i++) {
		if (request->rows[i].n_tokens > most)
			return masks_refuse_tokens(ret_detail, MIMEO_E_TOO_LONG, &request->mask, i,
				request->rows[i].n_tokens, most);
	}
	return 0;
}

static int masks_take_own(
	struct request *request, const struct mimeo_mask *mask, struct msg_detail *ret_detail)
{
	const struct attention_layers *attention = &request->runner->options.attention;
	uint32_t most = request->session->accounting->options->max_batch_tokens;

	request->mask = *mask;
	request->own_mask = true;
	if (!attention->masks)
		return masks_refuse_kind(ret_detail, mask, attention->names);
	if (mask->prefix > most)
		return masks_refuse_tokens(ret_detail, MIMEO_E_TOO_LONG, mask, 0, mask->prefix, most);
	for (uint32_t i = 0; i < request->n_rows; i++) {
		uint32_t n = request->rows[i].n_tokens;

		if (mask->prefix > n)
			return masks_refuse_tokens(ret_detail, MIMEO_E_INVALID, mask, i, mask->prefix, n);
		if (mask->kind == MIMEO_MASK_TREE && n > MIMEO_TREE_MAX)
			return masks_refuse_tokens(ret_detail, MIMEO_E_INVALID, mask, i, n, MIMEO_TREE_MAX);
	}
	return 0;
}

/* Tokens that see one another are computed in one step: so many results of all positions must fit its outbox, with
 * one more for what is of the last position alone. */
static int masks_check_positions(const struct request *request, struct msg_detail *ret_detail)
{
	const uint32_t most = request->runner->inputs.limits.max_results - 1;
	const bool leave = (request->all_logits && !request->logits.at) ||
		(request->all_hidden && !request->hidden.at);

	for (uint32_t i = 0; leave && i < request->n_rows; i++) {
		const uint32_t n = request->rows[i].n_tokens;
		const uint32_t prefix = request->mask.prefix < n ? request->mask.prefix : n;

		if (prefix > most)
			return masks_refuse(ret_detail, MIMEO_E_TOO_LONG, DETAIL(RING_DETAIL_POSITIONS, i, prefix, most));
	}
	return 0;
}

int masks_take(struct request *request, const struct mimeo_mask *mask, struct msg_detail *ret_detail)
{
	int rc = mask->kind == MIMEO_MASK_DEFAULT ? masks_take_default(request, ret_detail)
						  : masks_take_own(request, mask, ret_detail);

	return rc ? rc : masks_check_positions(request, ret_detail);
}
