/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/users.h"

#include <pwd.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/config/digits.h"

void users_name(uid_t uid, char *ret, size_t size)
{
	const struct passwd *user = getpwuid(uid);

	if (user)
		snprintf(ret, size, "%s", user->pw_name);
	else
		snprintf(ret, size, "%u", (unsigned)uid);
}

bool users_find(const char *name, uid_t *ret)
{
	const struct passwd *user = getpwnam(name);
	const char *at = name;
	uint64_t number;

	if (user) {
		*ret = user->pw_uid;
		return true;
	}
	if (digits_parse(&at, UINT32_MAX - 1, &number) < 0 || *at)
		return false;
	*ret = (uid_t)number;
	return true;
}
