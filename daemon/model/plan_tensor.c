/* SPDX-License-Identifier: MIT */
#include "daemon/model/plan_tensor.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"

#define WEIGHT ".weight"
#define HEAD_BYTES_MAX (64u << 20) /* as float32 */

/* Keep the first failure and its sentence, about the tensor `name` in `where`. */
__attribute__((format(printf, 5, 6))) static void plan_tensor_fail(
	struct plan *plan, int rc, const char *where, const char *name, const char *format, ...)
{
	char why[400];
	va_list args;

	assert(rc < 0);
	if (plan->rc)
		return;
	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	plan->rc = model_fail(plan->error, rc, "%s: tensor \"%s\"%s", where, name, why);
}

static void plan_tensor_fail_shape(
	struct plan *plan, const struct safetensors_tensor *tensor, uint32_t rows, uint32_t cols)
{
	char have[SAFETENSORS_SHAPE_MAX], want[32];

	safetensors_shape_text(tensor, have);
	if (cols)
		snprintf(want, sizeof(want), "%u, %u", rows, cols);
	else
		snprintf(want, sizeof(want), "%u", rows);
	plan_tensor_fail(plan, -EINVAL, plan->checkpoint->files[tensor->file].path, tensor->name,
		": shape [%s] is not [%s], which the configuration gives it%s%s", have, want,
		plan->assumed[0] ? ", with defaults for what it leaves out: " : "", plan->assumed);
}

/* Where a tensor is that should be there. */
static const char *plan_tensor_place(const struct plan *plan)
{
	return plan->checkpoint->n_files == 1 ? plan->checkpoint->files[0].path : plan->directory;
}

/* The tensor, checked, or NULL. */
static const struct safetensors_tensor *plan_tensor_find_plain(
	struct plan *plan, const struct plan_want *want)
{
	const struct safetensors *checkpoint = plan->checkpoint;
	const struct safetensors_tensor *tensor = safetensors_find(checkpoint, want->name);
	char buffer[SAFETENSORS_NAME_MAX];

	if (!tensor) {
		plan_tensor_fail(plan, -EINVAL, plan_tensor_place(plan),
			checkpoint->rename ? checkpoint->rename(want->name, buffer, sizeof(buffer))
					   : want->name,
			" is missing");
		return NULL;
	}
	assert(tensor->file < checkpoint->n_files);
	if (!tensor->usable || (tensor->format && !want->cols))
		plan_tensor_fail(plan, -ENOTSUP, checkpoint->files[tensor->file].path, tensor->name,
			": dtype %s is not one of %s", tensor->dtype_name,
			want->cols ? checkpoint->dtypes : "F32, BF16, F16");
	else if (tensor->n_dims != (want->cols ? 2 : 1) || tensor->shape[0] != want->rows ||
		 (want->cols && tensor->shape[1] != want->cols))
		plan_tensor_fail_shape(plan, tensor, want->rows, want->cols);
	return plan->rc ? NULL : tensor;
}

/* ---- quantised modules ---- */

/* False: the name is not that of a matrix that may be quantised. */
static bool plan_tensor_module(const struct plan_want *want, char ret[96])
{
	size_t length = strlen(want->name), suffix = strlen(WEIGHT);

	if (want->kind == PLAN_PLAIN || !want->cols || length <= suffix || length >= 96 ||
		strcmp(want->name + length - suffix, WEIGHT))
		return false;
	snprintf(ret, 96, "%.*s", (int)(length - suffix), want->name);
	return true;
}

/* The name that quantization_config may have instead; NULL: none. */
static const char *plan_tensor_inner(const struct plan *plan, const char *module, char buffer[SAFETENSORS_NAME_MAX])
{
	const struct safetensors *checkpoint = plan->checkpoint;

	return checkpoint->is_inner ? checkpoint->rename(module, buffer, SAFETENSORS_NAME_MAX) : NULL;
}

/* The file against the configuration: a contradiction fails the plan. `data`: the name that
 * quantised data has, or would have. */
static void plan_tensor_check_rule(struct plan *plan, const struct plan_want *want,
	const char *module, const char *data, const struct quantised_source *source)
{
	char why[QUANTISATION_WHY_MAX] = "", buffer[SAFETENSORS_NAME_MAX];
	enum quantisation_rule rule =
		quantisation_rule_of(plan->quantisation, module, plan_tensor_inner(plan, module, buffer), why);

	if (source->format && rule == QUANTISATION_NEVER)
		plan_tensor_fail(plan, -EINVAL, source->path, data, " is quantised, but %s", why);
	if (source->format || rule != QUANTISATION_ALWAYS || want->kind != PLAN_LINEAR)
		return;
	if (safetensors_find(plan->checkpoint, want->name))
		plan_tensor_fail(plan, -EINVAL, plan_tensor_place(plan), want->name,
			" is not quantised, and quantization_config does not exclude it");
	else
		plan_tensor_fail(plan, -EINVAL, plan_tensor_place(plan), data, " is missing");
}

/* By the module's scheme, or by any if none targets it: that is a contradiction, to be named. */
static int plan_tensor_find_quantised(struct plan *plan, const struct plan_want *want, const char *module,
	struct quantised_source *ret, char ret_data[QUANTISED_NAME_MAX])
{
	const struct quantisation *q = plan->quantisation;
	char buffer[SAFETENSORS_NAME_MAX];
	const struct quantisation_scheme *own =
		quantisation_scheme_of(q, module, plan_tensor_inner(plan, module, buffer));
	int rc = 0;

	if (own)
		return quantised_find(
			plan->checkpoint, own, module, want->rows, want->cols, ret, ret_data, plan->error);
	for (uint32_t i = 0; i < q->n_schemes && !rc && !ret->format; i++)
		rc = quantised_find(plan->checkpoint, &q->schemes[i], module, want->rows, want->cols, ret, ret_data,
			plan->error);
	return rc;
}

/* A head is converted whole, and only one that is not quantised can have its rows in another order. */
static void plan_tensor_check_head(
	struct plan *plan, const struct plan_want *want, const struct plan_placement *placement)
{
	const uint32_t head_rows = placement->head_rows;
	uint64_t bytes = (uint64_t)head_rows * want->cols * sizeof(float);

	if (head_rows && placement->source.format)
		plan_tensor_fail(plan, -ENOTSUP, placement->source.path, want->name,
			" is quantised, which is not supported where rope rotates %u of head_dim %u elements: "
			"partial_rotary_factor has to be 1",
			placement->rotary_rows, head_rows);
	if (bytes > HEAD_BYTES_MAX)
		plan_tensor_fail(plan, -ENOTSUP, plan_tensor_place(plan), want->name,
			": heads of %u rows and %u columns are not supported", head_rows, want->cols);
}

bool plan_tensor_find(struct plan *plan, const struct plan_want *want, struct plan_placement *ret)
{
	char module[96], data[QUANTISED_NAME_MAX] = "";
	int rc;

	ret->source = (struct quantised_source){0};
	if (plan->rc)
		return false;
	if (plan->quantisation && plan_tensor_module(want, module)) {
		rc = plan_tensor_find_quantised(plan, want, module, &ret->source, data);
		if (rc) {
			plan->rc = rc;
			return false;
		}
		plan_tensor_check_rule(plan, want, module, data, &ret->source);
	}
	plan_tensor_check_head(plan, want, ret);
	if (plan->rc)
		return false;
	ret->tensor = ret->source.format ? ret->source.data : plan_tensor_find_plain(plan, want);
	return ret->tensor;
}
