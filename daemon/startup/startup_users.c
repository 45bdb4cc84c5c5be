/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_users.h"

#include <errno.h>
#include <string.h>

_Static_assert(CONFIG_WEIGHTS_MAX == WEIGHTS_MAX, "as many weights");

int startup_find_users(const struct config *config, struct weights *ret, struct startup_error *error)
{
	*ret = (struct weights){0};
	for (uint32_t i = 0; i < config->n_weights; i++) {
		const struct config_weight *weight = &config->weights[i];
		const char *name = weight->account.name, *what = weight->account.group ? "group" : "user";

		int rc = weights_add(ret, name, weight->account.group, weight->weight);
		if (rc == -ENOENT)
			return startup_refuse(error, rc, "%s: there is no %s %s", config->weights_where, what,
				name);
		if (rc < 0)
			return startup_refuse(error, rc, "%s: %s %s cannot be looked up: %s", config->weights_where,
				what, name, strerror(-rc));
	}
	return 0;
}
