/* SPDX-License-Identifier: MIT */
#include "sdk/sequence_ids.h"

#include <assert.h>
#include <stdlib.h>

#include "sdk/client.h"

#define SEQUENCE_IDS_MAX (1u << 20)

int sequence_ids_init(struct mimeo *m, uint32_t max_sequences)
{
	m->max_sequences = max_sequences < SEQUENCE_IDS_MAX ? max_sequences : SEQUENCE_IDS_MAX;
	m->sequences = calloc((size_t)m->max_sequences + 1, sizeof(*m->sequences));
	if (!m->sequences)
		return MIMEO_E_NO_MEMORY;
	for (uint32_t id = m->max_sequences; id > 0; id--) {
		m->sequences[id].next = m->free_sequence;
		m->free_sequence = id;
	}
	return 0;
}

bool sequence_id_is_open(const struct mimeo *m, uint32_t id)
{
	return id > 0 && id <= m->max_sequences && m->sequences[id].state == SEQUENCE_ID_OPEN;
}

int sequence_id_check(const struct mimeo *m, uint32_t id, uint32_t model)
{
	if (!sequence_id_is_open(m, id))
		return MIMEO_E_UNKNOWN_SEQUENCE;
	return m->sequences[id].model == model ? 0 : MIMEO_E_INVALID;
}

uint32_t sequence_id_take(struct mimeo *m, uint32_t model)
{
	uint32_t id = m->free_sequence;

	assert(id > 0 && id <= m->max_sequences);
	assert(m->sequences[id].state == SEQUENCE_ID_FREE && m->sequences[id].n_calls == 0);
	m->free_sequence = m->sequences[id].next;
	m->sequences[id] = (struct sequence_id){.state = SEQUENCE_ID_OPEN, .model = model};
	return id;
}

void sequence_id_named(struct mimeo *m, uint32_t id)
{
	assert(m->sequences[id].state == SEQUENCE_ID_OPEN);
	m->sequences[id].n_calls++;
}

void sequence_id_close(struct mimeo *m, uint32_t id)
{
	assert(m->sequences[id].state == SEQUENCE_ID_OPEN && m->sequences[id].n_calls > 0);
	m->sequences[id].state = SEQUENCE_ID_ENDED;
}

/* One call less names the id; it is free again if that was the last of an ended sequence. */
static void sequence_id_call_ended(struct mimeo *m, uint32_t id)
{
	assert(id > 0 && id <= m->max_sequences);
	struct sequence_id *sequence = &m->sequences[id];

	assert(sequence->state != SEQUENCE_ID_FREE && sequence->n_calls > 0);
	if (--sequence->n_calls > 0 || sequence->state != SEQUENCE_ID_ENDED)
		return;
	sequence->state = SEQUENCE_ID_FREE;
	sequence->next = m->free_sequence;
	m->free_sequence = id;
}

uint32_t sequence_id_completed(struct mimeo *m, const struct ring_sqe *sqe, int32_t status)
{
	uint32_t made = sqe->op == RING_OP_OPEN ? sqe->sequence
	                : sqe->op == RING_OP_FORK ? sqe->argument : 0;

	if (made != 0 && status < 0)
		m->sequences[made].state = SEQUENCE_ID_ENDED;
	sequence_id_call_ended(m, sqe->sequence);
	if (sqe->op == RING_OP_FORK)
		sequence_id_call_ended(m, sqe->argument);
	return made != 0 ? made : sqe->sequence;
}
