/* SPDX-License-Identifier: MIT */
#include "daemon/serve/weights.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>

#include "daemon/config/account.h"

#define GROUPS_MAX 65536 /* of a user: as many as Linux allows */

int weights_add(struct weights *weights, const char *name, bool group, uint32_t weight)
{
	id_t id;
	int rc = account_find(name, group, &id);

	if (rc)
		return rc;
	if (weights->n == WEIGHTS_MAX)
		return -ENOSPC;
	weights->entries[weights->n++] = (struct user_weight){.group = group, .id = id, .weight = weight};
	return 0;
}

/* The largest weight of these groups; 0: none has one. */
static uint32_t weights_of_groups(const struct weights *weights, const gid_t *groups, int n_groups)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < weights->n; i++) {
		const struct user_weight *entry = &weights->entries[i];

		for (int j = 0; entry->group && j < n_groups; j++) {
			if (groups[j] == entry->id && entry->weight > ret)
				ret = entry->weight;
		}
	}
	return ret;
}

static uint32_t weights_ask_groups(const struct weights *weights, uid_t uid)
{
	const struct passwd *user = getpwuid(uid);
	int n = 64, rc = -1;
	gid_t *groups = NULL;
	uint32_t ret = 0;

	while (user && rc < 0 && n <= GROUPS_MAX) {
		gid_t *more = reallocarray(groups, (size_t)n, sizeof(*groups));
		const int had = n;

		if (!more)
			break;
		groups = more;
		rc = getgrouplist(user->pw_name, user->pw_gid, groups, &n);
		if (rc < 0 && n <= had)
			n = 2 * had;
	}
	if (rc >= 0)
		ret = weights_of_groups(weights, groups, n);
	free(groups);
	return ret;
}

uint32_t weights_of(const struct weights *weights, uid_t uid)
{
	bool groups = false;
	uint32_t ret;

	for (uint32_t i = 0; i < weights->n; i++) {
		if (!weights->entries[i].group && weights->entries[i].id == uid)
			return weights->entries[i].weight;
		groups |= weights->entries[i].group;
	}
	ret = groups ? weights_ask_groups(weights, uid) : 0;
	return ret ? ret : 1;
}
