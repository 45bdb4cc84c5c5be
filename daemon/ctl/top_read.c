/* SPDX-License-Identifier: MIT */
/* From the daemon's answers to rows. */
#include "daemon/ctl/top_rows.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "daemon/ctl/users.h"
#include "ipc/clock.h"

/* ---- reading ---- */

static int top_ask(int fd, const char *op, struct answer **ret)
{
	int rc = ask_once(fd, &(struct ask){.op = op}, ret);

	if (rc < 0 || (*ret)->status >= 0)
		return rc;
	return (*ret)->status == MIMEO_E_UNSUPPORTED ? -EOPNOTSUPP : -EPROTO;
}

int top_read(int fd, struct top_reading *ret)
{
	*ret = (struct top_reading){.ns = clock_ns()};
	char state[16];

	int rc = top_ask(fd, "status", &ret->status);
	if (rc < 0)
		return rc;
	answer_text(ret->status, 0, "state", state, sizeof(state));
	if (strcmp(state, "loading") == 0) /* it answers nothing else, and closes the connection */
		rc = -EPROTO;
	if (rc == 0)
		rc = top_ask(fd, "models", &ret->models);
	if (rc == 0)
		rc = top_ask(fd, "sessions", &ret->sessions);
	if (rc == 0)
		rc = top_ask(fd, "requests", &ret->requests);
	return rc;
}

void top_reading_deinit(struct top_reading *reading)
{
	answer_free(reading->status);
	answer_free(reading->models);
	answer_free(reading->sessions);
	answer_free(reading->requests);
	*reading = (struct top_reading){0};
}

/* ---- differences ---- */

#define TOP_NO_ROW SIZE_MAX

static double top_number(const struct answer *answer, size_t row, const char *key)
{
	const msgpack_object *cell = answer_cell(answer, row, key);

	if (cell && cell->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
		return (double)cell->via.u64;
	return cell && (cell->type == MSGPACK_OBJECT_FLOAT64 || cell->type == MSGPACK_OBJECT_FLOAT32) ? cell->via.f64
												       : 0;
}

/* A row now, and the same thing's row before (TOP_NO_ROW: it was not there), so many seconds ago. */
struct top_change {
	const struct answer *before, *now;
	size_t row_before, row;
	double seconds;
};

static double top_difference(const struct top_change *change, const char *key)
{
	const double before = change->row_before == TOP_NO_ROW ? 0
		: top_number(change->before, change->row_before, key);

	return fmax(0, top_number(change->now, change->row, key) - before);
}

static double top_part(double part, double whole)
{
	return whole > 0 ? part / whole : NAN;
}

static double top_rate(const struct top_change *change, const char *key)
{
	return top_part(top_difference(change, key), change->seconds);
}

/* First tokens, and the time between the others. */
static void top_set_times(struct top_row *row, const struct top_change *change, const char *tokens)
{
	const double firsts = top_difference(change, "first_tokens");

	row->numbers[TOP_F_FIRST] = top_part(top_difference(change, "first_token_s"), firsts);
	row->numbers[TOP_F_TOKEN] =
		top_part(top_difference(change, "between_tokens_s"), top_difference(change, tokens) - firsts);
}

/* ---- rows ---- */

static struct top_row *top_add(struct top_rows *rows, enum top_kind kind)
{
	static const char *const kinds[] = {"device", "model", "user", "session", "request"};

	if (rows->n == rows->capacity) {
		const size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
		struct top_row *more = reallocarray(rows->rows, capacity, sizeof(*more));

		if (!more)
			return NULL;
		rows->rows = more;
		rows->capacity = capacity;
	}
	struct top_row *row = &rows->rows[rows->n++];
	*row = (struct top_row){.kind = kind};
	snprintf(row->texts[TOP_F_KIND], sizeof(row->texts[TOP_F_KIND]), "%s", kinds[kind]);
	for (int i = N_TOP_TEXTS; i < N_TOP_FIELDS; i++)
		row->numbers[i] = NAN;
	return row;
}

static void top_take_text(struct top_row *row, enum top_field field, const struct top_change *change, const char *key)
{
	answer_text(change->now, change->row, key, row->texts[field], sizeof(row->texts[field]));
}

static void top_take_user(struct top_row *row, const struct top_change *change)
{
	const uint64_t uid = answer_count(change->now, change->row, "uid", UINT64_MAX);

	if (uid <= UINT32_MAX)
		users_name((uid_t)uid, row->texts[TOP_F_OWNER], sizeof(row->texts[TOP_F_OWNER]));
}

static int top_add_device(struct top_rows *rows, const struct top_change *change)
{
	struct top_row *row = top_add(rows, TOP_DEVICE);

	if (!row)
		return -ENOMEM;
	top_take_text(row, TOP_F_NAME, change, "device");
	top_take_text(row, TOP_F_STATE, change, "state");
	row->numbers[TOP_F_SESSIONS] = top_number(change->now, 0, "sessions");
	row->numbers[TOP_F_BUSY] = fmin(1, top_rate(change, "device_busy_s"));
	if (answer_count(change->now, 0, "device_used_bytes", 0)) /* 0: the device is the host */
		row->numbers[TOP_F_MEMORY] = top_number(change->now, 0, "device_used_bytes");
	row->numbers[TOP_F_TOKENS_S] = top_rate(change, "tokens_out");
	row->numbers[TOP_F_PROMPT_S] = fmax(0, top_rate(change, "tokens_in") - top_rate(change, "tokens_out"));
	row->numbers[TOP_F_STEPS_S] = top_rate(change, "steps");
	row->numbers[TOP_F_BATCH] = top_part(top_difference(change, "rows"), top_difference(change, "steps"));
	row->numbers[TOP_F_GRAPHS] = top_part(top_difference(change, "replays"), top_difference(change, "steps"));
	row->numbers[TOP_F_RUNNING] = top_number(change->now, 0, "running");
	row->numbers[TOP_F_WAITING] = top_number(change->now, 0, "waiting");
	row->numbers[TOP_F_PAGES] =
		top_number(change->now, 0, "pages_total") - top_number(change->now, 0, "pages_free");
	return 0;
}

/* How many requests of the model run, and how many wait. */
static void top_count_requests(struct top_row *row, const struct answer *requests)
{
	char model[64], state[16];
	double n_running = 0, n_waiting = 0;

	for (size_t i = 0; i < requests->n_rows; i++) {
		if (strcmp(answer_text(requests, i, "model", model, sizeof(model)), row->texts[TOP_F_NAME]) != 0)
			continue;
		answer_text(requests, i, "state", state, sizeof(state));
		if (strcmp(state, "queued") == 0 || strcmp(state, "preempted") == 0)
			n_waiting++;
		else
			n_running++;
	}
	row->numbers[TOP_F_RUNNING] = n_running;
	row->numbers[TOP_F_WAITING] = n_waiting;
}

static int top_add_model(struct top_rows *rows, const struct top_change *change, const struct answer *requests)
{
	const double steps = top_difference(change, "steps");
	struct top_row *row = top_add(rows, TOP_MODEL);

	if (!row)
		return -ENOMEM;
	top_take_text(row, TOP_F_NAME, change, "name");
	top_count_requests(row, requests);
	row->numbers[TOP_F_TOKENS_S] = top_rate(change, "tokens_out");
	row->numbers[TOP_F_STEPS_S] = top_rate(change, "steps");
	row->numbers[TOP_F_BATCH] = top_part(top_difference(change, "rows"), steps);
	row->numbers[TOP_F_GRAPHS] = top_part(steps - top_difference(change, "eager_steps"), steps);
	top_set_times(row, change, "tokens_out");
	row->numbers[TOP_F_PAGES] = top_number(change->now, change->row, "pages_total") -
		top_number(change->now, change->row, "pages_free");
	return 0;
}

static int top_add_session(struct top_rows *rows, const struct top_change *change)
{
	const double cached = top_difference(change, "cached_tokens");
	const double n_prompt = top_difference(change, "prompt_tokens");
	struct top_row *row = top_add(rows, TOP_SESSION);

	if (!row)
		return -ENOMEM;
	top_take_text(row, TOP_F_NAME, change, "name");
	top_take_text(row, TOP_F_STATE, change, "state");
	top_take_user(row, change);
	row->numbers[TOP_F_ID] = top_number(change->now, change->row, "id");
	row->numbers[TOP_F_PID] = top_number(change->now, change->row, "pid");
	row->numbers[TOP_F_TOKENS_S] = top_rate(change, "tokens");
	row->numbers[TOP_F_PROMPT_S] = top_rate(change, "prompt_tokens");
	top_set_times(row, change, "tokens");
	row->numbers[TOP_F_WAITING] = top_number(change->now, change->row, "waiting");
	row->numbers[TOP_F_RUNNING] =
		fmax(0, top_number(change->now, change->row, "in_flight") - row->numbers[TOP_F_WAITING]);
	row->numbers[TOP_F_PAGES] = top_number(change->now, change->row, "pages");
	row->numbers[TOP_F_CACHED] = top_part(cached, fmax(cached, n_prompt));
	row->numbers[TOP_F_TOKENS] = top_number(change->now, change->row, "tokens");
	row->numbers[TOP_F_AGE] = top_number(change->now, change->row, "age_s");
	return 0;
}

static int top_add_request(struct top_rows *rows, const struct top_change *change)
{
	struct top_row *row = top_add(rows, TOP_REQUEST);

	if (!row)
		return -ENOMEM;
	top_take_text(row, TOP_F_NAME, change, "model");
	top_take_text(row, TOP_F_STATE, change, "state");
	top_take_user(row, change);
	row->numbers[TOP_F_ID] = top_number(change->now, change->row, "id");
	row->numbers[TOP_F_PID] = top_number(change->now, change->row, "pid");
	row->numbers[TOP_F_SESSION] = top_number(change->now, change->row, "session");
	row->numbers[TOP_F_TOKENS] = top_number(change->now, change->row, "tokens");
	row->numbers[TOP_F_TOKENS_S] = top_rate(change, "tokens");
	row->numbers[TOP_F_AGE] = top_number(change->now, change->row, "age_s");
	return 0;
}

static struct top_row *top_find_user(struct top_rows *rows, const char *user)
{
	for (size_t i = 0; i < rows->n; i++) {
		if (rows->rows[i].kind == TOP_USER && strcmp(rows->rows[i].texts[TOP_F_OWNER], user) == 0)
			return &rows->rows[i];
	}
	return NULL;
}

static void top_add_number(struct top_row *row, enum top_field field, double more)
{
	row->numbers[field] = isnan(row->numbers[field]) ? more : row->numbers[field] + more;
}

/* A session's part in its user's row. */
static int top_add_to_user(struct top_rows *rows, const struct top_change *change)
{
	const double firsts = top_difference(change, "first_tokens"), tokens = top_difference(change, "tokens");
	char user[64];

	users_name((uid_t)answer_count(change->now, change->row, "uid", 0), user, sizeof(user));
	struct top_row *row = top_find_user(rows, user);
	if (!row)
		row = top_add(rows, TOP_USER);
	if (!row)
		return -ENOMEM;
	snprintf(row->texts[TOP_F_OWNER], sizeof(row->texts[TOP_F_OWNER]), "%s", user);
	const double waiting = top_number(change->now, change->row, "waiting");
	top_add_number(row, TOP_F_SESSIONS, 1);
	top_add_number(row, TOP_F_TOKENS_S, top_rate(change, "tokens"));
	top_add_number(row, TOP_F_PROMPT_S, top_rate(change, "prompt_tokens"));
	top_add_number(row, TOP_F_WAITING, waiting);
	top_add_number(row, TOP_F_RUNNING, fmax(0, top_number(change->now, change->row, "in_flight") - waiting));
	top_add_number(row, TOP_F_PAGES, top_number(change->now, change->row, "pages"));
	/* Sums over the user's sessions, which top_finish_users divides. */
	row->n_firsts += firsts;
	row->n_others += tokens - firsts;
	top_add_number(row, TOP_F_FIRST, top_difference(change, "first_token_s"));
	top_add_number(row, TOP_F_TOKEN, top_difference(change, "between_tokens_s"));
	return 0;
}

static void top_finish_users(struct top_rows *rows)
{
	for (size_t i = 0; i < rows->n; i++) {
		struct top_row *row = &rows->rows[i];

		if (row->kind != TOP_USER)
			continue;
		row->numbers[TOP_F_FIRST] = top_part(row->numbers[TOP_F_FIRST], row->n_firsts);
		row->numbers[TOP_F_TOKEN] = top_part(row->numbers[TOP_F_TOKEN], row->n_others);
	}
}

/* ---- all of them ---- */

/* The row with the same text or number under the key. */
static size_t top_find_row(const struct answer *answer, const char *key, const struct answer *like, size_t row)
{
	char name[64], other[64];

	answer_text(like, row, key, name, sizeof(name));
	for (size_t i = 0; i < answer->n_rows; i++) {
		if (answer_count(answer, i, key, 0) == answer_count(like, row, key, 0) &&
			strcmp(answer_text(answer, i, key, other, sizeof(other)), name) == 0)
			return i;
	}
	return TOP_NO_ROW;
}

/* Calls `add` for each row of the answer. */
static int top_add_each(struct top_rows *rows, const struct answer *before, const struct answer *now, const char *key,
	double seconds, int (*add)(struct top_rows *rows, const struct top_change *change))
{
	int rc = 0;

	for (size_t i = 0; i < now->n_rows && rc == 0; i++) {
		const struct top_change change = {before, now, top_find_row(before, key, now, i), i, seconds};

		rc = add(rows, &change);
	}
	return rc;
}

int top_rows_make(struct top_rows *ret, const struct top_reading *before, const struct top_reading *now)
{
	const double seconds = (double)(now->ns - before->ns) * 1e-9;
	const struct top_change device = {before->status, now->status, 0, 0, seconds};

	*ret = (struct top_rows){0};
	int rc = top_add_device(ret, &device);
	for (size_t i = 0; i < now->models->n_rows && rc == 0; i++) {
		const struct top_change change = {before->models, now->models,
			top_find_row(before->models, "name", now->models, i), i, seconds};

		rc = top_add_model(ret, &change, now->requests);
	}
	if (rc == 0)
		rc = top_add_each(ret, before->sessions, now->sessions, "id", seconds, top_add_to_user);
	if (rc == 0)
		rc = top_add_each(ret, before->sessions, now->sessions, "id", seconds, top_add_session);
	if (rc == 0)
		rc = top_add_each(ret, before->requests, now->requests, "id", seconds, top_add_request);
	top_finish_users(ret);
	return rc;
}

void top_rows_deinit(struct top_rows *rows)
{
	free(rows->rows);
	*rows = (struct top_rows){0};
}
