/* SPDX-License-Identifier: MIT */
#include "daemon/http/classes.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <mimeo/types.h>

#include "daemon/config/account.h"
#include "daemon/config/class_text.h"
#include "daemon/output/log.h"
#include "ipc/cleanup.h"

struct classes_message {
	char *text;
	size_t size;
};

static const struct class_entry *classes_find(const struct classes *classes, bool group, id_t id)
{
	for (uint32_t i = 0; i < classes->n; i++) {
		if (classes->entries[i].group == group && classes->entries[i].id == id)
			return &classes->entries[i];
	}
	return NULL;
}

/* ---- the list ---- */

__attribute__((format(printf, 2, 3)))
static bool classes_fail(const struct classes_message *message, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message->text, message->size, format, arguments);
	va_end(arguments);
	return false;
}

static bool classes_add(struct classes *classes, const char *text, const struct classes_message *message)
{
	struct class_entry entry;
	struct account account;
	const char *class = text;

	if (classes->n == CLASSES_MAX)
		return classes_fail(message, "'%.100s': there are %d entries before it, and more are not allowed", text,
			CLASSES_MAX);
	if (!account_parse(&class, &account))
		return classes_fail(message, "'%.100s' is not USER:CLASS, UID:CLASS or @GROUP:CLASS", text);
	const char *what = account.group ? "group" : "user";
	if (!class_text_parse(class, &entry.request_class))
		return classes_fail(message, "'%.100s': the class must be " CLASS_TEXT_ACCEPTED, text);
	int rc = account_find(account.name, account.group, &entry.id);
	if (rc == -ENOENT)
		return classes_fail(message, "'%.100s': there is no %s %s", text, what, account.name);
	if (rc < 0)
		return classes_fail(message, "'%.100s': %s %s cannot be looked up: %s", text, what, account.name,
			strerror(-rc));
	entry.group = account.group;
	if (classes_find(classes, entry.group, entry.id))
		return classes_fail(message, "'%.100s': an entry before it is for the same %s", text, what);
	classes->entries[classes->n++] = entry;
	return true;
}

bool classes_parse(struct classes *classes, const char *list, char *message, size_t size)
{
	const struct classes_message out = {message, size};
	CLEANUP(cleanup_free) char *copy = strdup(list);
	char *rest = copy, *entry;

	if (!copy)
		return classes_fail(&out, "%s", strerror(ENOMEM));
	while ((entry = strsep(&rest, ","))) {
		entry += strspn(entry, " ");
		if (!classes_add(classes, entry, &out))
			return false;
	}
	return true;
}

/* ---- clients ---- */

/* The supplementary groups, which are the caller's to free: 0 or -errno. */
static int classes_read_groups(int fd, gid_t **ret, size_t *ret_n)
{
	socklen_t bytes = 0;

	/* With too little space the call says how much it takes. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0)
		return 0;
	if (errno != ERANGE)
		return -errno;
	CLEANUP(cleanup_free) gid_t *groups = malloc(bytes);
	if (!groups)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
		return -errno;
	*ret = STEAL(groups);
	*ret_n = bytes / sizeof(**ret);
	return 0;
}

static void classes_complain(const char *what, int error)
{
	static struct log_limit limit = LOG_LIMIT(1);

	log_limited(&limit, LOG_LEVEL_WARN, "the %s of a client cannot be read: %s: it may not get its class", what,
		strerror(error));
}

static bool classes_have_groups(const struct classes *classes)
{
	for (uint32_t i = 0; i < classes->n; i++) {
		if (classes->entries[i].group)
			return true;
	}
	return false;
}

static const struct class_entry *classes_find_group(const struct classes *classes, int fd, gid_t primary)
{
	CLEANUP(cleanup_free) gid_t *groups = NULL;
	size_t n = 0;

	int rc = classes_read_groups(fd, &groups, &n);
	if (rc < 0)
		classes_complain("groups", -rc);
	for (uint32_t i = 0; i < classes->n; i++) {
		const struct class_entry *entry = &classes->entries[i];

		if (!entry->group)
			continue;
		if (entry->id == primary)
			return entry;
		for (size_t j = 0; j < n; j++) {
			if (groups[j] == entry->id)
				return entry;
		}
	}
	return NULL;
}

uint32_t classes_of_peer(const struct classes *classes, int fd)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (classes->n == 0)
		return MIMEO_CLASS_NORMAL;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
		classes_complain("user", errno);
		return MIMEO_CLASS_NORMAL;
	}
	const struct class_entry *entry = classes_find(classes, false, peer.uid);
	if (!entry && classes_have_groups(classes))
		entry = classes_find_group(classes, fd, peer.gid);
	return entry ? entry->request_class : MIMEO_CLASS_NORMAL;
}
