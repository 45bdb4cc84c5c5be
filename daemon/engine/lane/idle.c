/* SPDX-License-Identifier: MIT */
/*
 * The engine after a turn without work: it spins, or sleeps in its loop, which watches all doorbells, until a
 * client, the loop thread, the lane or a timer wakes it.
 *
 * Nothing in the lane: spin for spin_us, for a client that answers at once, and then sleep without
 * limit. An idle daemon takes no CPU.
 *
 * A replay in the lane: its duration is expected from the graph's last replays. The engine sleeps until shortly
 * before the expected end and launches the next step then, so that requests that arrive, and cancels, until then
 * count for it. It sleeps on until spin_us before the expected end, and spins until spin_us after it: it notices the
 * end as soon as if it had spun all the time, at no cost for the lane. A step that ends before the next launch leaves
 * the lane empty, until TICK_NS later at most; later steps are then expected to take no longer. After the expected
 * end the engine repeatedly sleeps a fraction of the time that the step has taken so far, so that the end of a late
 * step is noticed late by that fraction.
 *
 * An eager step, whose duration is unknown, and any step if the engine may not spin, because a timer would
 * notice most ends late: if the engine has slept recently, the lane wakes it (step_ask_bell in step.c), which
 * on an H200 costs the lane 3.3 us after each step. Otherwise it polls as for a late step: a wake-up that is
 * requested now would come after the next step only.
 *
 * For a step with draft passes the engine waits in the same ways first for its results, then for its end.
 *
 * A step with which requests end: many of their clients submit their next request at once, and would miss a step that
 * is launched before this end. The next launch therefore waits, after the end, until as many sequences run as before,
 * or for the time that idle_hold_of allows.
 *
 * Hot path: no allocation, no lock; one system call to sleep; one clock read in 8 turns, and one in each while the
 * next step waits for its time.
 */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <sys/prctl.h>

#include "daemon/engine/probes.h"
#include "daemon/engine/requests/submissions.h"
#include "ipc/clock.h"

#define TURNS_UNPAUSED 256
#define TURNS_A_CLOCK 8
#define NS_PER_US 1000u
#define TICK_NS 5000000u  /* how late sleep may notice a deadline, or space in a full ring */
#define NAP_NS 20000u     /* a shorter sleep is not worth falling asleep and waking up */
#define OVERDUE_PARTS 16u /* of the time that a late step has taken so far */
/* How long before the expected end of the running step the next one is launched: LEAD_NS for the launch, and for the
 * error of the expectation an eighth of the expected time. */
#define LEAD_NS 300000u
#define LEAD_PARTS 8u

/* How long after the end of a step the next launch may wait for a client to answer: not for less than a client needs,
 * nor for longer than one that spins needs. */
#define HOLD_MIN_NS 20000u
#define HOLD_MAX_NS 100000u
#define HOLD_PARTS 4u
/* What the rows pay in any case: results, admission and launch of the next step, which no step hides. */
#define HOLD_LAUNCH_NS 40000u

static void idle_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* Without timer slack, by which the kernel ends sleeps up to 50 us late. */
void idle_init(void)
{
	prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}

void idle_reset(struct lane *lane)
{
	lane->idle.since_ns = lane->idle.turns = 0;
	lane->idle.watching = false;
}

/* ---- the lane's time ---- */

/* If the engine was polling, it sees an end at once, which gives the offset of the two clocks; if it slept or
 * worked meanwhile, it gives only an upper bound of the offset. */
void idle_follow(struct lane *lane, uint64_t ended_ns)
{
	uint64_t lag = clock_ns() - ended_ns;

	if (lane->idle.slept && lane->idle.lag_known)
		histogram_add_time(&lane->stats->wake,
			(int64_t)(lag - lane->idle.lag_ns) > 0 ? lag - lane->idle.lag_ns : 0, 1);
	if (lane->idle.watching || !lane->idle.lag_known || (int64_t)(lag - lane->idle.lag_ns) < 0)
		lane->idle.lag_ns = lag;
	lane->idle.lag_known = true;
	lane->idle.lane_since_ns = ended_ns + lane->idle.lag_ns;
}

void idle_begin(struct lane *lane)
{
	lane->idle.lane_since_ns = clock_ns();
	lane->idle.hold_until_ns = 0;
}

/* Can the engine know by its clock when to look for the end of such a step? */
static bool idle_is_timed(const struct lane *lane, uint64_t expected_ns)
{
	return lane->options->spin_us && expected_ns;
}

bool idle_wants_bell(const struct lane *lane, uint64_t expected_ns)
{
	return (lane->idle.sleepy || lane->idle.slept) && !idle_is_timed(lane, expected_ns);
}

/* When the step behind the only one in flight is to be launched. 0: at once: the time of that one is unknown or
 * shorter than the lead, or the engine sleeps until its end. */
static uint64_t idle_launch_at(const struct lane *lane)
{
	const struct inflight *oldest = &lane->inflight[lane->first];
	const uint64_t lead = LEAD_NS + oldest->expected_ns / LEAD_PARTS;

	assert(lane->n_inflight == 1);
	if (oldest->notify || oldest->expected_ns <= lead)
		return 0;
	return lane->idle.lane_since_ns + oldest->expected_ns - lead;
}

/* A request that is in the next step saves its client the time of a step; each row of that step pays with the wait and
 * the launch. The wait is so short that all rows together pay at most a part of what the requests in place of the ended
 * ones save. Of several models another one's step is launched instead. */
static uint64_t idle_hold_of(const struct lane *lane, const struct inflight *inflight)
{
	uint64_t hold;

	if (!inflight->n_ending || lane->runners->n > 1 || inflight->notify || inflight_is_divided(inflight) ||
		!idle_is_timed(lane, inflight->expected_ns))
		return 0;
	assert(inflight->n_ending <= inflight->n_rows);
	hold = inflight->expected_ns * inflight->n_ending / inflight->n_rows / HOLD_PARTS;
	if (hold < HOLD_LAUNCH_NS + HOLD_MIN_NS)
		return 0;
	hold -= HOLD_LAUNCH_NS;
	return hold < HOLD_MAX_NS ? hold : HOLD_MAX_NS;
}

void idle_hold(struct lane *lane, const struct inflight *inflight)
{
	const uint64_t hold = idle_hold_of(lane, inflight);

	lane->idle.hold_until_ns = hold ? lane->idle.lane_since_ns + hold : 0;
	lane->idle.hold_running = inflight->runner->slots.n_running;
}

/* Does the empty lane wait for a client? */
static bool idle_holds(const struct lane *lane)
{
	return lane->idle.hold_until_ns && !lane->n_inflight &&
		lane->runners->all[0]->slots.n_running < lane->idle.hold_running &&
		clock_ns() < lane->idle.hold_until_ns;
}

bool idle_is_early(const struct lane *lane)
{
	uint64_t at;

	if (lane->n_inflight != 1)
		return idle_holds(lane);
	if (idle_hold_of(lane, &lane->inflight[lane->first]))
		return true;
	at = idle_launch_at(lane);
	return at && clock_ns() < at;
}

/* ---- sleep ---- */

/* Is there work that a sleeping engine would miss? Called with all NEED_WAKEUP flags set. */
static bool idle_must_not_sleep(struct lane *lane)
{
	return atomic_load(lane->idle.commands_wait) || lane_is_ready(lane) ||
		(lane->n_inflight && lane->device->ops->status(lane->device));
}

/* While there is work, a client's indices are read only if its stamps are not sufficient; invalid ones are
 * detected here. */
static void idle_check_indices(struct lane *lane)
{
	for (uint32_t i = 0; i < lane->accounting->n_sessions; i++) {
		struct engine_session *session = lane->accounting->sessions[i];
		struct ring *ring = &session->port->region.ring;

		if (session->failed || session->detached)
			continue;
		if (ring_sq_check(ring) < 0)
			engine_session_fail(session, "submission ring: invalid tail");
		else if (ring_cq_space(ring) < 0)
			engine_session_fail(session, "completion ring: invalid head");
	}
}

static void idle_run_loop(struct lane *lane, uint64_t limit_ns)
{
	const uint64_t begin = trace_is_on(lane->trace) ? clock_ns() : 0;

	PROBE_SLEEP();
	loop_run_for(lane->loop, limit_ns);
	PROBE_WAKE();
	if (begin && trace_is_on(lane->trace))
		trace_put(lane->trace,
			&(struct trace_event){.kind = TRACE_SLEEP, .begin_ns = begin, .end_ns = clock_ns()});
}

/* Sleep for at most limit_ns; UINT64_MAX: there is nothing in the lane, or it wakes us. */
static void idle_sleep_until_woken(struct lane *lane, uint64_t limit_ns)
{
	/* A device that fails may never run the function that was to wake us. */
	bool stay = false, tick = lane->accounting->n_deadlines || lane->n_inflight || lane->late.wanted;

	assert(!atomic_load(&lane->idle.sleeping));
	lane->idle.slept = true;
	lane->idle.watching = false;
	idle_check_indices(lane);
	atomic_store(&lane->idle.sleeping, true);
	for (uint32_t i = 0; i < lane->accounting->n_sessions; i++) {
		struct engine_session *session = lane->accounting->sessions[i];

		if (session->failed || session->detached)
			continue;
		bool entries = ring_daemon_sleep(&session->port->region.ring);
		stay |= submissions_cancels_wait(session);
		if (!entries)
			continue;
		/* A client that takes completions rings no bell for it. */
		stay |= !session->cq_full;
		tick |= session->cq_full;
	}
	if (!stay && !idle_must_not_sleep(lane)) {
		counter_add(&lane->stats->n_sleeps, 1);
		idle_run_loop(lane, tick && limit_ns > TICK_NS ? TICK_NS : limit_ns);
	}
	for (uint32_t i = 0; i < lane->accounting->n_sessions; i++)
		ring_daemon_awake(&lane->accounting->sessions[i]->port->region.ring);
	atomic_store(&lane->idle.sleeping, false);
}

/* How long to sleep now, for a step that is due then; 0: look again at once. */
static uint64_t idle_nap_for(const struct lane *lane, uint64_t now, uint64_t due)
{
	const uint64_t spin = (uint64_t)lane->options->spin_us * NS_PER_US;
	const bool can_launch = lane->n_inflight == 1 && !idle_hold_of(lane, &lane->inflight[lane->first]);
	const uint64_t launch = can_launch ? idle_launch_at(lane) : 0;
	uint64_t nap;

	assert(lane->n_inflight > 0 && lane->n_inflight <= LANE_STEPS);
	if (now + spin + NAP_NS < due) {
		if (launch > now && launch <= due - spin)
			return launch - now > NAP_NS ? launch - now : 0;
		/* While another step can be launched, a client may answer at once. */
		if (lane->n_inflight < LANE_STEPS && now - lane->idle.since_ns < spin)
			return 0;
		return due - spin - now;
	}
	if (now < due + spin)
		return 0;
	nap = (now - lane->idle.lane_since_ns) / OVERDUE_PARTS;
	return nap > NAP_NS ? nap : NAP_NS;
}

/* The expected time on the lane until the next event of the step: its results, or its end. */
static uint64_t idle_expected_of(const struct inflight *inflight)
{
	return inflight->drafts && !inflight->read ? inflight->results_ns : inflight->expected_ns;
}

/* ---- turns that find nothing ---- */

/* The first turns are at full speed, for a client that answers at once; later ones pause, and read the clock
 * only from time to time. True if the engine may sleep. */
static bool idle_has_spun(struct lane *lane)
{
	if (!lane->options->spin_us)
		return true;
	if (++lane->idle.turns > TURNS_UNPAUSED)
		idle_relax();
	if (lane->idle.turns == TURNS_UNPAUSED)
		idle_check_indices(lane);
	return lane->options->spin_us != ENGINE_SPIN_FOREVER &&
		lane->idle.turns % TURNS_A_CLOCK == 0;
}

void idle(struct lane *lane)
{
	const struct inflight *oldest = lane_oldest(lane);
	uint64_t now, limit = UINT64_MAX;

	lane->idle.watching = true;
	if (!idle_has_spun(lane) || idle_holds(lane))
		return;
	if (!lane->n_inflight)
		lane->idle.hold_until_ns = 0;
	now = clock_ns();
	if (!lane->idle.since_ns)
		lane->idle.since_ns = now;
	if (lane->n_inflight && !oldest->notify) {
		limit = idle_nap_for(lane, now, lane->idle.lane_since_ns + idle_expected_of(oldest));
		if (!limit)
			return;
	} else if (now - lane->idle.since_ns < (uint64_t)lane->options->spin_us * NS_PER_US) {
		return;
	}
	idle_sleep_until_woken(lane, limit);
	lane->idle.since_ns = 0;
}
