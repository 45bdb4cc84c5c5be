/* SPDX-License-Identifier: MIT */
/* What operators ask of the engine: requests one by one, pages, the prefix cache. */
#include "tests/daemon/rig.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/engine/query.h"

#define ENTRIES 4u
#define QUERY_TEST(test, ...) RIG_TEST(test, .max_requests = 2, .entries = ENTRIES, __VA_ARGS__)

/* The caller's to free. */
static struct engine_query *asked(struct rig *rig, struct engine_query query)
{
	struct engine_query *copy = malloc(sizeof(*copy)), *answer = NULL;

	assert_non_null(copy);
	*copy = query;
	copy->userdata = &rig->results;
	assert_int_equal(engine_post_query(rig->engine, copy), 0);
	RIG_AWAIT((answer = engine_query_take(rig->engine)));
	assert_ptr_equal(answer, copy);
	assert_ptr_equal(answer->userdata, &rig->results);
	return answer;
}

static int cancel(struct rig *rig, uint64_t id)
{
	struct engine_query *answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_CANCEL, .id = id});
	const int rc = answer->rc;

	if (!rc)
		assert_int_equal(answer->requests[0].id, id);
	engine_query_free(answer);
	return rc;
}

/* Two run and two wait. */
static void fill_entries(struct rig *rig)
{
	struct rig_client *client = &rig->client;

	rig_must(client, rig_ask_text(client, 0, 0, "1+2="));
	rig->results[0] = (struct rig_result){0};
	rig_gate_close(rig);
	for (uint32_t i = 0; i < ENTRIES; i++)
		rig_submit(client, rig_endless(client, i, 0, 100 + i));
	RIG_AWAIT(client->port->n_in_flight == ENTRIES && client->port->n_waiting == ENTRIES - 2);
}

static void finish_entries(struct rig *rig)
{
	rig_gate_open(rig);
	for (uint32_t i = 0; i < ENTRIES; i++)
		rig_wait(&rig->client, rig->results, i);
}

static void test_requests_are_listed_in_the_order_of_their_submission(void **state)
{
	struct rig *rig = *state;

	fill_entries(rig);
	struct engine_query *answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_REQUESTS});
	assert_int_equal(answer->rc, 0);
	assert_int_equal(answer->n, ENTRIES);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		const struct engine_request_facts *facts = &answer->requests[i];

		assert_true(i == 0 || facts->id > answer->requests[i - 1].id);
		assert_string_equal(facts->op, "generate");
		assert_int_equal(facts->state, i < 2 ? ENGINE_REQUEST_RUNNING : ENGINE_REQUEST_QUEUED);
		assert_int_equal(facts->session, rig->client.port->session);
		assert_int_equal(facts->model, 0);
		assert_int_equal(facts->n_tokens, 12);
		assert_int_equal(facts->max_tokens, 100 + i);
		assert_true(facts->has_age && facts->wait_ns <= facts->age_ns && !facts->has_deadline);
	}
	engine_query_free(answer);
	finish_entries(rig);
}

static void test_operators_cancel_ends_a_request_as_its_clients_does_and_says_whose_it_was(void **state)
{
	struct rig *rig = *state;
	uint64_t ids[ENTRIES];

	fill_entries(rig);
	struct engine_query *answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_REQUESTS});
	for (uint32_t i = 0; i < ENTRIES; i++)
		ids[i] = answer->requests[i].id;
	engine_query_free(answer);
	/* One that runs, then one that waits. */
	for (uint32_t i = 1; i < ENTRIES; i += 2) {
		assert_int_equal(cancel(rig, ids[i]), 0);
		assert_int_equal(cancel(rig, ids[i]), -ENOENT);
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, MIMEO_E_CANCELLED);
		assert_int_equal(rig->results[i].finish, MIMEO_FINISH_CANCELLED);
		assert_int_equal(rig->results[i].detail, RING_DETAIL_OPERATOR);
	}
	assert_int_equal(engine_stats(rig->engine)->n_cancelled, 2);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[0].status, 0);
	assert_int_equal(rig->results[2].status, 0);
}

static void test_id_of_a_request_that_ended_is_of_no_other(void **state)
{
	struct rig *rig = *state;
	uint64_t last = 0;

	for (uint32_t n = 0; n < 3; n++) {
		rig_gate_close(rig);
		rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 20));
		RIG_AWAIT(rig->client.port->n_in_flight == 1);
		struct engine_query *answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_REQUESTS});
		assert_int_equal(answer->n, 1);
		assert_true(answer->requests[0].id > last);
		if (last)
			assert_int_equal(cancel(rig, last), -ENOENT);
		last = answer->requests[0].id;
		engine_query_free(answer);
		rig_gate_open(rig);
		rig->results[0] = (struct rig_result){0};
		rig_wait(&rig->client, rig->results, 0);
		assert_int_equal(rig->results[0].status, 0);
	}
}

static void test_pages_are_those_of_open_sequences_and_of_the_prefix_cache(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	int32_t prompt[64];
	struct engine_query *answer;

	/* four whole pages that stay in the cache, and two sequences of one page each */
	rig_nonsense(prompt, 64, 1);
	rig_must(client, rig_ask(client, 0, 0, prompt, 64, 4, MIMEO_GENERATE_IGNORE_EOS));
	rig_open_histories(client, 2, "1+2=");
	RIG_AWAIT(client->port->n_pages == 2);
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_PAGES});
	assert_int_equal(answer->n, 3);
	assert_int_equal(answer->pages[0].of, ENGINE_PAGES_MODEL);
	assert_int_equal(answer->pages[0].n_pages, 512);
	assert_int_equal(answer->pages[0].n_free, 510);
	assert_int_equal(answer->pages[0].n_unused, 4);
	assert_int_equal(answer->pages[0].n_registered, 4);
	assert_int_equal(answer->pages[1].of, ENGINE_PAGES_USER);
	assert_int_equal(answer->pages[1].n_pages, 2);
	assert_int_equal(answer->pages[1].n_left, 256);
	assert_int_equal(answer->pages[2].of, ENGINE_PAGES_SESSION);
	assert_int_equal(answer->pages[2].n_sequences, 2);
	assert_int_equal(answer->pages[2].n_pinned, 0);
	engine_query_free(answer);
	rig_close_histories(client, 2);
}

static void test_dropped_pages_of_the_prefix_cache_are_found_by_no_request(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	int32_t prompt[64];
	struct engine_query *answer;

	rig_nonsense(prompt, 64, 1);
	rig_must(client, rig_ask(client, 0, 0, prompt, 64, 4, MIMEO_GENERATE_IGNORE_EOS));
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_DROP_PAGES, .model = 1});
	assert_int_equal(answer->n, 0);
	engine_query_free(answer);
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_DROP_PAGES, .model = ENGINE_ALL});
	assert_int_equal(answer->n, 4);
	engine_query_free(answer);
	assert_int_equal(rig_facts(rig).pages_cached, 0);
	assert_int_equal(rig_must(client, rig_ask(client, 0, 0, prompt, 64, 4, MIMEO_GENERATE_IGNORE_EOS)).n_cached, 0);
}

static void test_many_pages_are_dropped_in_several_turns(void **state)
{
	struct rig *rig = *state;
	int32_t prompt[496];
	struct engine_query *answer;

	for (uint32_t i = 0; i < 10; i++) {
		rig_nonsense(prompt, 496, i);
		rig_must(&rig->client, rig_ask(&rig->client, 0, 0, prompt, 496, 2, MIMEO_GENERATE_IGNORE_EOS));
	}
	RIG_AWAIT(rig_facts(rig).pages_cached == 310);
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_DROP_PAGES, .model = ENGINE_ALL});
	assert_int_equal(answer->n, 310);
	engine_query_free(answer);
	assert_int_equal(rig_facts(rig).pages_cached, 0);
}

static void test_queries_that_nobody_takes_are_freed_with_the_engine(void **state)
{
	struct rig *rig = *state;
	struct engine_query *query = calloc(1, sizeof(*query));

	assert_non_null(query);
	assert_int_equal(engine_post_query(rig->engine, query), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		QUERY_TEST(test_requests_are_listed_in_the_order_of_their_submission, ),
		QUERY_TEST(test_operators_cancel_ends_a_request_as_its_clients_does_and_says_whose_it_was, ),
		QUERY_TEST(test_id_of_a_request_that_ended_is_of_no_other, ),
		QUERY_TEST(test_pages_are_those_of_open_sequences_and_of_the_prefix_cache,
			.prefix_sharing = ENGINE_PREFIX_ALL),
		QUERY_TEST(test_dropped_pages_of_the_prefix_cache_are_found_by_no_request,
			.prefix_sharing = ENGINE_PREFIX_ALL),
		QUERY_TEST(test_many_pages_are_dropped_in_several_turns, .prefix_sharing = ENGINE_PREFIX_ALL),
		QUERY_TEST(test_queries_that_nobody_takes_are_freed_with_the_engine, ),
	};

	return cmocka_run_group_tests_name("engine_query", tests, NULL, NULL);
}
