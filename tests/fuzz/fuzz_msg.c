/* SPDX-License-Identifier: MIT */

/*
 * Untrusted bytes, through the pre-check and the decoders.
 *
 * The first byte picks the decoder. Besides what the sanitizers watch, it is asserted that requests
 * allocate nothing, that msgpack-c takes whatever the pre-check takes, and that a message which a
 * decoder takes is in range and survives being written and read again.
 */

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include <mimeo/types.h>

#include "ipc/msg.h"
#include "ipc/region.h"
#include "ipc/wire_check.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
	void (*free_hook)(const volatile void *));

#define CLAIM(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			abort();                                                                   \
	} while (0)

static struct msg_codec *codec;
static unsigned long n_allocations;

static void count_malloc(const volatile void *at, size_t size)
{
	n_allocations++;
}

static void ignore_free(const volatile void *at)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	CLAIM(msg_codec_new(&codec) == 0);
	CLAIM(__sanitizer_install_malloc_and_free_hooks(count_malloc, ignore_free) > 0);
	return 0;
}

static void claim_refused(int status, const struct msg_detail *detail)
{
	CLAIM(status == MIMEO_E_INVALID || status == MIMEO_E_PROTOCOL ||
		status == MIMEO_E_VERSION);
	CLAIM(detail->detail == RING_DETAIL_HEADER || detail->detail == RING_DETAIL_RANGE ||
		detail->detail == RING_DETAIL_EMPTY);
}

static void claim_sampling(const struct mimeo_sampling *sampling)
{
	CLAIM(sampling->temperature >= 0 && sampling->temperature <= FLT_MAX);
	CLAIM(sampling->top_p >= 0 && sampling->top_p <= 1);
	CLAIM(sampling->min_p >= 0 && sampling->min_p <= 1);
	CLAIM(sampling->flags <= 3);
}

static void claim_mask(const struct mimeo_mask *mask, uint32_t last)
{
	CLAIM(mask->kind <= last);
	CLAIM((mask->kind == MIMEO_MASK_WINDOW) == (mask->window > 0));
	CLAIM(mask->kind == MIMEO_MASK_WINDOW || mask->sinks == 0);
	CLAIM((mask->kind == MIMEO_MASK_PREFIX) == (mask->prefix > 0));
}

static void fuzz_generate(const uint8_t *data, size_t size)
{
	struct msg_generate msg, again;
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	n_allocations = 0;
	int r = msg_generate_decode(codec, data, size, &msg, &detail);
	CLAIM(n_allocations == 0);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	claim_sampling(&msg.sampling);
	claim_mask(&msg.mask, MIMEO_MASK_DOCUMENTS);
	CLAIM(msg.draft_tokens <= MIMEO_DRAFT_MAX || msg.draft_tokens == MIMEO_DRAFT_NONE);
	CLAIM((msg.n_tokens > 0 || msg.sequence > 0) && msg.n_stop <= MIMEO_STOP_MAX);
	CLAIM(msg.repetition_penalty == 0 ||
		(msg.repetition_penalty >= 0.01f && msg.repetition_penalty <= 100));
	CLAIM(msg.presence_penalty >= -2 && msg.presence_penalty <= 2);
	CLAIM(msg.frequency_penalty >= -2 && msg.frequency_penalty <= 2);
	CLAIM(msg.n_bias <= MIMEO_BIAS_MAX && msg.top_logprobs <= MIMEO_TOP_LOGPROBS_MAX);
	CLAIM(msg.max_tokens == 0 || msg.min_tokens <= msg.max_tokens);
	for (uint32_t i = 0; i < msg.n_stop; i++)
		CLAIM(msg.stop[i] >= 0);
	int n = msg_generate_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_generate_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(again.n_tokens == msg.n_tokens && again.n_stop == msg.n_stop);
	CLAIM(again.draft_tokens == msg.draft_tokens && again.max_tokens == msg.max_tokens);
	CLAIM(again.deadline_ms == msg.deadline_ms && again.first_token_ms == msg.first_token_ms);
	CLAIM(again.request_class == msg.request_class && msg.request_class <= MIMEO_CLASS_BATCH);
	CLAIM(memcmp(again.stop, msg.stop, sizeof(msg.stop)) == 0);
	CLAIM(again.repetition_penalty == msg.repetition_penalty &&
		again.presence_penalty == msg.presence_penalty &&
		again.frequency_penalty == msg.frequency_penalty);
	CLAIM(again.penalty_start == msg.penalty_start && again.n_bias == msg.n_bias &&
		again.n_allowed == msg.n_allowed && again.min_tokens == msg.min_tokens &&
		again.top_logprobs == msg.top_logprobs);
}

static void fuzz_step(const uint8_t *data, size_t size)
{
	struct msg_step msg, again;
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	n_allocations = 0;
	int r = msg_step_decode(codec, data, size, &msg, &detail);
	CLAIM(n_allocations == 0);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	claim_sampling(&msg.sampling);
	claim_mask(&msg.mask, MIMEO_MASK_TREE);
	CLAIM(msg.n_rows > 0 && msg.outputs > 0 && msg.outputs <= 127);
	CLAIM(msg.top_logprobs == 0 || (msg.outputs & MIMEO_STEP_LOGPROBS));
	int n = msg_step_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_step_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(again.n_rows == msg.n_rows && again.outputs == msg.outputs);
	CLAIM(again.top_logprobs == msg.top_logprobs);
	CLAIM(memcmp(&again.embeddings.offset, &msg.embeddings.offset, sizeof(uint64_t)) == 0);
	CLAIM(again.logits.buffer == msg.logits.buffer && again.flags == msg.flags);
	CLAIM(msg.logits.buffer == 0 || (msg.outputs & MSG_STEP_LOGITS));
	CLAIM(msg.hidden.buffer == 0 || (msg.outputs & MSG_STEP_HIDDEN));
}

static void fuzz_call(const uint8_t *data, size_t size)
{
	struct msg_call msg, again;
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;
	struct mimeo_handle handle;

	n_allocations = 0;
	int r = msg_call_decode(codec, data, size, &msg, &detail);
	CLAIM(n_allocations == 0);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	CLAIM(msg.call >= MSG_CALL_BUFFER_ALLOC && msg.call <= MSG_CALL_MODEL_FILES);
	CLAIM(msg.kind <= MIMEO_HANDLE_CUDA_IPC && msg.request < RING_ENTRIES_MAX);
	if (handle_decode(msg.handle, sizeof(msg.handle), &handle) == HANDLE_OK)
		CLAIM(handle.offset <= INT64_MAX && handle.bytes <= INT64_MAX - handle.offset);
	int n = msg_call_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_call_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(memcmp(&again, &msg, sizeof(msg)) == 0);
}

static void fuzz_reply(const uint8_t *data, size_t size)
{
	struct msg_reply msg, again;
	uint8_t bytes[MSG_HEADER_MAX];
	struct msg_detail detail;

	int r = msg_reply_decode(codec, data, size, &msg, &detail);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	CLAIM(memchr(msg.text, 0, sizeof(msg.text)) && msg.status <= 0);
	int n = msg_reply_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_reply_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(memcmp(again.handle, msg.handle, sizeof(msg.handle)) == 0);
	CLAIM(again.files == msg.files && msg.files < 1u << MSG_FILES_MAX);
}

static void fuzz_hello(const uint8_t *data, size_t size)
{
	struct msg_hello msg, again;
	struct msg_detail detail;
	uint8_t bytes[256];

	int r = msg_hello_decode(codec, data, size, &msg, &detail);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	CLAIM(memchr(msg.name, 0, sizeof(msg.name)));
	struct region region;
	CLAIM(region_create(&region, msg.entries, msg.arena_bytes) == 0);
	region_deinit(&region);
	int n = msg_hello_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_hello_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(strcmp(again.name, msg.name) == 0);
}

static void fuzz_welcome(const uint8_t *data, size_t size)
{
	static struct msg_welcome msg, again;
	static uint8_t bytes[MSG_SOCKET_MAX];
	struct msg_detail detail;

	int r = msg_welcome_decode(codec, data, size, &msg, &detail);
	if (r != 0) {
		claim_refused(r, &detail);
		return;
	}
	CLAIM(memchr(msg.text, 0, sizeof(msg.text)));
	CLAIM(msg.n_models <= MSG_MODELS_MAX);
	for (uint32_t i = 0; i < msg.n_models; i++) {
		CLAIM(memchr(msg.models[i].name, 0, MIMEO_NAME_MAX));
		CLAIM(msg.models[i].n_eos <= MIMEO_STOP_MAX && msg.models[i].bos >= -1);
		claim_sampling(&msg.models[i].sampling);
		if (msg.status == 0)
			claim_mask(&msg.models[i].mask, MIMEO_MASK_PREFIX);
		CLAIM(msg.status != 0 || msg.models[i].max_batch_tokens > 0);
		CLAIM(msg.status != 0 || msg.models[i].max_rows > 0);
		CLAIM(msg.models[i].draft_tokens <= MIMEO_DRAFT_MAX);
	}
	int n = msg_welcome_encode(&msg, bytes, sizeof(bytes));
	CLAIM(n > 0);
	CLAIM(msg_welcome_decode(codec, bytes, (size_t)n, &again, &detail) == 0);
	CLAIM(again.n_models == msg.n_models && again.status == msg.status);
}

static void fuzz_wire_check(const uint8_t *data, size_t size)
{
	msgpack_unpacked result;
	size_t offset = SIZE_MAX;

	enum wire_refusal refusal = wire_check(data, size, &offset);
	CLAIM(offset <= size);
	if (refusal != WIRE_OK)
		return;
	msgpack_unpacked_init(&result);
	offset = 0;
	CLAIM(msgpack_unpack_next(&result, (const char *)data, size, &offset) ==
		MSGPACK_UNPACK_SUCCESS);
	CLAIM(offset == size);
	msgpack_unpacked_destroy(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const targets[])(const uint8_t *, size_t) = {
		fuzz_generate, fuzz_step, fuzz_hello, fuzz_welcome, fuzz_call, fuzz_reply};

	if (size == 0)
		return 0;
	/* A block of its own: one byte beyond the message is beyond the block. */
	uint8_t *copy = malloc(size);
	CLAIM(copy);
	memcpy(copy, data + 1, size - 1);
	uint8_t *shrunk = realloc(copy, size > 1 ? size - 1 : 1);
	CLAIM(shrunk);
	fuzz_wire_check(shrunk, size - 1);
	targets[data[0] % (sizeof(targets) / sizeof(targets[0]))](shrunk, size - 1);
	free(shrunk);
	return 0;
}
