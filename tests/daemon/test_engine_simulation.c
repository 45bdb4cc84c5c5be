/* SPDX-License-Identifier: MIT */
/*
 * The scheduler under random load, on an engine that computes nothing (dry.h): hundreds of thousands of requests
 * of a thousand users, whose sessions come and go, with few slots and pages, so that preemption and eviction are
 * common; forks, truncations, cancellations and deadlines; and two users who fix sequences by masks of their own, so
 * that their pages cannot be evicted. Every token that comes back is compared with what the
 * sequence has to be followed by. All of it follows from one seed.
 *
 * The longest wait. r is the request that its session is to start next, of a user of weight w, and W the weight of
 * all active users. Others go first as long as their counters are lower. A counter is ahead of the lowest by at most
 * what its user had computed while others had the turn: a prompt, which is charged as a whole, and what the requests
 * that it has running bring: SLOTS * LENGTH tokens, / w. Each other user v catches up with SLOTS * LENGTH * v / w
 * tokens, all of them with SLOTS * LENGTH * W / w. A step that computes computes one new token at least, but for
 * recomputation, and each preemption follows a new token: no more than a request's length is computed once more for
 * it. So r waits for at most SLOTS * LENGTH * W / w * LENGTH / BATCH steps. That is for the worst of all clients;
 * the test allows WAIT_PART of it. Waits that were seen are below 1 in 500. The longest have three causes: a user
 * of weight 1 has a turn when the others have had W - 1 times as much; a long prompt that finds no pages is passed
 * by START_PASSES others, and so misses some turns of its session, where pages are few; and of the batch requests of
 * all users those beyond one slot of CLASS_BATCH_PART start where nothing else can.
 *
 * MIMEO_SIMULATION=N submits N requests in each test, MIMEO_SEED=N begins elsewhere.
 */
#include "tests/daemon/dry.h"
#include "tests/random.h"

#include "daemon/engine/requests/class.h"

#include "attention/kv_cache.h"

#include <sys/param.h>

enum {
	USERS = 1000,
	HUNGRY = 4,     /* users 0 ... 3 always have requests waiting */
	SESSIONS = 40,  /* at once, those of the hungry counted in */
	ENTRIES = 32,
	AREA = 32768,   /* of the arena, for each request index */
	SEQUENCES = 4,  /* open ones of a session */
	LENGTH = 512,
	SLOTS = 8,
	BATCH = 32,
	STEP_NS = 1000000,
	WINDOW = 20000, /* steps */
	WAIT_PART = 50,
	CHECK_TURNS = 100, /* between two whole checks of the engine */
	REQUESTS = 25000,
};

static const uint32_t weights[HUNGRY] = {1, 1, 2, 4};

struct load {
	uint32_t pages;
	uint32_t window; /* of layers 1 and 3 of the five, which have pages of their own; 0: none */
	uint32_t fixers; /* users 0 ... fixers - 1 fix sequences: the pages that others keep are those of any request */
};

struct history {
	bool open, busy;
	uint32_t n;
	int32_t ids[LENGTH];
};

struct pending {
	bool used;
	unsigned op;
	uint32_t sequence, argument, n_ids, generation;
	int32_t ids[LENGTH];
	struct rig_request request;
	uint32_t class;
	bool ran, is_next;
	uint64_t turn;    /* step in which it became the next one that its session is to start of the class */
	uint64_t order;
	uint32_t end;     /* positions computed so far */
};

struct session {
	struct rig_client client;
	bool attached;
	uint32_t uid, n_pending;
	struct rig_result results[ENTRIES];
	struct pending pending[ENTRIES];
	struct history sequences[SEQUENCES];
};

static const struct load *load;
static struct dry dry;
static struct session sessions[SESSIONS];
static uint64_t seed, n_steps, n_submitted, longest_wait[MIMEO_CLASS_BATCH + 1], n_statuses[256], most_pinned;
static uint64_t n_tokens[HUNGRY], n_tokens_before[HUNGRY];
static uint64_t n_windows, most_weight;
static double worst_share;

static uint64_t draw(uint64_t n)
{
	return random_u64(&seed) % n;
}

/* Mostly short, with a long tail up to `most`. */
static uint32_t draw_length(uint32_t most)
{
	const uint64_t tail = draw(100);

	return 1 + (uint32_t)draw(tail < 75 ? 16 : tail < 95 ? 80 : most);
}

/* ---- rows ---- */

static struct session *session_of(const struct sequence *sequence)
{
	for (uint32_t i = 0; i < SESSIONS; i++) {
		if (sessions[i].attached && sessions[i].client.port == sequence->session->port)
			return &sessions[i];
	}
	return NULL;
}

static void on_row(struct dry *in, const struct sequence *sequence, const struct step_row *row)
{
	const struct request *request = sequence->request;
	struct session *session = session_of(sequence);
	const uint32_t end = row->start + row->n_tokens;
	struct pending *pending;

	assert_non_null(session);
	pending = &session->pending[request->index];
	assert_true(pending->used);
	if (!pending->ran) {
		const uint64_t wait = pending->is_next ? n_steps - pending->turn : 0;

		longest_wait[request->class] = wait > longest_wait[request->class] ? wait : longest_wait[request->class];
		/* A batch request has its user's share of one slot of CLASS_BATCH_PART. */
		assert_true(wait * sequence->session->share.user->weight * WAIT_PART <=
			(uint64_t)SLOTS * LENGTH * most_weight * LENGTH / BATCH *
				(request->class == MIMEO_CLASS_BATCH ? CLASS_BATCH_PART : 1));
		pending->end = row->start;
	}
	pending->ran = true;
	if (end > pending->end && session->uid < HUNGRY)
		n_tokens[session->uid] += end - pending->end;
	pending->end = end > pending->end ? end : pending->end;
}

/* Which request its session is to start next, of each class. */
static void note_turns(struct session *session)
{
	struct pending *first[MIMEO_CLASS_BATCH + 1] = {NULL};

	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct pending *p = &session->pending[i];

		if (p->used && !p->ran && (!first[p->class] || p->order < first[p->class]->order))
			first[p->class] = p;
	}
	for (uint32_t i = 0; i <= MIMEO_CLASS_BATCH; i++) {
		if (first[i] && !first[i]->is_next) {
			first[i]->is_next = true;
			first[i]->turn = n_steps;
		}
	}
}

/* ---- submissions ---- */

/* For a request on an open sequence: the model's, or one that fixes the sequence. */
static struct mimeo_mask draw_mask(const struct session *session)
{
	const bool own = session->uid < load->fixers && draw(3) == 0;

	return own ? (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = LENGTH} : (struct mimeo_mask){0};
}

static struct pending *take_pending(struct session *session, uint32_t *ret)
{
	for (uint32_t i = 0; i < ENTRIES - 1; i++) {
		if (session->pending[i].used)
			continue;
		*ret = i;
		return &session->pending[i];
	}
	return NULL;
}

static void post(struct session *session, struct pending *pending, uint32_t class, struct rig_request request)
{
	pending->used = true;
	pending->ran = request.sqe.op != RING_OP_GENERATE && request.sqe.op != RING_OP_STEP;
	pending->op = request.sqe.op;
	pending->request = request;
	pending->class = class;
	pending->is_next = false;
	pending->end = 0;
	pending->order = ++n_submitted;
	session->results[request.index] = (struct rig_result){0};
	session->n_pending++;
	rig_submit(&session->client, request);
}

static void submit_generate(struct session *session, uint32_t sequence)
{
	struct msg_generate msg = {0};
	struct pending *pending;
	uint32_t index;

	pending = take_pending(session, &index);
	if (!pending)
		return;
	pending->n_ids = draw_length(300);
	for (uint32_t i = 0; i < pending->n_ids; i++)
		pending->ids[i] = 3 + (int32_t)(i < 64 && draw(8) ? i + session->uid % 3 : draw(200));
	pending->sequence = sequence;
	msg = rig_greedy(pending->n_ids, draw(100) ? draw_length(LENGTH / 3) : 0);
	msg.sequence = sequence;
	msg.flags = draw(2) ? MIMEO_GENERATE_IGNORE_EOS : 0;
	msg.deadline_ms = draw(50) ? 0 : 1 + (uint32_t)draw(2000);
	msg.first_token_ms = draw(50) ? 0 : 1 + (uint32_t)draw(1000);
	msg.request_class = draw(4) ? MIMEO_CLASS_NORMAL : 1 + (uint32_t)draw(2);
	if (sequence) {
		session->sequences[sequence - 1].busy = true;
		msg.mask = draw_mask(session);
	}
	session->client.used = index * AREA;
	post(session, pending, msg.request_class, rig_generate(&session->client, index, pending->ids, pending->n_ids, &msg));
}

static void submit_step(struct session *session, uint32_t sequence)
{
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	struct msg_row row;
	struct pending *pending;
	uint32_t index;

	pending = take_pending(session, &index);
	if (!pending)
		return;
	pending->n_ids = draw_length(100);
	for (uint32_t i = 0; i < pending->n_ids; i++)
		pending->ids[i] = 3 + (int32_t)draw(200);
	pending->sequence = sequence;
	msg.mask = draw_mask(session);
	session->sequences[sequence - 1].busy = true;
	row = (struct msg_row){sequence, pending->n_ids};
	session->client.used = index * AREA;
	post(session, pending, MIMEO_CLASS_NORMAL, rig_step(&session->client, index, &msg, &row, pending->ids));
}

static void submit_call(struct session *session, unsigned op, uint32_t sequence, uint32_t argument)
{
	struct pending *pending;
	uint32_t index;

	pending = take_pending(session, &index);
	if (!pending)
		return;
	pending->sequence = sequence;
	pending->argument = argument;
	session->sequences[sequence - 1].busy = true;
	if (op == RING_OP_FORK)
		session->sequences[argument - 1].busy = true;
	post(session, pending, MIMEO_CLASS_NORMAL, rig_call(&session->client, index, op, sequence, argument));
}

static void submit_cancel(struct session *session)
{
	const uint32_t at = (uint32_t)draw(ENTRIES - 1);
	struct pending *pending = &session->pending[ENTRIES - 1];

	if (session->pending[at].used && draw(2)) {
		ring_cancel(&session->client.region.ring, at, session->pending[at].request.sqe.generation);
		return;
	}
	if (pending->used || !session->pending[at].used || session->pending[at].op == RING_OP_CANCEL)
		return;
	pending->used = true;
	pending->ran = true;
	pending->op = RING_OP_CANCEL;
	session->results[ENTRIES - 1] = (struct rig_result){0};
	session->n_pending++;
	rig_cancel(&session->client, ENTRIES - 1, &session->pending[at].request);
}

static void submit_call_of_any(struct session *session, uint32_t sequence)
{
	struct history *h = &session->sequences[sequence - 1];
	const uint32_t other = 1 + (uint32_t)draw(SEQUENCES);
	const uint64_t what = draw(4);

	if (what == 0 && other != sequence && !session->sequences[other - 1].open &&
		!session->sequences[other - 1].busy)
		submit_call(session, RING_OP_FORK, sequence, other);
	else if (what == 1)
		submit_call(session, RING_OP_TRUNCATE, sequence, (uint32_t)draw(h->n + 1));
	else if (what == 2)
		submit_call(session, RING_OP_CLOSE, sequence, 0);
	else
		submit_step(session, sequence);
}

static void submit(struct session *session)
{
	const uint32_t sequence = 1 + (uint32_t)draw(SEQUENCES);
	struct history *h = &session->sequences[sequence - 1];
	const uint64_t what = draw(100);

	if (what < 3)
		submit_cancel(session);
	else if (what < 70 || h->busy)
		submit_generate(session, 0);
	else if (!h->open)
		submit_call(session, RING_OP_OPEN, sequence, 0);
	else if (what < 85)
		submit_generate(session, sequence);
	else
		submit_call_of_any(session, sequence);
}

/* ---- ends ---- */

/* The tokens that the request left in its sequence; returns the history with them. */
static void end_tokens(struct session *session, struct pending *p, const struct rig_result *result)
{
	struct history none = {0}, *h = p->sequence ? &session->sequences[p->sequence - 1] : &none;
	const int32_t *out = rig_tokens(&session->client, &p->request);

	if (p->sequence)
		h->busy = false;
	if (result->n_sequence == h->n || (!p->sequence && !result->n_generated && result->status))
		return;
	/* Cancelled before the engine took it. */
	if (result->status == MIMEO_E_CANCELLED && !result->n_sequence && !result->n_prompt)
		return;
	assert_true(h->n + p->n_ids <= LENGTH);
	memcpy(h->ids + h->n, p->ids, p->n_ids * sizeof(*p->ids));
	h->n += p->n_ids;
	if (p->op == RING_OP_GENERATE) {
		dry_follow(dry_hash(DRY_SEED, h->ids, h->n), out, result->n_generated);
		memcpy(h->ids + h->n, out, result->n_generated * sizeof(*out));
		h->n += result->n_generated;
	} else if (!result->status) {
		assert_int_equal(out[0], dry_sample(dry_hash(DRY_SEED, h->ids, h->n)));
	}
	assert_int_equal(h->n, result->n_sequence);
}

static void end_call(struct session *session, const struct pending *p, const struct rig_result *result)
{
	struct history *h = &session->sequences[p->sequence - 1];

	h->busy = false;
	if (p->op == RING_OP_FORK)
		session->sequences[p->argument - 1].busy = false;
	if (result->status)
		return;
	if (p->op == RING_OP_OPEN || p->op == RING_OP_CLOSE) {
		h->open = p->op == RING_OP_OPEN;
		h->n = 0;
	}
	if (p->op == RING_OP_TRUNCATE)
		h->n = p->argument;
	if (p->op == RING_OP_FORK) {
		struct history *child = &session->sequences[p->argument - 1];

		child->open = true;
		child->n = h->n;
		memcpy(child->ids, h->ids, h->n * sizeof(*h->ids));
	}
}

static void take_ends(struct session *session)
{
	if (!rig_poll(&session->client, session->results))
		return;
	for (uint32_t i = 0; i < ENTRIES; i++) {
		struct pending *p = &session->pending[i];
		const struct rig_result *result = &session->results[i];

		if (!p->used || !result->done)
			continue;
		p->used = false;
		session->n_pending--;
		n_statuses[-result->status]++;
		assert_true(result->status == 0 || result->status == MIMEO_E_CANCELLED ||
			result->status == MIMEO_E_DEADLINE || result->status == MIMEO_E_TOO_LONG ||
			(result->status == MIMEO_E_QUOTA && session->uid < load->fixers) ||
			(p->op == RING_OP_CANCEL && result->status == MIMEO_E_UNKNOWN_REQUEST));
		if (p->op == RING_OP_GENERATE || p->op == RING_OP_STEP)
			end_tokens(session, p, result);
		else if (p->op != RING_OP_CANCEL)
			end_call(session, p, result);
	}
}

/* ---- sessions ---- */

static void come(struct session *session, uint32_t uid)
{
	memset(session, 0, sizeof(*session));
	session->uid = uid;
	session->attached = true;
	dry_attach(&dry, &session->client, ENTRIES, uid, uid < HUNGRY ? weights[uid] : 1 + uid % 3);
}

/* In the middle of whatever it has. */
static void go(struct session *session)
{
	const struct engine_port *port = session->client.port;

	assert_int_equal(engine_post_detach(dry.engine, session->client.port), 0);
	while (port->engine_private && ((const struct engine_session *)port->engine_private)->source)
		engine_turn(dry.engine);
	for (bool left = false; !left;) {
		left = true;
		for (uint32_t i = 0; i < dry.engine->accounting.n_sessions; i++)
			left &= dry.engine->accounting.sessions[i]->port != port;
		if (left)
			break;
		if (!engine_turn(dry.engine))
			dry_end_step(&dry);
	}
	rig_detached(&session->client);
	session->attached = false;
}

static void change_sessions(void)
{
	struct session *session = &sessions[HUNGRY + draw(SESSIONS - HUNGRY)];

	if (!session->attached)
		come(session, HUNGRY + (uint32_t)(draw(4) ? draw(USERS - HUNGRY) : draw(20)));
	else
		go(session);
}

/* ---- the run ---- */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : otherwise;
}

static void end_window(void)
{
	double least = 1e18, most = 0;

	for (uint32_t i = 0; i < HUNGRY; i++) {
		const double n = (double)(n_tokens[i] - n_tokens_before[i]) / weights[i];

		least = n < least ? n : least;
		most = n > most ? n : most;
		n_tokens_before[i] = n_tokens[i];
	}
	n_windows++;
	if (most / least > worst_share)
		worst_share = most / least;
}

static void clients_act(uint64_t n_requests)
{
	for (uint32_t i = 0; i < SESSIONS; i++) {
		struct session *session = &sessions[i];

		if (!session->attached)
			continue;
		take_ends(session);
		while (i < HUNGRY && session->n_pending < 16 && n_submitted < n_requests)
			submit(session);
		if (i >= HUNGRY && draw(60) == 0) {
			for (uint64_t n = draw(8); n && n_submitted < n_requests; n--)
				submit(session);
		}
		note_turns(session);
	}
}

static void report(void)
{
	const struct runner *runner = dry.rig.runner;

	printf("# %lu requests, %lu steps, %lu rows; longest wait %lu steps (batch requests: %lu), weight %lu; worst share "
		"%.2f in %lu windows; %lu preempted, %lu evicted, %lu cached tokens, %lu pages pinned at most\n",
		(unsigned long)n_submitted, (unsigned long)n_steps, (unsigned long)dry.n_rows,
		(unsigned long)MAX(longest_wait[MIMEO_CLASS_NORMAL], longest_wait[MIMEO_CLASS_INTERACTIVE]),
		(unsigned long)longest_wait[MIMEO_CLASS_BATCH], (unsigned long)most_weight, worst_share,
		(unsigned long)n_windows, (unsigned long)runner->n_preempted, (unsigned long)runner->n_evicted,
		(unsigned long)runner->n_cached_tokens, (unsigned long)most_pinned);
	for (uint32_t i = 0; i < 256; i++) {
		if (n_statuses[i])
			printf("# status -%u: %lu\n", i, (unsigned long)n_statuses[i]);
	}
}

static void begin(const struct load *of)
{
	load = of;
	seed = number_of("MIMEO_SEED", 1);
	memset(sessions, 0, sizeof(sessions));
	memset(longest_wait, 0, sizeof(longest_wait));
	memset(n_statuses, 0, sizeof(n_statuses));
	memset(n_tokens, 0, sizeof(n_tokens));
	memset(n_tokens_before, 0, sizeof(n_tokens_before));
	n_steps = n_submitted = n_windows = most_pinned = most_weight = 0;
	worst_share = 0;
	dry_open(&dry, &(struct rig_options){.max_requests = SLOTS, .max_batch_tokens = BATCH, .kv_pages = load->pages,
		.max_seq_len = LENGTH, .prefix_sharing = ENGINE_PREFIX_USER, .attention = "flex",
		.window = load->window, .full_every = 2});
	dry.on_row = on_row;
	dry.check_every = CHECK_TURNS;
	for (uint32_t i = 0; i < HUNGRY; i++)
		come(&sessions[i], i);
}

static void turn(void)
{
	dry.n_turns++;
	engine_turn(dry.engine);
	most_pinned = MAX(most_pinned, dry.rig.runner->slots.pinned.n_pages);
	most_weight = MAX(most_weight, dry.engine->accounting.active_weight);
	if (draw(3) && dry_end_step(&dry)) {
		dry_now_ns += STEP_NS;
		if (++n_steps % WINDOW == 0)
			end_window();
	}
}

static void all_go(void)
{
	for (uint32_t i = 0; i < SESSIONS; i++) {
		if (!sessions[i].attached)
			continue;
		dry_settle(&dry);
		take_ends(&sessions[i]);
		go(&sessions[i]);
	}
}

static void run(const struct load *of, uint64_t n_requests)
{
	begin(of);
	while (n_submitted < n_requests) {
		clients_act(n_requests);
		if (draw(200) == 0)
			change_sessions();
		turn();
	}
	all_go();
	report();
	assert_true(dry.rig.runner->n_preempted > n_requests / 100 && dry.rig.runner->n_evicted > n_requests / 1000);
	if (n_windows && worst_share > 1.25)
		fail_msg("tokens by weight of users who always had some to compute: %.2f", worst_share);
}

static void test_scheduler_keeps_its_promises_with_few_pages(void **state)
{
	run(&(struct load){.pages = 34}, number_of("MIMEO_SIMULATION", REQUESTS));
	dry_close(&dry);
}

static void test_scheduler_keeps_its_promises_with_pages_that_cannot_be_evicted(void **state)
{
	const struct load pinned = {.pages = 110, .fixers = 2};

	run(&pinned, number_of("MIMEO_SIMULATION", REQUESTS));
	assert_in_range(most_pinned, pinned.pages / 4, pinned.pages * pinned.fixers / (pinned.fixers + 1) + 1);
	assert_true(n_statuses[-MIMEO_E_QUOTA] > 0);
	dry_close(&dry);
}

static void test_scheduler_keeps_its_promises_with_layers_that_give_pages_back(void **state)
{
	/* a step of LENGTH tokens takes 32 pages of each of 3 sets: with fewer it may end for want of them */
	run(&(struct load){.pages = 96, .window = 40}, number_of("MIMEO_SIMULATION", REQUESTS));
	dry_close(&dry);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scheduler_keeps_its_promises_with_few_pages),
		cmocka_unit_test(test_scheduler_keeps_its_promises_with_pages_that_cannot_be_evicted),
		cmocka_unit_test(test_scheduler_keeps_its_promises_with_layers_that_give_pages_back),
	};

	return cmocka_run_group_tests_name("engine simulation", tests, NULL, NULL);
}
