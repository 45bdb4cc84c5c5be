/* SPDX-License-Identifier: MIT */
/* The sentence of refusals by a limit of what a user or a session may have. */
#include "ipc/msg.h"

#include <inttypes.h>
#include <stdio.h>

int msg_quota_explain(const struct msg_quota *quota, char *buffer, size_t size)
{
	return snprintf(buffer, size, "%s: %" PRIu64 "%s asked for, %" PRIu64 " left for %s (%s)", quota->what,
		quota->asked, quota->unit, quota->left, quota->whom, quota->limit);
}

int msg_budget_explain(const int32_t values[static 3], char *buffer, size_t size)
{
	struct msg_quota quota = {
		.what = "?", .unit = "", .asked = (uint32_t)values[1], .left = (uint32_t)values[2],
		.whom = "?", .limit = "?"};

	if (values[0] == RING_BUDGET_SEQUENCES) {
		quota.what = "open sequences";
		quota.whom = "this session";
		quota.limit = "max_sequences";
	} else if (values[0] == RING_BUDGET_PAGES) {
		quota.what = "KV pages of sequences that cannot be evicted";
		quota.whom = "this user";
		quota.limit = "kv_pages";
	}
	return msg_quota_explain(&quota, buffer, size);
}
