/* SPDX-License-Identifier: MIT */

/*
 * Whole decode steps on the first CUDA device: the forward pass of a model of random weights, one
 * token a row, recorded into a graph; then steps as they are served, prepare, plan, the graph, a
 * greedy sample and the outbox, many in a row. In milliseconds beside the time that a device
 * copy's bandwidth takes for the weights and the keys and values.
 *
 *	bench_decode_cuda [1b|8b [rows]...]
 *
 * BENCH_LIBRARY=1 in the environment: products by cuBLASLt alone; MIMEO_CUDA_SERIAL=1: no overlap.
 */

#include <string.h>

#include "daemon/model/model.h"
#include "tests/kernels/bench_cuda.h"

#define PAGE_TOKENS 16u
#define CONTEXT 1024u
#define MAX_ROWS 128u
#define STEPS 20u

struct size {
	const char *name;
	uint32_t hidden, inner, vocab, n_layers, n_heads, n_kv_heads, head_dim;
};

static const struct size sizes[] = {
	{"1b", 2048, 8192, 128256, 16, 32, 8, 64},
	{"8b", 4096, 14336, 128256, 32, 32, 8, 128},
};

struct bench {
	struct device *device;
	const struct device_ops *ops;
	struct stream *stream;
	struct model model;
	struct model_buffers buffers;
	struct step_inputs inputs;
	struct step_record *record; /* pinned, rows and pages behind it */
	int32_t *outbox;            /* pinned; the flag behind it */
	int32_t *sampled;
	uint32_t n_rows, n_pages;
	uint64_t weight_bytes, layer_bytes;
	void *weights, *pool, *kv;
	void **kv_layers;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t lens[2 * MAX_ROWS];
};

static void *alloc(struct bench *b, size_t bytes)
{
	void *memory;

	must(b->ops->mem_alloc(b->device, bytes, &memory), "device memory");
	return memory;
}

static struct weight weight_at(char **at, uint32_t rows, uint32_t cols)
{
	struct weight w = {.data = *at, .dtype = DTYPE_BF16, .rows = rows, .cols = cols};

	*at += ((size_t)rows * cols * 2 + 255) / 256 * 256;
	return w;
}

/* Places all weights from `at` on; returns the end. */
static char *place_weights(struct bench *b, const struct size *z, char *at)
{
	struct model *m = &b->model;
	const uint32_t q = z->n_heads * z->head_dim, kv = z->n_kv_heads * z->head_dim;

	m->head = m->embedding = weight_at(&at, z->vocab, z->hidden);
	m->final_norm = weight_at(&at, 1, z->hidden);
	for (uint32_t l = 0; l < z->n_layers; l++)
		m->layers[l] = (struct model_layer){
			.input_norm = weight_at(&at, 1, z->hidden),
			.post_norm = weight_at(&at, 1, z->hidden),
			.qkv = weight_at(&at, q + 2 * kv, z->hidden),
			.o = weight_at(&at, z->hidden, q),
			.gate_up = weight_at(&at, 2 * z->inner, z->hidden),
			.down = weight_at(&at, z->hidden, z->inner),
		};
	return at;
}

static void model_make(struct bench *b, const struct size *z)
{
	struct model *m = &b->model;

	m->device = b->device;
	m->activation_dtype = DTYPE_BF16;
	m->max_positions = CONTEXT * 2;
	m->config = (struct model_config){
		.hidden_size = z->hidden, .intermediate_size = z->inner, .vocab_size = z->vocab,
		.n_layers = z->n_layers, .n_heads = z->n_heads, .n_kv_heads = z->n_kv_heads,
		.head_dim = z->head_dim, .rms_norm_eps = 1e-5f,
	};
	m->layers = calloc(z->n_layers, sizeof(*m->layers));
	if (!m->layers)
		exit(1);
	b->weight_bytes = (uint64_t)(uintptr_t)place_weights(b, z, NULL);
	b->weights = random_memory(b->device, b->weight_bytes, 9);
	place_weights(b, z, b->weights);
	m->cos_sin = random_memory(b->device, (size_t)m->max_positions * z->head_dim * 4, 3);
}

static void inputs_make(struct bench *b)
{
	const uint32_t per_row = CONTEXT / PAGE_TOKENS;

	b->inputs = (struct step_inputs){
		.max_rows = MAX_ROWS, .max_tokens = MAX_ROWS, .max_slots = MAX_ROWS,
		.max_pages = per_row, .page_tokens = PAGE_TOKENS,
		.vocab_size = b->model.config.vocab_size,
		.embedding_bytes = b->model.config.hidden_size * 2,
		.embedding_from = alloc(b, MAX_ROWS * sizeof(void *)),
		.input_ids = alloc(b, MAX_ROWS * 4), .positions = alloc(b, MAX_ROWS * 4),
		.slot_mapping = alloc(b, MAX_ROWS * 4), .query_start = alloc(b, MAX_ROWS * 4 + 4),
		.seq_lens = alloc(b, MAX_ROWS * 4),
		.block_table = alloc(b, (size_t)MAX_ROWS * per_row * 4),
		.row_slot = alloc(b, MAX_ROWS * 4), .row_flags = alloc(b, MAX_ROWS * 4),
		.logit_index = alloc(b, MAX_ROWS * 4), .slot_last_token = alloc(b, MAX_ROWS * 4),
		.slot_sampling = alloc(b, MAX_ROWS * sizeof(struct slot_sampling)),
		.slot_block_table = alloc(b, (size_t)MAX_ROWS * per_row * 4),
	};
	b->sampled = alloc(b, MAX_ROWS * 4);
	must(b->ops->host_alloc(b->device, MAX_ROWS * 4 + 8, (void **)&b->outbox), "pinned");
}

/* All rows at the last token of the context, pages scattered; every step sets the slots up anew,
 * which is more than a step in the middle of a request does. */
static void record_make(struct bench *b)
{
	const uint32_t per_row = CONTEXT / PAGE_TOKENS, n = MAX_ROWS * per_row;
	struct step_row *rows;
	struct slot_init *inits;
	uint32_t *pages;
	int32_t *ids;

	must(b->ops->host_alloc(b->device,
		     sizeof(*b->record) + MAX_ROWS * (sizeof(*rows) + sizeof(*inits) + 4) + n * 4,
		     (void **)&b->record),
		"pinned");
	inits = (struct slot_init *)(b->record + 1);
	rows = (struct step_row *)(inits + MAX_ROWS);
	ids = (int32_t *)(rows + MAX_ROWS);
	pages = (uint32_t *)(ids + MAX_ROWS);
	for (uint32_t i = 0; i < b->n_rows * per_row; i++)
		pages[i] = 1 + (uint32_t)((uint64_t)i * 7919 % (b->n_rows * per_row));
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		rows[r] = (struct step_row){.slot = (int32_t)r, .flags = ROW_SAMPLE, .n_tokens = 1,
			.start = CONTEXT - 1};
		inits[r] = (struct slot_init){.slot = (int32_t)r, .n_pages = per_row,
			.page_offset = r * per_row, .sampling = {.top_p = 1}};
		ids[r] = (int32_t)(r * 997);
	}
	*b->record = (struct step_record){.n_rows = b->n_rows, .n_tokens = b->n_rows,
		.padded_rows = b->n_rows, .padded_tokens = b->n_rows, .n_inits = b->n_rows,
		.rows = rows, .ids = ids, .inits = inits, .pages = pages};
}

static void attention_make(struct bench *b)
{
	const struct model_config *c = &b->model.config;
	const uint32_t per_row = CONTEXT / PAGE_TOKENS;
	const struct attention_config config = {
		.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim, .scale = 0.1f, .page_tokens = PAGE_TOKENS,
		.max_rows = MAX_ROWS, .max_tokens = MAX_ROWS, .max_pages = per_row,
		.max_seq_len = CONTEXT, .max_decode_query = 1, .activation_dtype = DTYPE_BF16,
		.kv_dtype = DTYPE_BF16, .n_kv_pages = b->n_pages,
	};

	b->layer_bytes = (uint64_t)b->n_pages * 2 * PAGE_TOKENS * c->n_kv_heads * c->head_dim * 2;
	b->kv = random_memory(b->device, b->layer_bytes * c->n_layers, 3);
	b->kv_layers = calloc(c->n_layers, sizeof(*b->kv_layers));
	if (!b->kv_layers)
		exit(1);
	for (uint32_t l = 0; l < c->n_layers; l++)
		b->kv_layers[l] = (char *)b->kv + l * b->layer_bytes;
	must(attention_paged.manager_new(b->device, &config, &b->inputs, &b->manager), "manager");
	must(attention_paged.metadata_new(b->manager, &b->metadata), "metadata");
}

static void bench_init(struct bench *b, const struct size *z, uint32_t n_rows)
{
	struct arena arena = {0};

	*b = (struct bench){.n_rows = n_rows, .n_pages = n_rows * (CONTEXT / PAGE_TOKENS) + 1};
	must(device_open("cuda", NULL, &b->device), "cuda");
	b->ops = b->device->ops;
	if (getenv("BENCH_LIBRARY"))
		cuda_gemm_choose(b->device, CUDA_GEMM_LIBRARY);
	must(b->ops->stream_new(b->device, &b->stream), "stream");
	model_make(b, z);
	inputs_make(b);
	record_make(b);
	attention_make(b);
	model_buffers_carve(&b->model.config, MAX_ROWS, MAX_ROWS, DTYPE_BF16, &arena, &b->buffers);
	b->pool = alloc(b, arena.used);
	arena = (struct arena){.base = b->pool, .size = arena.used};
	model_buffers_carve(&b->model.config, MAX_ROWS, MAX_ROWS, DTYPE_BF16, &arena, &b->buffers);
	for (uint32_t r = 0; r < n_rows; r++) {
		b->lens[r] = 1;
		b->lens[MAX_ROWS + r] = CONTEXT;
	}
}

static void bench_deinit(struct bench *b)
{
	void *const memory[] = {b->weights, b->pool, b->kv, b->model.cos_sin, b->sampled,
		b->inputs.input_ids, b->inputs.positions, b->inputs.slot_mapping,
		b->inputs.query_start, b->inputs.seq_lens, b->inputs.block_table,
		b->inputs.row_slot, b->inputs.row_flags, b->inputs.logit_index,
		b->inputs.slot_last_token, b->inputs.slot_sampling, b->inputs.slot_block_table};

	attention_paged.metadata_free(b->metadata);
	attention_paged.manager_free(b->manager);
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
		b->ops->mem_free(b->device, memory[i]);
	b->ops->host_free(b->device, b->record);
	b->ops->host_free(b->device, b->outbox);
	b->ops->stream_free(b->stream);
	b->ops->free(b->device);
	free(b->model.layers);
	free(b->kv_layers);
}

/* ---- steps ---- */

static void queue_build(struct bench *b)
{
	const struct attention_batch batch = {
		.n_rows = b->n_rows, .n_tokens = b->n_rows, .padded_rows = b->n_rows,
		.padded_tokens = b->n_rows, .max_query = 1, .query_lens = b->lens,
		.seq_lens = b->lens + MAX_ROWS,
	};
	const struct op_prepare prepare = {
		.record = b->record, .inputs = b->inputs, .n_pages = b->n_pages};

	must(b->device->kernels->prepare(b->stream, &prepare), "prepare");
	must(attention_paged.build(b->metadata, &batch, b->stream), "build");
}

static void queue_forward(struct bench *b)
{
	const struct model_pass pass = {
		.inputs = &b->inputs, .buffers = &b->buffers, .n_tokens = b->n_rows,
		.n_rows = b->n_rows, .attention = &attention_paged, .metadata = b->metadata,
		.kv_layers = b->kv_layers, .page_tokens = PAGE_TOKENS,
	};

	must(model_forward(&b->model, b->stream, &pass), "forward");
	must(model_logits(&b->model, b->stream, &pass), "logits");
}

static void queue_sample(struct bench *b)
{
	const struct op_sample sample = {
		.logits = b->buffers.logits, .n_rows = b->n_rows,
		.vocab = b->model.config.vocab_size, .inputs = b->inputs, .sampled = b->sampled};
	const struct op_outbox outbox = {.sampled = b->sampled, .out = b->outbox,
		.flag = (uint64_t *)(b->outbox + MAX_ROWS), .n_rows = b->n_rows};

	must(b->device->kernels->sample(b->stream, &sample), "sample");
	must(b->device->kernels->outbox(b->stream, &outbox), "outbox");
}

static struct graph *recorded(struct bench *b)
{
	struct graph *graph;

	must(b->ops->capture_begin(b->stream), "capture");
	queue_forward(b);
	must(b->ops->capture_end(b->stream, &graph), "capture");
	return graph;
}

/* Of one step, the median over batches of them. */
static double time_steps(struct bench *b)
{
	struct graph *graph = recorded(b);
	struct graph_exec *exec;
	double us[REPLAYS];

	must(b->ops->graph_instantiate(b->device, graph, &exec), "instantiate");
	for (uint32_t i = 0; i <= REPLAYS; i++) {
		double start;

		must(b->ops->stream_sync(b->stream), "sync");
		start = now_us();
		for (uint32_t j = 0; j < STEPS; j++) {
			queue_build(b);
			must(b->ops->graph_launch(exec, b->stream), "launch");
			queue_sample(b);
		}
		must(b->ops->stream_sync(b->stream), "sync");
		if (i > 0)
			us[i - 1] = (now_us() - start) / STEPS;
	}
	b->ops->graph_exec_free(exec);
	b->ops->graph_free(graph);
	qsort(us, REPLAYS, sizeof(*us), by_value);
	return us[REPLAYS / 2];
}

/* The embedding is the head; the rows it is read for count nothing. */
static double floor_us(const struct bench *b)
{
	const struct model_config *c = &b->model.config;
	const double kv = (double)b->n_rows * CONTEXT * c->n_layers * c->n_kv_heads * c->head_dim * 4;

	return ((double)b->weight_bytes + kv) / COPY_BYTES_PER_SECOND * 1e6;
}

static void report(const struct size *z, uint32_t n_rows)
{
	struct bench b;
	double floor, graph, step;

	bench_init(&b, z, n_rows);
	queue_build(&b);
	queue_forward(&b); /* products are timed here */
	queue_sample(&b);
	must(b.ops->stream_sync(b.stream), "sync");
	floor = floor_us(&b);
	graph = time_graph(b.device, b.stream, recorded(&b), STEPS);
	step = time_steps(&b);
	printf("%-6s %5u %9.3f %9.3f %9.3f %7.2f\n", z->name, n_rows, floor * 1e-3, graph * 1e-3,
		step * 1e-3, graph / floor);
	fflush(stdout);
	bench_deinit(&b);
}

int main(int argc, char **argv)
{
	static const uint32_t usual[] = {1, 8, 32, 128};

	printf("%-6s %5s %9s %9s %9s %7s\n", "model", "rows", "floor ms", "graph", "step", "ratio");
	for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
		if (argc > 1 && strcmp(argv[1], sizes[z].name) != 0)
			continue;
		for (int i = 0; i < (argc > 2 ? argc - 2 : 4); i++) {
			const uint32_t rows = argc > 2 ? (uint32_t)atoi(argv[i + 2]) : usual[i];

			if (rows >= 1 && rows <= MAX_ROWS)
				report(&sizes[z], rows);
		}
	}
	return 0;
}
