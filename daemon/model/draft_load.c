/* SPDX-License-Identifier: MIT */
#include "daemon/model/draft.h"

#include <errno.h>
#include <string.h>

#include "daemon/model/error.h"

/* Servers disagree whether a layer that a configuration names means its input or its output: only
 * the usual layers are sure to be those that the draft model was trained on. */
static int draft_load_check_features(const char *directory, const struct model_config *config,
	const struct model_config *target, struct model_error *error)
{
	uint32_t layers[MODEL_FEATURES];

	if (target->n_layers < 3)
		return model_fail(error, -EINVAL,
			"%s: an EAGLE-3 draft model reads the inputs of layers 2, n / 2 and n - 3 "
			"of n, so its target needs 3 layers or more; it has %u",
			directory, target->n_layers);
	model_feature_layers(target, layers);
	if (!config->draft.names_layers || !memcmp(layers, config->draft.layers, sizeof(layers)))
		return 0;
	return model_fail(error, -ENOTSUP,
		"%s/config.json: eagle_aux_hidden_state_layer_ids [%u, %u, %u] are not [%u, %u, "
		"%u], which a target of %u layers gives",
		directory, config->draft.layers[0], config->draft.layers[1],
		config->draft.layers[2], layers[0], layers[1], layers[2], target->n_layers);
}

const char *draft_directory(const char *draft, const char *target)
{
	return strcmp(draft, DRAFT_MTP) == 0 ? target : draft;
}

/* The layer that an MTP head is has to be the one behind the target's last. */
static int draft_load_check_mtp(const char *directory, const struct model_config *config,
	const struct model_config *target, struct model_error *error)
{
	if (target->family != MODEL_DEEPSEEK_V3)
		return model_fail(error, -EINVAL, "%s: %s cannot draft for %s", directory,
			config->architecture, target->architecture);
	if (config->first_layer != target->n_layers)
		return model_fail(error, -EINVAL,
			"%s/config.json: num_hidden_layers %u is not %u, the target's", directory,
			config->first_layer, target->n_layers);
	return 0;
}

int draft_check(const char *directory, const struct model_config *config,
	const struct model_config *target, struct model_error *error)
{
	if (!config->draft.vocab_size || target->draft.vocab_size)
		return model_fail(error, -EINVAL, "%s: %s cannot draft for %s", directory,
			config->architecture, target->architecture);
	if (config->hidden_size != target->hidden_size)
		return model_fail(error, -EINVAL,
			"%s/config.json: hidden_size %u is not %u, the target's", directory,
			config->hidden_size, target->hidden_size);
	if (config->vocab_size != target->vocab_size)
		return model_fail(error, -EINVAL,
			"%s/config.json: vocab_size %u is not %u, the target's", directory,
			config->vocab_size, target->vocab_size);
	if (config->family == MODEL_MTP)
		return draft_load_check_mtp(directory, config, target, error);
	if (config->family != MODEL_EAGLE3)
		return 0;
	return draft_load_check_features(directory, config, target, error);
}

int draft_load(const char *directory, const struct model_config *config, const struct model *target,
	void (*progress)(void *userdata, uint64_t done, uint64_t total), void *userdata,
	struct model **ret, struct model_error *error)
{
	struct model *draft;
	int rc = draft_check(directory, config, &target->config, error);

	if (rc)
		return rc;
	rc = model_load(target->device, directory, config, target->max_positions, progress,
		userdata, &draft, error);
	if (rc)
		return rc;
	draft->deterministic = target->deterministic;
	if (!draft->embedding.data)
		draft->embedding = target->embedding;
	if (!draft->head.data)
		draft->head = target->head;
	*ret = draft;
	return 0;
}
