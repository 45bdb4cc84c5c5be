/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/pinned.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/quota_rule.h"
#include "daemon/engine/requests/engine_session.h"

static uint16_t pinned_user(const struct engine_session *session)
{
	_Static_assert(ENGINE_SESSIONS_MAX < PINNED_NOBODY, "users");
	return (uint16_t)(session->share.user - session->accounting->users);
}

/* The user is charged for so many pages more, that are pinned or promised. */
static void pinned_charge(struct pinned *pinned, uint16_t holder, int64_t n_pages, int64_t n_promised)
{
	struct pinned_user *user = &pinned->users[holder];
	const bool had = user->n_pages || user->n_promised;

	assert(user->n_pages + n_pages >= 0 && user->n_promised + n_promised >= 0);
	user->n_pages += (uint32_t)n_pages;
	user->n_promised += (uint32_t)n_promised;
	pinned->n_promised += (uint32_t)n_promised;
	pinned->n_users += (user->n_pages || user->n_promised) - had;
}

static void pinned_add_page(struct sequence *sequence, uint32_t page)
{
	struct pinned *pinned = &sequence->runner->slots.pinned;
	struct request *request = sequence->request;
	const bool promised = request && request->n_promised;

	if (pinned->n_tables[page]++)
		return;
	pinned->n_pages++;
	pinned->holders[page] = pinned_user(sequence->session);
	pinned_charge(pinned, pinned->holders[page], 1, -(int64_t)promised);
	if (promised)
		request->n_promised--;
}

static void pinned_drop_page(struct pinned *pinned, uint32_t page)
{
	assert(pinned->n_tables[page] && pinned->n_pages);
	if (--pinned->n_tables[page])
		return;
	pinned->n_pages--;
	if (pinned->holders[page] != PINNED_NOBODY)
		pinned_charge(pinned, pinned->holders[page], -1, 0);
}

void pinned_add_behind(struct sequence *sequence, const struct kv_table *before)
{
	const struct runner *runner = sequence->runner;

	for (uint32_t set = 0; set < runner->options.sets.n; set++) {
		const struct kv_range range = kv_table_range(runner->kv, &sequence->table, set);
		const struct kv_range had = kv_table_range(runner->kv, before, set);
		const uint32_t *pages = kv_table_pages(&sequence->table, set);

		for (uint32_t i = range.first > had.end ? range.first : had.end; i < range.end; i++)
			pinned_add_page(sequence, pages[i]);
	}
}

void pinned_add(struct sequence *sequence)
{
	pinned_add_behind(sequence, &(struct kv_table){0});
}

void pinned_drop(struct sequence *sequence, const uint32_t *pages, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		pinned_drop_page(&sequence->runner->slots.pinned, pages[i]);
}

void pinned_drop_all(struct sequence *sequence)
{
	const struct runner *runner = sequence->runner;

	for (uint32_t set = 0; set < runner->options.sets.n; set++) {
		const struct kv_range range = kv_table_range(runner->kv, &sequence->table, set);

		pinned_drop(sequence, kv_table_pages(&sequence->table, set) + range.first, range.end - range.first);
	}
}

void pinned_replace(struct sequence *sequence, uint32_t page, uint32_t copy)
{
	pinned_drop_page(&sequence->runner->slots.pinned, page);
	pinned_add_page(sequence, copy);
}

/* ---- marks ---- */

void pinned_begin_marks(struct slots *slots, uint32_t max_pages)
{
	if (++slots->mark)
		return;
	memset(slots->marks, 0, max_pages * sizeof(*slots->marks));
	slots->mark = 1;
}

uint32_t pinned_mark(struct slots *slots, const struct sequence *sequence)
{
	const struct runner *runner = sequence->runner;
	uint32_t n = 0;

	for (uint32_t set = 0; set < runner->options.sets.n; set++) {
		const struct kv_range range = kv_table_range(runner->kv, &sequence->table, set);

		for (uint32_t i = range.first; i < range.end; i++) {
			const uint32_t page = kv_table_pages(&sequence->table, set)[i];

			n += slots->marks[page] != slots->mark && !slots->pinned.n_tables[page];
			slots->marks[page] = slots->mark;
		}
	}
	return n;
}

/* ---- the quota ---- */

uint64_t pinned_asked(const struct sequence *sequence, uint32_t n_total)
{
	struct kv_table table = sequence->table;
	uint64_t n_new;

	table.keeps = true;
	n_new = kv_pages_needed(
		sequence->runner->kv, &table, sequence->n_computed, n_total - sequence->n_computed);
	return n_new + (sequence->pinned ? 0 : pinned_mark(&sequence->runner->slots, sequence));
}

uint32_t pinned_left_of(const struct runner *runner, uint16_t index)
{
	const struct pinned *pinned = &runner->slots.pinned;
	const struct pinned_user *user = &pinned->users[index];
	const uint64_t total = kv_pages_total(runner->kv);
	const uint64_t used = (uint64_t)pinned->n_pages + pinned->n_promised;
	const uint64_t own = (uint64_t)user->n_pages + user->n_promised;

	/* A page that was charged to another sequence's user may have become this one's since its promise. */
	if (used > total)
		return 0;
	return (uint32_t)quota_rule_left(total, used, own, pinned->n_users);
}

uint32_t pinned_left(const struct request *request)
{
	return pinned_left_of(request->runner, pinned_user(request->session));
}

void pinned_promise(struct request *request, uint32_t n)
{
	pinned_charge(&request->runner->slots.pinned, pinned_user(request->session), 0, n);
	request->n_promised += n;
}

void pinned_end(struct request *request)
{
	if (!request->n_promised)
		return;
	pinned_charge(&request->runner->slots.pinned, pinned_user(request->session), 0,
		-(int64_t)request->n_promised);
	request->n_promised = 0;
}

/* Other users' sequences have pages of the user's. */
static void pinned_forget_user(struct runner *runner, uint16_t user)
{
	struct pinned *pinned = &runner->slots.pinned;

	assert(!pinned->users[user].n_promised);
	for (uint32_t page = 1; pinned->users[user].n_pages && page <= kv_pages_total(runner->kv); page++) {
		if (!pinned->n_tables[page] || pinned->holders[page] != user)
			continue;
		pinned->holders[page] = PINNED_NOBODY;
		pinned_charge(pinned, user, -1, 0);
	}
	assert(!pinned->users[user].n_pages);
}

void pinned_detach(const struct engine_session *session)
{
	struct accounting *accounting = session->accounting;

	for (uint32_t i = 0; session->share.user->n_sessions == 1 && i < accounting->runners->n; i++)
		pinned_forget_user(accounting->runners->all[i], pinned_user(session));
}
