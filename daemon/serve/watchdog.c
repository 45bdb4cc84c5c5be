/* SPDX-License-Identifier: MIT */
#include "daemon/serve/watchdog.h"

#include "daemon/serve/notify.h"

#define REPORTS_A_PERIOD 4u

static void watchdog_on_tick(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	const struct engine_stats *stats = engine_stats(serve->options.engine);

	if (atomic_load(&stats->n_pings) < serve->n_pings)
		return;
	notify_alive();
	serve->n_pings += engine_post_ping(serve->options.engine) == 0;
}

int watchdog_start(struct serve *serve)
{
	uint64_t ms = notify_watchdog_us() / 1000 / REPORTS_A_PERIOD;

	if (notify_watchdog_us() == 0)
		return 0;
	return loop_add_timer(serve->loop, ms > 0 ? ms : 1, watchdog_on_tick, serve, &serve->watchdog);
}
