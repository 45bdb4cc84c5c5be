/* SPDX-License-Identifier: MIT */
#include "tests/daemon/masks.h"

static bool same_document(const struct mask *m, uint32_t q, uint32_t k)
{
	for (; q > k; q--)
		if (q == m->begin || m->words[q] != m->words[q - 1])
			return false;
	return true;
}

bool mask_sees(const void *mask, uint32_t q, uint32_t k)
{
	const struct mask *m = mask;
	uint32_t end = m->begin + m->msg.prefix;

	if (q == k)
		return true;
	switch (m->msg.kind) {
	case MIMEO_MASK_WINDOW:
		return k < q && (k < m->msg.sinks || q - k < m->msg.window);
	case MIMEO_MASK_PREFIX:
		return k < q || (q >= m->begin && q < end && k < end);
	case MIMEO_MASK_DOCUMENTS:
		return k < q && (q < m->begin || (k >= m->begin && same_document(m, q, k)));
	case MIMEO_MASK_TREE:
		if (k >= q || q < m->begin || k < m->begin)
			return k < q;
		return m->words[q] >> (k - m->begin) & 1;
	default:
		return k < q;
	}
}

uint32_t mask_payload(const struct mask *m, const int32_t *tokens, uint32_t n, int32_t *payload)
{
	memcpy(payload, tokens, n * sizeof(*tokens));
	memcpy(payload + n, m->words + m->begin, n * sizeof(m->words[0]));
	return msg_mask_has_words(&m->msg) ? 3 * n : n;
}
