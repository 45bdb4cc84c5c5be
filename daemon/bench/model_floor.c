/* SPDX-License-Identifier: MIT */
#include "daemon/bench/model_floor.h"

#include <errno.h>

#include "daemon/bench/child.h"
#include "daemon/bench/decoder.h"
#include "daemon/bench/probe.h"
#include "daemon/model/draft.h"

struct floor_work {
	const struct bench_options *options;
	struct model_floor *floor; /* shared with the child that fills it */
};

/* The copies' buffers come and go before the models do. */
static int floor_rates(const struct floor_work *work, struct model_error *error)
{
	struct probe probe;
	int rc = probe_open(&probe, work->options->device, error->text, sizeof(error->text));

	if (!rc)
		rc = probe_rates(&probe);
	work->floor->rates = probe.rates;
	probe_close(&probe);
	return rc;
}

static uint64_t floor_token_bytes(const struct model *model, const struct device_info *info)
{
	const struct kv_config kv = model_kv(&model->config, info, 1);

	return model->config.n_layers * kv_layer_page_bytes(&kv);
}

/* Each pass of an EAGLE reads fc, of an EAGLE-3 the first one alone. */
static int floor_draft(const struct floor_work *work, const struct model *target,
	const struct device_info *info, struct model_error *error)
{
	struct model_config config;
	struct model *draft;
	int rc = draft_config_load(work->options->draft, &config, error);

	if (rc)
		return rc;
	rc = draft_load(work->options->draft, &config, target, NULL, NULL, &draft, error);
	model_config_deinit(&config);
	if (rc)
		return rc;
	uint64_t fc = (uint64_t)draft->fc.rows * draft->fc.cols * dtype_bytes(draft->fc.dtype);
	bool every_pass = draft->config.family == MODEL_EAGLE;
	work->floor->draft_bytes = decoder_weight_bytes(draft) + (every_pass ? fc : 0);
	work->floor->draft_once_bytes = every_pass ? 0 : fc;
	work->floor->draft_token_bytes = floor_token_bytes(draft, info);
	model_free(draft);
	return 0;
}

static int floor_models(const struct floor_work *work, struct device *device,
	const struct device_info *info, struct model_error *error)
{
	struct model_config config;
	struct model *target;
	int rc = model_config_load(work->options->model_dir, &config, error);

	if (rc)
		return rc;
	rc = model_load(device, work->options->model_dir, &config, config.max_seq_len, NULL, NULL,
		&target, error);
	model_config_deinit(&config);
	if (rc)
		return rc;
	work->floor->weight_bytes = decoder_weight_bytes(target);
	work->floor->token_bytes = floor_token_bytes(target, info);
	work->floor->token_flop = decoder_token_flop(target);
	rc = work->options->draft ? floor_draft(work, target, info, error) : 0;
	model_free(target);
	return rc;
}

static int floor_child(void *arg, int fd)
{
	const struct floor_work *work = arg;
	struct model_error error = {""};
	struct device *device = NULL;
	struct device_info info;
	int rc = floor_rates(work, &error);

	if (!rc)
		rc = probe_device(work->options->device, &device, &info, error.text,
			sizeof(error.text));
	if (!rc)
		rc = floor_models(work, device, &info, &error);
	if (device)
		device->ops->free(device);
	return bench_fail_device(rc, "the floor", error.text) != 0;
}

int model_floor(const struct bench_options *options, struct model_floor *ret)
{
	struct floor_work work = {options, child_memory(sizeof(*work.floor))};

	if (!work.floor)
		return bench_fail(-ENOMEM, "no memory");
	int rc = child_run("the floor", floor_child, &work, options->timeout_s);
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
	return (double)bytes / floor->rates.copy;
}
