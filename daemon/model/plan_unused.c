/* SPDX-License-Identifier: MIT */

/* The tensors of a checkpoint without a use. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/kv_factors.h"
#include "daemon/model/plan.h"
#include "ipc/cleanup.h"

#define BUFFER "rotary_emb.inv_freq" /* older versions of transformers saved it */
#define FACTORS "rope_freqs.weight"  /* of a GGUF file, which its configuration has */

static bool plan_is_buffer(const char *name)
{
	size_t length = strlen(name);

	return length >= strlen(BUFFER) && !strcmp(name + length - strlen(BUFFER), BUFFER);
}

/* Is it a tensor of a layer after the model's last one that predicts further tokens (DeepSeek V3,
 * arXiv:2412.19437, section 2.2)? Such a layer projects a hidden state and an embedding. */
static bool plan_is_prediction(
	const struct safetensors *checkpoint, const struct model_config *config, const char *name)
{
	char projection[64];
	unsigned layer;

	if (sscanf(name, "model.layers.%9u.", &layer) != 1 || layer < config->n_layers)
		return false;
	snprintf(projection, sizeof(projection), "model.layers.%u.eh_proj.weight", layer);
	return safetensors_find(checkpoint, projection);
}

static void plan_count_unused(const struct safetensors *checkpoint, const struct model_config *config,
	const char *name, struct model_unused *unused)
{
	if (plan_is_buffer(name))
		unused->n_buffers++;
	else if (plan_is_prediction(checkpoint, config, name)) {
		unused->n_prediction++;
		unused->n_heads += strstr(name, ".eh_proj.weight") != NULL;
	} else if (!unused->n++)
		snprintf(unused->first, sizeof(unused->first), "%s", name);
}

static void plan_mark(
	const struct safetensors *checkpoint, const struct safetensors_tensor *tensor, bool *used)
{
	if (!tensor)
		return;
	assert(tensor >= checkpoint->tensors &&
		tensor < checkpoint->tensors + checkpoint->n_tensors);
	used[tensor - checkpoint->tensors] = true;
}

int plan_unused(const struct plan *plan, const struct model_config *config, struct model_unused *ret)
{
	const struct safetensors *checkpoint = plan->checkpoint;
	CLEANUP(cleanup_free) bool *used = calloc(checkpoint->n_tensors, sizeof(*used));

	if (!used)
		return -ENOMEM;
	for (uint32_t i = 0; i < plan->n_placements; i++) {
		const struct plan_placement *p = &plan->placements[i];

		plan_mark(checkpoint, p->tensor, used);
		for (uint32_t side = 0; side < QUANTISED_SIDES; side++)
			plan_mark(checkpoint, p->source.sides[side], used);
	}
	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		for (int side = 0; side < KV_FACTORS_SIDES; side++)
			plan_mark(checkpoint,
				kv_factors_find(checkpoint, config, layer, (enum kv_factors_side)side), used);
	}
	*ret = (struct model_unused){0};
	for (uint32_t i = 0; i < checkpoint->n_tensors; i++) {
		const char *name = checkpoint->tensors[i].name;

		if (!used[i] && strcmp(name, FACTORS))
			plan_count_unused(checkpoint, config, name, ret);
	}
	return 0;
}
