/* SPDX-License-Identifier: MIT */
/* The plan of block masks: which key blocks are listed, and where lists lie. */
#include <sys/mman.h>

#include "tests/attention/flex_group.h"

#define CANARY 77

/* The test's own plan, and the device's as it came back, with canaries behind each part. */
struct plan_memory {
	struct fixture *f;
	const struct flex_kernels *kernels;
	struct attention_manager *manager; /* what the state knows of the model */
	struct flex_state *state;
	struct flex_inputs in;
	size_t n_blocks, n_counts, n_indices; /* canaries counted in */
	struct flex_block *blocks, *device_blocks;
	int32_t *counts, *device_counts;
	int32_t *indices, *device_indices;
};

static void *part_new(struct plan_memory *m, size_t bytes, void *ret_host)
{
	void *memory = NULL, *host = malloc(bytes);

	assert_non_null(host);
	assert_int_equal(m->f->device->ops->mem_alloc(m->f->device, bytes, &memory), 0);
	memcpy(ret_host, &host, sizeof(host));
	return memory;
}

static void plan_init(struct plan_memory *m, struct fixture *f)
{
	*m = (struct plan_memory){ .f = f, .kernels = flex_kernels_of(f), .in = flex_inputs_in(f) };
	assert_int_equal(attention_flex.manager_new(f->device, &f->config, &f->at_device,
				 &m->manager), 0);
	if (m->kernels->state_new)
		assert_int_equal(m->kernels->state_new(m->manager, &m->in, &m->state), 0);
	m->n_blocks = m->n_counts = m->in.max_blocks + 1;
	m->n_indices = (size_t)m->in.max_blocks * (m->in.max_keys + 1) + 1;
	m->device_blocks = part_new(m, m->n_blocks * sizeof(*m->blocks), &m->blocks);
	m->device_counts = part_new(m, m->n_counts * sizeof(*m->counts), &m->counts);
	m->device_indices = part_new(m, m->n_indices * sizeof(*m->indices), &m->indices);
}

static void plan_deinit(struct plan_memory *m)
{
	const struct device_ops *ops = m->f->device->ops;

	if (m->kernels->state_free)
		m->kernels->state_free(m->state);
	attention_flex.manager_free(m->manager);
	ops->mem_free(m->f->device, m->device_indices);
	ops->mem_free(m->f->device, m->device_counts);
	ops->mem_free(m->f->device, m->device_blocks);
	free(m->indices);
	free(m->counts);
	free(m->blocks);
}

/* Of what was placed last. */
static void make_plan(struct plan_memory *m)
{
	struct fixture *f = m->f;
	const struct device_ops *ops = f->device->ops;
	const struct flex_plan_args args = {
		.in = m->in,
		.plan = { m->device_blocks, m->device_counts, m->device_indices },
		.n_rows = f->batch.padded_rows,
		.n_tokens = f->batch.padded_tokens,
		.window = f->windows[1],
	};

	assert_int_equal(fixture_build(f, ATTENTION_EAGER), 0); /* takes the inputs to the device */
	ops->fill_async(f->stream, m->device_blocks, CANARY, m->n_blocks * sizeof(*m->blocks));
	ops->fill_async(f->stream, m->device_counts, CANARY, m->n_counts * sizeof(*m->counts));
	ops->fill_async(f->stream, m->device_indices, CANARY, m->n_indices * sizeof(*m->indices));
	assert_int_equal(m->kernels->plan(m->state, f->stream, &args), 0);
	assert_int_equal(ops->stream_sync(f->stream), 0);
	test_copy(f->device, m->blocks, m->device_blocks, m->n_blocks * sizeof(*m->blocks));
	test_copy(f->device, m->counts, m->device_counts, m->n_counts * sizeof(*m->counts));
	test_copy(f->device, m->indices, m->device_indices, m->n_indices * sizeof(*m->indices));
	assert_int_equal(m->blocks[m->n_blocks - 1].row, 0x01010101 * CANARY);
	assert_int_equal(m->counts[m->n_counts - 1], 0x01010101 * CANARY);
	assert_int_equal(m->indices[m->n_indices - 1], 0x01010101 * CANARY);
}

static void verify_list(const struct plan_memory *m, uint32_t b)
{
	const struct flex_block *block = &m->blocks[b];
	const struct row *row = &m->f->rows[block->row];
	const int32_t *list = m->indices + (size_t)b * (m->in.max_keys + 1);
	uint32_t n_keys = m->in.n_keys, n = 0;

	for (uint32_t k = 0; k * n_keys < row->seq_len; k++) {
		bool some = false, all = true;

		for (int32_t t = 0; t < block->n_tokens; t++) {
			uint32_t q = (uint32_t)(block->position + t);
			struct mask_view view = mask_view_of(&row->mask,
				row->words ? row->words[q] : 0, q, row->seq_len,
				m->f->windows[1]);

			for (uint32_t i = k * n_keys; i < (k + 1) * n_keys && i < row->seq_len;
				i++) {
				some |= mask_sees(&view, i);
				all &= mask_sees(&view, i);
			}
		}
		if (!some)
			continue;
		assert_int_equal(FLEX_ENTRY_BLOCK(list[n]), k);
		if (FLEX_ENTRY_WHOLE(list[n]))
			assert_true(all);
		else if (row->mask.kind == MASK_CAUSAL || row->mask.kind == MASK_PREFIX)
			assert_false(all);
		n++;
	}
	assert_int_equal(m->counts[b], n);
	assert_int_equal(list[n], -1);
}

static void verify_plan(const struct plan_memory *m, uint32_t n_tokens)
{
	const struct fixture *f = m->f;
	uint32_t token = 0, b = 0;

	for (; m->blocks[b].row >= 0; b++) {
		const struct flex_block *block = &m->blocks[b];
		const struct row *row = &f->rows[block->row];

		assert_int_equal(block->first, token);
		assert_in_range(block->n_tokens, 1, m->in.n_queries);
		assert_int_equal(block->seq_len, row->seq_len);
		assert_int_equal(block->history, row->seq_len - row->n_query);
		assert_int_equal(block->position, row->seq_len - row->n_query + token -
			(uint32_t)f->inputs.query_start[block->row]);
		verify_list(m, b);
		token += (uint32_t)block->n_tokens;
	}
	assert_int_equal(token, f->batch.n_tokens);
	for (; b < m->in.max_blocks; b++) {
		assert_int_equal(m->blocks[b].row, -1);
		assert_int_equal(m->counts[b], 0);
		assert_int_equal(m->indices[(size_t)b * (m->in.max_keys + 1)], -1);
		token += (uint32_t)m->blocks[b].n_tokens;
	}
	assert_int_equal(token, n_tokens);
}

static void test_plan_lists_the_key_blocks_that_are_seen_and_ends_with_a_sentinel(void **state)
{
	static uint64_t words[FIXTURE_ROWS][LENGTH];
	uint64_t dice = 5;

	for (uint32_t s = 0; s < N_FLEX_SHAPES; s++) {
		struct shape shape = flex_shapes[s];
		struct plan_memory m;
		struct fixture f;

		shape.window = s % 3 == 2 ? 90 : 0;
		fixture_init(&f, flex_device, "flex", &shape);
		plan_init(&m, &f);
		for (int round = 0; round < 8; round++) {
			struct row rows[FIXTURE_ROWS];
			uint32_t n_rows = flex_draw_rows(&dice, shape.page_tokens, rows, words);

			fixture_place(&f, rows, n_rows, FIXTURE_ROWS, FIXTURE_TOKENS);
			make_plan(&m);
			verify_plan(&m, FIXTURE_TOKENS);
		}
		plan_deinit(&m);
		fixture_deinit(&f);
	}
}

/* As many blocks of queries as a batch can have, each with every block of keys in its list. */
static void test_worst_batch_fits_the_plan(void **state)
{
	struct row rows[FIXTURE_ROWS];
	uint32_t n_rows, n_query, b = 0;
	struct plan_memory m;
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	plan_init(&m, &f);
	n_query = m.in.n_queries + 1;
	n_rows = FIXTURE_TOKENS / n_query < FIXTURE_ROWS ? FIXTURE_TOKENS / n_query : FIXTURE_ROWS;
	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct row){ .seed = r, .n_query = n_query, .seq_len = LENGTH,
			.mask = { .kind = MASK_PREFIX, .begin = 0, .end = LENGTH } };
	fixture_place(&f, rows, n_rows, 0, 0);
	for (uint32_t r = 0; r < n_rows; r++)
		f.inputs.seq_lens[r] = INT32_MAX;
	make_plan(&m);
	while (m.blocks[b].row >= 0)
		b++;
	assert_int_equal(b, 2 * n_rows);
	assert_true(b <= flex_blocks(m.in.n_queries, n_rows, n_query * n_rows));
	for (uint32_t i = 0; i < b; i++) {
		assert_in_range(m.counts[i], LENGTH / m.in.n_keys, m.in.max_keys);
		assert_int_equal(m.blocks[i].seq_len, f.config.max_pages * f.config.page_tokens);
	}
	fixture_run(&f);
	plan_deinit(&m);
	fixture_deinit(&f);
}

/* A plan of a whole deployment: its lists together are beyond 2^31 elements. Only the places of two
 * of them are looked at. */
static void test_lists_past_2_31_elements_are_addressed_in_64_bits(void **state)
{
	enum { KEYS = (1 << 20) - 1, BLOCKS = 4200 }; /* beyond 2^32, too */
	const size_t stride = KEYS + 1, last = (BLOCKS - 1) * stride;
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 1 };
	int32_t *indices = NULL, expected = FLEX_ENTRY(0, true);
	struct plan_memory m;
	struct fixture f;
	void *memory = NULL;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	f.config.max_rows = BLOCKS; /* the state holds as many */
	f.at_device.max_rows = BLOCKS;
	plan_init(&m, &f);
	if (f.is_cuda)
		assert_int_equal(f.device->ops->mem_alloc(
			f.device, (BLOCKS * stride) * sizeof(int32_t), &memory), 0);
	else
		memory = mmap(NULL, BLOCKS * stride * sizeof(int32_t), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	indices = memory;
	fixture_place(&f, &row, 1, 0, 0);
	assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
	m.in.slot_mask = NULL;
	m.in.max_blocks = BLOCKS;
	m.in.max_keys = KEYS;
	m.in.capacity = INT32_MAX;
	assert_int_equal(m.kernels->plan(m.state, f.stream, &(struct flex_plan_args){
		.in = m.in,
		.plan = { m.device_blocks, m.device_counts, indices },
		.n_rows = 1,
		.n_tokens = 1,
	}), 0);
	fixture_sync(&f);
	assert_int_equal(test_fetch_int(f.device, indices), expected);
	assert_int_equal(test_fetch_int(f.device, indices + 1), -1);
	assert_int_equal(test_fetch_int(f.device, indices + last), -1);
	if (f.is_cuda)
		f.device->ops->mem_free(f.device, memory);
	else
		munmap(memory, BLOCKS * stride * sizeof(int32_t));
	plan_deinit(&m);
	f.config.max_rows = FIXTURE_ROWS;
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_plan_lists_the_key_blocks_that_are_seen_and_ends_with_a_sentinel),
		cmocka_unit_test(test_worst_batch_fits_the_plan),
		cmocka_unit_test(test_lists_past_2_31_elements_are_addressed_in_64_bits),
	};

	return cmocka_run_group_tests_name(
		"plans of block masks", tests, flex_device_open, flex_device_free);
}
