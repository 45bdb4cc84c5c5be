/* SPDX-License-Identifier: MIT */
#include "attention/layers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- groups ---- */

static uint32_t layers_find_group(
	struct attention_layers *layers, const struct attention_config *config, uint32_t layer)
{
	const uint32_t window = config->windows ? config->windows[layer] : 0;
	uint32_t g = 0;

	while (g < layers->n_groups && layers->groups[g].window != window)
		g++;
	if (g < layers->n_groups || g == ATTENTION_GROUPS_MAX)
		return g;
	layers->groups[layers->n_groups++] = (struct attention_group){
		.kind = config->latent.rank ? ATTENTION_LATENT : window ? ATTENTION_WINDOW : ATTENTION_FULL,
		.window = window,
		.first = layer,
	};
	return g;
}

int attention_layers_group(const struct attention_config *config, struct attention_layers *ret)
{
	struct attention_layers layers = {.n_layers = config->n_layers};

	if (!config->n_layers || config->n_layers > ATTENTION_LAYERS_MAX)
		return -ENOTSUP;
	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		const uint32_t g = layers_find_group(&layers, config, layer);

		if (g == ATTENTION_GROUPS_MAX)
			return -ENOTSUP;
		layers.group[layer] = (uint8_t)g;
		layers.index[layer] = (uint16_t)layers.groups[g].n_layers++;
	}
	*ret = layers;
	return 0;
}

/* ---- what follows from the groups' backends ---- */

static void layers_name(struct attention_layers *layers)
{
	size_t used = 0;

	for (uint32_t g = 0; g < layers->n_groups && used < sizeof(layers->names); g++) {
		uint32_t earlier = 0;

		while (earlier < g && layers->groups[earlier].backend != layers->groups[g].backend)
			earlier++;
		if (earlier == g)
			used += (size_t)snprintf(layers->names + used, sizeof(layers->names) - used, "%s%s",
				used ? ", " : "", layers->groups[g].backend->name);
	}
}

void attention_layers_join(struct attention_layers *layers)
{
	const struct attention_group *lowest = &layers->groups[0];
	bool differ = false;

	layers->backend = layers->groups[0].backend;
	layers->masks = true;
	layers->reads_masks = false;
	for (uint32_t g = 0; g < layers->n_groups; g++) {
		const struct attention_group *group = &layers->groups[g];

		assert(group->backend && group->n_layers);
		if (group->backend != layers->backend)
			layers->backend = &attention_by_layer;
		if (group->support < lowest->support)
			lowest = group;
		differ |= group->support != layers->groups[0].support;
		layers->masks &= group->backend->masks;
		layers->reads_masks |= group->backend->masks;
	}
	layers->support = lowest->support;
	layers->lowest = lowest->first;
	layers_name(layers);
	snprintf(layers->level, sizeof(layers->level), differ ? "%s (layer %u, %s)" : "%s",
		attention_support_name(lowest->support), lowest->first, lowest->backend->name);
	snprintf(layers->blamed, sizeof(layers->blamed), differ ? "%s of layer %u" : "%s", lowest->backend->name,
		lowest->first);
}

/* ---- choice ---- */

/* Why attention_layers_group refuses the configuration. */
static void layers_explain(const struct attention_config *config, char *why, size_t size)
{
	struct attention_layers layers = {0};
	uint32_t layer = 0;

	if (!config->n_layers || config->n_layers > ATTENTION_LAYERS_MAX) {
		snprintf(why, size, "num_hidden_layers %u: at least 1 and at most %u", config->n_layers, ATTENTION_LAYERS_MAX);
		return;
	}
	while (layers_find_group(&layers, config, layer) < ATTENTION_GROUPS_MAX)
		layer++;
	snprintf(why, size, "its layers have more than %u different sliding windows: the next is %u in layer %u",
		ATTENTION_GROUPS_MAX, config->windows[layer], layer);
}

/* "12 layers from 1 on, window 4096: " */
static int layers_describe(const struct attention_group *group, char *text, size_t size)
{
	const int n = snprintf(text, size, "%u layer%s from %u on, ", group->n_layers, group->n_layers == 1 ? "" : "s",
		group->first);

	if (group->window)
		return n + snprintf(text + n, size - (size_t)n, "window %u: ", group->window);
	return n + snprintf(text + n, size - (size_t)n, "full: ");
}

static int layers_choose_group(const char *name, const struct attention_config *config, struct attention_group *group,
	char *why, size_t size)
{
	struct attention_config own = *config;
	uint32_t windows[ATTENTION_LAYERS_MAX];

	for (uint32_t i = 0; i < group->n_layers; i++)
		windows[i] = group->window;
	own.n_layers = group->n_layers;
	own.windows = windows;
	return attention_choose(name, &own, &group->backend, &group->support, why, size);
}

int attention_layers_choose(const char *name, const struct attention_config *config, struct attention_layers *ret,
	char *why, size_t size)
{
	struct attention_layers layers;
	size_t used = 0;
	int rc = attention_layers_group(config, &layers);

	if (rc) {
		layers_explain(config, why, size);
		return rc;
	}
	for (uint32_t g = 0; g < layers.n_groups; g++) {
		char text[64] = "", reason[512] = "";

		if (layers.n_groups > 1)
			layers_describe(&layers.groups[g], text, sizeof(text));
		rc = layers_choose_group(name, config, &layers.groups[g], reason, sizeof(reason));
		if (rc)
			used = 0;
		if (used < size)
			used += (size_t)snprintf(why + used, size - used, "%s%s%s", used ? "; " : "", text, reason);
		if (rc)
			return rc;
	}
	attention_layers_join(&layers);
	if (strcmp(layers.level, attention_support_name(layers.support)) && used < size)
		snprintf(why + used, size - used, "; graphs of the model: %s", layers.level);
	*ret = layers;
	return 0;
}
