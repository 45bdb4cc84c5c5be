/* SPDX-License-Identifier: MIT */

/*
 * A backend made of the groups' backends. Managers, metadata and checks are theirs: here is only which of them a layer
 * has. A layer that its backend cannot run while a stream captures is refused by that backend.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "attention/layers.h"
#include "attention/manager.h"

struct by_layer_manager {
	struct attention_manager base;
	struct attention_layers layers;
	struct attention_manager *groups[ATTENTION_GROUPS_MAX];
};

struct by_layer_metadata {
	struct attention_metadata base;
	struct attention_metadata *groups[ATTENTION_GROUPS_MAX];
};

static const struct by_layer_manager *by_layer_of(const struct attention_metadata *metadata)
{
	return (const struct by_layer_manager *)metadata->manager;
}

/* The configuration of a group; windows[n_layers of the group] is written. */
static struct attention_config by_layer_config(
	const struct attention_config *config, const struct attention_group *group, uint32_t *windows)
{
	struct attention_config own = *config;

	for (uint32_t i = 0; i < group->n_layers; i++)
		windows[i] = group->window;
	own.n_layers = group->n_layers;
	own.windows = windows;
	own.layers = NULL;
	return own;
}

static int by_layer_check(const struct attention_config *config, char *why, size_t size)
{
	uint32_t windows[ATTENTION_LAYERS_MAX];

	assert(config->layers && config->layers->n_layers == config->n_layers);
	for (uint32_t g = 0; g < config->layers->n_groups; g++) {
		const struct attention_group *group = &config->layers->groups[g];
		const struct attention_config own = by_layer_config(config, group, windows);
		int rc = group->backend->check(&own, why, size);

		if (rc)
			return rc;
	}
	return 0;
}

static enum attention_support by_layer_support(const struct attention_config *config, uint32_t *ret_max_query)
{
	enum attention_support lowest = ATTENTION_ALWAYS;
	uint32_t windows[ATTENTION_LAYERS_MAX], max_query = UINT32_MAX;

	for (uint32_t g = 0; g < config->layers->n_groups; g++) {
		const struct attention_group *group = &config->layers->groups[g];
		const struct attention_config own = by_layer_config(config, group, windows);
		uint32_t query = 0;
		const enum attention_support level = group->backend->support(&own, &query);

		lowest = level < lowest ? level : lowest;
		max_query = query < max_query ? query : max_query;
	}
	*ret_max_query = max_query;
	return lowest;
}

static void by_layer_manager_free(struct attention_manager *manager)
{
	struct by_layer_manager *m = (struct by_layer_manager *)manager;

	for (uint32_t g = 0; m && g < m->layers.n_groups; g++)
		if (m->groups[g])
			m->layers.groups[g].backend->manager_free(m->groups[g]);
	attention_manager_free(manager);
}

static int by_layer_fill(struct attention_manager *manager)
{
	struct by_layer_manager *m = (struct by_layer_manager *)manager;
	uint32_t windows[ATTENTION_LAYERS_MAX];

	m->layers = *manager->config.layers;
	manager->config.layers = &m->layers;
	for (uint32_t g = 0; g < m->layers.n_groups; g++) {
		const struct attention_group *group = &m->layers.groups[g];
		const struct attention_config own = by_layer_config(&manager->config, group, windows);
		int rc = group->backend->manager_new(manager->device, &own, &manager->inputs, &m->groups[g]);

		if (rc)
			return rc;
	}
	return 0;
}

static int by_layer_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_by_layer, sizeof(struct by_layer_manager), device, config, inputs,
		by_layer_fill, ret);
}

static void by_layer_metadata_free(struct attention_metadata *metadata)
{
	struct by_layer_metadata *own = (struct by_layer_metadata *)metadata;

	for (uint32_t g = 0; own && g < by_layer_of(metadata)->layers.n_groups; g++)
		if (own->groups[g])
			by_layer_of(metadata)->layers.groups[g].backend->metadata_free(own->groups[g]);
	attention_metadata_free(metadata);
}

static int by_layer_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	const struct by_layer_manager *m = (const struct by_layer_manager *)manager;
	struct attention_metadata *metadata;
	int rc = attention_metadata_new(manager, sizeof(struct by_layer_metadata), &metadata);

	for (uint32_t g = 0; !rc && g < m->layers.n_groups; g++) {
		rc = m->layers.groups[g].backend->metadata_new(
			m->groups[g], &((struct by_layer_metadata *)metadata)->groups[g]);
		if (rc)
			by_layer_metadata_free(metadata);
	}
	if (!rc)
		*ret = metadata;
	return rc;
}

static int by_layer_build(
	struct attention_metadata *metadata, const struct attention_batch *batch, struct stream *stream)
{
	const struct by_layer_manager *m = by_layer_of(metadata);

	for (uint32_t g = 0; g < m->layers.n_groups; g++) {
		int rc = m->layers.groups[g].backend->build(
			((struct by_layer_metadata *)metadata)->groups[g], batch, stream);

		if (rc)
			return rc;
	}
	return 0;
}

static int by_layer_run(
	struct attention_metadata *metadata, struct stream *stream, const struct attention_args *args)
{
	const struct by_layer_manager *m = by_layer_of(metadata);
	struct attention_args own = *args;
	uint32_t g;

	if (args->layer >= m->layers.n_layers)
		return -EINVAL;
	g = m->layers.group[args->layer];
	own.layer = m->layers.index[args->layer];
	return m->layers.groups[g].backend->run(((struct by_layer_metadata *)metadata)->groups[g], stream, &own);
}

const struct attention_backend attention_by_layer = {
	.name = "by layer",
	.breaks = true,
	.check = by_layer_check,
	.support = by_layer_support,
	.manager_new = by_layer_manager_new,
	.manager_free = by_layer_manager_free,
	.metadata_new = by_layer_metadata_new,
	.metadata_free = by_layer_metadata_free,
	.build = by_layer_build,
	.run = by_layer_run,
};
