/* SPDX-License-Identifier: MIT */
#include "tests/daemon/choices.h"

struct choice choices[CHOICES_MAX];
uint32_t n_choices;

struct graph_entry *__real_graph_set_dispatch(const struct graph_set *set,
	const struct batch_shape *shape, enum eager_reason *ret_reason);
struct graph_entry *__wrap_graph_set_dispatch(const struct graph_set *set,
	const struct batch_shape *shape, enum eager_reason *ret_reason);

struct graph_entry *__wrap_graph_set_dispatch(const struct graph_set *set,
	const struct batch_shape *shape, enum eager_reason *ret_reason)
{
	struct graph_entry *entry = __real_graph_set_dispatch(set, shape, ret_reason);

	if (n_choices < CHOICES_MAX) {
		choices[n_choices] = (struct choice){.set = set, .shape = *shape};
		if (*ret_reason == EAGER_NO)
			choices[n_choices].descriptor = entry->descriptor;
	}
	n_choices++;
	return entry;
}

uint32_t choices_count(const struct graph_set *set, enum graph_mode mode, uint32_t query_len)
{
	uint32_t n = 0;

	assert_in_range(n_choices, 0, CHOICES_MAX);
	for (uint32_t i = 0; i < n_choices; i++)
		n += choices[i].set == set && choices[i].descriptor.mode == mode &&
			choices[i].descriptor.query_len == query_len;
	return n;
}

void choices_open(struct rig *rig, const struct rig_options *o)
{
	struct rig_options options = *o;

	options.n_drafts = options.n_drafts ? options.n_drafts : K;
	rig_open_client(rig, &options);
	n_choices = 0;
}

int choices_setup(void **state)
{
	static struct rig rig;

	choices_open(&rig, *state);
	*state = &rig;
	return 0;
}

void choices_settle(struct rig *rig)
{
	RIG_AWAIT(engine_stats(rig->engine)->n_slots_free == ROWS);
}

void choices_run_many(struct rig *rig, uint32_t n, uint32_t max_tokens)
{
	memset(rig->results, 0, sizeof(rig->results));
	rig_gate_close(rig);
	for (uint32_t i = 0; i < n; i++)
		rig_submit(&rig->client, rig_endless(&rig->client, i, 0, max_tokens));
	rig_gate_open(rig);
	for (uint32_t i = 0; i < n; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
		assert_int_equal(rig->results[i].n_generated, max_tokens);
	}
	choices_settle(rig);
}
