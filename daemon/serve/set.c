/* SPDX-License-Identifier: MIT */
#include "daemon/serve/set.h"

#include <string.h>

#include <mimeo/types.h>

#include "daemon/serve/request_lines.h"

static bool set_log_level(struct serve *serve, const char *value)
{
	if (log_level_parse(value, &serve->options.log_level) < 0)
		return false;
	log_set_level(serve->options.log_level);
	return true;
}

static bool set_request_log(struct serve *serve, const char *value)
{
	if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
		return false;
	serve->options.request_log = value[0] == 'y';
	request_lines_set(serve);
	return true;
}

void set_answer(struct serve *serve, const char *setting, struct reply *reply)
{
	static const struct {
		const char *name, *accepted;
		bool (*set)(struct serve *serve, const char *value);
	} settings[] = {
		{"log_level", "error, warn, info or debug", set_log_level},
		{"request_log", "yes or no", set_request_log},
	};
	const size_t length = strcspn(setting, "=");
	const char *value = setting + length + (setting[length] == '=');

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		if (strlen(settings[i].name) != length || strncmp(settings[i].name, setting, length) != 0)
			continue;
		if (!settings[i].set(serve, value)) {
			reply_sayf(reply, MIMEO_E_INVALID, "%s: \"%s\" is not %s", settings[i].name, value,
				settings[i].accepted);
			return;
		}
		log_info("an operator set %s = %s", settings[i].name, value);
		reply_sayf(reply, 0, "%s = %s, until a reload or the daemon's end", settings[i].name, value);
		return;
	}
	reply_sayf(reply, MIMEO_E_INVALID,
		"%.*s cannot be set so: log_level and request_log can; others by the configuration and mimeoctl reload",
		(int)length, setting);
}
