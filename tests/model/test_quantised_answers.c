/* SPDX-License-Identifier: MIT */

/*
 * tinycalc, quantised here by rounding to nearest, still answers its questions. Nothing is
 * calibrated: what programs that quantise make of a model is at least as good.
 */

#include "tests/model/writing.h"

#include <math.h>

#include "daemon/model/safetensors.h"
#include "kernels/convert.h"
#include "tests/e2e/questions.h"
#include "tests/model/rig.h"

#define TINYCALC "examples/models/tinycalc"
#define N_QUESTIONS 200
#define N_RIGHT 198
#define BLOCK 128u
#define GROUP 32u
#define FILE_MAX (16u << 20)

enum { END = 2 };

/* The name with another end. */
static const char *sibling(const char *weight, const char *end)
{
	static char name[128];

	snprintf(name, sizeof(name), "%.*s%s", (int)(strlen(weight) - strlen("weight")), weight,
		end);
	return name;
}

/* ---- fp8, blocks of 128 x 128 ---- */

static float e4m3_value(uint32_t byte)
{
	return float_of_bits((byte & 0x7f) << 20) * 0x1p120f;
}

static uint8_t to_e4m3(float value)
{
	uint32_t low = 0, high = 0x7e;
	float magnitude = fabsf(value);

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (e4m3_value(middle) < magnitude)
			low = middle + 1;
		else
			high = middle;
	}
	if (low && magnitude - e4m3_value(low - 1) < e4m3_value(low) - magnitude)
		low--;
	return (uint8_t)(low | (signbit(value) ? 0x80 : 0));
}

static void write_fp8(
	struct writing *w, const char *name, const float *from, uint32_t rows, uint32_t cols)
{
	uint32_t n_down = (rows + BLOCK - 1) / BLOCK, n_across = (cols + BLOCK - 1) / BLOCK;
	float *factors = writing_add(w, sibling(name, "weight_scale_inv"), "F32", n_down, n_across,
		n_down * n_across * sizeof(*factors));
	uint8_t *q = writing_add(w, name, "F8_E4M3", rows, cols, (size_t)rows * cols);

	memset(factors, 0, n_down * n_across * sizeof(*factors));
	for (size_t i = 0; i < (size_t)rows * cols; i++) {
		float *factor = &factors[i / cols / BLOCK * n_across + i % cols / BLOCK];

		*factor = fmaxf(*factor, fabsf(from[i]) / 448);
	}
	for (size_t i = 0; i < (size_t)rows * cols; i++)
		q[i] = to_e4m3(from[i] / factors[i / cols / BLOCK * n_across + i % cols / BLOCK]);
}

/* ---- 4 bits, groups of 32, with zeros, as AWQ has them ---- */

static void write_awq_group(const float *from, uint32_t n, uint32_t cols, uint32_t rows, uint32_t g,
	uint32_t *q, uint32_t *zeros, float *factors)
{
	static const uint8_t nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};
	const uint32_t shift = 4 * nibbles[n % 8];
	const float *row = from + (size_t)n * cols + g * GROUP;
	float low = 0, high = 0, factor;
	int zero;

	for (uint32_t k = 0; k < GROUP; k++) {
		low = fminf(low, row[k]);
		high = fmaxf(high, row[k]);
	}
	factor = (high - low) / 15;
	zero = (int)lrintf(-low / factor);
	factors[g * rows + n] = factor;
	zeros[(g * rows + n) / 8] |= (uint32_t)zero << shift;
	for (uint32_t k = 0; k < GROUP; k++) {
		long value = lrintf(row[k] / factor) + zero;

		value = value < 0 ? 0 : value > 15 ? 15 : value;
		q[((g * GROUP + k) * rows + n) / 8] |= (uint32_t)value << shift;
	}
}

static void write_awq(
	struct writing *w, const char *name, const float *from, uint32_t rows, uint32_t cols)
{
	uint32_t n_groups = cols / GROUP;
	size_t q_bytes = (size_t)cols * rows / 2, zero_bytes = (size_t)n_groups * rows / 2;
	uint32_t *q = writing_add(w, sibling(name, "qweight"), "I32", cols, rows / 8, q_bytes);
	uint32_t *zeros =
		writing_add(w, sibling(name, "qzeros"), "I32", n_groups, rows / 8, zero_bytes);
	float *factors = writing_add(w, sibling(name, "scales"), "F32", n_groups, rows,
		n_groups * rows * sizeof(*factors));

	assert_true(cols % GROUP == 0 && rows % 8 == 0);
	memset(q, 0, q_bytes);
	memset(zeros, 0, zero_bytes);
	for (uint32_t n = 0; n < rows; n++) {
		for (uint32_t g = 0; g < n_groups; g++)
			write_awq_group(from, n, cols, rows, g, q, zeros, factors);
	}
}

/* ---- the model ---- */

struct scheme {
	const char *configuration;
	void (*write)(struct writing *w, const char *name, const float *from, uint32_t rows,
		uint32_t cols);
};

static bool is_linear(const char *name)
{
	return strstr(name, "_proj.weight");
}

static void write_tensor(struct writing *w, const struct scheme *scheme,
	const struct safetensors *checkpoint, const struct safetensors_tensor *t)
{
	uint8_t *bytes = malloc(t->bytes);
	size_t n = t->bytes / dtype_bytes(t->dtype);
	float *values = malloc(n * sizeof(*values));

	assert_true(bytes && values && t->usable);
	assert_true(pread(checkpoint->files[t->file].fd, bytes, t->bytes, (off_t)t->offset) ==
		    (ssize_t)t->bytes);
	if (is_linear(t->name)) {
		weight_to_f32(values, &(struct weight){.data = bytes, .dtype = t->dtype}, 0, n);
		scheme->write(w, t->name, values, (uint32_t)t->shape[0], (uint32_t)t->shape[1]);
	} else {
		memcpy(writing_add(w, t->name, t->dtype_name, t->shape[0],
			       t->n_dims == 2 ? t->shape[1] : 0, t->bytes),
			bytes, t->bytes);
	}
	free(values);
	free(bytes);
}

static void write_config(
	const struct scratch *scratch, const char *directory, const char *configuration)
{
	char path[600], *text;
	json_t *root, *quantisation = json_loads(configuration, 0, NULL);

	snprintf(path, sizeof(path), "%s/config.json", directory);
	root = json_load_file(path, 0, NULL);
	assert_true(root && quantisation);
	json_object_set_new(root, "quantization_config", quantisation);
	text = json_dumps(root, 0);
	scratch_text(scratch, "config.json", text);
	free(text);
	json_decref(root);
}

/* tinycalc under the scheme, in the scratch directory. */
static void quantise(const struct scratch *scratch, const struct scheme *scheme)
{
	struct writing w = writing_begin(FILE_MAX);
	struct safetensors checkpoint;
	struct model_error error = {""};
	char directory[512];

	source_path(TINYCALC, directory);
	MUST(safetensors_open(directory, &checkpoint, &error));
	for (uint32_t i = 0; i < checkpoint.n_tensors; i++)
		write_tensor(&w, scheme, &checkpoint, &checkpoint.tensors[i]);
	writing_write(scratch, &w);
	write_config(scratch, directory, scheme->configuration);
	safetensors_deinit(&checkpoint);
}

/* ---- questions ---- */

static bool answers(struct rig *rig, const struct question *q)
{
	rig_reset(rig);
	rig_step(rig, &(struct rig_row){1, q->n_prompt, q->prompt}, 1);
	for (uint32_t i = 0; i < q->n_answer; i++) {
		int32_t token = rig_argmax(rig, 0);

		if (token != q->answer[i])
			return false;
		if (token != END)
			rig_step(rig, &(struct rig_row){1, 1, &token}, 1);
	}
	return true;
}

static void expect_answers(const struct scratch *scratch, const struct scheme *scheme)
{
	static struct question questions[N_QUESTIONS];
	uint32_t n_right = 0;
	struct rig rig;

	quantise(scratch, scheme);
	rig_init(&rig, scratch->directory, "paged");
	assert_true(*rig.model->quantised);
	questions_make(questions, N_QUESTIONS, 18);
	for (uint32_t i = 0; i < N_QUESTIONS; i++)
		n_right += answers(&rig, &questions[i]);
	rig_deinit(&rig);
	if (n_right < N_RIGHT)
		fail_msg("%u of %u are right", n_right, N_QUESTIONS);
}

static void test_tinycalc_in_fp8_answers_99_questions_of_100(void **state)
{
	const struct scheme scheme = {
		"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", write_fp8};

	expect_answers(*state, &scheme);
}

static void test_tinycalc_in_int4_answers_99_questions_of_100(void **state)
{
	const struct scheme scheme = {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,"
				      "\"zero_point\":true,\"version\":\"gemm\"}",
		write_awq};

	expect_answers(*state, &scheme);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_tinycalc_in_fp8_answers_99_questions_of_100),
		scratch_test(test_tinycalc_in_int4_answers_99_questions_of_100),
	};

	return cmocka_run_group_tests_name("quantised_answers", tests, NULL, NULL);
}
