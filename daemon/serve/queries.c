/* SPDX-License-Identifier: MIT */
#include "daemon/serve/queries.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "daemon/output/log.h"

static const char *queries_model_name(const struct engine *engine, uint32_t model)
{
	struct engine_model_facts facts;

	if (model >= engine_n_models(engine))
		return "";
	engine_model_facts(engine, model, &facts);
	return facts.name;
}

/* What the request asks of the engine. -ENOTSUP: nothing; -EINVAL: the reply says what is wrong. */
static int queries_parse(struct serve *serve, const struct admin_request *request, struct reply *reply,
	struct engine_query *ret)
{
	static const struct {
		const char *op;
		enum engine_query_kind kind;
	} ops[] = {
		{"requests", ENGINE_QUERY_REQUESTS},
		{"cancel", ENGINE_QUERY_CANCEL},
	};
	size_t i = 0;

	while (i < sizeof(ops) / sizeof(ops[0]) && strcmp(request->op, ops[i].op) != 0)
		i++;
	if (i == sizeof(ops) / sizeof(ops[0]))
		return -ENOTSUP;
	ret->kind = ops[i].kind;
	if (ret->kind == ENGINE_QUERY_CANCEL && !request->has_request) {
		reply_say(reply, MIMEO_E_INVALID, "cancel needs a request's id");
		return -EINVAL;
	}
	ret->id = request->request;
	return 0;
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
		CELL_TEXT("state", engine_request_state_name(facts->state)),
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
	reply_sayf(reply, 0, "request %" PRIu64 " of session %u (%s, pid %d) is cancelled", facts->id,
		facts->session, facts->name, (int)facts->pid);
	log_info("request %" PRIu64 " of session %u: cancelled by an operator", facts->id, facts->session);
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
	case ENGINE_QUERY_DROP_PAGES:
		break;
	}
}
