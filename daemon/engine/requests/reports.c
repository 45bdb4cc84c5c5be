/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/reports.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/engine/models/runner.h"
#include "daemon/engine/query.h"
#include "ipc/doorbell.h"

int reports_init(struct reports *reports)
{
	pthread_mutex_init(&reports->lock, NULL);
	reports->fd = doorbell_new();
	return reports->fd < 0 ? reports->fd : 0;
}

void reports_deinit(struct reports *reports)
{
	assert(!reports->answered);
	if (reports->fd >= 0)
		close(reports->fd);
	pthread_mutex_destroy(&reports->lock);
}

static struct engine_report *reports_place(
	struct reports *reports, enum engine_report_kind kind, struct engine_port *port)
{
	switch (kind) {
	case ENGINE_DETACHED:
		return &port->detached;
	case ENGINE_PROTOCOL:
		return &port->protocol;
	case ENGINE_DRAINED:
		return &reports->drained;
	case ENGINE_DEVICE_LOST:
		break;
	}
	return &reports->lost;
}

void reports_post(struct reports *reports, enum engine_report_kind kind, struct engine_port *port,
	const char *text)
{
	struct engine_report *report = reports_place(reports, kind, port);

	assert(!report->kind);
	*report = (struct engine_report){.kind = kind, .port = port};
	snprintf(report->text, sizeof(report->text), "%s", text ? text : "");
	pthread_mutex_lock(&reports->lock);
	DL_APPEND(reports->posted, report);
	pthread_mutex_unlock(&reports->lock);
	doorbell_ring(reports->fd);
}

void reports_post_buffer(struct reports *reports, struct engine_buffer *buffer)
{
	assert(!buffer->n_requests && !buffer->closing && !atomic_load(&buffer->open));
	pthread_mutex_lock(&reports->lock);
	LL_PREPEND(reports->closed, buffer);
	pthread_mutex_unlock(&reports->lock);
	doorbell_ring(reports->fd);
}

struct engine_buffer *reports_take_buffer(struct reports *reports)
{
	struct engine_buffer *buffer;

	pthread_mutex_lock(&reports->lock);
	buffer = reports->closed;
	if (buffer)
		LL_DELETE(reports->closed, buffer);
	pthread_mutex_unlock(&reports->lock);
	return buffer;
}

void reports_post_query(struct reports *reports, struct engine_query *query)
{
	pthread_mutex_lock(&reports->lock);
	LL_PREPEND(reports->answered, query);
	pthread_mutex_unlock(&reports->lock);
	doorbell_ring(reports->fd);
}

struct engine_query *reports_take_query(struct reports *reports)
{
	struct engine_query *query;

	pthread_mutex_lock(&reports->lock);
	query = reports->answered;
	if (query)
		LL_DELETE(reports->answered, query);
	pthread_mutex_unlock(&reports->lock);
	return query;
}

void reports_post_model(struct reports *reports, struct runner *model)
{
	pthread_mutex_lock(&reports->lock);
	LL_PREPEND(reports->models, model);
	pthread_mutex_unlock(&reports->lock);
	doorbell_ring(reports->fd);
}

struct runner *reports_take_model(struct reports *reports)
{
	struct runner *model;

	pthread_mutex_lock(&reports->lock);
	model = reports->models;
	if (model)
		LL_DELETE(reports->models, model);
	pthread_mutex_unlock(&reports->lock);
	return model;
}

/* With the lock held. */
static void reports_forget_buffers(struct reports *reports, const struct engine_port *port)
{
	struct engine_buffer *buffer, *next;

	LL_FOREACH_SAFE (reports->closed, buffer, next) {
		if (buffer->port == port)
			LL_DELETE(reports->closed, buffer);
	}
}

bool reports_take(struct reports *reports, struct engine_report *ret)
{
	struct engine_report *report;

	pthread_mutex_lock(&reports->lock);
	report = reports->posted;
	if (report)
		DL_DELETE(reports->posted, report);
	if (report && report->kind == ENGINE_DETACHED)
		reports_forget_buffers(reports, report->port);
	pthread_mutex_unlock(&reports->lock);
	if (!report)
		return false;
	*ret = *report;
	ret->prev = ret->next = NULL;
	return true;
}
