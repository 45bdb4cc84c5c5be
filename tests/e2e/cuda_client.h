/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_CUDA_CLIENT_H
#define MIMEO_TESTS_E2E_CUDA_CLIENT_H

/*
 * A client with CUDA: a process of its own, because a context does not survive a fork, and a stream
 * that waits for fences. What must not happen ends that process (CHILD_EXPECT).
 */

#include <string.h>

#include <mimeo/mimeo-cuda.h>

#include "tests/e2e/embedding_table.h"
#include "tests/e2e/process.h"

#define CUDA(call) CHILD_EXPECT((call) == cudaSuccess)

struct client {
	struct mimeo *m;
	cudaStream_t stream;
	cudaEvent_t events[64]; /* by fence, which the library keeps at one address each */
	const struct mimeo_handle *fences[64];
	unsigned n_events;
};

static inline void client_start(struct client *client, const char *socket)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	*client = (struct client){.n_events = 0};
	config.socket_path = socket;
	config.connect_timeout_ms = PATIENCE_MS;
	CHILD_EXPECT(mimeo_connect(&client->m, &config) == 0);
	CUDA(cudaStreamCreateWithFlags(&client->stream, cudaStreamNonBlocking));
}

static inline cudaEvent_t event_of(struct client *client, const struct mimeo_handle *fence)
{
	for (unsigned i = 0; i < client->n_events; i++) {
		if (client->fences[i] == fence)
			return client->events[i];
	}
	CHILD_EXPECT(client->n_events < 64);
	CUDA(mimeo_cuda_fence_open(fence, &client->events[client->n_events]));
	client->fences[client->n_events] = fence;
	return client->events[client->n_events++];
}

/* One row; the client's stream has its results in order behind it when this returns. The event that
 * it waits for. */
static inline cudaEvent_t step_with_fence(
	struct client *client, struct mimeo_step *step, const struct mimeo_step_row *row)
{
	struct mimeo_request *request = mimeo_request_get(client->m);
	const struct mimeo_handle *fence;
	struct mimeo_event event;

	step->n_rows = 1;
	step->rows = row;
	step->flags = MIMEO_STEP_FENCE;
	CHILD_EXPECT(request && mimeo_request_fence(request, &fence) == 0);
	CHILD_EXPECT(mimeo_request_prep_step(request, step) == 0);
	CHILD_EXPECT(mimeo_submit(client->m) >= 1);
	CHILD_EXPECT(mimeo_event_wait(client->m, &event, -1) == 1);
	CHILD_EXPECT(event.kind == MIMEO_EVENT_RECORDED);
	mimeo_event_seen(client->m, &event);
	CUDA(cudaStreamWaitEvent(client->stream, event_of(client, fence), 0));
	return event_of(client, fence);
}

static inline void await_final(struct client *client, struct mimeo_event *ret)
{
	CHILD_EXPECT(mimeo_event_wait(client->m, ret, -1) == 1);
	CHILD_EXPECT(ret->kind == MIMEO_EVENT_FINAL && ret->status == 0);
}

/* A step of the tokens on a fresh sequence, its logits through the arena: the sequence, still open. */
static inline uint32_t reference_kept(
	struct client *client, const int32_t *tokens, uint32_t n, float logits[static VOCAB])
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = n, .tokens = tokens};
	struct mimeo_event event;

	CHILD_EXPECT(mimeo_sequence_open(client->m, 0, &row.sequence) == 0);
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_LOGITS;
	CHILD_EXPECT(mimeo_request_prep_step(mimeo_request_get(client->m), &step) == 0);
	CHILD_EXPECT(mimeo_submit(client->m) >= 1);
	await_final(client, &event);
	memcpy(logits, event.logits, VOCAB * sizeof(float));
	mimeo_event_seen(client->m, &event);
	return row.sequence;
}

static inline void reference(
	struct client *client, const int32_t *tokens, uint32_t n, float logits[static VOCAB])
{
	CHILD_EXPECT(mimeo_sequence_close(
			     client->m, reference_kept(client, tokens, n, logits)) == 0);
}

#endif
