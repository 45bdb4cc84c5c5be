/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/held.h"

#include <assert.h>
#include <utlist.h>

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/ended.h"

void held_push(struct engine_session *session, const struct ring_sqe *sqe)
{
	struct held_entry *entry = &session->entries[sqe->request];

	assert(!entry->held && session->n_held < session->n_requests);
	assert(session->requests[sqe->request].state == REQUEST_FREE);
	*entry = (struct held_entry){
		.held = true, .sqe = *sqe, .order = ++session->accounting->n_submitted};
	DL_APPEND(session->held, entry);
	session->n_held++;
}

void held_remove(struct engine_session *session, struct held_entry *entry)
{
	assert(entry->held && session->n_held > 0);
	deadline_drop(session, &entry->deadlines);
	entry->held = false;
	DL_DELETE(session->held, entry);
	session->n_held--;
	assert((session->n_held == 0) == !session->held);
}

void held_end(struct engine_session *session, struct held_entry *entry, int status, const struct msg_detail *detail)
{
	const struct request ended = {.session = session, .state = REQUEST_WAITING, .index = entry->sqe.request,
		.generation = entry->sqe.generation, .user_data = entry->sqe.user_data, .op = entry->sqe.op};
	unsigned finish = MIMEO_FINISH_NONE;

	if (ended.op == RING_OP_GENERATE)
		finish = status == MIMEO_E_CANCELLED ? MIMEO_FINISH_CANCELLED : MIMEO_FINISH_ERROR;
	held_remove(session, entry);
	completion_final(&ended, status, finish, detail);
	ended_held(session, &entry->sqe, entry->order, status);
}
