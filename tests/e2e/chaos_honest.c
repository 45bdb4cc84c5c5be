/* SPDX-License-Identifier: MIT */
/* An honest client of test_chaos.c: it does what the library lets it do, in random order. */
#include "tests/e2e/chaos_client.h"

/* ---- what it asks ---- */

/* A request and where it is remembered, or NULL. */
static struct mimeo_request *request_new(struct client *c, struct asked **ret)
{
	struct mimeo_request *request = mimeo_request_get(c->m);
	uint32_t i = 0;

	if (!request)
		return NULL;
	while (i < REQUESTS_MAX && c->asked[i].kind != FREE)
		i++;
	if (i == REQUESTS_MAX) {
		WRONG(c, "more requests than entries");
		mimeo_request_put(request);
		return NULL;
	}
	c->asked[i] = (struct asked){.id = mimeo_request_id(request)};
	mimeo_request_set_data(request, i);
	*ret = &c->asked[i];
	return request;
}

/* Prepared: it goes with the next submit. Or not. */
static bool request_done(struct client *c, struct mimeo_request *request, struct asked *asked, int rc,
	enum kind kind)
{
	if (rc == 0) {
		asked->kind = kind;
		c->n_in_flight++;
		return true;
	}
	if (rc != MIMEO_E_FULL)
		WRONG(c, "prepare: %s: %s", mimeo_status_name(rc), mimeo_request_message(request));
	mimeo_request_put(request);
	return false;
}

/* How many tokens of the stream come, and how it ends. */
static void expect(struct asked *asked, const struct chaos_stream *stream, const struct mimeo_generate *g)
{
	const int32_t *tokens = stream->tokens + asked->rows[0].end;

	asked->n_expected = g->max_tokens;
	asked->finish = MIMEO_FINISH_LENGTH;
	for (uint32_t i = 0; i < g->max_tokens; i++) {
		bool ends = tokens[i] == 2 && !(g->flags & MIMEO_GENERATE_IGNORE_EOS);

		for (uint32_t k = 0; k < g->n_stop; k++)
			ends |= tokens[i] == g->stop[k];
		if (ends) {
			asked->n_expected = i + 1;
			asked->finish = MIMEO_FINISH_STOP;
			return;
		}
	}
}

/* One that is open and idle, or one that is not open; or NULL. */
static struct sequence *draw_sequence(struct client *c, bool open)
{
	uint32_t first = client_draw(c, SEQUENCES_MAX);

	for (uint32_t i = 0; i < SEQUENCES_MAX; i++) {
		struct sequence *sequence = &c->sequences[(first + i) % SEQUENCES_MAX];

		if (open ? sequence->id && !sequence->busy : !sequence->id)
			return sequence;
	}
	return NULL;
}

/* The row appends to a sequence that is open and idle, or begins a stream. False: there is no more of it. */
static bool draw_row(struct client *c, struct row *row, bool on_sequence)
{
	struct sequence *sequence = on_sequence ? draw_sequence(c, true) : NULL;
	const struct chaos_stream *stream;

	if (on_sequence && !sequence)
		return false;
	*row = (struct row){.stream = sequence ? sequence->stream : client_draw(c, CHAOS_STREAMS),
		.begin = sequence ? sequence->at : 0,
		.place = sequence ? (uint32_t)(sequence - c->sequences) : SEQUENCES_MAX,
		.epoch = sequence ? sequence->epoch : 0};
	stream = client_stream(c, row);
	uint32_t least = row->begin + 1 > stream->n_prompt ? row->begin + 1 : stream->n_prompt;
	if (least >= stream->n)
		return false;
	row->end = client_chance(c, 60) ? least : least + client_draw(c, stream->n - least);
	return true;
}

static void generate(struct client *c)
{
	struct mimeo_generate g = MIMEO_GENERATE_INIT;
	struct mimeo_request *request;
	struct asked *asked;
	struct row row;
	int32_t stop;

	if (!draw_row(c, &row, client_chance(c, 30)))
		return;
	const struct chaos_stream *stream = client_stream(c, &row);
	request = request_new(c, &asked);
	if (!request)
		return;
	asked->rows[0] = row;
	asked->n_rows = 1;
	if (row.place < SEQUENCES_MAX)
		g.sequence = c->sequences[row.place].id;
	g.tokens = stream->tokens + row.begin;
	g.n_tokens = row.end - row.begin;
	g.max_tokens = 1 + client_draw(c, stream->n - row.end);
	g.sampling = stream->sampling;
	g.mask = stream->mask;
	g.draft_tokens = chaos_draft_tokens(stream);
	if (client_chance(c, 50))
		g.flags |= MIMEO_GENERATE_IGNORE_EOS;
	if (client_chance(c, 15)) {
		g.flags |= MIMEO_GENERATE_PROMPT_LOGITS;
		asked->prompt_logits = true;
	}
	if (client_chance(c, 15)) {
		stop = stream->tokens[row.end + client_draw(c, stream->n - row.end)];
		g.stop = &stop;
		g.n_stop = 1;
	}
	if (client_chance(c, 15)) {
		g.deadline_ms = 1 + client_draw(c, 200);
		asked->has_deadline = true;
	}
	if (client_chance(c, 10)) {
		g.first_token_ms = 1 + client_draw(c, 400);
		asked->has_deadline = true;
	}
	g.request_class = asked->class = client_draw(c, MIMEO_CLASS_BATCH + 1);
	expect(asked, stream, &g);
	int rc = mimeo_request_prep_generate(request, &g);
	if (request_done(c, request, asked, rc, GENERATE) && row.place < SEQUENCES_MAX)
		c->sequences[row.place].busy = true;
}

static bool same_mask(const struct mimeo_mask *a, const struct mimeo_mask *b)
{
	return a->kind == b->kind && a->window == b->window && a->sinks == b->sinks;
}

/* Rows of one step have one mask, and one sampling: of several, all are greedy. */
static uint32_t draw_rows(struct client *c, struct row *rows)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < ROWS_MAX; i++) {
		const struct row *row = &rows[n];
		bool taken = !draw_row(c, &rows[n], true);

		for (uint32_t k = 0; k < n && !taken; k++)
			taken = rows[k].place == row->place;
		if (!taken && client_chance(c, 20)) /* a part of the prompt, perhaps */
			rows[n].end = row->begin + 1 + client_draw(c, row->end - row->begin);
		if (n > 0 && !taken)
			taken = !same_mask(&client_stream(c, row)->mask, &client_stream(c, &rows[0])->mask);
		if (taken || (n > 0 && (client_stream(c, row)->sampling.temperature > 0 ||
					       client_stream(c, &rows[0])->sampling.temperature > 0)))
			continue;
		n++;
	}
	return n;
}

/* The rows' input is embeddings, which are those of their tokens: at most HISTORY_MAX of each sequence. */
static void embed(struct client *c, struct asked *asked, struct mimeo_step *s)
{
	float *to = c->embeddings_memory;

	for (uint32_t i = 0; i < asked->n_rows; i++) {
		const struct row *row = &asked->rows[i];

		for (uint32_t t = row->begin; t < row->end; t++, to += HIDDEN)
			memcpy(to, c->chaos->table + (size_t)client_stream(c, row)->tokens[t] * HIDDEN,
				HIDDEN * sizeof(*to));
	}
	s->embeddings.buffer = c->embeddings;
	asked->embedded = c->embeddings_busy = true;
}

static void step(struct client *c)
{
	struct mimeo_step s = MIMEO_STEP_INIT;
	struct mimeo_step_row step_rows[ROWS_MAX];
	struct mimeo_request *request;
	struct row rows[ROWS_MAX];
	struct asked *asked;

	s.n_rows = draw_rows(c, rows);
	if (s.n_rows == 0)
		return;
	request = request_new(c, &asked);
	if (!request)
		return;
	for (uint32_t i = 0; i < s.n_rows; i++) {
		asked->rows[i] = rows[i];
		step_rows[i] = (struct mimeo_step_row){
			.sequence = c->sequences[rows[i].place].id,
			.n_tokens = rows[i].end - rows[i].begin,
			.tokens = client_stream(c, &rows[i])->tokens + rows[i].begin,
		};
	}
	asked->n_rows = s.n_rows;
	s.rows = step_rows;
	s.sampling = client_stream(c, &rows[0])->sampling;
	s.mask = client_stream(c, &rows[0])->mask;
	if (c->embeddings && !c->embeddings_busy && client_chance(c, 30))
		embed(c, asked, &s);
	s.request_class = client_draw(c, MIMEO_CLASS_BATCH + 1);
	s.outputs = MIMEO_STEP_TOKENS | (client_chance(c, 30) ? MIMEO_STEP_LOGITS : 0);
	if (s.outputs & MIMEO_STEP_LOGITS && c->buffer) {
		/* Each request has a place of its own. */
		asked->buffer = c->buffer;
		asked->place = (uint32_t)(asked - c->asked) * (BUFFER_BYTES / REQUESTS_MAX);
		if (s.n_rows * c->vocab * sizeof(float) > BUFFER_BYTES / REQUESTS_MAX)
			asked->place = asked->buffer = 0;
		s.logits = (struct mimeo_place){.buffer = asked->buffer, .offset = asked->place};
	}
	if (client_chance(c, 10)) {
		s.deadline_ms = 1 + client_draw(c, 100);
		asked->has_deadline = true;
	}
	int rc = mimeo_request_prep_step(request, &s);
	if (!request_done(c, request, asked, rc, STEP)) {
		c->embeddings_busy &= !asked->embedded;
		return;
	}
	for (uint32_t i = 0; i < asked->n_rows; i++)
		c->sequences[rows[i].place].busy = true;
}

static void cancel(struct client *c)
{
	struct asked *target = &c->asked[client_draw(c, REQUESTS_MAX)], *asked;
	struct mimeo_request *request;

	if (target->kind != GENERATE && target->kind != STEP)
		return;
	if (client_chance(c, 50)) {
		target->cancelled |= mimeo_cancel(c->m, target->id) == 0;
		return;
	}
	request = request_new(c, &asked);
	if (!request)
		return;
	if (request_done(c, request, asked, mimeo_request_prep_cancel(request, target->id), CANCEL))
		target->cancelled = true;
}

/* ---- sequences ---- */

static void open_or_fork(struct client *c)
{
	struct sequence *sequence = draw_sequence(c, false), *parent = draw_sequence(c, true);
	uint32_t id;
	int rc;

	if (!sequence)
		return;
	if (!parent)
		parent = &c->sequences[client_draw(c, SEQUENCES_MAX)];
	sequence->forked = parent->id && parent->at > 0 && client_chance(c, 70);
	if (sequence->forked) {
		rc = mimeo_sequence_fork(c->m, parent->id, &id);
		sequence->stream = parent->stream;
		sequence->at = parent->at;
	} else {
		do {
			sequence->stream = client_draw(c, CHAOS_STREAMS);
		} while (c->chaos->streams[sequence->stream].n > HISTORY_MAX);
		sequence->at = 0;
		rc = mimeo_sequence_open(c->m, 0, &id);
	}
	if (rc == MIMEO_E_FULL || rc == MIMEO_E_QUOTA)
		return;
	if (rc != 0) {
		WRONG(c, "open or fork: %s", mimeo_status_name(rc));
		return;
	}
	sequence->id = id;
	sequence->epoch++;
	/* What the parent runs comes before the fork, and may fail. If no entry is free it is not used. */
	sequence->busy = sequence->forked && parent->busy && mimeo_sequence_truncate(c->m, id, parent->at) != 0;
}

/* Also while a request runs on it: the cut follows it. */
static void cut(struct client *c)
{
	struct sequence *sequence = &c->sequences[client_draw(c, SEQUENCES_MAX)];

	if (!sequence->id)
		return;
	uint32_t keep = client_draw(c, sequence->at + 1);
	int rc = mimeo_sequence_truncate(c->m, sequence->id, keep);
	if (rc == 0) {
		sequence->at = keep;
		sequence->busy = false;
		sequence->epoch++;
	} else if (rc != MIMEO_E_FULL) {
		WRONG(c, "truncate: %s", mimeo_status_name(rc));
	}
}

static void close_one(struct client *c, struct sequence *sequence)
{
	if (!sequence->id)
		return;
	int rc = mimeo_sequence_close(c->m, sequence->id);
	if (rc == 0)
		sequence->id = 0;
	else if (rc != MIMEO_E_FULL)
		WRONG(c, "close: %s", mimeo_status_name(rc));
}

/* ---- buffers ---- */

static bool buffer_is_named(const struct client *c)
{
	for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
		if (c->asked[i].kind == STEP && c->asked[i].buffer)
			return true;
	}
	return false;
}

static void submit(struct client *c)
{
	int rc = mimeo_submit(c->m);

	if (rc < 0)
		WRONG(c, "submit: %s", mimeo_status_name(rc));
}

static void buffers(struct client *c)
{
	void *memory;
	int rc = 0;

	submit(c);
	if (!c->buffer) {
		rc = mimeo_buffer_alloc(c->m, 0, BUFFER_BYTES, &c->buffer);
		if (rc == MIMEO_E_QUOTA)
			return;
		if (rc == 0)
			rc = mimeo_buffer_map(c->m, c->buffer, &memory);
		if (rc == 0)
			c->buffer_memory = memory;
	} else if (client_chance(c, 30) || !buffer_is_named(c)) {
		/* If requests name it they go on, and nobody sees their logits. */
		rc = mimeo_buffer_close(c->m, c->buffer);
		for (uint32_t i = 0; i < REQUESTS_MAX; i++)
			c->asked[i].buffer = c->asked[i].buffer ? BUFFER_CLOSED : 0;
		c->buffer = 0;
		c->buffer_memory = NULL;
	}
	if (rc != 0)
		WRONG(c, "buffer: %s: %s", mimeo_status_name(rc), mimeo_buffer_message(c->m));
}

static void embeddings(struct client *c)
{
	void *memory;

	if (c->embeddings || !c->chaos->table)
		return;
	submit(c);
	int rc = mimeo_buffer_alloc(c->m, 0, EMBEDDINGS_BYTES, &c->embeddings);
	if (rc == MIMEO_E_QUOTA)
		return;
	if (rc == 0)
		rc = mimeo_buffer_map(c->m, c->embeddings, &memory);
	if (rc == 0)
		c->embeddings_memory = memory;
	else
		WRONG(c, "buffer: %s: %s", mimeo_status_name(rc), mimeo_buffer_message(c->m));
}

/* ---- its life ---- */

static bool attach(struct client *c)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char why[256] = "";

	config.socket_path = c->chaos->socket;
	config.entries = 2u << client_draw(c, 6);
	config.arena_bytes = 65536u << client_draw(c, 5);
	config.spin_us = 0;
	config.connect_timeout_ms = PATIENCE_MS;
	config.message = why;
	config.message_size = sizeof(why);
	/* A process that stands still for seconds may be late for its own HELLO. */
	while (mimeo_connect(&c->m, &config) != 0) {
		atomic_fetch_add(&c->chaos->n_not_attached, 1);
		if (atomic_load(&c->chaos->stop))
			return false;
		pause_ms(50);
	}
	atomic_fetch_add(&c->chaos->n_attached, 1);
	c->n_entries = config.entries;
	c->n_in_flight = 0;
	c->buffer = c->embeddings = 0;
	c->embeddings_busy = false;
	c->vocab = mimeo_model_get(c->m, 0)->vocab_size;
	memset(c->asked, 0, sizeof(c->asked));
	memset(c->sequences, 0, sizeof(c->sequences));
	return true;
}

static void flood(struct client *c)
{
	for (uint32_t i = 0, before = UINT32_MAX; i < 2 * c->n_entries && before != c->n_in_flight; i++) {
		before = c->n_in_flight;
		generate(c);
	}
}

static void act(struct client *c)
{
	uint32_t what = client_draw(c, 100);

	if (what < 30)
		generate(c);
	else if (what < 50)
		step(c);
	else if (what < 62)
		open_or_fork(c);
	else if (what < 67)
		cut(c);
	else if (what < 72)
		close_one(c, &c->sequences[client_draw(c, SEQUENCES_MAX)]);
	else if (what < 78)
		cancel(c);
	else if (what < 80)
		buffers(c);
	else if (what < 81)
		c->deaf_until = now_ms() + client_draw(c, 300);
	else if (what < 82)
		flood(c);
	else if (what < 84)
		embeddings(c);
	if (client_chance(c, 60))
		submit(c);
	if (now_ms() < c->deaf_until)
		pause_ms(1);
	else
		client_take(c, client_chance(c, 50) ? 0 : (int)client_draw(c, 30));
}

/* All that was asked is answered. */
static void finish(struct client *c)
{
	uint64_t until = now_ms() + CHAOS_PATIENCE_MS;

	for (uint32_t i = 0; i < SEQUENCES_MAX; i++)
		close_one(c, &c->sequences[i]);
	submit(c);
	while (c->n_in_flight > 0 && !c->over) {
		if (client_take(c, 1000)) {
			until = now_ms() + CHAOS_PATIENCE_MS;
			/* If no entry was free before. */
			for (uint32_t i = 0; i < SEQUENCES_MAX; i++)
				close_one(c, &c->sequences[i]);
			submit(c);
		} else if (now_ms() > until && !c->over) {
			WRONG(c, "%u requests without an answer", c->n_in_flight);
		}
	}
}

int chaos_honest(struct chaos *chaos, uint64_t seed)
{
	struct client *c = calloc(1, sizeof(*c));

	if (!c)
		return 1;
	*c = (struct client){.chaos = chaos, .seed = seed, .state = seed};
	while (!atomic_load(&chaos->stop) && !c->over) {
		if (!attach(c))
			break;
		uint32_t n = 100 + client_draw(c, 5000);
		while (n-- > 0 && !atomic_load(&chaos->stop) && !c->over)
			act(c);
		/* Now and then it leaves in the middle of it. */
		if (atomic_load(&chaos->stop) || client_chance(c, 50))
			finish(c);
		mimeo_close(c->m);
	}
	int rc = c->over;
	free(c);
	return rc;
}
