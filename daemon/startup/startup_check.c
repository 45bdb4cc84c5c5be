/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_check.h"

#include "daemon/model/draft.h"
#include "daemon/startup/startup_monitor.h"
#include "daemon/startup/startup_users.h"

static uint32_t startup_check_draft(const struct config_model *options, const struct model_config *target, FILE *out)
{
	struct model_error error = {.text = ""};
	const char *directory = draft_directory(options->draft, options->dir);
	struct model_config draft;

	int rc = draft_config_load(directory, &draft, &error);
	if (rc == 0) {
		rc = draft_check(directory, &draft, target, &error);
		model_config_deinit(&draft);
	}
	if (rc < 0)
		fprintf(out, "mimeod: model %s: draft: %s\n", options->name, error.text);
	return rc < 0;
}

static uint32_t startup_check_model(const struct config_model *options, FILE *out)
{
	struct model_error error = {.text = ""};
	struct model_config config;
	uint32_t n = 0;

	if (model_config_load(options->dir, &config, &error) < 0) {
		fprintf(out, "mimeod: model %s: %s\n", options->name, error.text);
		return 1;
	}
	if (options->draft[0])
		n = startup_check_draft(options, &config, out);
	model_config_deinit(&config);
	return n;
}

uint32_t startup_check(const struct config *config, FILE *out)
{
	struct startup_error error;
	struct weights weights;
	gid_t monitors;
	uint32_t n = 0;

	if (startup_find_users(config, &weights, &error) < 0) {
		fprintf(out, "mimeod: %s\n", error.text);
		n++;
	}
	if (config->monitor_group[0] && startup_monitor_find(config, &monitors, &error) < 0) {
		fprintf(out, "mimeod: %s\n", error.text);
		n++;
	}
	for (uint32_t i = 0; i < config->n_models; i++)
		n += startup_check_model(&config->models[i], out);
	return n;
}
