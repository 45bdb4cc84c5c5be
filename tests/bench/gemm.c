/* SPDX-License-Identifier: MIT */
/*
 * The matrix products of a model's step, through the device's op table: each shape for each batch,
 * in a graph over copies of the weight that together exceed any cache, random contents. The floor
 * is the larger of two times: its bytes at a device copy's bandwidth, its operations at the rate of
 * a large product.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "daemon/model/error.h"
#include "daemon/model/model.h"

#define SHAPES 5u
#define COLD_BYTES (512ull << 20) /* more than an L2 holds */
#define COLD_BYTES_HOST (1ull << 20)
#define LAUNCHES_MIN 8u
#define COPIES_MAX 64u
#define FLOOR                                                                                      \
	"weight, input and output once at the bandwidth of a device copy, or its operations at "   \
	"the rate of a large product, whichever takes longer"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"matrix", "MATRIX", TABLE_TEXT},
	{"rows", "ROWS", TABLE_COUNT},
	{"outputs", "OUT", TABLE_COUNT},
	{"inputs", "IN", TABLE_COUNT},
	REPORT_COST_COLUMNS,
	REPORT_COLUMNS,
};

struct matrix {
	const char *name;
	uint32_t outputs, inputs;
	bool f32;   /* its output */
	bool gated; /* gate and up in one op that gives silu(gate) * up, half as wide */
};

struct gemm_row {
	uint32_t matrix, n_rows;
	double seconds;
	uint64_t bytes;
};

struct gemm_facts {
	char device[64];
	struct rates rates;
	struct matrix matrices[SHAPES];
	struct gemm_row rows[SHAPES * BENCH_LIST_MAX];
	uint32_t n_rows;
};

struct gemm_work {
	const struct bench_options *options;
	struct gemm_facts *facts;
};

static int find_matrices(const char *dir, struct matrix ret[SHAPES], struct model_error *error)
{
	struct model_config c;
	int rc = model_config_load(dir, &c, error);

	if (rc)
		return rc;
	if (c.latent.rank) {
		model_config_deinit(&c);
		return model_fail(error, -ENOTSUP,
			"%s: its attention is latent, and the products measured here are those of "
			"models with q, k and v", dir);
	}
	uint32_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
	const struct matrix all[SHAPES] = {
		{"qkv", q + 2 * kv, c.hidden_size, false},
		{"o", c.hidden_size, q, false},
		{"gate_up", 2 * c.intermediate_size, c.hidden_size, .gated = true},
		{"down", c.hidden_size, c.intermediate_size, false},
		{"head", c.vocab_size, c.hidden_size, true},
	};
	memcpy(ret, all, sizeof(all));
	model_config_deinit(&c);
	return 0;
}

/* One shape and batch: n launches over n_copies of the weight. */
struct product {
	const struct kernel_ops *kernels;
	struct stream *stream;
	struct op_gemm gemm;
	void *scratch; /* of the gated op; NULL: a plain one */
	char *weights;
	uint64_t weight_bytes;
	uint32_t n_copies, n;
};

static int queue(void *arg)
{
	struct product *p = arg;
	int rc = 0;

	for (uint32_t i = 0; i < p->n && !rc; i++) {
		p->gemm.w.data = p->weights + i % p->n_copies * p->weight_bytes;
		if (!p->scratch)
			rc = p->kernels->gemm(p->stream, &p->gemm);
		else
			rc = p->kernels->gated_gemm(p->stream, &(struct op_gated_gemm){
								       .x = p->gemm.x,
								       .w = p->gemm.w,
								       .gate_up = p->scratch,
								       .y = p->gemm.y,
								       .n_rows = p->gemm.n_rows,
							       });
	}
	return rc;
}

static void size_up(const struct probe *probe, const struct matrix *matrix, struct product *p)
{
	uint64_t cold = probe->is_host ? COLD_BYTES_HOST : COLD_BYTES;
	uint64_t bytes = (uint64_t)matrix->outputs * matrix->inputs *
			 dtype_bytes(probe->info.activation_dtype);

	p->weight_bytes = (bytes + 255) / 256 * 256;
	p->n_copies = (uint32_t)(cold / p->weight_bytes + 2);
	p->n_copies = p->n_copies < COPIES_MAX ? p->n_copies : COPIES_MAX;
	p->n = p->n_copies < LAUNCHES_MIN ? LAUNCHES_MIN : p->n_copies;
}

static int take_buffers(struct probe *probe, const struct matrix *matrix, struct gemm_row *row,
	struct product *p, void *ret[3])
{
	enum dtype act = probe->info.activation_dtype;
	uint64_t x_bytes = (uint64_t)row->n_rows * matrix->inputs * dtype_bytes(act);
	uint64_t y_bytes = (uint64_t)row->n_rows * matrix->outputs * dtype_bytes(p->gemm.y_dtype);
	/* what the gated op leaves behind, and what it may leave on the way */
	uint64_t out_bytes = matrix->gated ? y_bytes / 2 : y_bytes,
		 at = (out_bytes + 255) / 256 * 256;

	row->bytes =
		(uint64_t)matrix->outputs * matrix->inputs * dtype_bytes(act) + x_bytes + out_bytes;
	int rc = probe_random(probe, p->weight_bytes * p->n_copies, act, &ret[0]);
	if (!rc)
		rc = probe_random(probe, x_bytes, act, &ret[1]);
	if (!rc)
		rc = probe->device->ops->mem_alloc(probe->device, at + y_bytes, &ret[2]);
	if (rc)
		return rc;
	p->weights = ret[0];
	p->gemm.x = ret[1];
	p->gemm.y = ret[2];
	p->scratch = matrix->gated ? (char *)ret[2] + at : NULL;
	return 0;
}

static int measure(struct probe *probe, const struct matrix *matrix, struct gemm_row *row)
{
	enum dtype act = probe->info.activation_dtype;
	struct product p = {
		.kernels = probe->device->kernels,
		.stream = probe->stream,
		.gemm = {.w = {NULL, act, matrix->outputs, matrix->inputs},
			.y_dtype = matrix->f32 ? DTYPE_F32 : act,
			.n_rows = row->n_rows},
	};
	void *buffers[3] = {NULL};

	size_up(probe, matrix, &p);
	int rc = take_buffers(probe, matrix, row, &p, buffers);
	if (!rc)
		rc = probe_time(probe, true, queue, &p, p.n, &row->seconds);
	for (unsigned i = 0; i < 3; i++)
		probe->device->ops->mem_free(probe->device, buffers[i]);
	return rc;
}

static int run_all(struct gemm_work *work, struct probe *probe)
{
	struct gemm_facts *facts = work->facts;
	int rc = probe_rates(probe);

	facts->rates = probe->rates;
	snprintf(facts->device, sizeof(facts->device), "%s", probe->info.name);
	for (uint32_t i = 0; i < facts->n_rows && !rc; i++)
		rc = measure(probe, &facts->matrices[facts->rows[i].matrix], &facts->rows[i]);
	return rc;
}

static int work_gemm(void *arg, int fd)
{
	struct gemm_work *work = arg;
	struct model_error error = {""};
	struct probe probe = {0};
	int rc = find_matrices(work->options->model_dir, work->facts->matrices, &error);

	(void)fd;
	if (!rc)
		rc = probe_open(&probe, work->options->device, error.text, sizeof(error.text));
	if (!rc)
		rc = run_all(work, &probe);
	rc = report_outcome("gemm", rc, error.text);
	probe_close(&probe);
	return rc;
}

static void fill(
	struct table *table, const struct target *target, const void *userdata, uint32_t i)
{
	const struct gemm_work *work = userdata;
	const struct bench_options *options = work->options;
	const struct gemm_facts *facts = work->facts;
	const struct gemm_row *row = &facts->rows[i];
	const struct matrix *matrix = &facts->matrices[row->matrix];

	table_row(table);
	table_set_text(table, "bench", "gemm");
	report_model(table, options);
	table_set_text(table, "matrix", matrix->name);
	table_set_count(table, "rows", row->n_rows);
	table_set_count(table, "outputs", matrix->outputs);
	table_set_count(table, "inputs", matrix->inputs);
	report_cost(table, &facts->rates,
		&(struct report_cost){
			.bytes = row->bytes,
			.flop = 2.0 * row->n_rows * matrix->outputs * matrix->inputs,
			.seconds = row->seconds,
		});
	report_common(table, target, FLOOR, NULL);
}

static int print(const struct gemm_work *work)
{
	const struct gemm_facts *facts = work->facts;

	return report_costs(&(struct report_costs){
		.bench = "gemm",
		.device = facts->device,
		.floor = FLOOR,
		.rates = &facts->rates,
		.columns = columns,
		.n_columns = sizeof(columns) / sizeof(columns[0]),
		.n_rows = facts->n_rows,
		.fill = fill,
		.userdata = work,
	}, work->options->json);
}

int bench_gemm(const struct bench_options *options, struct results *results)
{
	struct gemm_facts *facts = child_memory(sizeof(*facts));
	struct gemm_work work = {options, facts};
	int r = facts ? 0 : -ENOMEM;

	for (uint32_t i = 0; r == 0 && i < SHAPES * options->batches.n; i++)
		facts->rows[facts->n_rows++] = (struct gemm_row){
			.matrix = i / options->batches.n,
			.n_rows = options->batches.at[i % options->batches.n],
		};
	if (r == 0)
		r = child_run("gemm", work_gemm, &work, options->timeout_s);
	if (r == 0)
		r = print(&work);
	child_memory_free(facts, sizeof(*facts));
	return r;
}
