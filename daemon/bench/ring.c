/* SPDX-License-Identifier: MIT */
/*
 * What the ring costs: a null request, through library, ring and engine and back, against two
 * processes that pass each other a bare word by the same means.
 *
 * Where the scheduler puts two processes that wake each other, and who else runs, changes a round
 * trip by a factor of ten. So result and floor take turns in rounds, and of each the quickest round
 * counts.
 */
#include "daemon/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/client.h"
#include "daemon/bench/floors.h"
#include "daemon/bench/report.h"

#define DEFAULT_COUNT 4000u
#define ROUNDS 5u
#define WARM_UPS 16u
#define SPIN_LEAST_CPUS 4u

#define LINE_FLOOR "two processes that pass a cache line to and fro, both spinning"
#define MIXED_FLOOR "there by a cache line that is spun on, back by an eventfd that is slept on"
#define EVENTFD_FLOOR "two processes that wake each other by eventfds"
#define FEW_CPUS                                                                                   \
	"below 4 CPUs those who spin (client, engine, the cpu device's worker) take CPUs from "    \
	"each other: rows in which the daemon or the client spins are not judged"
#define RUNNING_NOTE "how the daemon waits is its own configuration (spin_us)"

struct ring_case {
	const char *name, *daemon_spin; /* NULL: a running daemon's, whatever it is */
	enum hop forth, back;
	uint32_t client_spin;
	double target;
	const char *floor_name, *note;
};

static const struct ring_case private_cases[] = {
	{"both spin", "forever", HOP_LINE, HOP_LINE, MIMEO_SPIN_FOREVER, 2.0, LINE_FLOOR, NULL},
	{"client asleep, daemon spins", "forever", HOP_LINE, HOP_EVENTFD, 0, 1.5, MIXED_FLOOR,
		NULL},
	{"both asleep", "0", HOP_EVENTFD, HOP_EVENTFD, 0, 1.5, EVENTFD_FLOOR, NULL},
};

static const struct ring_case running_cases[] = {
	{"client spins", NULL, HOP_LINE, HOP_LINE, MIMEO_SPIN_FOREVER, 2.0, LINE_FLOOR,
		RUNNING_NOTE},
	{"client asleep", NULL, HOP_EVENTFD, HOP_EVENTFD, 0, 1.5, EVENTFD_FLOOR, RUNNING_NOTE},
};

#define CASES_MAX 3

struct ring_work {
	const struct ring_case *what;
	const char *socket;
	uint32_t count;    /* of a round */
	uint64_t round_ns; /* the most that one side of a round may take */
	struct samples *results[ROUNDS], *floors[ROUNDS];
};

static int work_init(struct ring_work *work, const struct bench_options *options,
	const struct ring_case *what)
{
	bool ok = true;

	*work = (struct ring_work){
		.what = what,
		.count = options->count ? options->count : DEFAULT_COUNT,
		.round_ns = options->seconds * 1000000000ull / (2 * ROUNDS),
	};
	for (uint32_t i = 0; i < ROUNDS; i++) {
		work->results[i] = samples_new(work->count);
		work->floors[i] = samples_new(work->count);
		ok = ok && work->results[i] && work->floors[i];
	}
	return ok ? 0 : -ENOMEM;
}

static void work_deinit(struct ring_work *work)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		samples_free(work->floors[i]);
		samples_free(work->results[i]);
	}
}

static int null_requests(const struct ring_work *work, struct samples *samples)
{
	struct mimeo *m;
	int r = client_connect(&m, work->socket, work->what->client_spin);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < WARM_UPS && r == 0; i++)
		r = client_null(m);
	uint64_t before = stats_now(), until = before + work->round_ns;
	for (uint32_t i = 0; i < work->count && before < until && r == 0; i++) {
		r = client_null(m);
		uint64_t now = stats_now();
		samples_add(samples, now - before);
		before = now;
	}
	mimeo_close(m);
	return r;
}

static int work_rounds(void *arg, int fd)
{
	const struct ring_work *work = arg;

	(void)fd;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		int r = floor_ping_pong(work->what->forth, work->what->back, work->count,
			stats_now() + work->round_ns, work->floors[i]);

		if (r < 0) {
			fprintf(stderr, "mimeo-bench: the floor: %s\n", strerror(-r));
			return 1;
		}
		if (null_requests(work, work->results[i]) < 0)
			return 1;
	}
	return 0;
}

static struct samples *quickest(struct samples *const rounds[ROUNDS])
{
	struct samples *best = rounds[0];

	for (uint32_t i = 1; i < ROUNDS; i++) {
		if (samples_quantile(rounds[i], 0.5) < samples_quantile(best, 0.5))
			best = rounds[i];
	}
	return best;
}

/* Opens the target, and leaves its facts for the report. */
static int measure_case(const struct bench_options *options, struct ring_work *work,
	struct target *target, struct report *report)
{
	const struct ring_case *what = work->what;
	bool spinning = what->forth == HOP_LINE || what->back == HOP_LINE;
	struct measure measure = {
		.name = what->name,
		.floor_name = what->floor_name,
		.target_ratio = what->target,
		.unfit = spinning && report_n_cpus() < SPIN_LEAST_CPUS,
	};

	int r = target_open(options, &(struct spawn_needs){what->daemon_spin, 64, 0}, target);
	work->socket = target->socket;
	if (r == 0)
		r = child_run(what->name, work_rounds, work, options->timeout_s);
	target_close(target);
	measure.note = measure.unfit ? FEW_CPUS : what->note;
	measure.result = quickest(work->results);
	measure.floor = quickest(work->floors);
	report_add(report, &measure);
	return r;
}

int bench_ring(const struct bench_options *options)
{
	const struct ring_case *cases = options->socket ? running_cases : private_cases;
	uint32_t n = options->socket ? 2 : 3;
	struct report report = {.bench = "ring", .json = options->json};
	struct ring_work works[CASES_MAX] = {0};
	struct target target;
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i++) {
		r = work_init(&works[i], options, &cases[i]);
		if (r == 0)
			r = measure_case(options, &works[i], &target, &report);
	}
	if (r == 0)
		r = report_print(&report, &target);
	for (uint32_t i = 0; i < n; i++)
		work_deinit(&works[i]);
	return r;
}
