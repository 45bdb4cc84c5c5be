/* SPDX-License-Identifier: MIT */
/*
 * Calls on a session's socket: device buffers, fences and files of models.
 *
 * A client makes one call at a time and waits for its reply; any other bytes break the protocol. Work that
 * may take long is a job for the builder, and the reply is sent when the job comes back.
 *
 * Limits: buffers and bytes of a session, and its user's share of all sessions' bytes (quota.h). Bytes count
 * until the builder has released them, so that a client gets no more by closing and allocating in haste. Files
 * of models are open in the daemon anyway; what is limited is how many of their descriptors wait in a socket.
 */
#include "daemon/serve/calls.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <linux/sockios.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/buffers.h"

struct call_job {
	struct builder_job job; /* first */
	struct session *session;
	uint32_t buffer, fence;
	struct session_memory *memory;
	uint64_t offset, bytes;
	uint32_t kind;
};

/* ---- replies ---- */

/* One message. A client that waits for its reply has space for it. */
static void calls_reply_fds(
	struct session *session, const struct msg_reply *reply, const int *fds, size_t n_fds)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_reply_encode(reply, bytes, sizeof(bytes));

	if (n < 0 || socket_send_now(session->fd, bytes, (size_t)n, fds, n_fds) < 0)
		session_detach(session, "its socket takes no reply");
}

/* With a descriptor unless fd is -1. */
static void calls_reply(struct session *session, const struct msg_reply *reply, int fd)
{
	calls_reply_fds(session, reply, &fd, fd >= 0);
}

__attribute__((format(printf, 3, 4)))
static void calls_refuse(struct session *session, int status, const char *format, ...)
{
	struct msg_reply reply = {.status = status};
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reply.text, sizeof(reply.text), format, arguments);
	va_end(arguments);
	log_debug("session %u: refused: %s", session->port.session, reply.text);
	session->serve->n_quota_buffers += status == MIMEO_E_QUOTA;
	calls_reply(session, &reply, -1);
}

/* A limit of the session's. unit: NULL for none. */
static void calls_refuse_quota(struct session *session, struct msg_quota quota)
{
	char text[MSG_TEXT_MAX];

	quota.unit = quota.unit ? quota.unit : "";
	quota.whom = "this session";
	msg_quota_explain(&quota, text, sizeof(text));
	calls_refuse(session, MIMEO_E_QUOTA, "%s", text);
}

/* The device's answer to a job. */
static void calls_refuse_job(struct session *session, const struct call_job *call)
{
	int rc = call->job.rc;
	int status = device_is_lost(rc) ? MIMEO_E_DEVICE_LOST
		: rc == DEVICE_E_MEMORY || rc < 0 ? MIMEO_E_NO_MEMORY
		: rc == DEVICE_E_UNSUPPORTED ? MIMEO_E_UNSUPPORTED : MIMEO_E_INVALID;

	if (status == MIMEO_E_INVALID && call->memory && call->memory->imported &&
		call->memory->key.kind == MIMEO_HANDLE_MEMFD) {
		char text[MSG_TEXT_MAX];

		buffers_explain_memfd(call->memory->fd, call->memory->bytes, sizeof(text), text);
		calls_refuse(session, status, "%s", text);
		return;
	}
	calls_refuse(session, status, "the device says %s",
		status == MIMEO_E_INVALID ? "that this is no such memory of its own"
					   : device_strerror(rc));
}

/* ---- limits ---- */

/* Charges so many further bytes, and descriptors that are kept, if they are within the limits; otherwise the
 * call has been refused. */
static bool calls_charge(struct session *session, uint64_t bytes, uint64_t n_descriptors)
{
	const struct serve_options *options = &session->serve->options;
	const struct session_buffers *buffers = session->buffers;
	const uint64_t left = buffers->bytes < options->max_client_buffer_bytes
		? options->max_client_buffer_bytes - buffers->bytes : 0;
	struct quota *quota = session->serve->quota;
	const struct quota_amounts amounts = {
		.of = {[QUOTA_BUFFER_BYTES] = bytes, [QUOTA_DESCRIPTORS] = n_descriptors}};
	char text[MSG_TEXT_MAX];

	if (buffers->n_used == buffers->n) {
		calls_refuse_quota(session, (struct msg_quota){
			.what = "device buffers", .asked = 1, .limit = "max_client_buffers"});
		return false;
	}
	if (bytes > left) {
		calls_refuse_quota(session, (struct msg_quota){.what = "device buffers", .unit = " bytes",
			.asked = bytes, .left = left, .limit = "max_client_buffer_bytes"});
		return false;
	}
	if (!quota_fits(quota, session->port.uid, &amounts, text, sizeof(text))) {
		calls_refuse(session, MIMEO_E_QUOTA, "%s", text);
		return false;
	}
	if (quota_charge(quota, session->port.uid, &amounts) < 0) {
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
		return false;
	}
	return true;
}

static void calls_discharge(struct session *session, uint64_t bytes, uint64_t n_descriptors)
{
	quota_release(session->serve->quota, session->port.uid, &(struct quota_amounts){
		.of = {[QUOTA_BUFFER_BYTES] = bytes, [QUOTA_DESCRIPTORS] = n_descriptors}});
}

/* ---- jobs ---- */

static bool calls_post(struct session *session, struct call_job call, struct builder_thing *thing)
{
	struct call_job *copy = malloc(sizeof(*copy));

	if (!copy)
		return false;
	assert(!session->buffers->busy);
	*copy = call;
	copy->session = session;
	copy->job.thing = thing;
	session->buffers->busy = true;
	builder_post(session->serve->options.builder, &copy->job);
	return true;
}

static bool calls_on_host(const struct session *session)
{
	return strcmp(session->serve->options.device_kind, "cpu") == 0;
}

static bool calls_is_served(struct session *session, uint32_t kind)
{
	if (calls_on_host(session) == (kind == MIMEO_HANDLE_MEMFD))
		return true;
	calls_refuse(session, MIMEO_E_UNSUPPORTED, "the device, %s, has no buffers of that kind",
		session->serve->options.device);
	return false;
}

/* What the device allocates for so many bytes, or UINT64_MAX. */
static uint64_t calls_round(const struct serve *serve, uint64_t bytes)
{
	uint64_t granularity = serve->options.buffer_granularity;
	uint64_t over = granularity > 0 ? bytes % granularity : 0;

	if (over > 0 && __builtin_add_overflow(bytes, granularity - over, &bytes))
		return UINT64_MAX;
	return bytes;
}

static void calls_alloc(struct session *session, const struct msg_call *msg)
{
	struct session_buffers *buffers = session->buffers;
	struct call_job call = {
		.kind = msg->kind, .bytes = msg->bytes, .job.handle.fd = -1};

	if (call.kind == 0)
		call.kind = calls_on_host(session) ? MIMEO_HANDLE_MEMFD : MIMEO_HANDLE_VMM_FD;
	uint64_t bytes = calls_round(session->serve, msg->bytes);
	if (!calls_is_served(session, call.kind) || !calls_charge(session, bytes, 0))
		return;
	struct session_memory *memory = buffers_memory_new(session,
		call.kind == MIMEO_HANDLE_CUDA_IPC ? BUILDER_EXPORT_IPC : BUILDER_EXPORT, bytes);
	if (!memory) {
		calls_discharge(session, bytes, 0);
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
		return;
	}
	call.memory = memory;
	call.buffer = buffers_take(buffers, memory);
	if (!calls_post(session, call, memory->thing)) {
		buffers_give(session, call.buffer);
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
	}
}

bool calls_may_import(const struct session *session)
{
	enum serve_client_ipc allow = session->serve->options.allow_client_ipc;

	return session->serve->options.builder &&
		(allow == SERVE_CLIENT_IPC_YES ||
			(allow == SERVE_CLIENT_IPC_SAME_UID && session->port.uid == geteuid()));
}

static void calls_refuse_clogged(struct session *session)
{
	char text[MSG_TEXT_MAX];

	quota_refuse_one("pending closes of descriptors", CLOSER_MAX_PER_UID, session->port.uid, text,
		sizeof(text));
	calls_refuse(session, MIMEO_E_QUOTA, "%s", text);
}

/* True, or the call has been refused. */
static bool calls_check_import(struct session *session, bool clogged)
{
	enum serve_client_ipc allow = session->serve->options.allow_client_ipc;

	if (!calls_may_import(session))
		calls_refuse(session, MIMEO_E_DENIED, "allow_client_ipc is %s",
			allow == SERVE_CLIENT_IPC_NO ? "no" : "same-uid, and yours is another");
	else if (clogged)
		calls_refuse_clogged(session);
	else
		return true;
	return false;
}

/* Check the handle against the device and the descriptor that came with it. True, or the call has been
 * refused. */
static bool calls_check_handle(struct session *session, const struct msg_call *msg, int fd,
	struct mimeo_handle *ret)
{
	const struct serve_options *options = &session->serve->options;
	enum handle_refusal refusal = handle_decode(msg->handle, sizeof(msg->handle), ret);
	uint32_t kind;

	/* A kind that the device does not have is refused first. */
	memcpy(&kind, msg->handle, sizeof(kind));
	kind = le32toh(kind);
	if (kind >= MIMEO_HANDLE_MEMFD && kind <= MIMEO_HANDLE_CUDA_IPC && !calls_is_served(session, kind))
		return false;
	if (refusal != HANDLE_OK) {
		calls_refuse(session, MIMEO_E_INVALID, "%s", handle_refusal_text(refusal));
		return false;
	}
	/* A place is aligned if its buffer is; allocations have a larger alignment. */
	if (ret->offset % MIMEO_PLACE_ALIGN != 0) {
		calls_refuse(session, MIMEO_E_INVALID, "the handle's offset %" PRIu64
			" is no multiple of %u", ret->offset, MIMEO_PLACE_ALIGN);
		return false;
	}
	if (ret->kind != MIMEO_HANDLE_MEMFD &&
		memcmp(ret->uuid, options->device_uuid, sizeof(ret->uuid)) != 0) {
		calls_refuse(session, MIMEO_E_INVALID, "the memory is another device's: the uuid");
		return false;
	}
	if (handle_has_fd(ret) != (fd >= 0)) {
		calls_refuse(session, MIMEO_E_INVALID, fd >= 0 ? "a descriptor that the kind has not"
							  : "no descriptor came with the handle");
		return false;
	}
	return true;
}

/* Takes ownership of *fd if it keeps it. clogged: the call's descriptor may have been refused. */
static void calls_import(
	struct session *session, const struct msg_call *msg, int *fd, bool clogged)
{
	struct session_buffers *buffers = session->buffers;
	struct mimeo_handle handle;

	if (!calls_check_import(session, clogged) || !calls_check_handle(session, msg, *fd, &handle))
		return;
	uint64_t end = handle.offset + handle.bytes; /* handle_check saw that it is a number */
	struct session_memory *memory = buffers_memory_find(buffers, &handle, *fd, end);
	if (!calls_charge(session, memory ? 0 : end, memory ? 0 : *fd >= 0))
		return;
	if (memory) {
		assert(memory->n_buffers > 0 && memory->n_buffers < buffers->n);
		memory->n_buffers++;
		struct msg_reply reply = {.buffer = buffers_take(buffers, memory)};
		buffers_open(buffers, reply.buffer, handle.offset, handle.bytes);
		calls_reply(session, &reply, -1);
		return;
	}
	memory = buffers_memory_new(session,
		handle_has_fd(&handle) ? BUILDER_IMPORT : BUILDER_IMPORT_IPC, end);
	if (!memory) {
		calls_discharge(session, end, *fd >= 0);
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
		return;
	}
	memory->imported = true;
	memory->key = handle;
	memory->fd = *fd;
	struct call_job call = {
		.memory = memory,
		.buffer = buffers_take(buffers, memory),
		.offset = handle.offset,
		.bytes = handle.bytes,
		.job.handle = {.fd = *fd, .size = end},
	};
	*fd = -1;
	memcpy(call.job.handle.bytes, handle.opaque, sizeof(handle.opaque));
	if (!calls_post(session, call, memory->thing)) {
		buffers_give(session, call.buffer);
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
	}
}

static void calls_close(struct session *session, const struct msg_call *msg)
{
	struct session_buffers *buffers = session->buffers;
	struct serve *serve = session->serve;

	if (msg->buffer > buffers->n || buffers->own[msg->buffer - 1].state != BUFFER_OPEN) {
		calls_refuse(session, MIMEO_E_UNKNOWN_BUFFER, "buffer %u is not open", msg->buffer);
		return;
	}
	if (engine_post_buffer_close(serve->options.engine, &session->port, msg->buffer) < 0) {
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
		return;
	}
	buffers->own[msg->buffer - 1].state = BUFFER_CLOSING;
	calls_reply(session, &(struct msg_reply){.status = 0}, -1);
}

static void calls_fence(struct session *session, const struct msg_call *msg)
{
	struct session_buffers *buffers = session->buffers;
	struct call_job call = {.fence = msg->request + 1, .job.handle.fd = -1};
	char limit[32];

	if (msg->request >= buffers->n_fences) {
		calls_refuse(session, MIMEO_E_INVALID, "request index %u, of %u", msg->request,
			buffers->n_fences);
		return;
	}
	if (buffers->fence_things[msg->request]) {
		calls_refuse(session, MIMEO_E_INVALID, "request index %u has had its fence",
			msg->request);
		return;
	}
	if (buffers->n_fences_made == SESSION_FENCES_MAX) {
		snprintf(limit, sizeof(limit), "%u for each session", SESSION_FENCES_MAX);
		calls_refuse_quota(session, (struct msg_quota){.what = "fences", .asked = 1, .limit = limit});
		return;
	}
	struct builder_thing *thing = calloc(1, sizeof(*thing));
	if (thing)
		thing->kind = BUILDER_FENCE;
	if (!thing || !calls_post(session, call, thing)) {
		free(thing);
		calls_refuse(session, MIMEO_E_NO_MEMORY, "the daemon is out of memory");
	}
}

/* Has the client received all that was sent to it? */
static bool calls_are_received(const struct session *session)
{
	int n = 0;

	return ioctl(session->fd, SIOCOUTQ, &n) == 0 && n == 0;
}

static void calls_model_files(struct session *session, const struct msg_call *msg)
{
	const struct engine *engine = session->serve->options.engine;
	struct engine_model_facts facts;
	struct msg_reply reply = {.status = 0};
	int fds[MSG_FILES_MAX];
	size_t n_fds = 0;

	if (!calls_are_received(session)) {
		session_break(session, "a call for files before it received the reply to the call before");
		return;
	}
	const uint32_t model = engine_find_model(engine, msg->model);
	if (model == engine_n_models(engine)) {
		calls_refuse(session, MIMEO_E_UNKNOWN_MODEL, "no model has the number %u: it may have been unloaded",
			msg->model);
		return;
	}
	engine_model_facts(engine, model, &facts);
	const struct mimeo_model_files *files = facts.model->files;
	const int in_order[MSG_FILES_MAX] = {files ? files->tokenizer : -1,
		files ? files->config : -1, files ? files->chat_template : -1};
	for (unsigned i = 0; i < MSG_FILES_MAX; i++) {
		if (in_order[i] < 0)
			continue;
		reply.files |= 1u << i;
		fds[n_fds++] = in_order[i];
	}
	calls_reply_fds(session, &reply, fds, n_fds);
}

/* ---- a job comes back ---- */

static uint32_t calls_fence_kind(const struct device_handle *handle)
{
	return handle->fd >= 0 ? MIMEO_HANDLE_MEMFD : MIMEO_HANDLE_CUDA_IPC;
}

/* Reply with the handle of an export or a fence. */
static void calls_reply_made(struct session *session, const struct call_job *call)
{
	const struct builder_job *job = &call->job;
	struct mimeo_handle handle = {
		.kind = call->fence ? calls_fence_kind(&job->handle) : call->kind,
		.bytes = call->fence ? sizeof(struct event_page) : call->bytes,
	};
	struct msg_reply reply = {.buffer = call->buffer};

	if (handle.kind != MIMEO_HANDLE_MEMFD)
		memcpy(handle.uuid, session->serve->options.device_uuid, sizeof(handle.uuid));
	if (handle.kind == MIMEO_HANDLE_CUDA_IPC)
		memcpy(handle.opaque, job->handle.bytes, sizeof(handle.opaque));
	handle_encode(&handle, reply.handle);
	calls_reply(session, &reply, job->handle.fd);
	if (job->handle.fd >= 0)
		close(job->handle.fd);
}

static void calls_fence_made(struct session *session, const struct call_job *call)
{
	struct session_buffers *buffers = session->buffers;

	assert(call->fence <= buffers->n_fences && !buffers->fence_things[call->fence - 1]);
	assert(buffers->n_fences_made < SESSION_FENCES_MAX);
	buffers->n_fences_made++;
	buffers->fence_things[call->fence - 1] = call->job.thing;
	atomic_store_explicit(&buffers->fences[call->fence - 1], call->job.thing->event,
		memory_order_release);
	calls_reply_made(session, call);
}

static void calls_job_done(struct call_job *call)
{
	struct session *session = call->session;
	struct session_buffers *buffers = session->buffers;

	assert(buffers->busy && (call->fence > 0) == (call->buffer == 0));
	buffers->busy = false;
	if (call->job.rc != 0) {
		calls_refuse_job(session, call);
		/* Memory that was mapped before the refusal is released like any other. */
		if (call->fence)
			free(call->job.thing);
		else
			buffers_give(session, call->buffer);
	} else if (call->fence) {
		calls_fence_made(session, call);
	} else {
		buffers_open(buffers, call->buffer, call->offset, call->bytes);
		if (call->memory->imported)
			calls_reply(session, &(struct msg_reply){.buffer = call->buffer}, -1);
		else
			calls_reply_made(session, call);
	}
	free(call);
	/* The engine detached the session while the builder had the job. */
	if (session->detached)
		session_free(session);
}

void calls_on_builder(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	struct builder_thing *thing;
	struct builder_job *job;

	while ((thing = builder_take_closed(serve->options.builder)))
		buffers_thing_closed(serve, thing);
	while ((job = builder_take(serve->options.builder)))
		calls_job_done((struct call_job *)job);
}

/* ---- calls ---- */

void calls_do(struct session *session, uint32_t length)
{
	struct session_buffers *buffers = session->buffers;
	struct msg_detail detail = {0};
	struct msg_call msg;
	int fd = buffers->call_fd;
	bool clogged = buffers->clogged;
	int status = msg_call_decode(
		session->serve->codec, buffers->call + 4, length, &msg, &detail);

	assert(!buffers->busy && !session->detaching);
	buffers->n_call = 0;
	buffers->call_fd = -1;
	buffers->clogged = false;
	if (status == MIMEO_E_PROTOCOL)
		session_break(session, "a call that is not Mimeo's protocol");
	else if (status < 0)
		calls_refuse(session, status, "the call's field %s is out of range or unknown",
			msg_field_name((unsigned)detail.values[0]));
	else if (msg.call == MSG_CALL_MODEL_FILES)
		calls_model_files(session, &msg);
	else if (!session->serve->options.builder)
		calls_refuse(session, MIMEO_E_UNSUPPORTED, "this daemon has no device buffers");
	else if (msg.call == MSG_CALL_BUFFER_CLOSE)
		calls_close(session, &msg);
	else if (session->serve->state == SERVE_FAILED)
		calls_refuse(session, MIMEO_E_DEVICE_LOST, "the device failed");
	else if (msg.call == MSG_CALL_BUFFER_ALLOC)
		calls_alloc(session, &msg);
	else if (msg.call == MSG_CALL_BUFFER_IMPORT)
		calls_import(session, &msg, &fd, clogged);
	else
		calls_fence(session, &msg);
	if (fd >= 0)
		closer_take(session->serve->closer, fd, session->port.uid);
}
