/* SPDX-License-Identifier: MIT */
#include "tests/attention/fixture_cache.h"

#include <sys/mman.h>

#include "tests/e4m3.h"

void fixture_put(struct fixture *f, void *dst, const float *src, size_t n)
{
	uint16_t *halves;

	if (!f->is_cuda) {
		memmove(dst, src, n * sizeof(float));
		return;
	}
	halves = malloc(n * sizeof(*halves) + 1);
	assert_non_null(halves);
	for (size_t i = 0; i < n; i++)
		halves[i] = bf16_from_float(src[i]);
	test_copy(f->device, dst, halves, n * sizeof(*halves));
	free(halves);
}

void fixture_put_kv(struct fixture *f, void *dst, size_t to, size_t first, size_t n)
{
	const struct attention_config *c = &f->config;
	size_t half = (size_t)c->page_tokens * c->n_kv_heads * c->head_dim;
	uint8_t *codes;

	if (!fixture_is_fp8(f)) {
		fixture_put(f, (char *)dst + to * fixture_act_bytes(f), f->kv + first, n);
		return;
	}
	codes = malloc(n + 1);
	assert_non_null(codes);
	for (size_t i = 0; i < n; i++) {
		bool is_value = !c->latent.rank && (first + i) / half % 2;

		codes[i] = e4m3_from_float(f->kv[first + i] /
			(is_value ? FIXTURE_FACTORS.value : FIXTURE_FACTORS.key));
	}
	if (f->is_cuda)
		test_copy(f->device, (char *)dst + to, codes, n);
	else
		memcpy((char *)dst + to, codes, n);
	free(codes);
}

/* The first page behind element 2^32; placed pages go behind it and behind its half. */
static uint32_t far_page(const struct fixture *f)
{
	return (uint32_t)(((uint64_t)1 << 32) / fixture_page_elements(f));
}

static size_t far_bytes(const struct fixture *f)
{
	const size_t bytes = fixture_is_fp8(f) ? 1 : fixture_act_bytes(f);

	return (far_page(f) + (size_t)f->n_pages) * fixture_page_elements(f) * bytes;
}

void fixture_go_far(struct fixture *f)
{
	f->config.n_kv_pages = far_page(f) + f->n_pages;
	if (f->is_cuda)
		assert_int_equal(f->device->ops->mem_alloc(f->device, far_bytes(f), &f->kv_far), 0);
	else
		f->kv_far = mmap(NULL, far_bytes(f), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(f->kv_far, MAP_FAILED);
	fixture_remake(f);
}

void fixture_move_far(struct fixture *f, uint32_t r, const struct row *row)
{
	const struct attention_config *c = &f->config;
	size_t page = fixture_page_elements(f);

	for (uint32_t i = 0; i * c->page_tokens < row->seq_len; i++) {
		int32_t *entry = &f->inputs.block_table[r * c->max_pages + i];
		int32_t to = *entry + (int32_t)(far_page(f) / (i % 2 ? 1 : 2));

		fixture_put_kv(f, f->kv_far, (size_t)to * page, (size_t)*entry * page, page);
		*entry = to;
	}
}

void fixture_far_free(struct fixture *f)
{
	if (f->kv_far && f->is_cuda)
		f->device->ops->mem_free(f->device, f->kv_far);
	else if (f->kv_far)
		munmap(f->kv_far, far_bytes(f));
}
