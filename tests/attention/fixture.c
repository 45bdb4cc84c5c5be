/* SPDX-License-Identifier: MIT */
#include "tests/attention/fixture.h"

#include "tests/attention/fixture_cache.h"

/* ---- sizes ---- */

static size_t kv_elements(const struct fixture *f)
{
	return f->n_pages * fixture_page_elements(f);
}

static size_t q_elements(const struct fixture *f)
{
	return (size_t)FIXTURE_TOKENS * f->q_stride;
}

static size_t out_elements(const struct fixture *f)
{
	return (size_t)FIXTURE_TOKENS * f->width;
}

static size_t weight_elements(const struct fixture *f)
{
	return (size_t)f->kv_b.rows * f->kv_b.cols;
}

/* ---- memory ---- */

static void *device_alloc(struct fixture *f, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(f->device->ops->mem_alloc(f->device, bytes, &memory), 0);
	return memory;
}

/* An image of n * bytes, and the device's memory for n * device_bytes: the same one on the cpu. */
static void *image_new(
	struct fixture *f, size_t n, size_t bytes, size_t device_bytes, void **ret_device)
{
	void *image;

	*ret_device = device_alloc(f, n * device_bytes + 1);
	image = f->is_cuda ? malloc(n * bytes + 1) : *ret_device;
	assert_non_null(image);
	return memset(image, 0xff, n * bytes);
}

static void image_free(struct fixture *f, void *image, void *device)
{
	if (f->is_cuda)
		free(image);
	f->device->ops->mem_free(f->device, device);
}

/* The six inputs: where the pointers to the image and to the device's memory are in the fixture, and
 * the bytes of the array. */
struct input {
	size_t image, device, bytes;
};
#define INPUT(field, n)                                                                            \
	{ offsetof(struct fixture, inputs.field), offsetof(struct fixture, at_device.field), (n) }
#define N_INPUTS 6

static void inputs_list(const struct fixture *f, struct input list[N_INPUTS])
{
	const struct input all[N_INPUTS] = {
		INPUT(query_start, (FIXTURE_ROWS + 1) * sizeof(int32_t)),
		INPUT(seq_lens, FIXTURE_ROWS * sizeof(int32_t)),
		INPUT(block_table, (size_t)FIXTURE_ROWS * f->config.max_pages * sizeof(int32_t)),
		INPUT(row_slot, FIXTURE_ROWS * sizeof(int32_t)),
		INPUT(slot_mask, FIXTURE_ROWS * sizeof(struct slot_mask)),
		INPUT(mask_words, FIXTURE_TOKENS * sizeof(uint64_t)),
	};

	memcpy(list, all, sizeof(all));
}

static void *pointer_at(const struct fixture *f, size_t offset)
{
	void *pointer;

	memcpy(&pointer, (const char *)f + offset, sizeof(pointer));
	return pointer;
}

static void inputs_new(struct fixture *f)
{
	struct input list[N_INPUTS];

	f->inputs = (struct step_inputs){
		.max_rows = FIXTURE_ROWS,
		.max_tokens = FIXTURE_TOKENS,
		.max_pages = f->config.max_pages,
		.page_tokens = f->config.page_tokens,
		.max_slots = FIXTURE_ROWS,
	};
	f->at_device = f->inputs;
	inputs_list(f, list);
	for (size_t i = 0; i < N_INPUTS; i++) {
		void *device, *image = image_new(f, list[i].bytes, 1, 1, &device);

		memcpy((char *)f + list[i].image, &image, sizeof(image));
		memcpy((char *)f + list[i].device, &device, sizeof(device));
	}
}

/* ---- making ---- */

static void config_init(struct fixture *f, const struct shape *s)
{
	const struct attention_latent *l = &s->latent;
	float query = (float)(l->rank ? l->nope + l->rope : s->head_dim);

	f->config = (struct attention_config){
		.n_layers = FIXTURE_LAYERS,
		.n_heads = s->n_heads,
		.n_kv_heads = l->rank ? 1 : s->n_kv_heads,
		.head_dim = l->rank ? l->rank + l->rope : s->head_dim,
		.latent = *l,
		.scale = (s->sharp != 0 ? s->sharp : 1) / sqrtf(query),
		.soft_cap = s->soft_cap,
		.windows = f->windows,
		.page_tokens = s->page_tokens,
		.max_rows = FIXTURE_ROWS,
		.max_tokens = FIXTURE_TOKENS,
		.max_pages = (s->max_seq_len + s->page_tokens - 1) / s->page_tokens + 3,
		.max_seq_len = s->max_seq_len,
		.max_decode_query = 4,
		.activation_dtype = f->is_cuda ? DTYPE_BF16 : DTYPE_F32,
		.kv_dtype = s->fp8 ? DTYPE_E4M3 : f->is_cuda ? DTYPE_BF16 : DTYPE_F32,
	};
	f->windows[FIXTURE_LAYER] = s->window;
	f->sharp = s->sharp;
	f->n_pages = f->config.n_kv_pages = FIXTURE_ROWS * f->config.max_pages + 1;
	f->width = s->n_heads * (l->rank ? l->v : s->head_dim);
	f->q_width = s->n_heads * (l->rank ? l->nope + l->rope : s->head_dim);
	f->q_stride = f->q_width + (l->rank ? 8 : 2 * s->n_kv_heads * s->head_dim);
}

static void weight_new(struct fixture *f)
{
	const struct attention_latent *l = &f->config.latent;
	void *data;

	f->kv_b = (struct weight){
		.dtype = f->config.activation_dtype,
		.rows = f->config.n_heads * (l->nope + l->v),
		.cols = l->rank,
	};
	f->w = image_new(f, weight_elements(f), sizeof(float), fixture_act_bytes(f), &data);
	for (size_t i = 0; i < weight_elements(f); i++)
		f->w[i] = fixture_content(
			f, 0, PART_W, (uint32_t)(i / l->rank), (uint32_t)(i % l->rank));
	fixture_put(f, data, f->w, weight_elements(f));
	f->kv_b.data = data;
}

void fixture_init(struct fixture *f, struct device *device, const char *backend,
	const struct shape *shape)
{
	*f = (struct fixture){
		.device_owned = !device,
		.random = shape->head_dim + shape->page_tokens * 131u,
	};
	f->device = device ? device : test_device_open(0);
	f->is_cuda = strcmp(test_device_info(f->device).kind, "cuda") == 0;
	config_init(f, shape);
	assert_int_equal(f->device->ops->stream_new(f->device, &f->stream), 0);
	inputs_new(f);
	if (fixture_is_fp8(f)) {
		f->kv_device = device_alloc(f, kv_elements(f) + 1);
		f->kv = malloc(kv_elements(f) * sizeof(float));
		assert_non_null(f->kv);
	} else {
		f->kv = image_new(f, kv_elements(f), sizeof(float), fixture_act_bytes(f), &f->kv_device);
	}
	f->q = image_new(f, q_elements(f), sizeof(float), fixture_act_bytes(f), &f->q_device);
	f->out = image_new(f, out_elements(f), sizeof(float), fixture_act_bytes(f), &f->out_device);
	weight_new(f);
	f->backend = backend ? attention_find(backend) : NULL;
	fixture_remake(f);
}

void fixture_init_cpu(struct fixture *f, const char *backend, const struct shape *shape)
{
	struct device *device = NULL;

	assert_int_equal(device_open("cpu", &(struct device_options){ 0 }, &device), 0);
	fixture_init(f, device, backend, shape);
	f->device_owned = true;
}

static void backend_free(struct fixture *f)
{
	if (f->metadata)
		f->backend->metadata_free(f->metadata);
	if (f->manager)
		f->backend->manager_free(f->manager);
}

void fixture_remake(struct fixture *f)
{
	backend_free(f);
	if (!f->backend)
		return;
	assert_int_equal(
		f->backend->manager_new(f->device, &f->config, &f->at_device, &f->manager), 0);
	assert_int_equal(f->backend->metadata_new(f->manager, &f->metadata), 0);
}

void fixture_deinit(struct fixture *f)
{
	struct input list[N_INPUTS];

	assert_int_equal(f->device->ops->stream_sync(f->stream), 0); /* a build may be queued */
	backend_free(f);
	f->device->ops->stream_free(f->stream);
	inputs_list(f, list);
	for (size_t i = 0; i < N_INPUTS; i++)
		image_free(f, pointer_at(f, list[i].image), pointer_at(f, list[i].device));
	if (fixture_is_fp8(f) && !f->is_cuda)
		free(f->kv);
	image_free(f, f->kv, f->kv_device);
	image_free(f, f->q, f->q_device);
	image_free(f, f->out, f->out_device);
	image_free(f, f->w, (void *)(uintptr_t)f->kv_b.data);
	fixture_far_free(f);
	if (f->device_owned)
		f->device->ops->free(f->device);
}

/* ---- placing ---- */

/* Pages in a random order, none twice, never the null page. */
static int32_t *shuffled_pages(struct fixture *f)
{
	int32_t *pages = calloc(f->n_pages, sizeof(*pages));

	assert_non_null(pages);
	for (uint32_t i = 0; i < f->n_pages - 1; i++) {
		uint32_t j = random_below(&f->random, i + 1);

		pages[i] = pages[j];
		pages[j] = (int32_t)i + 1;
	}
	return pages;
}

/* One sequence's keys and values; takes its pages from the front of `pages`. */
static const int32_t *place_row(
	struct fixture *f, const struct row *row, int32_t *table, const int32_t *pages)
{
	const struct attention_config *c = &f->config;
	size_t width = (size_t)c->n_kv_heads * c->head_dim, to_value = c->page_tokens * width;

	for (uint32_t p = 0; p < row->seq_len; p++) {
		float *cached;

		if (p % c->page_tokens == 0)
			table[p / c->page_tokens] = *pages++;
		cached = f->kv + (size_t)table[p / c->page_tokens] * fixture_page_elements(f) +
			 p % c->page_tokens * width;
		for (uint32_t e = 0; e < width; e++) {
			cached[e] = fixture_content(f, row->seed, PART_K, p, e);
			if (!c->latent.rank)
				cached[to_value + e] =
					fixture_content(f, row->seed, PART_V, p, e);
		}
	}
	return pages;
}

static void place_queries(struct fixture *f, const struct row *row, uint32_t r, uint32_t first)
{
	uint32_t slot = FIXTURE_ROWS - 1 - r, before = row->seq_len - row->n_query;

	f->inputs.row_slot[r] = (int32_t)slot;
	f->inputs.slot_mask[slot] = row->mask;
	for (uint32_t j = 0; j < row->n_query && row->seq_len; j++) {
		f->inputs.mask_words[first + j] = row->words ? row->words[before + j] : 0;
		for (uint32_t e = 0; e < f->q_width; e++)
			f->q[(size_t)(first + j) * f->q_stride + e] =
				fixture_content(f, row->seed, PART_Q, before + j, e);
	}
}

static void make_hostile(struct fixture *f)
{
	static const int32_t garbage[] = { -1, INT32_MAX, INT32_MIN, 1 << 28 };

	memset(f->kv, 0xff, kv_elements(f) * sizeof(float));
	memset(f->q, 0xff, q_elements(f) * sizeof(float));
	memset(f->inputs.slot_mask, 0xff, FIXTURE_ROWS * sizeof(struct slot_mask));
	memset(f->inputs.mask_words, 0, FIXTURE_TOKENS * sizeof(uint64_t));
	for (uint32_t i = 0; i < FIXTURE_ROWS * f->config.max_pages; i++)
		f->inputs.block_table[i] = garbage[random_below(&f->random, 4)];
}

void fixture_place(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens)
{
	uint32_t max_pages = f->config.max_pages, n_tokens = 0, max_query = 0;
	int32_t *shuffled = shuffled_pages(f);
	const int32_t *pages = shuffled;

	make_hostile(f);
	for (uint32_t r = 0; r < FIXTURE_ROWS; r++) {
		f->inputs.query_start[r] = (int32_t)n_tokens;
		f->inputs.seq_lens[r] = r < n_rows ? (int32_t)rows[r].seq_len : 0;
		f->inputs.row_slot[r] = -1;
		if (r >= n_rows)
			continue;
		f->rows[r] = rows[r];
		f->query_lens[r] = rows[r].n_query;
		f->seq_lens[r] = rows[r].seq_len;
		pages = place_row(f, &rows[r], f->inputs.block_table + r * max_pages, pages);
		place_queries(f, &rows[r], r, n_tokens);
		if (f->kv_far)
			fixture_move_far(f, r, &rows[r]);
		n_tokens += rows[r].n_query;
		max_query = rows[r].n_query > max_query ? rows[r].n_query : max_query;
	}
	f->inputs.query_start[FIXTURE_ROWS] = (int32_t)n_tokens;
	free(shuffled);
	assert_true(n_tokens <= FIXTURE_TOKENS && padded_tokens <= FIXTURE_TOKENS);
	f->batch = (struct attention_batch){
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.padded_rows = padded_rows ? padded_rows : n_rows,
		.padded_tokens = padded_tokens ? padded_tokens : n_tokens,
		.max_query = max_query,
		.query_lens = f->query_lens,
		.seq_lens = f->seq_lens,
	};
	fixture_upload(f);
}

void fixture_null_page(struct fixture *f, int32_t entry)
{
	size_t page = fixture_page_elements(f);

	memcpy(f->kv, f->kv + (size_t)f->inputs.block_table[0] * page, page * sizeof(float));
	f->inputs.block_table[0] = entry;
}

void fixture_check_missing_pages(struct fixture *f, const struct row *row)
{
	static const int32_t ids[] = {-1, INT32_MIN, INT32_MAX, 100000};

	for (size_t i = 0; i < COUNT(ids); i++) {
		fixture_place(f, row, 1, 0, 0);
		fixture_null_page(f, ids[i]);
		fixture_run(f);
		fixture_verify(f);
	}
}

void fixture_check_alone(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens)
{
	for (uint32_t r = 0; r < n_rows; r++) {
		float *alone;

		fixture_run_rows(f, &rows[r], 1, 0, 0);
		alone = fixture_copy(f);
		fixture_run_rows(f, rows, n_rows, padded_rows, padded_tokens);
		assert_memory_equal(
			fixture_out(f, r, 0), alone, fixture_bytes(f, rows[r].n_query));
		free(alone);
	}
}

void fixture_upload(struct fixture *f)
{
	struct input list[N_INPUTS];

	if (fixture_is_fp8(f) && !f->is_cuda && !f->kv_far)
		fixture_put_kv(f, f->kv_device, 0, 0, kv_elements(f));
	if (!f->is_cuda)
		return;
	assert_int_equal(f->device->ops->stream_sync(f->stream), 0);
	inputs_list(f, list);
	for (size_t i = 0; i < N_INPUTS; i++)
		test_copy(f->device, pointer_at(f, list[i].device), pointer_at(f, list[i].image),
			list[i].bytes);
	if (!f->kv_far)
		fixture_put_kv(f, f->kv_device, 0, 0, kv_elements(f));
	fixture_put(f, f->q_device, f->q, q_elements(f));
}

/* ---- running ---- */

int fixture_build(struct fixture *f, enum attention_phase phase)
{
	f->batch.phase = phase;
	fixture_upload(f);
	return f->backend->build(f->metadata, &f->batch, f->stream);
}

int fixture_enqueue(struct fixture *f, uint32_t layer)
{
	return f->backend->run(f->metadata, f->stream, &(struct attention_args){
		.layer = layer,
		.q = f->q_device,
		.q_stride = f->q_stride,
		.kv = f->kv_far ? f->kv_far : f->kv_device,
		.factors = FIXTURE_FACTORS,
		.out = f->out_device,
		.kv_b = &f->kv_b,
	});
}

void fixture_poison_out(struct fixture *f)
{
	assert_int_equal(f->device->ops->fill_async(f->stream, f->out_device, 0xff,
		out_elements(f) * fixture_act_bytes(f)), 0);
}

void fixture_sync(struct fixture *f)
{
	uint16_t *halves;

	assert_int_equal(f->device->ops->stream_sync(f->stream), 0);
	if (!f->is_cuda)
		return;
	halves = test_fetch(f->device, f->out_device, out_elements(f) * sizeof(*halves));
	for (size_t i = 0; i < out_elements(f); i++)
		f->out[i] = bf16_to_float(halves[i]);
	free(halves);
}

void fixture_run(struct fixture *f)
{
	fixture_poison_out(f);
	assert_int_equal(fixture_build(f, ATTENTION_EAGER), 0);
	assert_int_equal(fixture_enqueue(f, FIXTURE_LAYER), 0);
	fixture_sync(f);
}

void fixture_run_rows(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens)
{
	fixture_place(f, rows, n_rows, padded_rows, padded_tokens);
	fixture_run(f);
}

/* ---- the output ---- */

float *fixture_out(const struct fixture *f, uint32_t row, uint32_t token)
{
	for (uint32_t r = 0; r < row; r++)
		token += f->query_lens[r];
	return f->out + (size_t)token * f->width;
}

size_t fixture_bytes(const struct fixture *f, uint32_t n_tokens)
{
	return (size_t)n_tokens * f->width * sizeof(float);
}

float *fixture_copy(const struct fixture *f)
{
	float *copy = malloc(fixture_bytes(f, FIXTURE_TOKENS));

	assert_non_null(copy);
	return memcpy(copy, f->out, fixture_bytes(f, FIXTURE_TOKENS));
}

void fixture_assert_zero(const struct fixture *f, uint32_t first, uint32_t end)
{
	for (size_t i = (size_t)first * f->width; i < (size_t)end * f->width; i++)
		assert_true(f->out[i] == 0.0f);
}

void fixture_assert_numbers(const struct fixture *f, uint32_t first, uint32_t end)
{
	for (size_t i = (size_t)first * f->width; i < (size_t)end * f->width; i++)
		assert_true(isfinite(f->out[i]));
}

void fixture_check(struct fixture *f, const struct row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens)
{
	fixture_run_rows(f, rows, n_rows, padded_rows, padded_tokens);
	fixture_verify(f);
}

void fixture_check_once(struct device *device, const char *backend, const struct shape *shape,
	const struct row *rows, uint32_t n_rows, uint32_t padded_rows, uint32_t padded_tokens)
{
	struct fixture f;

	fixture_init(&f, device, backend, shape);
	fixture_check(&f, rows, n_rows, padded_rows, padded_tokens);
	fixture_deinit(&f);
}
