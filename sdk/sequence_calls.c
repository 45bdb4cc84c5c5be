/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "sdk/client.h"
#include "sdk/event.h"

/* Prepare a call; there is an entry for it. */
static void sequence_call(
	struct mimeo *m, enum ring_op op, uint32_t sequence, uint32_t argument)
{
	struct mimeo_request *request = request_take(m);

	assert(request);
	request->sqe.op = (uint16_t)op;
	request->sqe.sequence = sequence;
	request->sqe.argument = argument;
	sequence_id_named(m, sequence);
	request_prepare(request);
}

/* Keep the sentence for mimeo_sequence_message. Returns the status. */
__attribute__((format(printf, 3, 4)))
static int sequence_call_refuse(struct mimeo *m, int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(m->sequence_message, sizeof(m->sequence_message), format, arguments);
	va_end(arguments);
	return status;
}

static int sequence_call_refuse_gone(struct mimeo *m)
{
	return sequence_call_refuse(m, MIMEO_E_GONE, "%s", mimeo_strerror(MIMEO_E_GONE));
}

static int sequence_call_refuse_unknown(struct mimeo *m, uint32_t sequence)
{
	return sequence_call_refuse(m, MIMEO_E_UNKNOWN_SEQUENCE, "sequence %u is not open", sequence);
}

/* Whether there is an entry for a call, and an id if it makes a sequence: 0, FULL or QUOTA. Completed
 * calls that made no event give theirs back first. */
static int sequence_call_check(struct mimeo *m, bool makes)
{
	m->sequence_message[0] = '\0';
	if (!m->free || (makes && m->free_sequence == 0))
		events_take_silent(m);
	if (makes && m->free_sequence == 0) {
		msg_budget_explain((const int32_t[3]){RING_BUDGET_SEQUENCES, 1, 0}, m->sequence_message,
			sizeof(m->sequence_message));
		return MIMEO_E_QUOTA;
	}
	return m->free ? 0 : sequence_call_refuse(m, MIMEO_E_FULL, "all %u entries are in use",
		m->region.ring.entries);
}

int mimeo_sequence_open(struct mimeo *m, uint32_t model, uint32_t *ret_sequence)
{
	if (m->gone)
		return sequence_call_refuse_gone(m);
	if (model >= m->n_models)
		return sequence_call_refuse(m, MIMEO_E_UNKNOWN_MODEL, "no model has index %u: the daemon serves %u",
			model, m->n_models);
	int rc = sequence_call_check(m, true);
	if (rc < 0)
		return rc;
	uint32_t id = sequence_id_take(m, model);
	sequence_call(m, RING_OP_OPEN, id, (uint32_t)m->model_ids[model]);
	*ret_sequence = id;
	return 0;
}

int mimeo_sequence_fork(struct mimeo *m, uint32_t sequence, uint32_t *ret_child)
{
	if (m->gone)
		return sequence_call_refuse_gone(m);
	if (!sequence_id_is_open(m, sequence))
		return sequence_call_refuse_unknown(m, sequence);
	int rc = sequence_call_check(m, true);
	if (rc < 0)
		return rc;
	uint32_t child = sequence_id_take(m, m->sequences[sequence].model);
	sequence_call(m, RING_OP_FORK, sequence, child);
	sequence_id_named(m, child);
	*ret_child = child;
	return 0;
}

static int sequence_call_on_open(
	struct mimeo *m, enum ring_op op, uint32_t sequence, uint32_t argument)
{
	if (m->gone)
		return sequence_call_refuse_gone(m);
	if (!sequence_id_is_open(m, sequence))
		return sequence_call_refuse_unknown(m, sequence);
	int rc = sequence_call_check(m, false);
	if (rc < 0)
		return rc;
	sequence_call(m, op, sequence, argument);
	return 0;
}

int mimeo_sequence_truncate(struct mimeo *m, uint32_t sequence, uint32_t n_tokens)
{
	return sequence_call_on_open(m, RING_OP_TRUNCATE, sequence, n_tokens);
}

int mimeo_sequence_length(struct mimeo *m, uint32_t sequence)
{
	return sequence_call_on_open(m, RING_OP_LENGTH, sequence, 0);
}

int mimeo_sequence_close(struct mimeo *m, uint32_t sequence)
{
	int rc = sequence_call_on_open(m, RING_OP_CLOSE, sequence, 0);
	if (rc < 0)
		return rc;
	sequence_id_close(m, sequence);
	return 0;
}

const char *mimeo_sequence_message(const struct mimeo *m)
{
	return m->sequence_message;
}
