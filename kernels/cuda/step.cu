/* SPDX-License-Identifier: MIT */

/*
 * decode_step: a whole decode as one kernel (step.cuh says how).
 *
 * Grid: a block a multiprocessor; block: 384 threads in twelve warps: eight multiply, one fetches, three
 * finish; shared memory: all there is, of which 11 or 12 stages of 16 KiB are the ring. All blocks have to
 * be resident at once, because they wait for each other: the launcher asks the occupancy, the grid is
 * no larger, and whatever else runs on the device only delays them. Two such kernels never run beside each
 * other: a daemon's models share one lane (daemon/engine), which is one stream, and the next kernel's
 * blocks begin when all of this one are resident (overlap.cuh).
 *
 * Moves every weight once and every row's keys and values once; words between blocks, about 20 KiB a
 * layer and row, stay in the L2. As a graph of nodes a step of a small model spends a third of its
 * time at the borders of nodes, where memory is idle.
 */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/step_kernel.cuh"
#include "kernels/packed.h"

static_assert(sizeof(struct step_map) == sizeof(struct cuda_tensor_map), "a map is a map");

/* ---- where it is faster ---- */

/*
 * Where one kernel was measured to be faster than the graph of nodes: both beside each other, replayed, on an
 * H100 (80 GB HBM3; `bench-internals whole`). ms of a step, as a graph and in one kernel:
 *
 *	rows            context   1             2             4             8
 *	1B shape        1k        1.051 1.011   1.063 1.042   1.080 1.071   1.136 1.132
 *	                8k        1.145 1.075   1.213 1.157   1.381 1.345   1.768 1.729
 *	                32k       1.414 1.320   1.762 1.678   2.513 2.397   4.004 3.819
 *	                128k      2.535 2.349   3.994 3.756   6.914 6.556   12.83 12.09
 *	8B shape        1k        5.267 5.555   5.327 5.851   5.462 6.012   5.669 6.403
 *	Qwen2.5-0.5B    1k        0.702 0.747   0.718 0.822   0.720 0.846   0.805 0.918
 *	Qwen2.5-1.5B    1k        1.46  1.67    1.51  1.71    1.60  1.72    1.70  1.68
 *
 * The same on an H200, of the 1B shape:
 *
 *			1k        0.836 0.835   0.859 0.867   0.859 0.902   0.926 0.963
 *			8k        0.901 0.897   0.966 0.988   1.06  1.17    1.34  1.55
 *
 * Nodes of the 1B shape end before memory is busy; those of the 8B one are long enough. With several rows an H100
 * gains up to 6 %, and an H200 loses up to 16 %.
 */
static const struct {
	uint32_t hidden, head_dim, rows; /* batches of at most so many rows */
} step_faster[] = {
	{2048, 64, 1},
};

static bool step_is_faster(const struct op_decode_step *a)
{
	for (const auto &f : step_faster)
		if (a->embedding.cols == f.hidden && a->head_dim == f.head_dim && a->n_rows <= f.rows)
			return true;
	return false;
}

/* ---- limits ---- */

struct step_variant {
	void (*kernel)(const step_args);
	uint32_t stages, head_dim, rows; /* of x at most; of a head; at most */
};

/* With 4096 columns, batches of one row have a kernel of their own, which needs fewer registers. Where step_faster
 * has no line for a variant, only tests run it. */
static const struct step_variant step_variants[] = {
	{step_kernel<4, 64, false>, 4, 64, 8},
	{step_kernel<4, 128, false>, 4, 128, 8},
	{step_kernel<8, 64, true>, 8, 64, 1},
	{step_kernel<8, 64, false>, 8, 64, 8},
	{step_kernel<8, 128, true>, 8, 128, 1},
	{step_kernel<8, 128, false>, 8, 128, 8},
};

static const struct step_variant *step_variant_of(const struct op_decode_step *a)
{
	for (const struct step_variant &v : step_variants)
		if (v.head_dim == a->head_dim && a->n_rows <= v.rows &&
			a->embedding.cols <= v.stages * STEP_COLS)
			return &v;
	return nullptr;
}

static bool step_takes(const struct weight &w)
{
	return !w.data || (w.dtype == DTYPE_BF16 && aligned(w.data));
}

static bool step_takes_layer(const struct decode_layer &l)
{
	return step_takes(l.input_norm) && step_takes(l.post_norm) && step_takes(l.qkv) &&
	       step_takes(l.qkv_bias) && step_takes(l.q_norm) && step_takes(l.k_norm) &&
	       step_takes(l.o) && step_takes(l.gate_up) && step_takes(l.down) && aligned(l.kv);
}

static bool step_takes_shape(const struct op_decode_step *a)
{
	const uint32_t hidden = a->embedding.cols, inner = a->layers[0].down.cols, n = a->n_rows;

	return hidden % 64 == 0 && hidden >= STEP_COLS && inner % 64 == 0 && inner >= STEP_COLS &&
	       a->n_heads * a->head_dim >= STEP_COLS && a->n_heads / a->n_kv_heads <= STEP_COLUMNS &&
	       a->inputs.page_tokens == STEP_PAGE && a->n_layers <= STEP_LAYERS_MAX &&
	       a->embedding.rows == a->head.rows && a->n_pages <= INT32_MAX / 2 &&
	       (n == 1 || n == 2 || n == 4 || n == 8);
}

static bool step_takes_all(const struct op_decode_step *a)
{
	if (!step_takes_shape(a) || !step_takes(a->embedding) || !step_takes(a->final_norm) ||
		!step_takes(a->head) || !aligned(a->cos_sin) || !aligned(a->normed) || !aligned(a->last))
		return false;
	for (uint32_t l = 0; l < a->n_layers; l++)
		if (!step_takes_layer(a->layers[l]) || a->layers[l].down.cols != a->layers[0].down.cols)
			return false;
	return true;
}

/* ---- arguments ---- */

/* How far a weight of one layer is from the next layer's, the same for all: false, if it is not. */
static bool step_stride(const struct op_decode_step *a, struct weight decode_layer::*member, uint64_t *ret)
{
	const uintptr_t first = (uintptr_t)(a->layers[0].*member).data;
	const uintptr_t second = (uintptr_t)(a->layers[a->n_layers > 1].*member).data;

	if (!first != !second || second < first)
		return false;
	for (uint32_t l = 1; l < a->n_layers; l++)
		if ((uintptr_t)(a->layers[l].*member).data != (first ? first + l * (second - first) : 0))
			return false;
	*ret = second - first;
	return true;
}

static bool step_vector_of(const struct op_decode_step *a, struct weight decode_layer::*member, step_vector *ret)
{
	uint64_t bytes;

	if (!step_stride(a, member, &bytes))
		return false;
	ret->data = (const step_bf16 *)(a->layers[0].*member).data;
	ret->stride = bytes / sizeof(step_bf16);
	return true;
}

static bool step_map_weight(struct stream *stream, const struct weight &w, uint32_t n_layers, uint64_t layer_bytes,
	step_map *ret)
{
	const uint64_t row = (uint64_t)w.cols * sizeof(step_bf16);
	const uint64_t dims[] = {64, w.cols / 64, w.rows, n_layers};
	const uint64_t strides[] = {128, row, n_layers > 1 ? layer_bytes : row * w.rows};
	const uint32_t box[] = {64, STEP_COLS / 64, STEP_TILE / 2, 1};

	return cuda_tensor_map_of(stream, w.data, 4, dims, strides, box, (struct cuda_tensor_map *)ret) == 0;
}

static bool step_map_layers(
	struct stream *stream, const struct op_decode_step *a, struct weight decode_layer::*member, step_map *ret)
{
	uint64_t bytes;

	return step_stride(a, member, &bytes) &&
	       step_map_weight(stream, a->layers[0].*member, a->n_layers, bytes, ret);
}

static bool step_map_cache(struct stream *stream, const struct op_decode_step *a, step_args *ret)
{
	const uint64_t token = (uint64_t)a->n_kv_heads * a->head_dim * sizeof(step_bf16);
	const uint64_t dims[] = {64, (uint64_t)a->n_kv_heads * a->head_dim / 64, STEP_PAGE, 2ull * a->n_pages};
	const uint64_t strides[] = {128, token, token * STEP_PAGE};
	const uint32_t box[] = {64, 1, STEP_PAGE, 2};

	for (uint32_t l = 0; l < a->n_layers; l++) {
		ret->cache[l] = (step_bf16 *)a->layers[l].kv;
		if (cuda_tensor_map_of(stream, a->layers[l].kv, 4, dims, strides, box,
			    (struct cuda_tensor_map *)&ret->kv[l]))
			return false;
	}
	return true;
}

static bool step_weights(struct stream *stream, const struct op_decode_step *a, step_args *ret)
{
	return step_map_layers(stream, a, &decode_layer::qkv, &ret->qkv) &&
	       step_map_layers(stream, a, &decode_layer::o, &ret->o) &&
	       step_map_layers(stream, a, &decode_layer::gate_up, &ret->gate_up) &&
	       step_map_layers(stream, a, &decode_layer::down, &ret->down) &&
	       step_map_weight(stream, a->head, 1, 0, &ret->head) &&
	       step_vector_of(a, &decode_layer::input_norm, &ret->input_norm) &&
	       step_vector_of(a, &decode_layer::post_norm, &ret->post_norm) &&
	       step_vector_of(a, &decode_layer::qkv_bias, &ret->qkv_bias) &&
	       step_vector_of(a, &decode_layer::q_norm, &ret->q_norm) &&
	       step_vector_of(a, &decode_layer::k_norm, &ret->k_norm) &&
	       step_map_cache(stream, a, ret);
}

static void step_inputs_of(const struct op_decode_step *a, step_args *ret)
{
	ret->final_norm = (const step_bf16 *)a->final_norm.data;
	ret->embedding = (const step_bf16 *)a->embedding.data;
	ret->from = a->inputs.embedding_from;
	ret->ids = a->inputs.input_ids;
	ret->positions = a->inputs.positions;
	ret->slot_mapping = a->inputs.slot_mapping;
	ret->seq_lens = a->inputs.seq_lens;
	ret->block_table = a->inputs.block_table;
	ret->cos_sin = a->cos_sin;
	ret->logits = a->logits;
	ret->outputs[0] = (step_bf16 *)a->normed;
	ret->outputs[1] = (step_bf16 *)a->last;
	ret->n_layers = a->n_layers;
	ret->hidden = a->embedding.cols;
	ret->intermediate = a->layers[0].down.cols;
	ret->vocab = a->head.rows;
	ret->n_heads = a->n_heads;
	ret->n_kv_heads = a->n_kv_heads;
	ret->max_pages = a->inputs.max_pages;
	ret->max_positions = a->max_positions;
	ret->n_pages = a->n_pages;
	ret->eps = a->eps;
	ret->scale_log2 = a->scale * 1.4426950408889634f;
}

/* Words of the largest batch's regions: a step empties what one of any other size left. */
static size_t step_exchange_words(const struct op_decode_step *a)
{
	const size_t width = (size_t)a->n_heads * a->head_dim / 2, rows = STEP_COLUMNS;
	const size_t pieces = STEP_COLUMNS * STEP_SERIAL_MAX;
	const size_t layer = rows * (2 * width + a->n_kv_heads * a->head_dim) + pieces * (width + a->n_heads) +
			     rows * a->embedding.cols + rows * (a->layers[0].down.cols / 2);

	return (layer * a->n_layers + 63) / 64 * 64;
}

static int step_exchange_of(struct stream *stream, const struct op_decode_step *a, step_args *ret)
{
	void *memory;
	size_t bytes;
	int rc = cuda_exchange(stream, STEP_STATE_BYTES + 2 * step_exchange_words(a) * sizeof(uint32_t), &memory, &bytes);

	if (!rc)
		step_divide(ret, memory, bytes);
	return rc;
}

/* ---- launching ---- */

/* How the ring is cut. */
static uint32_t step_cut(struct stream *stream, const struct op_decode_step *a, step_args *ret)
{
	const uint32_t fixed = STEP_SHARED_FIXED(a->n_heads / a->n_kv_heads, a->head_dim);
	const uint32_t fit = (cuda_limits(stream)->shared_bytes_optin - fixed) / STEP_STAGE;

	ret->rows = a->n_rows;
	ret->n_stages = fit < STEP_STAGES_MAX ? fit : (uint32_t)STEP_STAGES_MAX;
	return fixed + ret->n_stages * STEP_STAGE;
}

/* Of a grid of so many blocks, the columns that the block with the most rows has to take. */
static uint64_t step_most(const struct op_decode_step *a, uint32_t grid)
{
	const uint32_t hidden = a->embedding.cols, width = a->n_heads * a->head_dim;
	const uint32_t n_qkv = a->layers[0].qkv.rows, inner = a->layers[0].down.cols;
	const uint64_t products[][2] = {{n_qkv, hidden}, {hidden, width}, {2 * inner, hidden}, {hidden, inner}};
	uint64_t sum = 0;

	for (const auto &p : products)
		sum += (p[0] / STEP_GROUP + grid - 1) / grid * p[1];
	return sum;
}

/* Have its blocks room for their tiles of o and down? */
static bool step_has_own(const struct op_decode_step *a, uint32_t grid)
{
	return a->embedding.cols / STEP_GROUP <= 2 * STEP_OWN_MAX * grid;
}

/* As many blocks as there are multiprocessors, or a few less if rows are shared out more evenly then; at least
 * 31/32 of them; 128 of 132 is also the number of units of one long row with eight kv heads (16 pieces). */
static uint32_t step_grid(struct stream *stream, const struct op_decode_step *a)
{
	const uint32_t n_sms = cuda_limits(stream)->n_sms;
	uint32_t best = n_sms;

	for (uint32_t grid = n_sms; grid >= n_sms - n_sms / 32; grid--)
		if (step_has_own(a, grid) && step_most(a, grid) <= step_most(a, best))
			best = grid;
	return best;
}

/* Is a block a multiprocessor resident at once? */
static bool step_is_resident(struct stream *stream, const struct step_variant *v, uint32_t shared_bytes)
{
	int n = 0;

	return !CUDA_TRY(cuda_stream_device(stream), cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n,
		       (const void *)v->kernel, STEP_THREADS, shared_bytes)) && n > 0;
}

/* All variants at the first use of one: a graph captured later may be of another. */
static int step_allow_shared(struct stream *stream)
{
	const void *kernels[sizeof(step_variants) / sizeof(step_variants[0])];
	uint32_t n = 0;

	for (const struct step_variant &v : step_variants)
		kernels[n++] = (const void *)v.kernel;
	return cuda_allow_shared(stream, "decode_step shared", kernels, n, cuda_limits(stream)->shared_bytes_optin);
}

static int step_launch(struct stream *stream, const struct op_decode_step *a, const struct step_variant *v)
{
	step_args args = {};
	const uint32_t shared_bytes = step_cut(stream, a, &args);
	int rc = step_allow_shared(stream);

	if (rc)
		return rc;
	if (!step_is_resident(stream, v, shared_bytes) || !step_weights(stream, a, &args))
		return -ENOTSUP;
	rc = step_exchange_of(stream, a, &args);
	if (rc)
		return rc;
	step_inputs_of(a, &args);
	launch(stream, v->kernel, dim3(step_grid(stream, a)), dim3(STEP_THREADS), shared_bytes, args);
	return cuda_launch_end(stream, "decode_step");
}

static bool step_is_packed(const struct op_decode_step *a)
{
	bool packed = packed_is(a->head.dtype);

	for (uint32_t l = 0; l < a->n_layers && !packed; l++) {
		const struct decode_layer *layer = &a->layers[l];

		packed = packed_is(layer->qkv.dtype) || packed_is(layer->o.dtype) || packed_is(layer->gate_up.dtype) ||
			 packed_is(layer->down.dtype);
	}
	return packed;
}

int cuda_decode_step(struct stream *stream, const struct op_decode_step *a)
{
	const struct cuda_limits *limits = cuda_limits(stream);
	const struct step_variant *v;
	int rc;

	if (a->layers && step_is_packed(a))
		return -ENOTSUP;
	if (!decode_step_fits(a))
		return -EINVAL;
	v = step_variant_of(a);
	if (limits->arch != 90 || !v || !step_takes_all(a) || !(a->always || step_is_faster(a)))
		return -ENOTSUP;
	if (!step_has_own(a, limits->n_sms))
		return -ENOTSUP;
	rc = cuda_launch_begin(stream, "decode_step", (const void *)v->kernel);
	return rc ? rc : step_launch(stream, a, v);
}
