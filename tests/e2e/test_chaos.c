/* SPDX-License-Identifier: MIT */
/*
 * Everything at once: a daemon with few pages, honest clients that do whatever the library lets them do,
 * clients that lie, and a parent that stops, continues and kills both and starts others in their place. Nobody's tokens
 * change, nothing is lost, and the daemon ends in order.
 *
 * MIMEO_CHAOS_S seconds long, after a warm-up of a tenth of it. MIMEO_CHAOS_SEED repeats what each client
 * draws, and not how their turns interleave. MIMEO_TEST_DRAFT names a model of examples/models that drafts for
 * tinycalc; attention then supports masks, and requests have masks and embeddings, too.
 */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/device.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/chaos.h"
#include "tests/e2e/embedding_table.h"

#define N_CLIENTS 32u
#define N_HOSTILE 8u
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SECONDS 15
#define GROWTH_KB (1024 << 10) /* what was freed is kept in quarantine */
#else
#define SECONDS 60
#define GROWTH_KB (16 << 10)
#endif

struct place {
	pid_t pid;
	bool stopped;
};

struct resources {
	unsigned n_threads, resident_kb;
};

static struct {
	struct chaos *chaos;
	uint64_t seed, state, n_started;
	struct place places[N_CLIENTS]; /* the first N_HOSTILE are hostile */
	unsigned n_killed, n_stopped, n_failed;
	/* The daemon's counters when last read; -1: it does not answer. */
	int64_t n_preempted, n_evicted, n_drafted;
	bool daemon_died;
	struct holdings idle;
	struct resources warm, after;
	bool settled;
} run;

static unsigned number_of(const char *name, unsigned fallback)
{
	const char *text = getenv(name);

	return text && *text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

/* ---- processes ---- */

/* As root the clients are users of their own, the liars mostly another than the honest; the group stays, which
 * may connect. */
static void become_user(unsigned index)
{
	uid_t uid = 60001 + (index < N_HOSTILE ? (index < 2 ? 0 : 3) : index % 3);

	if (geteuid() != 0)
		return;
	CHILD_EXPECT(setgroups(0, NULL) == 0);
	CHILD_EXPECT(setresuid(uid, uid, uid) == 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* the change has cleared it */
}

static void start(unsigned index)
{
	uint64_t seed = random_mix(run.seed + ++run.n_started);
	struct place *place = &run.places[index];

	*place = (struct place){.pid = process_fork()};
	if (place->pid != 0)
		return;
	close(group_daemon.admin);
	become_user(index);
	_exit(index < N_HOSTILE ? chaos_hostile(run.chaos, seed) : chaos_honest(run.chaos, seed));
}

/* An honest client ends by itself only if something was wrong. */
static void look_after(unsigned index)
{
	int status = process_exit_status(run.places[index].pid, 0);

	if (status < 0)
		return;
	fprintf(stderr, "chaos: %s client ended by itself: %d\n", index < N_HOSTILE ? "a hostile" : "an honest",
		status);
	run.n_failed++;
	start(index);
}

static void disturb(void)
{
	unsigned index = random_below(&run.state, N_CLIENTS);
	struct place *place = &run.places[index];

	if (place->stopped) {
		kill(place->pid, SIGCONT);
		place->stopped = false;
	} else if (random_below(&run.state, 4)) {
		kill(place->pid, SIGSTOP);
		place->stopped = true;
		run.n_stopped++;
	} else {
		process_kill(place->pid);
		run.n_killed++;
		start(index);
	}
}

/* Honest clients wait for their answers, which they get once the liars have gone. */
static void end_all(void)
{
	for (unsigned i = 0; i < N_CLIENTS; i++) {
		kill(run.places[i].pid, SIGCONT);
		if (i < N_HOSTILE)
			process_kill(run.places[i].pid);
	}
	atomic_store(&run.chaos->stop, true);
	for (unsigned i = N_HOSTILE; i < N_CLIENTS; i++) {
		int status = process_exit_status(run.places[i].pid, CHAOS_PATIENCE_MS + PATIENCE_MS);

		run.n_failed += status != 0;
		if (status < 0)
			process_kill(run.places[i].pid);
	}
	atomic_store(&run.chaos->stop, false);
}

static void read_counters(void)
{
	run.n_preempted = daemon_metric(&group_daemon, "mimeo_preempted_requests_total");
	run.n_evicted = daemon_metric(&group_daemon, "mimeo_evicted_sequences_total");
	run.n_drafted = run.chaos->masks ? daemon_metric(&group_daemon, "mimeo_verified_rows_total") : 0;
}

/* On a slow machine, or beside others' work, it may take longer. */
static bool saw_everything(void)
{
	const struct chaos *c = run.chaos;

	for (uint32_t i = 0; i <= MIMEO_CLASS_BATCH; i++) {
		if (c->n_of_class[i] == 0)
			return false;
	}
	read_counters();
	if (c->masks && (c->n_masked == 0 || c->n_embedded == 0 || run.n_drafted == 0))
		return false;
	return c->n_generates > 0 && c->n_steps > 0 && c->n_forked > 0 && c->n_logits > 0 &&
		c->n_hostile_sessions > 0 && run.n_preempted > 0 && run.n_evicted > 0;
}

static void storm(uint64_t ms, uint64_t most_ms)
{
	uint64_t until = now_ms() + ms, end_ms = now_ms() + most_ms;

	for (unsigned i = 0; i < N_CLIENTS; i++)
		start(i);
	while ((now_ms() < until || (now_ms() < end_ms && !saw_everything())) && !run.daemon_died) {
		pause_ms(1 + random_below(&run.state, 40));
		disturb();
		for (unsigned i = 0; i < N_CLIENTS; i++)
			look_after(i);
		run.daemon_died = !daemon_is_alive(&group_daemon);
	}
	end_all();
}

/* ---- what the daemon holds ---- */

static unsigned resident_kb(pid_t pid)
{
	char path[64], line[256];
	unsigned kb = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "VmRSS: %u", &kb) == 1)
			break;
	}
	fclose(file);
	return kb;
}

static struct resources resources(void)
{
	return (struct resources){
		.n_threads = process_n_threads(group_daemon.pid),
		.resident_kb = resident_kb(group_daemon.pid),
	};
}

/* Wait until no session holds resources. */
static bool settles(const struct holdings *idle)
{
	struct holdings now;

	return EVENTUALLY((now = daemon_holdings(&group_daemon), memcmp(&now, idle, sizeof(now)) == 0));
}

/* ---- the run ---- */

static void report(const char *what, uint64_t ms)
{
	const struct chaos *c = run.chaos;

	read_counters();
	printf("# %s of %.1f s: %llu generates and %llu steps, %llu of them on forks, %llu tokens and "
	       "%llu logits compared; %llu cancelled, %llu late, %llu without pages\n",
		what, (double)ms / 1000, (unsigned long long)c->n_generates, (unsigned long long)c->n_steps,
		(unsigned long long)c->n_forked, (unsigned long long)c->n_tokens, (unsigned long long)c->n_logits,
		(unsigned long long)c->n_cancelled, (unsigned long long)c->n_late,
		(unsigned long long)c->n_no_memory);
	printf("# generates by class: normal %llu, interactive %llu, batch %llu; requests preempted, sequences evicted "
	       "so far: %lld, %lld\n",
		(unsigned long long)c->n_of_class[MIMEO_CLASS_NORMAL],
		(unsigned long long)c->n_of_class[MIMEO_CLASS_INTERACTIVE],
		(unsigned long long)c->n_of_class[MIMEO_CLASS_BATCH], (long long)run.n_preempted, (long long)run.n_evicted);
	if (c->masks)
		printf("# %llu generates under masks, %llu steps of embeddings; %lld rows verified so far\n",
			(unsigned long long)c->n_masked, (unsigned long long)c->n_embedded, (long long)run.n_drafted);
	printf("# %llu processes, %u killed, %u stopped, %llu attachments, %llu refused; hostile: %llu "
	       "sessions, %llu entries\n",
		(unsigned long long)run.n_started, run.n_killed, run.n_stopped,
		(unsigned long long)c->n_attached, (unsigned long long)c->n_not_attached,
		(unsigned long long)c->n_hostile_sessions, (unsigned long long)c->n_hostile_entries);
	fflush(stdout);
}

static void make_streams(void)
{
	struct mimeo *m = daemon_connect(&group_daemon, 0, 0);

	chaos_make_streams(run.chaos, m, run.seed);
	mimeo_close(m);
}

static void start_daemon(void **state, const char *draft)
{
	static char below[128], folder[4096];
	const char *options[] = {"--kv-pages", "80", "--max-requests", "12", "--max-batch-tokens", "96",
		"--max-seq-len", "512", "--max-sequences", "6", "--max-client-buffers", "2", NULL, NULL, NULL, NULL,
		NULL};
	const char **more = options + 12;

	if (draft) {
		snprintf(below, sizeof(below), "examples/models/%s", draft);
		snprintf(folder, sizeof(folder), "%s", source_path(below));
		*more++ = "--draft";
		*more++ = folder;
		*more++ = "--attention";
		*more++ = "flex";
		run.chaos->masks = true;
		run.chaos->table = embedding_table_f32();
		assert_non_null(run.chaos->table);
	}
	group_daemon_start_with(state, options);
}

static int begin(void **state)
{
	uint64_t ms = 1000 * (uint64_t)number_of("MIMEO_CHAOS_S", SECONDS), start_ms;

	run.seed = number_of("MIMEO_CHAOS_SEED", (unsigned)time(NULL));
	run.state = run.seed;
	printf("# MIMEO_CHAOS_SEED=%llu\n", (unsigned long long)run.seed);
	run.chaos = shared_new(sizeof(*run.chaos));
	start_daemon(state, getenv("MIMEO_TEST_DRAFT"));
	strcpy(run.chaos->socket, group_daemon.socket);
	assert_int_equal(chmod(group_daemon.folder, 0750), 0);
	watchdog((unsigned)(ms / 1000) * 2 + 2 * WATCHDOG_SECONDS);
	make_streams();
	assert_true(EVENTUALLY(daemon_count(&group_daemon, "sessions") == 0));
	run.idle = daemon_holdings(&group_daemon);

	start_ms = now_ms();
	storm(ms / 10 + 1000, 0);
	report("warm-up", now_ms() - start_ms);
	if (run.daemon_died || !settles(&run.idle))
		return 0;
	run.warm = resources();
	start_ms = now_ms();
	storm(ms, ms + CHAOS_PATIENCE_MS);
	report("chaos", now_ms() - start_ms);
	if (run.daemon_died)
		return 0;
	run.settled = settles(&run.idle);
	run.after = resources();
	printf("# resident: %u KB, then %u KB\n", run.warm.resident_kb, run.after.resident_kb);
	return 0;
}

static int end(void **state)
{
	daemon_deinit(&group_daemon);
	free((void *)run.chaos->table);
	shared_free(run.chaos, sizeof(*run.chaos));
	return 0;
}

static void test_every_answer_is_that_of_a_quiet_daemon(void **state)
{
	if (run.daemon_died)
		daemon_log_show(&group_daemon);
	assert_false(run.daemon_died);
	assert_int_equal(run.chaos->n_wrong, 0);
	assert_int_equal(run.n_failed, 0);
	assert_true(saw_everything());
}

static void test_all_that_clients_held_is_back(void **state)
{
	assert_false(run.daemon_died);
	if (!run.settled)
		daemon_assert_settles(&group_daemon, &run.idle);
	assert_int_equal(run.after.n_threads, run.warm.n_threads);
	if (run.after.resident_kb > run.warm.resident_kb + GROWTH_KB)
		fail_msg("%u KB are resident, %u more than after the warm-up", run.after.resident_kb,
			run.after.resident_kb - run.warm.resident_kb);
}

static void test_daemon_ends_in_order(void **state)
{
	assert_false(run.daemon_died);
	daemon_stop(&group_daemon);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_answer_is_that_of_a_quiet_daemon),
		cmocka_unit_test(test_all_that_clients_held_is_back),
		cmocka_unit_test(test_daemon_ends_in_order),
	};

	/* A row's result depends on its neighbours there. */
	if (test_on_cuda()) {
		printf("1..0 # SKIP what a quiet daemon answers is right on the cpu device alone\n");
		return 0;
	}
	return cmocka_run_group_tests_name("chaos", tests, begin, end);
}
