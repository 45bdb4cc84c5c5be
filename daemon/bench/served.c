/* SPDX-License-Identifier: MIT */
#include "daemon/bench/served.h"

#include <assert.h>
#include <errno.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/replay.h"

static int served_init(const struct bench_options *options, uint32_t n, struct served *ret)
{
	int rc = clients_init(&ret->clients, options, n, 1);

	ret->steps = samples_new(options->tokens);
	ret->gaps = samples_new(options->tokens);
	ret->launches = samples_new(options->tokens + REPLAY_WARM_UPS);
	if (rc < 0 || !ret->steps || !ret->gaps || !ret->launches)
		return bench_fail(-ENOMEM, "no memory");
	return 0;
}

static int served_run(const struct bench_options *options, const struct target *target,
	const char *const *metrics, uint32_t n_metrics, struct served *run)
{
	struct answer *answer;
	bool counting = target_metrics(target, metrics, n_metrics, run->counters) == 0;
	int rc = clients_run(&run->clients, options, target);

	if (rc < 0 || !counting ||
		target_metrics_since(target, metrics, n_metrics, run->counters) < 0 ||
		target_ask(target, "status", &answer) < 0)
		return rc;
	run->resident_bytes = answer_count(answer, 0, "resident_bytes", 0);
	run->device_bytes = answer_count(answer, 0, "device_used_bytes", 0);
	answer_free(answer);
	run->counted = true;
	return 0;
}

int served_measure(const struct bench_options *options, const char *const *metrics,
	uint32_t n_metrics, struct results *results, struct served *ret)
{
	struct replay_run floors[BENCH_LIST_MAX] = {0};
	struct target target = {.admin = -1};
	int rc = 0;

	assert(n_metrics <= SERVED_METRICS_MAX);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = served_init(options, options->processes.at[i], &ret[i]);
	if (rc == 0)
		rc = target_open(options,
			&(struct spawn_needs){
				.kv_pages = clients_most(options) *
					    client_pages(options->prompt, options->tokens),
				.max_requests = BENCH_PROCESSES_MAX,
				.spin_us = options->spin_us,
			},
			results, &target);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = served_run(options, &target, metrics, n_metrics, &ret[i]);
		floors[i].steps = ret[i].steps;
		floors[i].gaps = ret[i].gaps;
		floors[i].launches = ret[i].launches;
	}
	target_close(&target); /* the floor may need its memory */
	return rc == 0 && options->model_dir ? replay_floors(options, floors) : rc;
}

void served_free(const struct bench_options *options, struct served *runs)
{
	for (uint32_t i = 0; i < options->processes.n; i++) {
		samples_free(runs[i].launches);
		samples_free(runs[i].gaps);
		samples_free(runs[i].steps);
		clients_deinit(&runs[i].clients);
	}
}
