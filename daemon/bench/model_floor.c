/* SPDX-License-Identifier: MIT */
#include "daemon/bench/model_floor.h"

#include <errno.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/model/draft.h"
#include "kernels/packed.h"

static uint64_t model_floor_weight(const struct weight *weight)
{
	const bool grouped = !weight->factors;

	if (!weight->data)
		return 0;
	if (packed_is(weight->dtype))
		return packed_bytes(weight->rows, weight->cols, weight->dtype, grouped) +
		       (grouped ? 0 : weight->rows * sizeof(*weight->factors));
	return (uint64_t)weight->rows * weight->cols * dtype_bytes(weight->dtype);
}

uint64_t model_floor_weights(const struct model *model)
{
	uint64_t bytes = model_floor_weight(&model->head) + model_floor_weight(&model->final_norm);

	for (uint32_t i = 0; i < model->config.n_layers; i++) {
		const struct model_layer *l = &model->layers[i];
		const struct weight *const all[] = {&l->input_norm, &l->post_norm, &l->pre_feed_norm,
			&l->post_feed_norm, &l->qkv,
			&l->qkv_bias, &l->q_norm, &l->k_norm, &l->o, &l->o_bias, &l->gate_up,
			&l->gate_up_bias, &l->down, &l->down_bias, &l->q_a, &l->q_a_bias,
			&l->q_a_norm, &l->q, &l->kv_a, &l->kv_a_bias, &l->kv_a_norm, &l->kv_b,
			&l->router, &l->router_bias};

		for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
			bytes += model_floor_weight(all[j]);
		if (l->router.data)
			bytes += (model_floor_weight(&l->expert_gate_up) + model_floor_weight(&l->expert_down)) /
				 model->config.experts.n * model->config.experts.n_active;
	}
	return bytes;
}

uint64_t model_floor_cache(const struct model_config *config, const struct device_info *info,
	uint32_t n_rows, uint32_t seen)
{
	const struct kv_config kv = model_kv(config, info, 1);
	uint64_t tokens = 0;

	for (uint32_t i = 0; i < config->n_layers; i++) {
		uint32_t window = config->windows[i];

		tokens += window && window < seen ? window : seen;
	}
	return n_rows * kv_layer_page_bytes(&kv) * tokens;
}

struct floor_work {
	const struct bench_options *options;
	struct model_floor *floor; /* shared with the child that fills it */
};

/* Every pass of an EAGLE model reads fc; of an EAGLE-3 model only the first pass does. */
static int model_floor_draft(const struct floor_work *work, const struct model *target,
	const struct device_info *info, struct model_error *error)
{
	struct model_config config;
	struct model *draft;
	const char *directory = draft_directory(work->options->draft, work->options->model_dir);
	int rc = draft_config_load(directory, &config, error);

	if (rc)
		return rc;
	config.kv_fp8 = target->config.kv_fp8;
	rc = draft_load(directory, &config, target, NULL, NULL, &draft, error);
	model_config_deinit(&config);
	if (rc)
		return rc;
	uint64_t fc = model_floor_weight(&draft->fc);
	bool every_pass = draft->config.family != MODEL_EAGLE3;
	work->floor->draft_bytes = model_floor_weights(draft) + (every_pass ? fc : 0);
	work->floor->draft_once_bytes = every_pass ? 0 : fc;
	work->floor->draft_token_bytes = model_floor_cache(&draft->config, info, 1, 1);
	model_free(draft);
	return 0;
}

static int model_floor_models(
	const struct floor_work *work, const struct probe *probe, struct model_error *error)
{
	struct model_config config;
	struct model *target;
	int rc = model_config_load(work->options->model_dir, &config, error);

	if (rc)
		return rc;
	config.head_fp8 = strcmp(work->options->head_dtype, "fp8") == 0;
	config.kv_fp8 = strcmp(work->options->kv_dtype, "fp8") == 0;
	rc = model_load(probe->device, work->options->model_dir, &config, config.max_seq_len, NULL,
		NULL, &target, error);
	model_config_deinit(&config);
	if (rc)
		return rc;
	work->floor->weight_bytes = model_floor_weights(target);
	work->floor->token_bytes = model_floor_cache(&target->config, &probe->info, 1, 1);
	rc = work->options->draft ? model_floor_draft(work, target, &probe->info, error) : 0;
	model_free(target);
	return rc;
}

/* Measure the copy rate first: its buffers are freed before the models are loaded. */
static int model_floor_child(void *arg, int fd)
{
	const struct floor_work *work = arg;
	struct model_error error = {""};
	struct probe probe;
	int rc = probe_open(&probe, work->options->device, error.text, sizeof(error.text));

	if (!rc)
		rc = probe_copy_rate(&probe);
	work->floor->copy_rate = probe.copy_rate;
	if (!rc)
		rc = model_floor_models(work, &probe, &error);
	probe_close(&probe);
	return bench_fail_device(rc, "the floor", error.text) != 0;
}

int model_floor(const struct bench_options *options, struct model_floor *ret)
{
	struct floor_work work = {options, child_memory(sizeof(*work.floor))};

	if (!work.floor)
		return bench_fail(-ENOMEM, "no memory");
	int rc = child_run("the floor", model_floor_child, &work, options->timeout_s);
	*ret = *work.floor;
	child_memory_free(work.floor, sizeof(*work.floor));
	return rc;
}

double model_floor_seconds(
	const struct model_floor *floor, uint32_t n_drafts, uint32_t n_rows, uint32_t seen)
{
	uint64_t tokens = (uint64_t)n_rows * seen;
	uint64_t bytes = floor->weight_bytes + tokens * floor->token_bytes;

	if (n_drafts)
		bytes += floor->draft_once_bytes +
			 n_drafts * (floor->draft_bytes + tokens * floor->draft_token_bytes);
	return (double)bytes / floor->copy_rate;
}
