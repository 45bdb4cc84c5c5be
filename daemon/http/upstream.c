/* SPDX-License-Identifier: MIT */
#include "daemon/http/upstream.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/output/log.h"
#include "ipc/cleanup.h"

#define CONNECT_MS 2000u /* also how long the end of the process may have to wait */
#define RETRY_MS 1000
#define EVENTS_A_TURN 1024u /* so that sockets have their turns, too */

/* A connection with all that belongs to it; made by the thread, then the loop's. */
struct upstream_link {
	struct mimeo *m; /* NULL: it failed */
	struct upstream_model *models; /* [n_models] */
	uint32_t n_models;
	char message[256];
};

struct upstream {
	struct upstream_options options;
	int epoll, event; /* event: the thread has finished */
	struct upstream_link link;
	struct upstream_call *added; /* prepared and not submitted: without a daemon they get no event */
	struct upstream_sequence *closing; /* in the order of their ends */
	struct upstream_waiter *waiting;
	bool more;    /* events were left for the next turn */
	int64_t retry_ms;
	/* the thread's while it runs */
	pthread_t thread;
	bool connecting;
	struct upstream_link made;
};

/* ---- the connecting thread ---- */

static void upstream_close_files(const struct mimeo_model_files *files)
{
	const int fds[] = {files->tokenizer, files->config, files->chat_template};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

/* A model without a tokenizer still takes and gives token ids. 0, or a status that ends the connection. */
static int upstream_open_text(struct mimeo *m, struct upstream_model *model)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char why[192] = "";

	int rc = mimeo_model_files(m, model->index, &files);
	if (rc < 0)
		return rc;
	if (files.tokenizer < 0)
		snprintf(why, sizeof(why), "it has no tokenizer.json");
	else if (mimeo_text_open_files(&model->text, &files, why, sizeof(why)) < 0)
		model->text = NULL;
	if (!model->text)
		snprintf(model->text_message, sizeof(model->text_message), "model %.40s has no tokenizer here: %s",
			model->info->name, why);
	upstream_close_files(&files);
	return 0;
}

static void upstream_link_deinit(struct upstream_link *link)
{
	for (uint32_t i = 0; i < link->n_models; i++)
		mimeo_text_close(link->models[i].text);
	free(link->models);
	mimeo_close(link->m);
	link->m = NULL;
	link->models = NULL;
	link->n_models = 0;
}

/* 0 or a status. */
static int upstream_link_models(struct upstream_link *link)
{
	uint32_t n = mimeo_model_count(link->m);

	link->models = calloc(n > 0 ? n : 1, sizeof(*link->models));
	if (!link->models)
		return MIMEO_E_NO_MEMORY;
	for (; link->n_models < n; link->n_models++) {
		struct upstream_model *model = &link->models[link->n_models];

		model->index = link->n_models;
		model->info = mimeo_model_get(link->m, link->n_models);
		int rc = upstream_open_text(link->m, model);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static void *upstream_connect(void *argument)
{
	struct upstream *upstream = argument;
	struct upstream_link *link = &upstream->made;
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	config.socket_path = upstream->options.socket;
	config.name = "mimeo-http";
	config.entries = upstream->options.entries;
	config.arena_bytes = upstream->options.arena_bytes;
	config.connect_timeout_ms = CONNECT_MS;
	config.message = link->message;
	config.message_size = sizeof(link->message);
	int rc = mimeo_connect(&link->m, &config);
	if (rc == 0) {
		rc = upstream_link_models(link);
		if (rc < 0) {
			snprintf(link->message, sizeof(link->message), "%s", mimeo_strerror(rc));
			upstream_link_deinit(link);
		}
	}
	eventfd_write(upstream->event, 1);
	return NULL;
}

static void upstream_begin(struct upstream *upstream, int64_t now_ms)
{
	assert(!upstream->connecting && !upstream->link.m);
	upstream->made = (struct upstream_link){.m = NULL};
	upstream->connecting = pthread_create(&upstream->thread, NULL, upstream_connect, upstream) == 0;
	upstream->retry_ms = upstream->connecting ? INT64_MAX : now_ms + RETRY_MS;
}

/* ---- on the loop ---- */

/* Log a reason once, and not at each try. */
static void upstream_failed(struct upstream *upstream, int64_t now_ms)
{
	if (strcmp(upstream->link.message, upstream->made.message) != 0)
		log_warn("no connection to mimeod: %s: trying again", upstream->made.message);
	memcpy(upstream->link.message, upstream->made.message, sizeof(upstream->link.message));
	upstream->retry_ms = now_ms + RETRY_MS;
}

static void upstream_connected(struct upstream *upstream)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = -1};
	const struct upstream_link *link = &upstream->link;

	log_info("connected to mimeod: %u model%s", link->n_models, link->n_models == 1 ? "" : "s");
	for (uint32_t i = 0; i < link->n_models; i++) {
		if (!link->models[i].text)
			log_warn("%s: requests must have token ids", link->models[i].text_message);
	}
	upstream->options.counters->reconnects++;
	if (epoll_ctl(upstream->epoll, EPOLL_CTL_ADD, mimeo_fd(link->m), &event) < 0)
		log_error("the session's descriptor cannot be watched: %s", strerror(errno));
}

static void upstream_join(struct upstream *upstream, int64_t now_ms)
{
	eventfd_t value;

	if (!upstream->connecting || eventfd_read(upstream->event, &value) < 0)
		return;
	pthread_join(upstream->thread, NULL);
	upstream->connecting = false;
	if (!upstream->made.m) {
		upstream_failed(upstream, now_ms);
		return;
	}
	upstream->link = upstream->made;
	upstream->made = (struct upstream_link){.m = NULL};
	upstream_connected(upstream);
}

/* ---- space ---- */

/* A call takes an entry: those for which there is none are made in a later turn. */
static void upstream_close_sequences(struct upstream *upstream)
{
	struct upstream_sequence *first;

	while ((first = upstream->closing)) {
		if (upstream->link.m && mimeo_sequence_close(upstream->link.m, first->id) == MIMEO_E_FULL)
			return;
		LL_DELETE(upstream->closing, first);
		free(first);
	}
}

/* Those that wait again have their turn later. */
static void upstream_give_space(struct upstream *upstream, int status)
{
	struct upstream_waiter *waiter;
	unsigned n;

	DL_COUNT(upstream->waiting, waiter, n);
	for (; n > 0 && upstream->waiting; n--) {
		waiter = upstream->waiting;
		upstream_forget(upstream, waiter);
		waiter->on_space(waiter, status);
	}
}

/* Every request that was submitted has had its final event. */
static void upstream_lost(struct upstream *upstream)
{
	const struct mimeo_event gone = {
		.kind = MIMEO_EVENT_FINAL, .status = MIMEO_E_GONE, .finish = MIMEO_FINISH_ERROR};
	struct upstream_call *call;

	log_warn("mimeod is gone");
	while ((call = upstream->added)) {
		DL_DELETE(upstream->added, call);
		upstream->options.counters->n_requests--;
		call->on_event(call, &gone);
	}
	upstream_give_space(upstream, MIMEO_E_GONE);
	assert(upstream->options.counters->n_requests == 0 && !upstream->waiting);
	upstream_link_deinit(&upstream->link);
	upstream_close_sequences(upstream);
	snprintf(upstream->link.message, sizeof(upstream->link.message), "mimeod is gone");
	upstream->retry_ms = 0;
}

static void upstream_take_event(struct upstream *upstream, const struct mimeo_event *event)
{
	struct upstream_call *call = (struct upstream_call *)(uintptr_t)event->user_data;

	if (event->kind == MIMEO_EVENT_FINAL) {
		assert(upstream->options.counters->n_requests > 0);
		upstream->options.counters->n_requests--;
	}
	/* A refused sequence call: the request that names the sequence fails, too. */
	if (event->kind != MIMEO_EVENT_SEQUENCE)
		call->on_event(call, event);
}

static void upstream_take_events(struct upstream *upstream)
{
	struct mimeo_event event;
	int rc = 1;

	upstream->more = false;
	for (unsigned n = 0; n < EVENTS_A_TURN; n++) {
		rc = mimeo_event_peek(upstream->link.m, &event);
		if (rc <= 0)
			break;
		upstream_take_event(upstream, &event);
		mimeo_event_seen(upstream->link.m, &event);
	}
	if (rc < 0) {
		upstream_lost(upstream);
		return;
	}
	upstream->more = rc > 0;
	upstream_close_sequences(upstream);
	upstream_give_space(upstream, 0);
}

void upstream_run(struct upstream *upstream, int64_t now_ms)
{
	upstream_join(upstream, now_ms);
	if (upstream->link.m)
		upstream_take_events(upstream);
	if (!upstream->link.m && !upstream->connecting && now_ms >= upstream->retry_ms)
		upstream_begin(upstream, now_ms);
}

int64_t upstream_wait_ms(const struct upstream *upstream, int64_t now_ms)
{
	if (upstream->more)
		return 0;
	if (upstream->link.m || upstream->connecting)
		return -1;
	return upstream->retry_ms > now_ms ? upstream->retry_ms - now_ms : 0;
}

int upstream_fd(const struct upstream *upstream)
{
	return upstream->epoll;
}

/* ---- requests ---- */

struct mimeo *upstream_session(const struct upstream *upstream)
{
	return upstream->link.m;
}

const char *upstream_message(const struct upstream *upstream)
{
	return upstream->link.message[0] ? upstream->link.message : "connecting to mimeod";
}

uint32_t upstream_n_models(const struct upstream *upstream)
{
	return upstream->link.n_models;
}

const struct upstream_model *upstream_model_at(const struct upstream *upstream, uint32_t index)
{
	assert(index < upstream->link.n_models);
	return &upstream->link.models[index];
}

const struct upstream_model *upstream_model_find(const struct upstream *upstream, const char *name)
{
	int index = upstream->link.m ? mimeo_model_find(upstream->link.m, name) : -1;

	return index < 0 ? NULL : upstream_model_at(upstream, (uint32_t)index);
}

void upstream_add(struct upstream *upstream, struct mimeo_request *request, struct upstream_call *call)
{
	call->id = mimeo_request_id(request);
	mimeo_request_set_data(request, (uint64_t)(uintptr_t)call);
	upstream->options.counters->n_requests++;
	DL_APPEND(upstream->added, call);
}

void upstream_cancel(struct upstream *upstream, const struct upstream_call *call)
{
	/* It may be prepared only. */
	upstream_submit(upstream);
	if (upstream->link.m)
		(void)mimeo_cancel(upstream->link.m, call->id);
}

bool upstream_is_idle(const struct upstream *upstream)
{
	return upstream->options.counters->n_requests == 0;
}

void upstream_submit(struct upstream *upstream)
{
	struct upstream_call *call;

	if (!upstream->link.m || mimeo_submit(upstream->link.m) < 0)
		return;
	while ((call = upstream->added))
		DL_DELETE(upstream->added, call);
}

int upstream_open_sequence(struct upstream *upstream, uint32_t model, struct upstream_sequence **ret)
{
	CLEANUP(cleanup_free) struct upstream_sequence *sequence = calloc(1, sizeof(*sequence));

	if (!sequence)
		return MIMEO_E_NO_MEMORY;
	if (!upstream->link.m)
		return MIMEO_E_GONE;
	int rc = mimeo_sequence_open(upstream->link.m, model, &sequence->id);
	if (rc < 0)
		return rc;
	*ret = STEAL(sequence);
	return 0;
}

void upstream_close_sequence(struct upstream *upstream, struct upstream_sequence *sequence)
{
	LL_APPEND(upstream->closing, sequence);
	upstream_close_sequences(upstream);
}

void upstream_await_space(struct upstream *upstream, struct upstream_waiter *waiter)
{
	if (waiter->waits)
		return;
	waiter->waits = true;
	DL_APPEND(upstream->waiting, waiter);
}

void upstream_forget(struct upstream *upstream, struct upstream_waiter *waiter)
{
	if (!waiter->waits)
		return;
	waiter->waits = false;
	DL_DELETE(upstream->waiting, waiter);
}

/* ---- life ---- */

int upstream_new(const struct upstream_options *options, struct upstream **ret)
{
	CLEANUP(cleanup_free) struct upstream *upstream = calloc(1, sizeof(*upstream));
	struct epoll_event event = {.events = EPOLLIN};

	if (!upstream)
		return -ENOMEM;
	upstream->options = *options;
	CLEANUP(cleanup_close) int epoll = epoll_create1(EPOLL_CLOEXEC);
	CLEANUP(cleanup_close) int finished = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (epoll < 0 || finished < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, finished, &event) < 0)
		return -errno;
	upstream->epoll = STEAL_FD(epoll);
	upstream->event = STEAL_FD(finished);
	upstream_begin(upstream, 0);
	*ret = STEAL(upstream);
	return 0;
}

void upstream_free(struct upstream *upstream)
{
	if (!upstream)
		return;
	if (upstream->connecting)
		pthread_join(upstream->thread, NULL);
	upstream_link_deinit(&upstream->made);
	upstream_link_deinit(&upstream->link);
	upstream_close_sequences(upstream);
	close(upstream->event);
	close(upstream->epoll);
	free(upstream);
}
