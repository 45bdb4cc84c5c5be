/* SPDX-License-Identifier: MIT */
#include "daemon/serve/reload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/calls.h"
#include "daemon/serve/notify.h"
#include "daemon/serve/request_lines.h"
#include "daemon/serve/session.h"
#include "ipc/cleanup.h"
#include "ipc/socket.h"

struct quota_amounts reload_totals(const struct serve_options *options)
{
	return (struct quota_amounts){.of = {
		[QUOTA_SESSIONS] = options->max_sessions,
		[QUOTA_SHARED_BYTES] = options->max_shared_bytes,
		[QUOTA_SEQUENCE_BYTES] = options->max_sequence_bytes,
		[QUOTA_BUFFER_BYTES] = options->max_buffer_bytes,
		[QUOTA_DESCRIPTORS] = options->max_descriptors,
	}};
}

/* The user's new weight. The first session of a user answers for the others: groups are looked up by the name service,
 * which may take long. */
static uint32_t reload_weight(const struct serve *serve, const struct session *session)
{
	const struct session *other;

	DL_FOREACH (serve->sessions, other) {
		if (other == session)
			break;
		if (other->port.uid == session->port.uid)
			return other->weight;
	}
	notify_alive();
	return weights_of(&serve->options.weights, session->port.uid);
}

/* What users hold above new limits they keep. */
static void reload_apply_to_session(struct serve *serve, struct session *session)
{
	session->weight = reload_weight(serve, session);
	if (session->detaching)
		return;
	socket_pass_rights(session->fd, calls_may_import(session));
	if (engine_post_weight(serve->options.engine, &session->port, session->weight) < 0)
		log_error("session %u: out of memory: its user keeps the old weight", session->port.session);
}

static void reload_apply(struct serve *serve, const struct serve_options *options)
{
	const struct quota_amounts totals = reload_totals(options);
	struct session *session;

	serve->options = *options;
	request_lines_set(serve);
	quota_set_totals(serve->quota, &totals);
	serve->line_moves = true; /* those in line may fit now */
	DL_FOREACH (serve->sessions, session)
		reload_apply_to_session(serve, session);
}

static void reload_log(enum log_level level, const char *text)
{
	for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
		log_at(level, "reload: %.*s", (int)strcspn(text, "\n"), text);
}

/* 0 or -errno; *ret_text is the caller's in both cases, or NULL. */
static int reload_read(struct serve *serve, char **ret_text)
{
	struct serve_options options = serve->options;
	size_t size;

	*ret_text = NULL;
	if (!options.reload) {
		*ret_text = strdup("there is no configuration to read");
		return -ENOENT;
	}
	FILE *out = open_memstream(ret_text, &size);
	if (!out)
		return -ENOMEM;
	int rc = options.reload(options.reload_userdata, &options, out);
	bool written = fclose(out) == 0;
	if (rc == 0)
		reload_apply(serve, &options);
	if (written && size > 0 && (*ret_text)[size - 1] == '\n')
		(*ret_text)[size - 1] = '\0';
	return rc;
}

/* The result is logged at the more verbose of both levels. */
static void reload_log_result(const struct serve *serve, int rc, enum log_level level_before, const char *text)
{
	const enum log_level level = serve->options.log_level;

	if (level > level_before)
		log_set_level(level);
	if (text)
		reload_log(rc < 0 ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, text);
	if (rc < 0)
		log_error("reload: nothing was changed");
	if (level < level_before)
		log_set_level(level);
}

static int reload_run(struct serve *serve, const char *why, char **ret_text)
{
	const enum log_level level_before = serve->options.log_level;
	bool serving = serve->state == SERVE_SERVING;

	log_info("%s: reading the configuration", why);
	if (serving)
		notify_reloading();
	int rc = reload_read(serve, ret_text);
	reload_log_result(serve, rc, level_before, *ret_text);
	if (serving)
		notify_ready(rc < 0 ? "serving; the last reload failed" : "serving; the configuration was reloaded");
	return rc;
}

void reload_answer(struct serve *serve, struct reply *reply)
{
	CLEANUP(cleanup_free) char *text = NULL;
	CLEANUP(cleanup_free) char *refusal = NULL;

	int rc = reload_run(serve, "an operator asked for a reload", &text);
	if (rc == 0)
		reply_say(reply, 0, text ? text : "");
	else if (text && asprintf(&refusal, "nothing was changed: %s", text) >= 0)
		reply_say(reply, MIMEO_E_INVALID, refusal);
	else
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of memory: nothing was changed");
}

void reload_on_signal(struct serve *serve)
{
	CLEANUP(cleanup_free) char *text = NULL;

	(void)reload_run(serve, "received SIGHUP", &text);
}
