/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "ipc/cleanup.h"

struct gguf_name {
	const char *theirs, *ours;
};

static const struct gguf_name ends[] = {
	{"model.embed_tokens.weight", "token_embd.weight"},
	{"model.norm.weight", "output_norm.weight"},
	{"lm_head.weight", "output.weight"},
};

/* In a layer, before .weight or .bias. */
static const struct gguf_name parts[] = {
	{"input_layernorm", "attn_norm"},
	{"post_attention_layernorm", "ffn_norm"},
	{"self_attn.q_proj", "attn_q"},
	{"self_attn.k_proj", "attn_k"},
	{"self_attn.v_proj", "attn_v"},
	{"self_attn.o_proj", "attn_output"},
	{"self_attn.q_norm", "attn_q_norm"},
	{"self_attn.k_norm", "attn_k_norm"},
	{"mlp.gate_proj", "ffn_gate"},
	{"mlp.up_proj", "ffn_up"},
	{"mlp.down_proj", "ffn_down"},
};

const char *gguf_rename(const char *name, char *buffer, size_t size)
{
	unsigned layer;
	int length = 0;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		if (!strcmp(name, ends[i].theirs))
			return ends[i].ours;
	}
	if (sscanf(name, "model.layers.%9u.%n", &layer, &length) != 1 || !length)
		return name;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const char *part = name + length;
		size_t n = strlen(parts[i].theirs);

		if (strncmp(part, parts[i].theirs, n) || part[n] != '.')
			continue;
		length = snprintf(buffer, size, "blk.%u.%s%s", layer, parts[i].ours, part + n);
		return length > 0 && (size_t)length < size ? buffer : "";
	}
	return name;
}

/* ---- tensors ---- */

int gguf_checkpoint_open(const char *path, struct safetensors *ret, struct model_error *error)
{
	CLEANUP(gguf_deinit) struct gguf gguf = {.fd = -1};
	struct safetensors_file *file;
	const char *architecture;
	int rc = gguf_open(path, &gguf, error);

	if (rc)
		return rc;
	architecture = json_string_value(json_object_get(gguf.fields, "general.architecture"));
	file = calloc(1, sizeof(*file));
	if (!file)
		return model_fail(error, -ENOMEM, "%s: no memory for its files", path);
	*file = (struct safetensors_file){.path = STEAL(gguf.path), .fd = STEAL_FD(gguf.fd)};
	*ret = (struct safetensors){
		.files = file,
		.n_files = 1,
		.tensors = STEAL(gguf.tensors),
		.n_tensors = gguf.n_tensors,
		.dtypes = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K",
		.rename = gguf_rename,
		.has_pairs = architecture && !strcmp(architecture, "llama"),
	};
	return 0;
}
