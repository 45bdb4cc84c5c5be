/* SPDX-License-Identifier: MIT */

/*
 * A configuration file of any bytes. Besides what the sanitizers watch: a refusal says why on one
 * line of its own, and what is taken resolves to a configuration whose every value can be written
 * into a file and read again to the same effect.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CLAIM(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			abort();                                                                   \
	} while (0)

static void check_again(const struct config *config, const struct config_model *model)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		struct config again = { 0 };
		struct config_model again_model = { 0 };
		char shown[8192], reshown[8192];

		if (model && !key->per_model)
			continue;
		config_show(key, config, model, shown, sizeof(shown));
		if (!*shown || strcmp(shown, "0") == 0)
			continue; /* not given */
		CLAIM(config_store(key, shown, &again, model ? &again_model : NULL));
		config_show(key, &again, model ? &again_model : NULL, reshown, sizeof(reshown));
		CLAIM(strcmp(shown, reshown) == 0);
	}
}

static void check_resolved(const struct config_settings *settings)
{
	struct config_error error = { "" };
	struct config config;

	if (config_resolve(settings, &config, &error) < 0) {
		CLAIM(*error.text);
		return;
	}
	CLAIM(config.n_models > 0 && config.n_models <= CONFIG_MODELS_MAX);
	check_again(&config, NULL);
	for (uint32_t i = 0; i < config.n_models; i++) {
		CLAIM(*config.models[i].dir);
		CLAIM(!config.models[i].kv_pages || !config.models[i].kv_bytes);
		check_again(&config, &config.models[i]);
	}
	config_deinit(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config_settings settings = { 0 };
	struct config_error error = { "" };

	if (config_parse_memory(&settings, "fuzz", (const char *)data, size, &error) < 0)
		CLAIM(strncmp(error.text, "fuzz:", 5) == 0);
	else
		check_resolved(&settings);
	config_settings_deinit(&settings);
	return 0;
}
