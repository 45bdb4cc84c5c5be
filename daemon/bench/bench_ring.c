/* SPDX-License-Identifier: MIT */
/*
 * The cost of the ring: the round trip of a null request through library, ring and engine, compared with two
 * processes that exchange a word in the same ways.
 *
 * The CPUs that the scheduler chooses for two processes that wake each other, and other load, change a round
 * trip by a factor of ten. Therefore result and floor are measured in alternate rounds, and the fastest round
 * of each counts.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/spawn.h"

#define ROUNDS 5u
#define ROW_NS 4000000000ull /* longest time for a row and its floor */
#define WARM_UPS 16u
#define SPINS_UNPAUSED 512u /* as in libmimeo */
#define SAMPLES_LEAST 8u    /* of the floor, even if the time is over */
#define SPIN_LEAST_CPUS 4u

#define LINE_FLOOR "of both spinning: two processes that pass a cache line back and forth"
#define MIXED_FLOOR                                                                                \
	"of a client asleep: one way by a spun cache line, the other by an eventfd"
#define EVENTFD_FLOOR "of both asleep: two processes that wake each other by eventfds"
#define FEW_CPUS                                                                                   \
	"below 4 CPUs the processes that spin (client, engine, the cpu device's worker) take CPUs " \
	"from each other: rows in which the daemon or the client spins are not judged"
#define RUNNING "how the daemon waits is its own configuration (spin_us)"

/* How a process waits for the other: it spins on a cache line or sleeps on an eventfd. */
enum hop { HOP_LINE, HOP_EVENTFD };

static const struct ring_case {
	const char *name, *daemon_spin; /* NULL: the setting of a running daemon */
	enum hop forth, back;
	uint32_t client_spin;
	double target;
	const char *floor;
} cases[] = {
	{"both spin", "forever", HOP_LINE, HOP_LINE, MIMEO_SPIN_FOREVER, 2.0, LINE_FLOOR},
	{"client asleep, daemon spins", "forever", HOP_LINE, HOP_EVENTFD, 0, 1.5, MIXED_FLOOR},
	{"both asleep", "0", HOP_EVENTFD, HOP_EVENTFD, 0, 1.5, EVENTFD_FLOOR},
	/* with a running daemon */
	{"client spins", NULL, HOP_LINE, HOP_LINE, MIMEO_SPIN_FOREVER, 2.0, LINE_FLOOR},
	{"client asleep", NULL, HOP_EVENTFD, HOP_EVENTFD, 0, 1.5, EVENTFD_FLOOR},
};

/* ---- the floor: two processes of this machine ---- */

struct channel {
	alignas(64) _Atomic uint32_t line; /* alone in its cache line */
	alignas(64) enum hop hop;
	int eventfd;
};

struct channels {
	struct channel forth, back;
};

static void ring_channel_send(struct channel *channel, uint32_t number)
{
	const uint64_t one = 1;

	if (channel->hop == HOP_LINE)
		atomic_store_explicit(&channel->line, number, memory_order_release);
	else
		(void)!write(channel->eventfd, &one, sizeof(one));
}

static void ring_channel_wait(struct channel *channel, uint32_t number)
{
	uint64_t value;

	if (channel->hop == HOP_EVENTFD) {
		while (read(channel->eventfd, &value, sizeof(value)) < 0 && errno == EINTR)
			;
		return;
	}
	for (unsigned n = 0;
		atomic_load_explicit(&channel->line, memory_order_acquire) != number; n++) {
#if defined(__x86_64__) || defined(__i386__)
		if (n > SPINS_UNPAUSED)
			__builtin_ia32_pause();
#elif defined(__aarch64__)
		if (n > SPINS_UNPAUSED)
			__asm__ volatile("yield");
#endif
	}
}

static int ring_floor_echo(void *arg, int fd)
{
	struct channels *channels = arg;

	for (uint32_t number = 1;; number++) {
		ring_channel_wait(&channels->forth, number);
		ring_channel_send(&channels->back, number);
	}
	return 0;
}

static void ring_floor_ping(
	struct channels *channels, uint32_t count, uint64_t until_ns, struct samples *samples)
{
	uint64_t before = clock_ns();

	for (uint32_t number = 1; number <= count + WARM_UPS; number++) {
		if (before >= until_ns && number > WARM_UPS + SAMPLES_LEAST)
			break;
		ring_channel_send(&channels->forth, number);
		ring_channel_wait(&channels->back, number);
		uint64_t now = clock_ns();
		if (number > WARM_UPS)
			samples_add(samples, now - before);
		before = now;
	}
}

/* Measure `count` round trips to a process that answers at once, or fewer if clock_ns() reaches until_ns. 0
 * or -errno. */
static int ring_floor_ping_pong(enum hop forth, enum hop back, uint32_t count, uint64_t until_ns,
	struct samples *samples)
{
	CLEANUP(cleanup_close) int forth_fd = eventfd(0, EFD_CLOEXEC);
	CLEANUP(cleanup_close) int back_fd = eventfd(0, EFD_CLOEXEC);
	CLEANUP(child_kill) struct child partner = {0};
	struct channels *channels = child_memory(sizeof(*channels));

	if (forth_fd < 0 || back_fd < 0 || !channels)
		return -errno;
	channels->forth = (struct channel){.hop = forth, .eventfd = forth_fd};
	channels->back = (struct channel){.hop = back, .eventfd = back_fd};
	int rc = child_start(&partner, ring_floor_echo, channels);
	if (rc == 0)
		ring_floor_ping(channels, count, until_ns, samples);
	child_memory_free(channels, sizeof(*channels));
	return rc;
}

/* ---- the ring ---- */

static int ring_round(
	const struct target_work *work, struct samples *samples, struct samples *floor)
{
	const struct ring_case *what = work->what;
	uint64_t round_ns = ROW_NS / (2 * ROUNDS);
	struct mimeo *m;
	int rc = ring_floor_ping_pong(
		what->forth, what->back, work->options->count, clock_ns() + round_ns, floor);

	if (rc < 0)
		return bench_fail(rc, "the floor: %s", strerror(-rc));
	rc = client_connect(&m, work->target->socket, what->client_spin);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < WARM_UPS && rc == 0; i++)
		rc = client_null(m);
	uint64_t before = clock_ns(), until = before + round_ns;
	for (uint32_t i = 0; i < work->options->count && before < until && rc == 0; i++) {
		rc = client_null(m);
		uint64_t now = clock_ns();
		samples_add(samples, now - before);
		before = now;
	}
	mimeo_close(m);
	return rc;
}

static void ring_keep_quickest(struct samples **best, struct samples **round)
{
	struct samples *slower = *round;

	if (!*best || samples_quantile(*round, 0.5) < samples_quantile(*best, 0.5)) {
		slower = *best;
		*best = *round;
	}
	samples_free(slower);
	*round = NULL;
}

static void ring_row(
	const struct target_work *work, struct samples *samples, struct samples *floor)
{
	const struct ring_case *what = work->what;
	bool spins = what->forth == HOP_LINE || what->back == HOP_LINE;
	bool judged = !spins || results_n_cpus() >= SPIN_LEAST_CPUS;
	double ratio = samples_quantile(samples, 0.5) / samples_quantile(floor, 0.5);

	results_row(work->results);
	results_text(work->results, "measure", "MEASURE", what->name);
	results_samples(work->results, samples, floor);
	results_target(work->results, TABLE_NUMBER, ratio, what->target, judged);
	results_floor(work->results, what->floor);
	results_note(work->results, !judged ? FEW_CPUS : what->daemon_spin ? NULL : RUNNING);
}

static int ring_child(void *arg, int fd)
{
	const struct target_work *work = arg;
	CLEANUP(cleanup_samples) struct samples *best = NULL, *best_floor = NULL;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		CLEANUP(cleanup_samples) struct samples *samples = samples_new(work->options->count);
		CLEANUP(cleanup_samples) struct samples *floor = samples_new(work->options->count);

		if (!samples || !floor)
			return bench_fail(1, "no memory");
		if (ring_round(work, samples, floor) < 0)
			return 1;
		ring_keep_quickest(&best, &samples);
		ring_keep_quickest(&best_floor, &floor);
	}
	ring_row(work, best, best_floor);
	return 0;
}

int bench_ring(const struct bench_options *options, struct results *results)
{
	int rc = 0;

	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rc == 0; i++) {
		const struct ring_case *what = &cases[i];
		struct spawn_needs needs = {.spin_us = what->daemon_spin, .kv_pages = 64};

		if (!what->daemon_spin == !!options->socket)
			rc = target_run(options, &needs, results, what->name, ring_child, what);
	}
	return rc;
}
