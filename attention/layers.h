/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_LAYERS_H
#define MIMEO_ATTENTION_LAYERS_H

/*
 * The attention of a model, layer by layer.
 *
 * Layers of one kind and window are a GROUP. A backend is chosen for each group; what a model can have of graphs is
 * the lowest level of its groups. If all have one backend, that backend serves the model: what it computes once a step
 * it computes once for each window (manager.h). Else attention_by_layer does, which has a manager and metadata of each
 * group's own backend, and runs a layer by its group's. No built-in backend serves only some windows: today all groups
 * have one.
 */

#include "attention/attention.h"

#define ATTENTION_LAYERS_MAX 1024u
#define ATTENTION_GROUPS_MAX 8u

enum attention_kind { ATTENTION_FULL, ATTENTION_WINDOW, ATTENTION_LATENT };

struct attention_group {
	enum attention_kind kind;
	uint32_t window;  /* in tokens; 0: none */
	uint32_t first;   /* its first layer */
	uint32_t n_layers;
	const struct attention_backend *backend;
	enum attention_support support;
};

struct attention_layers {
	uint32_t n_layers, n_groups;
	uint8_t group[ATTENTION_LAYERS_MAX];  /* of each layer */
	uint16_t index[ATTENTION_LAYERS_MAX]; /* the layers of its group before it */
	struct attention_group groups[ATTENTION_GROUPS_MAX];
	const struct attention_backend *backend; /* of all groups, or attention_by_layer */
	enum attention_support support;          /* the lowest of the groups' */
	uint32_t lowest;                         /* the first layer that has no more */
	bool masks;       /* all backends apply the rows' masks */
	bool reads_masks; /* one of them reads the inputs of masks */
	char names[64];   /* of the backends: "paged", "paged, naive" */
	char level[64];   /* "uniform_batch"; where others have more with the layer: "never (layer 1, naive)" */
	char blamed[64];  /* the backend that sets it: "paged"; where others have more: "naive of layer 1" */
};

/* Choose the groups' backends as attention_choose does. why[size]: what was chosen for each group and why, and which
 * layer sets the level; or what cannot serve which layer. 0, -ENOENT, -ENOTSUP. */
int attention_layers_choose(const char *name, const struct attention_config *config, struct attention_layers *ret,
	char *why, size_t size);
/* The layers, if each group's backend and level are given: sets what follows from these. */
void attention_layers_join(struct attention_layers *layers);
/* The groups of a configuration's layers, without backends. -ENOTSUP: more than ATTENTION_GROUPS_MAX windows, or
 * ATTENTION_LAYERS_MAX layers. */
int attention_layers_group(const struct attention_config *config, struct attention_layers *ret);

/* Not in the registry. Its configurations have `layers`. */
extern const struct attention_backend attention_by_layer;

#endif
