/* SPDX-License-Identifier: MIT */
#include "daemon/bench/speculation.h"

#include <errno.h>

#include "daemon/bench/lane.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "daemon/model/draft.h"

struct floor_work {
	const struct bench_options *options;
	struct speculation_floor *floor; /* shared with the child that fills it */
};

/* The copy's buffers come and go before the models do. */
static int take_rate(const struct floor_work *work, struct model_error *error)
{
	struct probe probe;
	int rc = probe_open(&probe, work->options->device, error->text, sizeof(error->text));

	if (!rc)
		rc = probe_copy_rate(&probe);
	work->floor->copy_rate = probe.rates.copy;
	probe_close(&probe);
	return rc;
}

static uint64_t token_bytes(const struct model *model, const struct device_info *info)
{
	const struct kv_config kv = model_kv(&model->config, info, 1);

	return model->config.n_layers * kv_layer_page_bytes(&kv);
}

/* Of an EAGLE every pass reads fc, of an EAGLE-3 the first one alone: fc is of the target's. */
static void count(struct speculation_floor *floor, const struct model *target,
	const struct model *draft, const struct device_info *info)
{
	uint64_t fc = (uint64_t)draft->fc.rows * draft->fc.cols * dtype_bytes(draft->fc.dtype);
	bool every_pass = draft->config.family == MODEL_EAGLE;

	floor->target_bytes = lane_weight_bytes(target);
	floor->draft_bytes = lane_weight_bytes(draft) + (every_pass ? fc : 0);
	floor->once_bytes = every_pass ? 0 : fc;
	floor->target_token_bytes = token_bytes(target, info);
	floor->draft_token_bytes = token_bytes(draft, info);
}

static int load_draft(const struct floor_work *work, const struct model *target,
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
	count(work->floor, target, draft, info);
	model_free(draft);
	return 0;
}

static int load(const struct floor_work *work, struct device *device,
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
	rc = load_draft(work, target, info, error);
	model_free(target);
	return rc;
}

static int work_floor(void *arg, int fd)
{
	const struct floor_work *work = arg;
	struct model_error error = {""};
	struct device *device = NULL;
	struct device_info info;
	int rc = take_rate(work, &error);

	(void)fd;
	if (!rc)
		rc = probe_device(work->options->device, &device, &info, error.text,
			sizeof(error.text));
	if (!rc)
		rc = load(work, device, &info, &error);
	rc = report_outcome("speculation", rc, error.text);
	if (device)
		device->ops->free(device);
	return rc;
}

int speculation_floor(const struct bench_options *options, struct speculation_floor *ret)
{
	struct floor_work work = {options, child_memory(sizeof(*work.floor))};

	if (!work.floor)
		return -ENOMEM;
	int r = child_run("speculation", work_floor, &work, options->timeout_s);
	*ret = *work.floor;
	child_memory_free(work.floor, sizeof(*work.floor));
	return r;
}

double speculation_floor_seconds(const struct speculation_floor *floor, uint32_t n_drafts,
	uint32_t n_rows, uint32_t seen)
{
	uint64_t tokens = (uint64_t)n_rows * seen;
	uint64_t bytes = floor->target_bytes + tokens * floor->target_token_bytes;

	if (n_drafts)
		bytes += floor->once_bytes +
			n_drafts * (floor->draft_bytes + tokens * floor->draft_token_bytes);
	return (double)bytes / floor->copy_rate;
}
