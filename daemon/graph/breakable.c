/* SPDX-License-Identifier: MIT */
#include "daemon/graph/breakable.h"

#include <assert.h>
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

static int breakable_reserve(struct breakable *breakable, uint32_t max_breaks)
{
	*breakable = (struct breakable){
		.breaks = calloc(max_breaks, sizeof(*breakable->breaks)),
		.graphs = calloc((size_t)max_breaks + 1, sizeof(struct graph *)),
		.execs = calloc((size_t)max_breaks + 1, sizeof(struct graph_exec *)),
	};
	return breakable->breaks && breakable->graphs && breakable->execs ? 0 : -ENOMEM;
}

static bool breakable_in_pool(const struct forward_context *context, const void *address, uint64_t bytes)
{
	uintptr_t pool = (uintptr_t)context->pool, at = (uintptr_t)address;

	return at >= pool && bytes <= context->pool_bytes && at - pool <= context->pool_bytes - bytes;
}

static int breakable_end_segment(const struct breakable_runner *runner)
{
	struct breakable *b = runner->recording;

	assert(b->n_breaks <= runner->max_breaks && !b->graphs[b->n_breaks]);
	return runner->context->device->ops->capture_end(runner->stream, &b->graphs[b->n_breaks]);
}

/* In place of the backend's run, in the middle of a capture. */
static int breakable_on_break(void *userdata, const struct attention_args *args)
{
	struct breakable_runner *runner = userdata;
	const struct forward_context *context = runner->context;
	struct breakable *b = runner->recording;
	const struct model *model = context->model;
	uint64_t row = (uint64_t)runner->n_tokens * dtype_bytes(model->activation_dtype);
	uint64_t q_bytes = row * args->q_stride;
	uint64_t out_bytes = row * model_attention_width(&model->config);
	int rc;

	assert(b && args->layer < model->config.n_layers);
	if (b->n_breaks == runner->max_breaks)
		return -E2BIG;
	if (!breakable_in_pool(context, args->q, q_bytes) || !breakable_in_pool(context, args->out, out_bytes))
		return -EFAULT;
	rc = breakable_end_segment(runner);
	if (rc)
		return rc;
	rc = context->attention->run(runner->forward->metadata, runner->stream, args);
	if (rc)
		return rc;
	b->breaks[b->n_breaks++] = *args;
	return context->device->ops->capture_begin(runner->stream);
}

static int breakable_record_segments(struct breakable_runner *runner, const struct descriptor *descriptor)
{
	const struct device_ops *ops = runner->context->device->ops;
	struct graph *spoilt;
	int rc = ops->capture_begin(runner->stream);

	if (rc)
		return rc;
	rc = forward_model(runner->forward, descriptor, runner->stream);
	if (!rc)
		return breakable_end_segment(runner);
	if (ops->capturing(runner->stream) && !ops->capture_end(runner->stream, &spoilt))
		ops->graph_free(spoilt);
	return rc;
}

int breakable_record(struct breakable_runner *runner, struct breakable *ret, struct forward *forward,
	const struct descriptor *descriptor, struct stream *stream)
{
	struct breakable breakable;
	int rc = breakable_reserve(&breakable, runner->max_breaks);

	assert(!runner->recording && !forward->attend);
	if (rc) {
		breakable_free(&breakable, runner->context->device);
		return rc;
	}
	runner->recording = &breakable;
	runner->forward = forward;
	runner->stream = stream;
	runner->n_tokens = descriptor->tokens;
	forward->attend = breakable_on_break;
	forward->attend_userdata = runner;
	rc = breakable_record_segments(runner, descriptor);
	forward->attend = NULL;
	runner->recording = NULL;
	runner->forward = NULL;
	if (rc) {
		breakable_free(&breakable, runner->context->device);
		return rc;
	}
	assert(breakable.graphs[breakable.n_breaks]);
	*ret = breakable;
	return 0;
}

int breakable_instantiate_one(struct device *device, struct graph *graph,
	struct graph_exec **ret_exec, struct stream *stream, struct graph_info *ret)
{
	int rc;

	assert(graph && !*ret_exec);
	rc = device->ops->graph_instantiate(device, graph, ret_exec);
	if (rc)
		return rc;
	rc = device->ops->graph_upload(*ret_exec, stream);
	return rc ? rc : device->ops->graph_info(*ret_exec, ret);
}

int breakable_instantiate(struct breakable *breakable, struct device *device, struct stream *stream,
	struct graph_info *ret)
{
	struct graph_info all = {0};

	assert(breakable->graphs);
	for (uint32_t i = 0; i <= breakable->n_breaks; i++) {
		struct graph_info info = {0};
		int rc = breakable_instantiate_one(
			device, breakable->graphs[i], &breakable->execs[i], stream, &info);

		if (rc)
			return rc;
		all.n_nodes += info.n_nodes;
		all.bytes += info.bytes;
	}
	*ret = all;
	return 0;
}

/* ---- replay ---- */

int breakable_replay(struct breakable_runner *runner, const struct breakable *breakable,
	struct forward *forward, struct stream *stream)
{
	const struct forward_context *context = runner->context;
	const struct device_ops *ops = context->device->ops;
	int rc;

	assert(breakable->execs && forward->context == context);
	rc = ops->graph_launch(breakable->execs[0], stream);
	for (uint32_t i = 0; i < breakable->n_breaks && !rc; i++) {
		rc = context->attention->run(forward->metadata, stream, &breakable->breaks[i]);
		if (rc)
			return rc;
		rc = ops->graph_launch(breakable->execs[i + 1], stream);
	}
	runner->n_replays++;
	runner->n_breaks += breakable->n_breaks;
	return rc;
}
