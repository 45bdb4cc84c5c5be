/* SPDX-License-Identifier: MIT */
#include "sdk/client.h"

static bool is_open(const struct mimeo *m, uint32_t sequence)
{
	return sequence > 0 && sequence <= m->max_sequences &&
	       m->sequences[sequence].state == SEQUENCE_OPEN;
}

int sequence_check(const struct mimeo *m, uint32_t sequence, uint32_t model)
{
	if (!is_open(m, sequence))
		return MIMEO_E_UNKNOWN_SEQUENCE;
	return m->sequences[sequence].model == model ? 0 : MIMEO_E_INVALID;
}

/* A prepared call; there is an entry for it. */
static void call(struct mimeo *m, enum ring_op op, uint32_t sequence, uint32_t argument)
{
	struct mimeo_request *request = request_take(m);

	request->sqe.op = (uint16_t)op;
	request->sqe.sequence = sequence;
	request->sqe.argument = argument;
	m->sequences[sequence].n_calls++;
	request_prepare(request);
}

/* Whether there is an entry for a call, and an id if it makes a sequence: 0, FULL or QUOTA. Calls
 * that succeeded unnoticed give theirs back first. */
static int room_check(struct mimeo *m, bool makes)
{
	if (!m->free || (makes && m->free_sequence == 0))
		events_take_silent(m);
	if (makes && m->free_sequence == 0)
		return MIMEO_E_QUOTA;
	return m->free ? 0 : MIMEO_E_FULL;
}

static uint32_t id_take(struct mimeo *m, uint32_t model)
{
	uint32_t id = m->free_sequence;

	m->free_sequence = m->sequences[id].next;
	m->sequences[id] = (struct sequence){.state = SEQUENCE_OPEN, .model = model};
	return id;
}

int mimeo_sequence_open(struct mimeo *m, uint32_t model, uint32_t *ret_sequence)
{
	if (m->gone)
		return MIMEO_E_GONE;
	if (model >= m->n_models)
		return MIMEO_E_UNKNOWN_MODEL;
	int r = room_check(m, true);
	if (r < 0)
		return r;
	uint32_t id = id_take(m, model);
	call(m, RING_OP_OPEN, id, model);
	*ret_sequence = id;
	return 0;
}

int mimeo_sequence_fork(struct mimeo *m, uint32_t sequence, uint32_t *ret_child)
{
	if (m->gone)
		return MIMEO_E_GONE;
	if (!is_open(m, sequence))
		return MIMEO_E_UNKNOWN_SEQUENCE;
	int r = room_check(m, true);
	if (r < 0)
		return r;
	uint32_t child = id_take(m, m->sequences[sequence].model);
	call(m, RING_OP_FORK, sequence, child);
	m->sequences[child].n_calls++;
	*ret_child = child;
	return 0;
}

static int call_on_open(struct mimeo *m, enum ring_op op, uint32_t sequence, uint32_t argument)
{
	if (m->gone)
		return MIMEO_E_GONE;
	if (!is_open(m, sequence))
		return MIMEO_E_UNKNOWN_SEQUENCE;
	int r = room_check(m, false);
	if (r < 0)
		return r;
	call(m, op, sequence, argument);
	return 0;
}

int mimeo_sequence_truncate(struct mimeo *m, uint32_t sequence, uint32_t n_tokens)
{
	return call_on_open(m, RING_OP_TRUNCATE, sequence, n_tokens);
}

int mimeo_sequence_close(struct mimeo *m, uint32_t sequence)
{
	int r = call_on_open(m, RING_OP_CLOSE, sequence, 0);

	if (r == 0)
		m->sequences[sequence].state = SEQUENCE_ENDED;
	return r;
}

/* One call less names the sequence; its id is free again if that was the last of an ended one. */
static void call_ended(struct mimeo *m, uint32_t id)
{
	struct sequence *sequence = &m->sequences[id];

	if (--sequence->n_calls > 0 || sequence->state != SEQUENCE_ENDED)
		return;
	sequence->state = SEQUENCE_FREE;
	sequence->next = m->free_sequence;
	m->free_sequence = id;
}

uint32_t sequence_completed(struct mimeo *m, const struct ring_sqe *sqe, int32_t status)
{
	uint32_t made = sqe->op == RING_OP_OPEN ? sqe->sequence
	                : sqe->op == RING_OP_FORK ? sqe->argument : 0;

	if (made != 0 && status < 0)
		m->sequences[made].state = SEQUENCE_ENDED;
	call_ended(m, sqe->sequence);
	if (sqe->op == RING_OP_FORK)
		call_ended(m, sqe->argument);
	return made != 0 ? made : sqe->sequence;
}
