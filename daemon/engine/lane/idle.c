/* SPDX-License-Identifier: MIT */
/*
 * What the engine does when a turn found nothing: spin, or sleep in its loop, which holds all
 * doorbells, until a client, the loop thread, the lane or the clock wakes it.
 *
 * Nothing in the lane: spin for spin_us, for a client that answers at once, and then sleep without
 * limit. An idle daemon takes no CPU.
 *
 * A replay in the lane: how long those of its graph take is known from the last ones. The engine
 * sleeps until spin_us before the end that it expects, and spins from there to spin_us behind it:
 * it sees the end as soon as if it had spun all the way, and the lane does nothing for that. Past
 * that it sleeps a part of what the step has taken so far, and looks, again and again: a step that
 * is late is seen late by that part.
 *
 * An eager step, whose time nobody knows, and any step where the engine may not spin, and would see
 * most ends late by a timer: if it has slept lately, it has itself woken by the lane (ask_bell in
 * step.c). On an H200 the event for that costs the lane 3.3 us behind each step. If it has not
 * slept lately, it looks as for a step that is late: a bell asked for afterwards would come behind
 * the next step as well.
 *
 * Of a step with a draft's part its results are looked for first, and its end then, in the same ways.
 *
 * Hot path: no allocation, no lock; one system call to sleep, one clock read in 8 turns.
 */
#include "daemon/engine/state.h"

#include <sys/prctl.h>

#define TURNS_UNPAUSED 256
#define TURNS_A_CLOCK 8
#define NS_PER_US 1000u
#define TICK_NS 5000000u  /* how late sleep may notice a deadline, or room in a full ring */
#define NAP_NS 20000u     /* a shorter sleep is not worth falling asleep and waking up */
#define OVERDUE_PARTS 16u /* of the time that a late step has taken so far */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* Sleeps end when they should and not, with others', up to 50 us later. */
void idle_init(void)
{
	prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}

void idle_reset(struct engine *engine)
{
	engine->idle_since_ns = engine->idle_turns = 0;
	engine->watching = false;
}

/* ---- the lane's time ---- */

/* An end that the engine was looking for is seen at once, and says how the two clocks stand; one
 * that it slept or worked over says only how far they are apart at the most. */
void idle_follow(struct engine *engine, uint64_t ended_ns)
{
	uint64_t lag = clock_ns() - ended_ns;

	if (engine->watching || !engine->lag_known || (int64_t)(lag - engine->lane_lag_ns) < 0)
		engine->lane_lag_ns = lag;
	engine->lag_known = true;
	engine->lane_since_ns = ended_ns + engine->lane_lag_ns;
}

void idle_begin(struct engine *engine)
{
	engine->lane_since_ns = clock_ns();
}

/* Can the engine know by its clock when to look for the end of such a step? */
static bool is_timed(const struct engine *engine, uint64_t expected_ns)
{
	return engine->options.spin_us && expected_ns;
}

bool idle_wants_bell(const struct engine *engine, uint64_t expected_ns)
{
	return (engine->sleepy || engine->slept) && !is_timed(engine, expected_ns);
}

/* ---- sleep ---- */

/* Something that a sleeping engine would miss? Called with all NEED_WAKEUP flags set. */
static bool must_not_sleep(struct engine *engine)
{
	return atomic_load(&engine->mail_waits) || step_ready(engine) ||
		(engine->n_flights && engine->device->ops->status(engine->device));
}

/* While there is work, a client's indices are looked at only where its stamps do not say enough; one
 * that is where it cannot be is found here. */
static void check_indices(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->n_sessions; i++) {
		struct session *session = engine->sessions[i];
		struct ring *ring = &session->port->region.ring;

		if (session->failed || session->detached)
			continue;
		if (ring_sq_check(ring) < 0)
			engine_session_fail(session, "submission ring: the tail is not where it can be");
		else if (ring_cq_space(ring) < 0)
			engine_session_fail(session, "completion ring: the head is not where it can be");
	}
}

/* Sleep for at most limit_ns; UINT64_MAX: there is nothing in the lane, or it wakes us. */
static void sleep_until_woken(struct engine *engine, uint64_t limit_ns)
{
	/* A device that fails may never run the function that was to wake us. */
	bool stay = false, tick = engine->n_deadlines || engine->n_flights || engine->late.wanted;

	engine->slept = true;
	engine->watching = false;
	check_indices(engine);
	atomic_store(&engine->sleeping, true);
	for (uint32_t i = 0; i < engine->n_sessions; i++) {
		struct session *session = engine->sessions[i];

		if (session->failed || session->detached ||
			!ring_daemon_sleep(&session->port->region.ring))
			continue;
		/* A client that takes completions rings no bell for it. */
		stay |= !session->stuffed;
		tick |= session->stuffed;
	}
	if (!stay && !must_not_sleep(engine)) {
		count(&engine->stats.n_sleeps, 1);
		loop_run_for(engine->loop, tick && limit_ns > TICK_NS ? TICK_NS : limit_ns);
	}
	for (uint32_t i = 0; i < engine->n_sessions; i++)
		ring_daemon_awake(&engine->sessions[i]->port->region.ring);
	atomic_store(&engine->sleeping, false);
}

/* How long to sleep now, for a step that is due then; 0: look again at once. */
static uint64_t nap_for(const struct engine *engine, uint64_t now, uint64_t due)
{
	const uint64_t spin = (uint64_t)engine->options.spin_us * NS_PER_US;
	uint64_t nap;

	if (now + spin + NAP_NS < due) {
		/* Where another step has room, a client may answer at once. */
		return engine->n_flights < ENGINE_FLIGHTS && now - engine->idle_since_ns < spin
			? 0 : due - spin - now;
	}
	if (now < due + spin)
		return 0;
	nap = (now - engine->lane_since_ns) / OVERDUE_PARTS;
	return nap > NAP_NS ? nap : NAP_NS;
}

/* The lane's time for what is to be seen next of the flight: its results, or its end. */
static uint64_t expected_of(const struct flight *flight)
{
	return flight->drafts && !flight->read ? flight->told_ns : flight->expected_ns;
}

/* ---- turns that find nothing ---- */

/* The first few at full speed, for a client that answers at once; then with pauses, looking at the
 * clock now and then. True if it is time to think of sleep. */
static bool has_spun(struct engine *engine)
{
	if (!engine->options.spin_us)
		return true;
	if (++engine->idle_turns > TURNS_UNPAUSED)
		relax();
	if (engine->idle_turns == TURNS_UNPAUSED)
		check_indices(engine);
	return engine->options.spin_us != ENGINE_SPIN_FOREVER &&
		engine->idle_turns % TURNS_A_CLOCK == 0;
}

void idle(struct engine *engine)
{
	const struct flight *oldest = &engine->flights[engine->first_flight];
	uint64_t now, limit = UINT64_MAX;

	engine->watching = true;
	if (!has_spun(engine))
		return;
	now = clock_ns();
	if (!engine->idle_since_ns)
		engine->idle_since_ns = now;
	if (engine->n_flights && !oldest->notify) {
		limit = nap_for(engine, now, engine->lane_since_ns + expected_of(oldest));
		if (!limit)
			return;
	} else if (now - engine->idle_since_ns < (uint64_t)engine->options.spin_us * NS_PER_US) {
		return;
	}
	sleep_until_woken(engine, limit);
	engine->idle_since_ns = 0;
}
