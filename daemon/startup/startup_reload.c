/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_reload.h"

#include <string.h>

#include "daemon/config/options.h"
#include "daemon/startup/startup_users.h"
#include "ipc/cleanup.h"

#define VALUE_MAX 8192 /* of weights */

static enum serve_client_ipc reload_client_ipc(const char *text)
{
	if (strcmp(text, "same-uid") == 0)
		return SERVE_CLIENT_IPC_SAME_UID;
	return strcmp(text, "yes") == 0 ? SERVE_CLIENT_IPC_YES : SERVE_CLIENT_IPC_NO;
}

void startup_set_limits(const struct config *config, const struct weights *weights, struct serve_options *ret)
{
	ret->max_client_buffers = config->max_client_buffers;
	ret->max_client_buffer_bytes = config->max_client_buffer_bytes;
	ret->max_buffer_bytes = config->max_buffer_bytes;
	ret->allow_client_ipc = reload_client_ipc(config->allow_client_ipc);
	ret->max_sessions = config->max_sessions;
	ret->max_sessions_per_uid = config->max_sessions_per_uid;
	ret->weights = *weights;
	ret->max_arena_bytes = config->max_arena_bytes;
	ret->max_shared_bytes = config->max_shared_bytes;
	ret->max_sequence_bytes = config->max_sequence_bytes;
	ret->drain_timeout_s = config->drain_timeout_s;
	ret->log_level = config->log_level;
	ret->request_log = strcmp(config->request_log, "yes") == 0;
}

/* ---- what is different ---- */

static const char *reload_show(const struct config_key *key, const struct config *config,
	const struct config_model *model, char ret[static VALUE_MAX])
{
	config_show(key, config, model, ret, VALUE_MAX);
	return key->fallback || (*ret && strcmp(ret, "0") != 0) ? ret : "not set";
}

/* One line if the values differ. The number of lines. */
static uint32_t reload_compare(const struct config_key *key, const struct config *old,
	const struct config_model *of_old, const struct config *new, const struct config_model *of_new, FILE *out)
{
	char before[VALUE_MAX], after[VALUE_MAX];
	const char *was = reload_show(key, old, of_old, before), *is = reload_show(key, new, of_new, after);

	if (strcmp(was, is) == 0)
		return 0;
	if (key->live)
		fprintf(out, "applied: %s = %s (was %s)\n", key->name, is, was);
	else
		fprintf(out, "needs a restart: %s%s%s%s = %s (in force: %s)\n", of_new ? "model " : "",
			of_new ? of_new->name : "", of_new ? ": " : "", key->name, is, was);
	return 1;
}

static const struct config_model *reload_find_model(const struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->n_models; i++) {
		if (strcmp(config->models[i].name, name) == 0)
			return &config->models[i];
	}
	return NULL;
}

static uint32_t reload_compare_model(const struct config *old, const struct config *new,
	const struct config_model *model, FILE *out)
{
	const struct config_model *before = reload_find_model(old, model->name);
	uint32_t n = 0;

	if (!before) {
		fprintf(out, "needs a restart: model %s is new (or: mimeoctl models load)\n", model->name);
		return 1;
	}
	if (strcmp(before->dir, model->dir) != 0)
		n += fprintf(out, "needs a restart: model %s: dir = %s (in force: %s)\n", model->name, model->dir,
			     before->dir) > 0;
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (config_keys[i].per_model)
			n += reload_compare(&config_keys[i], old, before, new, model, out);
	}
	return n;
}

static uint32_t reload_compare_all(const struct config *old, const struct config *new, FILE *out)
{
	uint32_t n = 0;

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (!config_keys[i].per_model)
			n += reload_compare(&config_keys[i], old, NULL, new, NULL, out);
	}
	for (uint32_t i = 0; i < new->n_models; i++)
		n += reload_compare_model(old, new, &new->models[i], out);
	for (uint32_t i = 0; i < old->n_models; i++) {
		if (reload_find_model(new, old->models[i].name))
			continue;
		fprintf(out, "needs a restart: model %s is no longer configured (or: mimeoctl models unload)\n",
			old->models[i].name);
		n++;
	}
	return n;
}

/* ---- the reload ---- */

static int reload_apply(struct reload *reload, const struct config *new, struct serve_options *options, FILE *out)
{
	const struct engine_tuning tuning = {.token_us = new->token_us, .spin_us = new->spin_us};
	struct startup_error error;
	struct weights weights;

	int rc = startup_find_users(new, &weights, &error);
	if (rc < 0) {
		fprintf(out, "%s\n", error.text);
		return rc;
	}
	rc = engine_post_tuning(reload->engine, &tuning);
	if (rc < 0) {
		fprintf(out, "out of memory\n");
		return rc;
	}
	if (reload_compare_all(&reload->in_force, new, out) == 0)
		fprintf(out, "no setting is different\n");
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (config_keys[i].live)
			config_copy(&config_keys[i], new, &reload->in_force);
	}
	startup_set_limits(new, &weights, options);
	return 0;
}

int startup_reload(void *userdata, struct serve_options *options, FILE *out)
{
	CLEANUP(config_deinit) struct config new = {0};
	struct reload *reload = userdata;
	struct config_error error;

	/* --help and the like have no place here: they end a daemon before it serves. */
	int rc = options_parse(reload->argc, reload->argv, reload->default_config, out, &new, &error);
	if (rc < 0) {
		fprintf(out, "%s\n", error.text);
		if (error.n_dropped > 0)
			fprintf(out, "and %u more errors\n", error.n_dropped);
		return rc;
	}
	return reload_apply(reload, &new, options, out);
}
