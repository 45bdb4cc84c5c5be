/* SPDX-License-Identifier: MIT */

/*
 * The one-kernel decode step (kernels/cuda/step.cuh) on fibers of a CPU: that its schedule ends, for
 * several grids and batches, and that its result is that of plain loops.
 */

#include <algorithm>
#include <random>

#define MIMEO_STEP_EMULATION
#define MIMEO_STEP_OWN_MAX 16
#include "tests/kernels/step_emulation.h"

#include "kernels/cuda/step_kernel.cuh"

namespace {

typedef std::vector<step_bf16> values;

struct shape {
	uint32_t rows, grid, n_layers, hidden, intermediate, vocab, n_heads, n_kv_heads, dim;
	bool bias, head_norm;
	std::vector<int> lens;
};

std::mt19937 generator(7);

float to_float(step_bf16 v)
{
	return step_float((uint32_t)v << 16);
}

float rounded(double v)
{
	return to_float((step_bf16)emulated_bf16((float)v));
}

values random_values(size_t n, float spread, float mean)
{
	std::uniform_real_distribution<float> d(-spread, spread);
	values v(n);

	for (step_bf16 &x : v)
		x = (step_bf16)emulated_bf16(mean + d(generator));
	return v;
}

/* A model and a batch, and the memory of a step. */
struct world {
	shape s;
	uint32_t width, n_qkv, max_pages, n_pages, stages, shared_bytes;
	values qkv, o, gate_up, down, head, input_norm, post_norm, final_norm, bias, q_norm, k_norm, embedding, cache,
		want_cache, original;
	std::vector<int32_t> ids, positions, slots, lens, table;
	values hidden, want_hidden;
	std::vector<float> cos_sin, logits, want;
	std::vector<uint32_t> exchange[2];
	step_state state;
	step_args args;

	explicit world(const shape &given);
	void place(void);
	void step(void);
	void relength(int len);
	void reference(uint32_t row);
	size_t words(void) const;
	size_t cached(uint32_t layer, uint32_t row, uint32_t token, uint32_t v, uint32_t head) const;
};

/* ---- memory ---- */

void map_fill(step_map &m, const values &of, const uint64_t (&dims)[4], const uint64_t (&strides)[3],
	const uint64_t (&box)[4], size_t offset)
{
	m.opaque[0] = (uint64_t)(uintptr_t)(of.data() + offset);
	for (int i = 0; i < 4; i++) {
		m.opaque[1 + i] = dims[i];
		m.opaque[8 + i] = box[i];
	}
	for (int i = 0; i < 3; i++)
		m.opaque[5 + i] = strides[i];
}

void map_weights(step_map &m, const values &of, uint32_t rows, uint32_t cols, uint32_t n_layers)
{
	map_fill(m, of, {64, cols / 64, rows, n_layers}, {128, cols * 2ull, (uint64_t)rows * cols * 2}, {64, 8, 8, 1}, 0);
}


size_t world::cached(uint32_t layer, uint32_t row, uint32_t token, uint32_t v, uint32_t head) const
{
	const uint32_t page = (uint32_t)table[row * max_pages + token / STEP_PAGE];

	return ((((size_t)layer * n_pages + page) * 2 + v) * STEP_PAGE + token % STEP_PAGE) * s.n_kv_heads * s.dim +
	       head * s.dim;
}

world::world(const shape &given) : s(given), width(s.n_heads * s.dim), n_qkv(width + 2 * s.n_kv_heads * s.dim),
	max_pages((uint32_t)*std::max_element(s.lens.begin(), s.lens.end()) / STEP_PAGE + 2),
	n_pages(s.rows * max_pages + 1), state(), args()
{
	const uint32_t group = s.n_heads / s.n_kv_heads;

	qkv = random_values((size_t)s.n_layers * n_qkv * s.hidden, 0.04f, 0);
	o = random_values((size_t)s.n_layers * s.hidden * width, 0.04f, 0);
	gate_up = random_values((size_t)s.n_layers * 2 * s.intermediate * s.hidden, 0.04f, 0);
	down = random_values((size_t)s.n_layers * s.hidden * s.intermediate, 0.03f, 0);
	head = random_values((size_t)s.vocab * s.hidden, 0.04f, 0);
	embedding = random_values((size_t)s.vocab * s.hidden, 0.04f, 0);
	input_norm = random_values(s.n_layers * s.hidden, 0.2f, 1);
	post_norm = random_values(s.n_layers * s.hidden, 0.2f, 1);
	final_norm = random_values(s.hidden, 0.2f, 1);
	bias = random_values(s.n_layers * n_qkv, 0.5f, 0);
	q_norm = random_values(s.n_layers * s.dim, 0.2f, 1);
	k_norm = random_values(s.n_layers * s.dim, 0.2f, 1);
	cache = random_values((size_t)s.n_layers * n_pages * 2 * STEP_PAGE * s.n_kv_heads * s.dim, 1, 0);
	stages = 6;
	shared_bytes = stages * STEP_STAGE + STEP_SHARED_FIXED(group, s.dim);
	place();
}

void world::place(void)
{
	for (uint32_t m = 0; m < s.rows; m++) {
		const int len = s.lens[m % s.lens.size()];

		ids.push_back((int32_t)((m * 37 + 5) % s.vocab));
		lens.push_back(len);
		positions.push_back(len ? len - 1 : 0);
		for (uint32_t p = 0; p < max_pages; p++)
			table.push_back((int32_t)(1 + p * s.rows + m));
	}
	for (uint32_t m = 0; m < s.rows; m++)
		slots.push_back(lens[m] ? table[m * max_pages + positions[m] / STEP_PAGE] * STEP_PAGE + positions[m] % STEP_PAGE : -1);
	/* what no token was written to is NaN, as the devices' memory is */
	for (uint32_t l = 0; l < s.n_layers; l++)
		for (uint32_t m = 0; m < s.rows; m++)
			for (uint32_t t = lens[m] ? lens[m] - 1 : 0; t < max_pages * STEP_PAGE; t++)
				for (uint32_t v = 0; v < 2; v++)
					for (uint32_t d = 0; d < s.n_kv_heads * s.dim; d++)
						cache[cached(l, m, t, v, 0) + d] = 0xffff;
	original = want_cache = cache;
	for (uint32_t p = 0; p < max_pages * STEP_PAGE; p++)
		for (uint32_t d = 0; d < s.dim; d++) {
			const double w = p * pow(1e4, -(double)(d % (s.dim / 2)) / (s.dim / 2.0));

			cos_sin.push_back((float)(d < s.dim / 2 ? cos(w) : sin(w)));
		}
	logits.assign((size_t)s.rows * s.vocab, NAN);
	want.assign((size_t)s.rows * s.vocab, NAN);

	step_args &a = args;
	map_weights(a.qkv, qkv, n_qkv, s.hidden, s.n_layers);
	map_weights(a.o, o, s.hidden, width, s.n_layers);
	map_weights(a.gate_up, gate_up, 2 * s.intermediate, s.hidden, s.n_layers);
	map_weights(a.down, down, s.hidden, s.intermediate, s.n_layers);
	map_weights(a.head, head, s.vocab, s.hidden, 1);
	for (uint32_t l = 0; l < s.n_layers; l++) {
		const uint64_t token = (uint64_t)s.n_kv_heads * s.dim * 2;
		const size_t layer = (size_t)l * n_pages * 2 * STEP_PAGE * s.n_kv_heads * s.dim;

		map_fill(a.kv[l], cache, {64, s.n_kv_heads * s.dim / 64, STEP_PAGE, n_pages * 2ull},
			{128, token, token * STEP_PAGE}, {64, 1, STEP_PAGE, 2}, layer);
		a.cache[l] = cache.data() + layer;
	}
	a.input_norm = {input_norm.data(), s.hidden};
	a.post_norm = {post_norm.data(), s.hidden};
	if (s.bias)
		a.qkv_bias = {bias.data(), n_qkv};
	if (s.head_norm) {
		a.q_norm = {q_norm.data(), s.dim};
		a.k_norm = {k_norm.data(), s.dim};
	}
	a.final_norm = final_norm.data();
	a.embedding = embedding.data();
	a.ids = ids.data();
	a.positions = positions.data();
	a.slot_mapping = slots.data();
	a.seq_lens = lens.data();
	a.block_table = table.data();
	a.cos_sin = cos_sin.data();
	a.logits = logits.data();
	hidden.assign((size_t)s.rows * s.hidden, 0xffff);
	want_hidden = hidden;
	a.outputs[1] = hidden.data();
	a.state = &state;
	a.n_layers = s.n_layers, a.hidden = s.hidden, a.intermediate = s.intermediate, a.vocab = s.vocab;
	a.n_heads = s.n_heads, a.n_kv_heads = s.n_kv_heads, a.rows = s.rows;
	a.max_pages = max_pages, a.max_positions = max_pages * STEP_PAGE, a.n_pages = n_pages;
	a.n_stages = stages;
	a.eps = 1e-5f;
	a.scale_log2 = 1.4426950408889634f / sqrtf((float)s.dim);
	for (int i = 0; i < 2; i++) {
		exchange[i].assign(words(), STEP_EMPTY);
		a.exchange[i] = exchange[i].data();
	}
}

/* Row 0 gets another length, at most that of its history. */
void world::relength(int len)
{
	const uint32_t at = (uint32_t)len - 1;

	lens[0] = len;
	positions[0] = (int32_t)at;
	slots[0] = table[at / STEP_PAGE] * STEP_PAGE + (int32_t)(at % STEP_PAGE);
	cache = want_cache = original;
}

/* Of a set. */
size_t world::words(void) const
{
	return (size_t)(s.dim == 64 ? step_region_of<64>(args, STEP_SERIAL_MAX).words
				    : step_region_of<128>(args, STEP_SERIAL_MAX).words) * s.n_layers;
}

void world::step(void)
{
	const auto kernel = s.dim == 64 ? step_kernel<4, 64, false> : s.hidden > 1024 ? step_kernel<4, 128, false>
			    : s.rows == 1 ? step_kernel<8, 128, true> : step_kernel<8, 128, false>;

	logits.assign(logits.size(), NAN);
	emulated_run<step_args>(kernel, args, s.grid, STEP_THREADS, shared_bytes, 20000);
}

/* ---- plain loops ---- */

typedef std::vector<float> row_values;

row_values multiply(const values &w, size_t first, uint32_t n, const row_values &x)
{
	row_values y(n);

	for (uint32_t r = 0; r < n; r++) {
		double sum = 0;

		for (size_t c = 0; c < x.size(); c++)
			sum += (double)to_float(w[(first + r) * x.size() + c]) * x[c];
		y[r] = (float)sum;
	}
	return y;
}

row_values normed(const row_values &x, const step_bf16 *weight, bool round)
{
	double squares = 0;
	row_values y(x.size());

	for (float v : x)
		squares += (double)v * v;
	for (size_t i = 0; i < x.size(); i++) {
		y[i] = (float)(x[i] / sqrt(squares / (double)x.size() + 1e-5) * to_float(weight[i]));
		y[i] = round ? rounded(y[i]) : y[i];
	}
	return y;
}

/* One head's columns, normed and turned. */
void turn(const world &w, float *v, const step_bf16 *norm, uint32_t position)
{
	const uint32_t dim = w.s.dim, half = dim / 2;
	row_values x(v, v + dim);

	if (norm)
		x = normed(x, norm, false);
	for (uint32_t d = 0; d < half; d++) {
		const float c = w.cos_sin[position * dim + d], n = w.cos_sin[position * dim + half + d];

		v[d] = rounded(x[d] * c - x[d + half] * n);
		v[d + half] = rounded(x[d + half] * c + x[d] * n);
	}
}

row_values attended(const world &w, uint32_t layer, uint32_t row, const row_values &q)
{
	const uint32_t dim = w.s.dim, group = w.s.n_heads / w.s.n_kv_heads, len = (uint32_t)w.lens[row];
	row_values y(w.width);

	for (uint32_t h = 0; h < w.s.n_heads && len; h++) {
		std::vector<double> score(len);
		double top = -1e30, total = 0;

		for (uint32_t t = 0; t < len; t++) {
			const step_bf16 *key = &w.want_cache[w.cached(layer, row, t, 0, h / group)];

			for (uint32_t d = 0; d < dim; d++)
				score[t] += (double)q[h * dim + d] * to_float(key[d]);
			score[t] /= sqrt((double)dim);
			top = fmax(top, score[t]);
		}
		for (double &v : score)
			total += v = exp(v - top);
		for (uint32_t d = 0; d < dim; d++) {
			double sum = 0;

			for (uint32_t t = 0; t < len; t++)
				sum += score[t] * to_float(w.want_cache[w.cached(layer, row, t, 1, h / group) + d]);
			y[h * dim + d] = rounded(sum / total);
		}
	}
	return y;
}

void world::reference(uint32_t row)
{
	row_values x(s.hidden);

	for (uint32_t i = 0; i < s.hidden; i++)
		x[i] = to_float(embedding[(size_t)ids[row] * s.hidden + i]);
	for (uint32_t l = 0; l < s.n_layers; l++) {
		row_values y = multiply(qkv, (size_t)l * n_qkv, n_qkv, normed(x, &input_norm[l * s.hidden], true));

		for (uint32_t i = 0; i < n_qkv; i++)
			y[i] = rounded(y[i] + (s.bias ? to_float(bias[l * n_qkv + i]) : 0.0f));
		for (uint32_t h = 0; h < s.n_heads + s.n_kv_heads; h++)
			turn(*this, &y[h * s.dim], !s.head_norm ? NULL : h < s.n_heads ? &q_norm[l * s.dim] : &k_norm[l * s.dim],
				(uint32_t)positions[row]);
		for (uint32_t i = 0; i < 2 * s.n_kv_heads * s.dim && lens[row]; i++) {
			const uint32_t h = i / s.dim;

			want_cache[cached(l, row, (uint32_t)positions[row], h / s.n_kv_heads, h % s.n_kv_heads) + i % s.dim] =
				(step_bf16)emulated_bf16(y[width + i]);
		}
		y = multiply(o, (size_t)l * s.hidden, s.hidden, attended(*this, l, row, y));
		for (uint32_t i = 0; i < s.hidden; i++)
			x[i] = rounded(x[i] + y[i]);
		y = multiply(gate_up, (size_t)l * 2 * s.intermediate, 2 * s.intermediate, normed(x, &post_norm[l * s.hidden], true));
		row_values h(s.intermediate);
		for (uint32_t i = 0; i < s.intermediate; i++)
			h[i] = rounded(y[i] / (1 + exp(-y[i])) * y[s.intermediate + i]);
		y = multiply(down, (size_t)l * s.hidden, s.hidden, h);
		for (uint32_t i = 0; i < s.hidden; i++)
			x[i] = rounded(x[i] + y[i]);
	}
	x = normed(x, final_norm.data(), true);
	for (uint32_t i = 0; i < s.hidden; i++)
		want_hidden[row * s.hidden + i] = (step_bf16)emulated_bf16(x[i]);
	const row_values y = multiply(head, 0, s.vocab, x);
	std::copy(y.begin(), y.end(), want.begin() + (size_t)row * s.vocab);
}

/* ---- claims ---- */

/* Relative error of all logits, or of what was written to the cache; NAN where something is missing. */
double error_of(const std::vector<float> &got, const std::vector<float> &want)
{
	double error = 0, size = 0;

	for (size_t i = 0; i < got.size(); i++) {
		error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
		size += (double)want[i] * want[i];
	}
	return sqrt(error / size);
}

double error_of(const values &got, const values &want)
{
	std::vector<float> x, y;

	for (size_t i = 0; i < got.size(); i++) {
		const bool empty = want[i] == 0xffff;

		if (empty != (got[i] == 0xffff))
			return NAN;
		x.push_back(empty ? 0 : to_float(got[i]));
		y.push_back(empty ? 0 : to_float(want[i]));
	}
	return error_of(x, y);
}

bool others_empty(const world &w)
{
	for (uint32_t word : w.exchange[w.state.number & 1])
		if (word != STEP_EMPTY)
			return false;
	return true;
}

unsigned n_claims, n_failed;

void claim(const char *name, const shape &s, uint32_t n_steps)
{
	world w(s);
	double logits = 0;
	bool good = true;

	for (uint32_t m = 0; m < s.rows; m++)
		w.reference(m);
	for (uint32_t i = 0; i < n_steps && good; i++) {
		w.step();
		logits = error_of(w.logits, w.want);
		good = logits < 0.02 && others_empty(w) && w.state.number == i + 1 && w.state.begun == 0;
	}
	good = good && error_of(w.cache, w.want_cache) < 0.01 && error_of(w.hidden, w.want_hidden) < 0.02;
	n_failed += !good;
	printf("%sok %u - %s\n# relative error %.4f, of hidden states %.4f, of the cache %.4f; %llu rounds\n", good ? "" : "not ",
		++n_claims, name, logits, error_of(w.hidden, w.want_hidden), error_of(w.cache, w.want_cache),
		(unsigned long long)emulated_rounds);
	fflush(stdout);
}

/* ---- the division of a history ---- */

step_lengths lengths_of(const std::vector<uint32_t> &lens)
{
	step_lengths l = {};

	for (uint32_t len : lens)
		step_lengths_add(l, len);
	return l;
}

/* Of the tokens of a row, how many its units do not attend to exactly once; -1: a unit that cannot be. */
int division_misses(const step_args &a, const step_division &d, uint32_t row, uint32_t len, uint32_t head)
{
	const uint32_t pages = step_pages_of(len), used = step_used_pieces(d, len);
	std::vector<uint32_t> seen(len);
	int missed = 0;

	for (uint32_t i = 0; i < step_n_units(a, d.serial); i++) {
		if (step_row_of_unit(a, d.serial, i) != row)
			continue;
		const step_unit u = step_unit_of(a, d, i, len);

		if (u.row != row || u.piece >= step_n_pieces(a, d.serial) || u.page + u.n_pages > pages ||
			u.history != (len ? len - 1 : 0) || (u.n_pages || u.newest) != (u.piece < used))
			return -1;
		for (uint32_t t = u.page * STEP_PAGE; t < (u.page + u.n_pages) * STEP_PAGE && t < u.history && u.head == head; t++)
			seen[t]++;
		if (u.newest && u.head == head)
			seen[len - 1]++;
	}
	for (uint32_t n : seen)
		missed += n != 1;
	return missed;
}

void report(const char *name, bool good)
{
	n_failed += !good;
	printf("%sok %u - %s\n", good ? "" : "not ", ++n_claims, name);
}

const std::vector<uint32_t> lens_of_rows = {0, 1, 2, 15, 16, 17, 18, 31, 32, 33, 128, 129, 1024, 1025, 1536, 1537, 1552,
	1553, 3000, 8192, 32768, 32769, 131071, 131072};

void claim_division(void)
{
	step_args a = {};
	bool once = true;

	for (a.rows = 1; a.rows <= 8; a.rows *= 2)
		for (uint32_t heads : {1u, 2u, 8u})
			for (size_t i = 0; i < lens_of_rows.size(); i++) {
				std::vector<uint32_t> lens;

				a.n_kv_heads = heads;
				for (uint32_t r = 0; r < a.rows; r++)
					lens.push_back(lens_of_rows[(i + r * 5) % lens_of_rows.size()]);
				const step_lengths l = lengths_of(lens);
				for (const step_division &d : {step_division_of<64>(a, 132, l), step_division_of<128>(a, 132, l)})
					for (uint32_t r = 0; r < a.rows; r++)
						once = once && division_misses(a, d, r, lens[r], heads - 1) == 0;
			}
	report("test_each_token_is_in_one_piece", once);
}

uint32_t serial_of(uint32_t n_kv_heads, const std::vector<uint32_t> &lens)
{
	step_args a = {};

	a.rows = (uint32_t)lens.size(), a.n_kv_heads = n_kv_heads;
	return step_division_of<64>(a, 132, lengths_of(lens)).serial;
}

/* A long row gives work to all 132 blocks; equal rows are not cut further than it takes. */
void claim_pieces(void)
{
	bool good = true;

	for (uint32_t len : lens_of_rows)
		good = good && serial_of(8, {len}) == (len > 1537 ? 2 : 1);
	report("test_a_long_row_of_eight_heads_is_in_sixteen_pieces", good);
	report("test_a_long_row_of_two_heads_is_in_64_pieces", serial_of(2, {32768}) == 8 && serial_of(2, {1024}) == 1);
	report("test_one_long_row_among_short_ones_is_in_more_pieces", serial_of(8, {100, 32768, 100, 100}) == 8);
	report("test_equal_rows_are_merged_by_columns", serial_of(8, {32768, 32768}) == 2 && serial_of(8,
		std::vector<uint32_t>(8, 131072)) == 2);
}

/* Models of one and of two layers take turns on one stream, with other tokens in each step. */
void claim_two_models(const char *name)
{
	world a({1, 6, 1, 1024, 1024, 128, 8, 2, 64, false, false, {100}});
	world b({1, 6, 2, 1024, 1024, 128, 8, 2, 64, false, false, {60}});
	std::vector<uint32_t> memory(STEP_STATE_BYTES / sizeof(uint32_t) + 2 * (b.words() + 64), STEP_EMPTY);
	world *const both[] = {&a, &b};
	double worst = 0;

	std::fill_n(memory.begin(), STEP_STATE_BYTES / sizeof(uint32_t), 0);
	for (world *w : both)
		step_divide(&w->args, memory.data(), memory.size() * sizeof(memory[0]));
	for (int i = 0; i < 6; i++) {
		world *w = both[i % 2];

		w->ids[0] = 3 + 11 * i;
		w->reference(0);
		w->step();
		worst = fmax(worst, error_of(w->logits, w->want));
	}
	n_failed += !(worst < 0.02);
	printf("%sok %u - %s\n# relative error %.4f\n", worst < 0.02 ? "" : "not ", ++n_claims, name, worst);
}

/* One model's rows grow beyond the length where they are divided anew, and shrink: what a step leaves is emptied. */
void claim_changing_lengths(const char *name)
{
	world w({1, 6, 1, 512, 512, 64, 8, 2, 64, false, false, {1700}});
	const int lens[] = {1537, 1536, 40, 1538, 1700};
	double worst = 0;

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		w.relength(lens[i]);
		w.reference(0);
		w.step();
		worst = fmax(worst, error_of(w.logits, w.want));
		worst = others_empty(w) ? worst : NAN;
	}
	report(name, worst < 0.02);
}

}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		shape s;
		uint32_t n_steps;
	} claims[] = {
		{"test_one_row_in_eight_pieces", {1, 6, 1, 1024, 1024, 260, 8, 2, 64, false, false, {100}}, 3},
		{"test_one_row_in_sixteen_pieces", {1, 5, 2, 512, 1024, 128, 8, 2, 64, false, false, {1700}}, 2},
		{"test_two_rows", {2, 7, 1, 1024, 512, 128, 16, 4, 64, false, false, {250, 16}}, 2},
		{"test_two_rows_of_which_one_is_long", {2, 7, 1, 512, 512, 128, 8, 2, 128, false, false, {30, 500}}, 2},
		{"test_four_rows_of_which_two_are_empty", {4, 6, 2, 1024, 1024, 128, 8, 1, 64, true, false, {33, 0, 1, 0}}, 2},
		{"test_eight_rows_at_edges_of_pages", {8, 6, 2, 1024, 1536, 128, 8, 2, 64, true, false, {17, 16, 1, 33, 64, 200, 0, 2}}, 3},
		{"test_heads_of_128_with_norms", {8, 9, 2, 1024, 1536, 128, 8, 2, 128, false, true, {17, 100, 15, 33, 64, 200, 0, 48}}, 2},
		{"test_attention_wider_than_the_residual", {1, 4, 1, 512, 832, 128, 12, 2, 128, true, true, {65}}, 2},
		{"test_seven_heads_a_group_and_896_columns", {2, 9, 2, 896, 1216, 128, 14, 2, 64, true, false, {70, 9}}, 2},
		{"test_one_row_of_896_columns", {1, 5, 1, 896, 4864, 128, 14, 2, 64, true, false, {20}}, 2},
		{"test_six_heads_of_128_a_group", {1, 10, 1, 1536, 2240, 128, 12, 2, 128, true, false, {900}}, 2},
		{"test_pieces_of_one_long_row_are_gathered", {4, 20, 1, 512, 512, 128, 8, 2, 64, false, false, {5, 5200, 0, 40}}, 2},
		{"test_pieces_of_one_row_of_one_head_are_gathered", {1, 32, 1, 1024, 512, 128, 8, 1, 128, false, false, {7000}}, 2},
		{"test_more_blocks_than_tiles", {2, 40, 1, 512, 512, 64, 8, 2, 64, false, false, {40, 5}}, 2},
	};

	for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++)
		if (argc < 2 || i == (size_t)atoi(argv[1]))
			claim(claims[i].name, claims[i].s, claims[i].n_steps);
	if (argc < 2)
		claim_two_models("test_models_of_other_sizes_take_turns"), claim_changing_lengths("test_a_row_is_divided_anew"),
			claim_division(), claim_pieces();
	printf("1..%u\n", n_claims);
	return n_failed > 0;
}
