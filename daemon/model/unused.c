/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/plan.h"

#define BUFFER "rotary_emb.inv_freq" /* older versions of transformers saved it */

static bool is_buffer(const char *name)
{
	size_t length = strlen(name);

	return length >= strlen(BUFFER) && !strcmp(name + length - strlen(BUFFER), BUFFER);
}

/* Of a layer behind the model's own that predicts further tokens (DeepSeek V3, arXiv:2412.19437,
 * section 2.2): such a layer has a projection of a hidden state beside an embedding. */
static bool is_prediction(
	const struct safetensors *checkpoint, const struct model_config *config, const char *name)
{
	char projection[64];
	unsigned layer;

	if (sscanf(name, "model.layers.%9u.", &layer) != 1 || layer < config->n_layers)
		return false;
	snprintf(projection, sizeof(projection), "model.layers.%u.eh_proj.weight", layer);
	return safetensors_find(checkpoint, projection);
}

static void count(const struct safetensors *checkpoint, const struct model_config *config,
	const char *name, struct model_unused *unused)
{
	if (is_buffer(name))
		unused->n_buffers++;
	else if (is_prediction(checkpoint, config, name))
		unused->n_prediction++;
	else if (!unused->n++)
		snprintf(unused->first, sizeof(unused->first), "%s", name);
}

int plan_unused(const struct plan *plan, const struct model_config *config, struct model_unused *ret)
{
	const struct safetensors *checkpoint = plan->checkpoint;
	bool *used = calloc(checkpoint->n_tensors, sizeof(*used));

	if (!used)
		return -ENOMEM;
	for (uint32_t i = 0; i < plan->n_placements; i++)
		used[plan->placements[i].tensor - checkpoint->tensors] = true;
	*ret = (struct model_unused){0};
	for (uint32_t i = 0; i < checkpoint->n_tensors; i++) {
		if (!used[i])
			count(checkpoint, config, checkpoint->tensors[i].name, ret);
	}
	free(used);
	return 0;
}
