/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_SERVE_FAKE_ENGINE_H
#define MIMEO_TESTS_SERVE_FAKE_ENGINE_H

/*
 * daemon/engine/engine.h's functions without threads, devices and models: ports are attached and
 * handed back at once, unless a test says otherwise. What a test sets, it sets before serve_run.
 */

#include <stdbool.h>

#include "daemon/engine/engine.h"

#define FAKE_DRAFT_GRAPHS 2u /* of each model, behind its own: one of prefill, one of decode */
#define FAKE_DRAFT_REASONS 3u /* why passes of those ran eager */

/* ENGINE_MODELS_MAX of them have all their numbers as long as can be. */
struct engine *fake_engine_new(uint32_t n_models, uint32_t n_graphs);
/* Its models have no drafts. */
void fake_engine_without_drafts(struct engine *engine);
/* The graph mode of its models was not lowered. */
void fake_engine_as_configured(struct engine *engine);
/* Its models have draft models, and no draft token was verified. */
void fake_engine_before_verifications(struct engine *engine);

/* To count in. */
struct engine_stats *fake_engine_stats(struct engine *engine);
/* The same, of all models. */
struct histogram *fake_engine_distribution(struct engine *engine, enum engine_distribution which);

/* The files of its models; NULL, as in the beginning: none. */
void fake_engine_set_files(struct engine *engine, struct mimeo_model_files *files);

/* Queries are answered only when it is told to; with requests 7, 9 and 12 in flight, and pages of one session. */
void fake_engine_hold_queries(struct engine *engine, bool hold);
/* Requests that operators cancelled. */
unsigned fake_engine_n_cancelled(struct engine *engine);

/* Reports as the engine thread would send them, from any thread. */
void fake_engine_report(struct engine *engine, enum engine_report_kind kind,
	struct engine_port *port, const char *text);
/* The port attached last, and how many are. */
struct engine_port *fake_engine_port(struct engine *engine);
unsigned fake_engine_n_ports(struct engine *engine);
void fake_engine_refuse_attach(struct engine *engine, int error); /* -errno, 0: no more */
bool fake_engine_is_aborted(struct engine *engine);
/* Orders about graphs, and the last of them. */
unsigned fake_engine_orders(struct engine *engine, struct engine_graphs_order *ret_last);
/* As when the engine has seen that the device is lost, before it reports so. */
void fake_engine_set_device_condition(struct engine *engine, int condition);
/* Its thread takes no turns: pings stay without an answer. */
void fake_engine_hang(struct engine *engine);
void fake_engine_set_in_flight(struct engine *engine, uint32_t n); /* no DRAINED until aborted */

#endif
