/* SPDX-License-Identifier: MIT */
/*
 * Logits from one process's device memory into another's work, with no copy through the host: this
 * process has a CUDA context and streams of its own; the daemon writes the logits of a step into a
 * buffer that both map, and a stream here waits for the daemon's without the CPU in between. To
 * check them, the same prompt is stepped a second time with its logits through shared memory.
 *
 *	gpu-logits [--socket PATH] [--model NAME] [--ipc]
 *
 * --ipc: a buffer of the CUDA IPC kind instead of the default, a descriptor's.
 * Exit status: 0 if they are the same, 1 if not or if something fails, 2 if the command line makes no
 * sense.
 */
#include <mimeo/mimeo-cuda.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define N_TOKENS 24u
#define N_STEPS 8u
#define N_ENTRIES 4u /* requests of the connection, so as many fences at most */

struct opened {
	const struct mimeo_handle *fence;
	cudaEvent_t event;
};

struct run {
	struct mimeo *m;
	uint32_t model, vocab;
	cudaStream_t stream;
	struct opened opened[N_ENTRIES];
	uint32_t n_opened;
	float *mine, *reference; /* [vocab] host */
	float worst;             /* largest difference, as a part of the largest logit */
};

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "gpu-logits: %s: %s\n", what, why);
	return 1;
}

static int fail_mimeo(const char *what, int status)
{
	return fail(what, mimeo_strerror(status));
}

static int fail_cuda(const char *what, cudaError_t error)
{
	return fail(what, cudaGetErrorString(error));
}

/* The next event of that kind, or the last one, which the device's work is before as well; others of the
 * request are passed over. */
static int await(struct mimeo *m, uint32_t kind, struct mimeo_event *ret)
{
	for (;;) {
		int r = mimeo_event_wait(m, ret, -1);

		if (r < 0)
			return r;
		if (r == 0)
			continue;
		if (ret->status < 0)
			return ret->status;
		if (ret->kind == kind || ret->kind == MIMEO_EVENT_FINAL)
			return 0;
		mimeo_event_seen(m, ret);
	}
}

/* A step of one row through shared memory: the reference. */
static int step_by_host(struct run *run, const struct mimeo_step_row *row)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(run->m);
	struct mimeo_event event;

	step.model = run->model;
	step.n_rows = 1;
	step.rows = row;
	step.outputs = MIMEO_STEP_LOGITS;
	int r = request ? mimeo_request_prep_step(request, &step) : MIMEO_E_FULL;
	if (r == 0)
		r = mimeo_submit(run->m);
	if (r >= 0)
		r = await(run->m, MIMEO_EVENT_FINAL, &event);
	if (r < 0)
		return fail_mimeo("step through shared memory", r);
	memcpy(run->reference, event.logits, run->vocab * sizeof(float));
	mimeo_event_seen(run->m, &event);
	return 0;
}

/* The event of the request's fence: opened once, kept for when the same request is got again. */
static int event_of(struct run *run, struct mimeo_request *request, cudaEvent_t *ret_event)
{
	const struct mimeo_handle *fence;
	struct opened *opened = run->opened;

	int r = request ? mimeo_request_fence(request, &fence) : MIMEO_E_FULL;
	if (r < 0)
		return fail_mimeo("fence", r);
	while (opened < run->opened + run->n_opened && opened->fence != fence)
		opened++;
	if (opened == run->opened + run->n_opened) {
		cudaError_t error = mimeo_cuda_fence_open(fence, &opened->event);

		if (error != cudaSuccess)
			return fail_cuda("event of the fence", error);
		opened->fence = fence;
		run->n_opened++;
	}
	*ret_event = opened->event;
	return 0;
}

/* The same into the buffer. What follows in this process's stream starts when the logits are there;
 * here that is a copy to the host, to look at them. */
static int step_by_device(struct run *run, const struct mimeo_step_row *row, uint32_t buffer,
	const float *logits)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(run->m);
	struct mimeo_event event;
	cudaEvent_t done;

	step.model = run->model;
	step.n_rows = 1;
	step.rows = row;
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer;
	step.flags = MIMEO_STEP_FENCE;
	int r = event_of(run, request, &done);
	if (r != 0)
		return r;
	r = mimeo_request_prep_step(request, &step);
	if (r == 0)
		r = mimeo_submit(run->m);
	if (r >= 0)
		r = await(run->m, MIMEO_EVENT_RECORDED, &event);
	if (r < 0)
		return fail_mimeo("step into the buffer", r);
	bool last = event.kind == MIMEO_EVENT_FINAL;
	cudaError_t error = cudaStreamWaitEvent(run->stream, done, 0);
	/* Kernels that read the logits would follow here. The host waits for the final event before it
	 * waits for the stream: a daemon that is killed leaves the stream waiting for ever. */
	if (!last) {
		mimeo_event_seen(run->m, &event);
		r = await(run->m, MIMEO_EVENT_FINAL, &event);
	}
	if (r < 0)
		return fail_mimeo("end of the step", r);
	if (error == cudaSuccess)
		error = cudaMemcpyAsync(run->mine, logits, run->vocab * sizeof(float),
			cudaMemcpyDeviceToHost, run->stream);
	if (error == cudaSuccess)
		error = cudaStreamSynchronize(run->stream);
	mimeo_event_seen(run->m, &event);
	return error == cudaSuccess ? 0 : fail_cuda("copy of the logits", error);
}

static void compare(struct run *run)
{
	float largest = 1e-30f, worst = 0;

	for (uint32_t i = 0; i < run->vocab; i++) {
		float a = run->reference[i], b = run->mine[i];
		float difference = a > b ? a - b : b - a;

		largest = a > largest ? a : -a > largest ? -a : largest;
		worst = difference > worst || difference != difference ? difference : worst;
	}
	worst /= largest;
	if (!(worst <= run->worst))
		run->worst = worst;
}

/* A prompt, then a token at a time, on two sequences. */
static int compare_steps(struct run *run, uint32_t buffer, const float *logits)
{
	int32_t tokens[N_TOKENS];
	struct mimeo_step_row rows[2];
	int r = 0;

	for (uint32_t i = 0; i < N_TOKENS; i++)
		tokens[i] = (int32_t)((i * 37 + 1) % run->vocab);
	for (int i = 0; i < 2 && r == 0; i++) {
		rows[i].tokens = tokens;
		rows[i].n_tokens = N_TOKENS;
		r = mimeo_sequence_open(run->m, run->model, &rows[i].sequence);
	}
	if (r < 0)
		return fail_mimeo("sequence", r);
	for (uint32_t i = 0; i < N_STEPS && r == 0; i++) {
		r = step_by_device(run, &rows[0], buffer, logits);
		if (r == 0)
			r = step_by_host(run, &rows[1]);
		if (r == 0)
			compare(run);
		rows[0].n_tokens = rows[1].n_tokens = 1;
		rows[0].tokens = rows[1].tokens = &tokens[i + 1];
	}
	for (uint32_t i = 0; i < run->n_opened; i++)
		cudaEventDestroy(run->opened[i].event);
	return r;
}

static int with_buffer(struct run *run, uint32_t kind)
{
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint32_t buffer;

	int r = mimeo_buffer_alloc(run->m, kind, run->vocab * sizeof(float), &buffer);
	if (r < 0)
		return fail("buffer", *mimeo_buffer_message(run->m) ? mimeo_buffer_message(run->m)
								    : mimeo_strerror(r));
	r = mimeo_buffer_handle(run->m, buffer, &handle);
	if (r < 0)
		return fail_mimeo("handle", r);
	cudaError_t error = mimeo_cuda_map(&handle, &memory);
	if (error != cudaSuccess)
		return fail_cuda("mapping of the buffer", error);
	r = compare_steps(run, buffer, (const float *)memory.address);
	if (r != 0)
		return r; /* unmapping might wait for the stream; the process's end does not */
	mimeo_cuda_unmap(&memory);
	mimeo_buffer_close(run->m, buffer);
	printf("steps %u\nvocabulary %u\nlargest_difference %.3g\n", N_STEPS, run->vocab,
		(double)run->worst);
	/* Both runs are bf16; a batch of another shape may round another way. */
	return run->worst <= 2e-2f ? 0 : fail("logits", "not the same on both ways");
}

static int with_model(struct mimeo *m, const char *model, uint32_t kind)
{
	struct run run;

	memset(&run, 0, sizeof(run));
	run.m = m;
	int r = model ? mimeo_model_find(m, model) : 0;
	if (r < 0)
		return fail_mimeo(model, r);
	run.model = (uint32_t)r;
	run.vocab = mimeo_model_get(m, run.model)->vocab_size;
	run.mine = malloc(run.vocab * sizeof(float));
	run.reference = malloc(run.vocab * sizeof(float));
	cudaError_t error = cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking);
	if (error != cudaSuccess)
		r = fail_cuda("stream", error);
	else if (!run.mine || !run.reference)
		r = fail("memory", "none");
	else
		r = with_buffer(&run, kind);
	if (error == cudaSuccess)
		cudaStreamDestroy(run.stream);
	free(run.reference);
	free(run.mine);
	return r;
}

int main(int argc, char **argv)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	uint32_t kind = MIMEO_HANDLE_VMM_FD;
	const char *model = NULL;
	char message[256] = "";
	struct mimeo *m;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--ipc") == 0) {
			kind = MIMEO_HANDLE_CUDA_IPC;
		} else if (strcmp(argv[i], "--socket") == 0 && i + 1 < argc) {
			config.socket_path = argv[++i];
		} else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) {
			model = argv[++i];
		} else {
			fprintf(stderr,
				"usage: gpu-logits [--socket PATH] [--model NAME] [--ipc]\n");
			return 2;
		}
	}
	config.message = message;
	config.message_size = sizeof(message);
	config.entries = N_ENTRIES;
	int r = mimeo_connect(&m, &config);
	if (r < 0)
		return fail("connect", *message ? message : mimeo_strerror(r));
	r = with_model(m, model, kind);
	mimeo_close(m);
	return r;
}
