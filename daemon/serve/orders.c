/* SPDX-License-Identifier: MIT */
/* Operators' orders about graphs: finds the graphs that are meant and posts the orders to the engine. */
#include "daemon/serve/orders.h"

#include <string.h>
#include <strings.h>

#include <mimeo/types.h>

bool orders_find_model(const struct engine *engine, const char *name, uint32_t *ret)
{
	uint32_t n = engine_n_models(engine);

	*ret = ENGINE_ALL;
	if (!name[0])
		return true;
	for (uint32_t i = 0; i < n; i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		if (strcmp(facts.name, name) != 0)
			continue;
		*ret = facts.id;
		return true;
	}
	return false;
}

static uint32_t orders_id_of(const struct engine *engine, uint32_t index)
{
	struct engine_model_facts facts;

	engine_model_facts(engine, index, &facts);
	return facts.id;
}

/* Among the model's own graphs, or its draft model's, which may have the same names. */
static bool orders_find_graph(const struct engine *engine, uint32_t model, const char *name, bool of_draft,
	uint32_t *ret_graph)
{
	struct engine_graph_facts facts;

	for (uint32_t i = 0; engine_graph_facts(engine, model, i, &facts); i++) {
		*ret_graph = i;
		if (facts.of_draft == of_draft && strcasecmp(facts.name, name) == 0)
			return true;
	}
	return false;
}

/* Post an order for each model that has such a graph. The number of orders, or a status. */
static int orders_post_named(const struct serve *serve, struct engine_graphs_order order, const char *name)
{
	uint32_t n = engine_n_models(serve->options.engine), wanted = order.model;
	int n_found = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t id = orders_id_of(serve->options.engine, i);

		if ((wanted != ENGINE_ALL && wanted != id) ||
			!orders_find_graph(serve->options.engine, i, name, false, &order.graph))
			continue;
		order.model = id;
		if (engine_post_graphs(serve->options.engine, &order) < 0)
			return MIMEO_E_NO_MEMORY;
		n_found++;
	}
	return n_found;
}

static int orders_post_all(const struct serve *serve, const struct engine_graphs_order *order)
{
	return engine_post_graphs(serve->options.engine, order) < 0 ? MIMEO_E_NO_MEMORY : 1;
}

static bool orders_is_of_draft(const struct engine *engine, uint32_t wanted, const char *name)
{
	uint32_t graph;

	for (uint32_t i = 0; i < engine_n_models(engine); i++) {
		if ((wanted == ENGINE_ALL || wanted == orders_id_of(engine, i)) &&
			orders_find_graph(engine, i, name, true, &graph))
			return true;
	}
	return false;
}

void orders_answer(struct serve *serve, bool capture, const char *model, const char *graph,
	struct reply *reply)
{
	const char *op = capture ? "capture" : "drop";
	bool idle = strcmp(graph, "idle") == 0;
	struct engine_graphs_order order = {
		.order = capture ? ENGINE_GRAPH_CAPTURE
			: idle ? ENGINE_GRAPH_DROP_IDLE : ENGINE_GRAPH_DROP,
		.graph = ENGINE_ALL,
	};

	if (!orders_find_model(serve->options.engine, model, &order.model)) {
		reply_sayf(reply, MIMEO_E_INVALID, "no model is called %s: see mimeoctl models", model);
		return;
	}
	if (idle && (capture || model[0])) {
		reply_say(reply, MIMEO_E_INVALID, capture
			? "graphs capture does not take 'idle': idle graphs are captured already"
			: "graphs drop idle does not take --model: it drops the idle graphs of all");
		return;
	}
	int n = idle || strcmp(graph, "all") == 0
		? orders_post_all(serve, &order) : orders_post_named(serve, order, graph);
	if (n < 0) {
		reply_say(reply, n, "out of host memory");
	} else if (n > 0) {
		log_info("graphs: an operator asked to %s: %s%s%s", op, graph,
			model[0] ? " of model " : "", model);
		reply_sayf(reply, 0, "%s: %s", op, graph);
	} else if (orders_is_of_draft(serve->options.engine, order.model, graph)) {
		reply_sayf(reply, MIMEO_E_INVALID, "\"%s\" is a graph of a draft model: these are "
			"captured when the model is loaded, and kept", graph);
	} else {
		reply_sayf(reply, MIMEO_E_INVALID,
			"no graph of %s%s is called \"%s\": see mimeoctl graphs",
			model[0] ? "model " : "any model", model, graph);
	}
}
