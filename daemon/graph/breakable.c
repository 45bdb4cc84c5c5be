/* SPDX-License-Identifier: MIT */
#include "daemon/graph/breakable.h"

#include <errno.h>
#include <stdlib.h>

void breakable_runner_init(struct breakable_runner *runner, const struct forward_context *context)
{
	*runner = (struct breakable_runner){
		.context = context,
		.max_breaks = context->model->config.n_layers,
	};
}

void breakable_free(struct breakable *breakable, struct device *device)
{
	for (uint32_t i = 0; breakable->graphs && breakable->execs && i <= breakable->n_breaks; i++) {
		if (breakable->execs[i])
			device->ops->graph_exec_free(breakable->execs[i]);
		if (breakable->graphs[i])
			device->ops->graph_free(breakable->graphs[i]);
	}
	free(breakable->breaks);
	free(breakable->graphs);
	free(breakable->execs);
	*breakable = (struct breakable){0};
}

/* ---- recording ---- */

static int reserve(struct breakable *breakable, uint32_t max_breaks)
{
	*breakable = (struct breakable){
		.breaks = calloc(max_breaks, sizeof(*breakable->breaks)),
		.graphs = calloc((size_t)max_breaks + 1, sizeof(struct graph *)),
		.execs = calloc((size_t)max_breaks + 1, sizeof(struct graph_exec *)),
	};
	return breakable->breaks && breakable->graphs && breakable->execs ? 0 : -ENOMEM;
}

static bool in_pool(const struct forward_context *context, const void *address, uint64_t bytes)
{
	uintptr_t pool = (uintptr_t)context->pool, at = (uintptr_t)address;

	return at >= pool && bytes <= context->pool_bytes && at - pool <= context->pool_bytes - bytes;
}

static int end_segment(const struct breakable_runner *runner)
{
	struct breakable *b = runner->recording;

	return runner->context->device->ops->capture_end(runner->stream, &b->graphs[b->n_breaks]);
}

/* In place of the backend's run, in the middle of a capture. */
static int on_break(void *userdata, const struct attention_args *args)
{
	struct breakable_runner *runner = userdata;
	const struct forward_context *context = runner->context;
	struct breakable *b = runner->recording;
	const struct model *model = context->model;
	uint64_t row = (uint64_t)runner->n_tokens * dtype_bytes(model->activation_dtype);
	uint64_t q_bytes = row * args->q_stride;
	uint64_t out_bytes = row * model_attention_width(&model->config);
	int rc;

	if (b->n_breaks == runner->max_breaks)
		return -E2BIG;
	if (!in_pool(context, args->q, q_bytes) || !in_pool(context, args->out, out_bytes))
		return -EFAULT;
	rc = end_segment(runner);
	if (!rc)
		rc = context->attention->run(runner->forward->metadata, runner->stream, args);
	if (rc)
		return rc;
	b->breaks[b->n_breaks++] = *args;
	return context->device->ops->capture_begin(runner->stream);
}

static int record(struct breakable_runner *runner, const struct descriptor *descriptor)
{
	const struct device_ops *ops = runner->context->device->ops;
	struct graph *spoilt;
	int rc = ops->capture_begin(runner->stream);

	if (rc)
		return rc;
	rc = forward_model(runner->forward, descriptor, runner->stream);
	if (!rc)
		return end_segment(runner);
	if (ops->capturing(runner->stream) && !ops->capture_end(runner->stream, &spoilt))
		ops->graph_free(spoilt);
	return rc;
}

int breakable_record(struct breakable_runner *runner, struct breakable *ret, struct forward *forward,
	const struct descriptor *descriptor, struct stream *stream)
{
	struct breakable breakable;
	int rc = reserve(&breakable, runner->max_breaks);

	runner->recording = &breakable;
	runner->forward = forward;
	runner->stream = stream;
	runner->n_tokens = descriptor->tokens;
	forward->attend = on_break;
	forward->attend_userdata = runner;
	if (!rc)
		rc = record(runner, descriptor);
	forward->attend = NULL;
	runner->recording = NULL;
	runner->forward = NULL;
	if (rc)
		breakable_free(&breakable, runner->context->device);
	else
		*ret = breakable;
	return rc;
}

int breakable_instantiate(struct breakable *breakable, struct device *device, struct stream *stream,
	struct graph_info *ret)
{
	const struct device_ops *ops = device->ops;
	struct graph_info all = {0};
	int rc = 0;

	for (uint32_t i = 0; i <= breakable->n_breaks && !rc; i++) {
		struct graph_info info = {0};

		rc = ops->graph_instantiate(device, breakable->graphs[i], &breakable->execs[i]);
		if (!rc)
			rc = ops->graph_upload(breakable->execs[i], stream);
		if (!rc)
			rc = ops->graph_info(breakable->execs[i], &info);
		all.n_nodes += info.n_nodes;
		all.bytes += info.bytes;
	}
	if (!rc)
		*ret = all;
	return rc;
}

/* ---- replay ---- */

int breakable_replay(struct breakable_runner *runner, const struct breakable *breakable,
	struct forward *forward, struct stream *stream)
{
	const struct forward_context *context = runner->context;
	const struct device_ops *ops = context->device->ops;
	int rc = ops->graph_launch(breakable->execs[0], stream);

	for (uint32_t i = 0; i < breakable->n_breaks && !rc; i++) {
		rc = context->attention->run(forward->metadata, stream, &breakable->breaks[i]);
		if (!rc)
			rc = ops->graph_launch(breakable->execs[i + 1], stream);
	}
	runner->n_replays++;
	runner->n_breaks += breakable->n_breaks;
	return rc;
}
