/* SPDX-License-Identifier: MIT */
#include "daemon/serve/queries.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "daemon/output/log.h"
#include "daemon/serve/orders.h"

/* What becomes of an answer about pages. */
enum queries_tag { QUERIES_LIST, QUERIES_LIMITS };

static const char *const queries_states[] = {
	[ENGINE_REQUEST_QUEUED] = "queued",
	[ENGINE_REQUEST_RUNNING] = "running",
	[ENGINE_REQUEST_PREEMPTED] = "preempted",
	[ENGINE_REQUEST_ENDING] = "ending",
};

static const char *queries_model_name(const struct engine *engine, uint32_t model)
{
	const uint32_t index = engine_find_model(engine, model);
	struct engine_model_facts facts;

	if (index == engine_n_models(engine))
		return "";
	engine_model_facts(engine, index, &facts);
	return facts.name;
}

/* What the request asks of the engine. -ENOTSUP: nothing; -EINVAL: the reply says what is wrong. */
static int queries_parse(struct serve *serve, const struct admin_request *request, struct reply *reply,
	struct engine_query *ret)
{
	static const struct {
		const char *op;
		enum engine_query_kind kind;
		enum queries_tag tag;
	} ops[] = {
		{"requests", ENGINE_QUERY_REQUESTS, QUERIES_LIST},
		{"cancel", ENGINE_QUERY_CANCEL, QUERIES_LIST},
		{"pages", ENGINE_QUERY_PAGES, QUERIES_LIST},
		{"limits", ENGINE_QUERY_PAGES, QUERIES_LIMITS},
		{"drop_pages", ENGINE_QUERY_DROP_PAGES, QUERIES_LIST},
	};
	size_t i = 0;

	while (i < sizeof(ops) / sizeof(ops[0]) && strcmp(request->op, ops[i].op) != 0)
		i++;
	if (i == sizeof(ops) / sizeof(ops[0]))
		return -ENOTSUP;
	ret->kind = ops[i].kind;
	ret->tag = ops[i].tag;
	if (ret->kind == ENGINE_QUERY_CANCEL && !request->has_request) {
		reply_say(reply, MIMEO_E_INVALID, "cancel needs a request's id");
		return -EINVAL;
	}
	ret->id = request->request;
	if (orders_find_model(serve->options.engine, request->model, &ret->model))
		return 0;
	reply_sayf(reply, MIMEO_E_INVALID, "no model is called %s: see mimeoctl models", request->model);
	return -EINVAL;
}

int queries_begin(struct serve *serve, const struct admin_request *request, void *userdata,
	struct reply *reply, struct engine_query **ret)
{
	struct engine_query query = {.userdata = userdata};

	int rc = queries_parse(serve, request, reply, &query);
	if (rc < 0)
		return rc == -ENOTSUP ? rc : 0;
	struct engine_query *copy = malloc(sizeof(*copy));
	if (copy)
		*copy = query;
	if (!copy || engine_post_query(serve->options.engine, copy) < 0) {
		free(copy);
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of host memory");
		return 0;
	}
	*ret = copy;
	return 1;
}

/* ---- requests ---- */

static void queries_add_request(const struct engine *engine, const struct engine_request_facts *facts,
	struct reply *reply)
{
	struct reply_cell cells[24] = {
		CELL_COUNT("id", facts->id),
		CELL_TEXT("op", facts->op),
		CELL_TEXT("model", queries_model_name(engine, facts->model)),
		CELL_COUNT("uid", facts->uid),
		CELL_COUNT("session", facts->session),
		CELL_COUNT("pid", (uint64_t)facts->pid),
		CELL_TEXT("client", facts->name),
		CELL_TEXT("class", facts->class),
		CELL_TEXT("state", queries_states[facts->state]),
		CELL_COUNT("rows", facts->n_rows),
		CELL_COUNT("sequence", facts->sequence),
		CELL_COUNT("prompt_tokens", facts->n_tokens),
		CELL_COUNT("computed_tokens", facts->n_prompt),
		CELL_COUNT("cached_tokens", facts->n_cached),
		CELL_COUNT("tokens", facts->n_generated),
		CELL_COUNT("max_tokens", facts->max_tokens),
	};
	size_t n = 16;

	if (facts->has_age) {
		cells[n++] = (struct reply_cell)CELL_NUMBER("age_s", (double)facts->age_ns * 1e-9);
		cells[n++] = (struct reply_cell)CELL_NUMBER("wait_s", (double)facts->wait_ns * 1e-9);
	}
	if (facts->has_deadline)
		cells[n++] = (struct reply_cell)CELL_NUMBER("deadline_s", (double)facts->deadline_ns * 1e-9);
	reply_row(reply, cells, n);
}

static void queries_answer_requests(
	const struct engine *engine, const struct engine_query *query, struct reply *reply)
{
	for (uint32_t i = 0; i < query->n; i++)
		queries_add_request(engine, &query->requests[i], reply);
}

static void queries_answer_cancel(const struct engine_query *query, struct reply *reply)
{
	const struct engine_request_facts *facts = query->requests;

	if (query->rc == -ENOENT) {
		reply_sayf(reply, MIMEO_E_INVALID,
			"no request %" PRIu64 " is in flight: mimeoctl requests lists those that are", query->id);
		return;
	}
	if (query->rc == -EALREADY) {
		reply_sayf(reply, MIMEO_E_INVALID, "request %" PRIu64 " is ending already", query->id);
		return;
	}
	reply_sayf(reply, 0, "request %" PRIu64 " of session %u (%s, pid %d) is cancelled", facts->id,
		facts->session, facts->name, (int)facts->pid);
	log_info("request %" PRIu64 " of session %u: cancelled by an operator", facts->id, facts->session);
}

/* ---- pages ---- */

static void queries_add_pages_of_model(
	const struct engine *engine, const struct engine_pages_facts *facts, struct reply *reply)
{
	const uint32_t index = engine_find_model(engine, facts->model);
	struct engine_model_facts model;

	/* It may have been unloaded since the engine answered. */
	if (index == engine_n_models(engine))
		return;
	engine_model_facts(engine, index, &model);
	REPLY_ROW(reply, CELL_TEXT("model", model.name), CELL_TEXT("of", "model"),
		CELL_COUNT("sequences", facts->n_sequences), CELL_COUNT("pages", facts->n_pages),
		CELL_COUNT("pinned", facts->n_pinned), CELL_COUNT("registered", facts->n_registered),
		CELL_COUNT("free", facts->n_free), CELL_COUNT("unused", facts->n_unused),
		CELL_COUNT("hits", facts->n_hits), CELL_COUNT("evicted", facts->n_evicted),
		CELL_COUNT("cached_tokens", model.n_cached_tokens), CELL_COUNT("page_tokens", model.page_tokens));
}

static void queries_add_pages(
	const struct engine *engine, const struct engine_pages_facts *facts, struct reply *reply)
{
	struct reply_cell cells[] = {
		CELL_TEXT("model", queries_model_name(engine, facts->model)),
		CELL_TEXT("of", facts->of == ENGINE_PAGES_USER ? "user" : "session"),
		CELL_COUNT("uid", facts->uid),
		CELL_COUNT("sequences", facts->n_sequences),
		CELL_COUNT("pages", facts->n_pages),
		CELL_COUNT("pinned", facts->n_pinned),
		CELL_COUNT("registered", facts->n_registered),
		CELL_COUNT("session", facts->session),
		CELL_TEXT("client", facts->name),
	};

	reply_row(reply, cells, sizeof(cells) / sizeof(cells[0]) - (facts->of == ENGINE_PAGES_USER ? 2 : 0));
}

static void queries_answer_pages(
	const struct engine *engine, const struct engine_query *query, struct reply *reply)
{
	for (uint32_t i = 0; i < query->n; i++) {
		const struct engine_pages_facts *facts = &query->pages[i];

		if (facts->of == ENGINE_PAGES_MODEL)
			queries_add_pages_of_model(engine, facts, reply);
		else
			queries_add_pages(engine, facts, reply);
	}
}

static void queries_answer_drop(const struct engine_query *query, struct reply *reply)
{
	reply_sayf(reply, 0, "%" PRIu32 " unused page%s dropped from the prefix cache", query->n,
		query->n == 1 ? "" : "s");
	log_info("prefix cache: an operator had %" PRIu32 " unused pages dropped", query->n);
}

/* ---- limits ---- */

struct queries_limits {
	struct serve *serve;
	const struct engine_query *query;
	struct reply *reply;
};

static void queries_add_limit(struct reply *reply, uid_t uid, const char *what, const char *model, bool in_bytes,
	uint64_t used, uint64_t limit, const char *setting)
{
	const struct reply_cell cells[] = {
		CELL_TEXT("resource", what), CELL_TEXT("model", model),
		CELL_COUNT(in_bytes ? "used_bytes" : "used", used),
		CELL_COUNT(in_bytes ? "limit_bytes" : "limit", limit),
		CELL_TEXT("setting", setting),
		CELL_COUNT("uid", uid),
	};

	reply_row(reply, cells, sizeof(cells) / sizeof(cells[0]) - (uid == (uid_t)-1));
}

static void queries_add_limits_of(void *userdata, uid_t uid)
{
	const struct queries_limits *limits = userdata;
	const struct serve *serve = limits->serve;

	for (unsigned i = 0; i < QUOTA_N; i++) {
		const uint64_t used = quota_used_by(serve->quota, uid, i);
		const uint64_t limit = used + quota_left(serve->quota, uid, i);
		const bool of_uid = i == QUOTA_SESSIONS && serve->options.max_sessions_per_uid < limit;

		queries_add_limit(limits->reply, uid, quota_name(i), "", quota_in_bytes(i), used,
			of_uid ? serve->options.max_sessions_per_uid : limit,
			of_uid ? "max_sessions_per_uid" : quota_setting(i));
	}
	for (uint32_t i = 0; i < limits->query->n; i++) {
		const struct engine_pages_facts *facts = &limits->query->pages[i];

		if (facts->of == ENGINE_PAGES_USER && facts->uid == uid)
			queries_add_limit(limits->reply, uid, "pinned KV pages",
				queries_model_name(serve->options.engine, facts->model), false, facts->n_pinned,
				facts->n_pinned + facts->n_left, "kv_pages");
	}
}

/* Of each user who has something, and of any other. */
static void queries_answer_limits(struct serve *serve, const struct engine_query *query, struct reply *reply)
{
	struct queries_limits limits = {serve, query, reply};

	quota_each(serve->quota, queries_add_limits_of, &limits);
	queries_add_limits_of(&limits, (uid_t)-1);
}

void queries_answer(struct serve *serve, const struct engine_query *query, struct reply *reply)
{
	if (query->rc == -ENOMEM) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of host memory");
		return;
	}
	switch (query->kind) {
	case ENGINE_QUERY_REQUESTS:
		queries_answer_requests(serve->options.engine, query, reply);
		break;
	case ENGINE_QUERY_CANCEL:
		queries_answer_cancel(query, reply);
		break;
	case ENGINE_QUERY_PAGES:
		if (query->tag == QUERIES_LIMITS)
			queries_answer_limits(serve, query, reply);
		else
			queries_answer_pages(serve->options.engine, query, reply);
		break;
	case ENGINE_QUERY_DROP_PAGES:
		queries_answer_drop(query, reply);
		break;
	}
}
