/* SPDX-License-Identifier: MIT */
#include "daemon/bench/served.h"

#include <errno.h>
#include <math.h>

#include "daemon/bench/bench_client.h"

/* Answers that the daemon does not give stay NULL. */
static int served_run(const struct bench_options *options, const struct target *target,
	uint32_t n_processes, struct served *run)
{
	struct clients *clients = &run->clients;
	int rc = clients_init(clients, options, n_processes);

	if (rc < 0)
		return bench_fail(rc, "no memory");
	rc = clients_run(clients, options, target);
	if (rc < 0)
		return rc;
	clients_clear(clients);
	clients->round = 1;
	(void)target_ask(target, "metrics", &run->before);
	rc = clients_run(clients, options, target);
	if (rc < 0)
		return rc;
	(void)target_ask(target, "metrics", &run->metrics);
	(void)target_ask(target, "status", &run->status);
	(void)target_ask(target, "models", &run->models);
	return 0;
}

int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret)
{
	CLEANUP(target_close) struct target target; /* the floor may need its memory */
	uint32_t most = 1;

	for (uint32_t i = 0; i < options->processes.n; i++)
		most = options->processes.at[i] > most ? options->processes.at[i] : most;
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.graph_mode = options->graph_mode,
			.prefix_sharing = options->prefix_sharing,
			.draft = draft,
			.draft_tokens = options->draft_tokens,
			.kv_pages = most * clients_in_flight(options) *
				    client_pages(options->prompt, options->tokens),
		},
		results, &target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = served_run(options, &target, options->processes.at[i], &ret[i]);
	return rc;
}

void served_free(const struct bench_options *options, struct served *runs)
{
	for (uint32_t i = 0; i < options->processes.n; i++) {
		answer_free(runs[i].before);
		answer_free(runs[i].metrics);
		answer_free(runs[i].status);
		answer_free(runs[i].models);
		clients_deinit(&runs[i].clients);
	}
}

double served_count(const struct served *run, const char *name, const char *label)
{
	if (!run->before || !run->metrics)
		return NAN;
	return answer_metric(run->metrics, name, label) - answer_metric(run->before, name, label);
}

int served_floors(const struct bench_options *options, struct replay_run *ret)
{
	for (uint32_t i = 0; i < options->processes.n; i++) {
		ret[i] = (struct replay_run){.mode = GRAPH_FULL,
			.n_rows = options->processes.at[i],
			.first = options->prompt,
			.n_steps = options->tokens - 1};
		if (replay_run_alloc(&ret[i]) < 0)
			return bench_fail(-ENOMEM, "no memory");
	}
	return options->model_dir ? replay_floors(options, ret, options->processes.n) : 0;
}

void served_floors_free(const struct bench_options *options, struct replay_run *floors)
{
	for (uint32_t i = 0; i < options->processes.n; i++)
		replay_run_deinit(&floors[i]);
}
