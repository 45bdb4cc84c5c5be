/* SPDX-License-Identifier: MIT */
#include "daemon/config/account.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "daemon/config/digits.h"

bool account_parse(const char **at, struct account *ret)
{
	const bool group = **at == '@';
	const char *name = *at + group;
	size_t length = strcspn(name, ":, \t@");

	if (length == 0 || length >= sizeof(ret->name) || name[length] != ':')
		return false;
	*ret = (struct account){.group = group};
	memcpy(ret->name, name, length);
	*at = name + length + 1;
	return true;
}

int account_find(const char *name, bool group, id_t *ret)
{
	const struct passwd *user;
	const struct group *found;
	const char *end = name;
	uint64_t number;

	/* The last one means "none" to system calls. */
	if (digits_parse(&end, UINT32_MAX - 1, &number) == 0 && !*end) {
		*ret = (id_t)number;
		return 0;
	}
	errno = 0;
	if (group) {
		found = getgrnam(name);
		if (!found)
			return errno ? -errno : -ENOENT;
		*ret = found->gr_gid;
		return 0;
	}
	user = getpwnam(name);
	if (!user)
		return errno ? -errno : -ENOENT;
	*ret = user->pw_uid;
	return 0;
}
