/* SPDX-License-Identifier: MIT */
#include "daemon/model/quantised.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/quantised_format.h"

/* A module under examination. */
struct quantised_search {
	const struct safetensors *checkpoint;
	const struct quantisation_scheme *scheme;
	const char *module;
	struct quantised_source *source;
	struct model_error *error;
};

__attribute__((format(printf, 4, 5))) static int quantised_refuse(
	const struct quantised_search *search, const struct safetensors_tensor *tensor, int rc,
	const char *format, ...)
{
	char why[200];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	return model_fail(search->error, rc, "%s: tensor \"%.128s\": %s",
		search->checkpoint->files[tensor->file].path, tensor->name, why);
}

/* NULL: no such tensor. */
static const struct safetensors_tensor *quantised_tensor(
	const struct quantised_search *search, const char *suffix, char name[QUANTISED_NAME_MAX])
{
	snprintf(name, QUANTISED_NAME_MAX, "%s.%s", search->module, suffix);
	return safetensors_find(search->checkpoint, name);
}

/* A shape that a tensor must have. */
struct quantised_shape {
	uint32_t n;
	uint64_t size[2];
};

static int quantised_check_shape(const struct quantised_search *search,
	const struct safetensors_tensor *tensor, const struct quantised_shape *want)
{
	char have[SAFETENSORS_SHAPE_MAX], wanted[48] = "";

	if (tensor->n_dims == want->n &&
		!memcmp(tensor->shape, want->size, want->n * sizeof(*want->size)))
		return 0;
	safetensors_shape_text(tensor, have);
	if (want->n == 2)
		snprintf(wanted, sizeof(wanted), "%" PRIu64 ", %" PRIu64, want->size[0],
			want->size[1]);
	else if (want->n)
		snprintf(wanted, sizeof(wanted), "%" PRIu64, want->size[0]);
	return quantised_refuse(search, tensor, -EINVAL,
		"shape [%s] is not [%s], which the configuration gives it", have, wanted);
}

/* rows and cols are the matrix's own, whichever the file has first. */
static struct quantised_shape quantised_shape_of(
	const struct quantised_source *source, uint32_t rows, uint32_t cols)
{
	bool turned = source->format->is_transposed;

	return (struct quantised_shape){2, {turned ? cols : rows, turned ? rows : cols}};
}

/* ---- side tensors ---- */

static int quantised_find_factors(struct quantised_search *search)
{
	struct quantised_source *source = search->source;
	const struct quantised_format *format = source->format;
	char name[QUANTISED_NAME_MAX], other[QUANTISED_NAME_MAX];
	const struct safetensors_tensor *tensor = NULL;
	struct quantised_shape want = quantised_shape_of(source,
		quantised_divide_up(source->rows, source->block_rows), quantised_n_groups(source));

	for (size_t i = 2; i-- > 0;) {
		const struct safetensors_tensor *found =
			format->factors[i]
				? quantised_tensor(search, format->factors[i], i ? other : name)
				: NULL;

		if (found && tensor)
			return quantised_refuse(
				search, tensor, -EINVAL, "is beside \"%.128s\"", found->name);
		tensor = found ? found : tensor;
	}
	if (!tensor)
		return model_fail(
			search->error, -EINVAL, "%s: tensor \"%s\" is missing", source->path, name);
	source->sides[QUANTISED_FACTORS] = tensor;
	if (!tensor->usable)
		return quantised_refuse(search, tensor, -ENOTSUP,
			"dtype %s is not one of F32, BF16, F16", tensor->dtype_name);
	/* one factor is [1] or a scalar */
	if (!search->scheme->block_rows)
		want = (struct quantised_shape){tensor->n_dims ? 1 : 0, {1}};
	return quantised_check_shape(search, tensor, &want);
}

/* A side tensor of integers. */
static int quantised_check_side(const struct quantised_search *search,
	const struct safetensors_tensor *tensor, const struct quantised_shape *want)
{
	if (strcmp(tensor->dtype_name, "I32"))
		return quantised_refuse(
			search, tensor, -ENOTSUP, "dtype %s is not I32", tensor->dtype_name);
	return quantised_check_shape(search, tensor, want);
}

/* Zeros are packed along the rows. */
static int quantised_find_zeros(struct quantised_search *search)
{
	struct quantised_source *source = search->source;
	char name[QUANTISED_NAME_MAX];
	const struct safetensors_tensor *tensor =
		quantised_tensor(search, source->format->zeros, name);
	const struct quantised_shape want = quantised_shape_of(
		source, quantised_divide_up(source->rows, 8), quantised_n_groups(source));

	if (!tensor && search->scheme->symmetric)
		return 0;
	if (!tensor)
		return model_fail(
			search->error, -EINVAL, "%s: tensor \"%s\" is missing", source->path, name);
	if (search->scheme->symmetric)
		return quantised_refuse(search, tensor, -EINVAL,
			"is there, but the configuration says that weights are symmetric");
	source->sides[QUANTISED_ZEROS] = tensor;
	return quantised_check_side(search, tensor, &want);
}

/* They are used where they are there, whatever the configuration says of them. */
static int quantised_find_groups(struct quantised_search *search)
{
	struct quantised_source *source = search->source;
	char name[QUANTISED_NAME_MAX];
	const struct safetensors_tensor *tensor =
		quantised_tensor(search, source->format->groups, name);
	const struct quantised_shape want = {1, {source->cols}};

	if (!tensor && search->scheme->needs_groups)
		return model_fail(
			search->error, -EINVAL, "%s: tensor \"%s\" is missing", source->path, name);
	if (!tensor)
		return 0;
	source->sides[QUANTISED_GROUPS] = tensor;
	return quantised_check_side(search, tensor, &want);
}

/* ---- a module ---- */

static int quantised_find_data(struct quantised_search *search)
{
	struct quantised_source *source = search->source;
	const struct quantised_format *format = source->format;
	const struct quantised_shape want =
		quantised_shape_of(source, quantised_divide_up(source->rows, format->pack_rows),
			quantised_divide_up(source->cols, format->pack_cols));

	if (strcmp(source->data->dtype_name, format->dtype))
		return quantised_refuse(search, source->data, -ENOTSUP, "dtype %s is not %s",
			source->data->dtype_name, format->dtype);
	return quantised_check_shape(search, source->data, &want);
}

int quantised_find(const struct safetensors *checkpoint, const struct quantisation_scheme *scheme,
	const char *module, uint32_t rows, uint32_t cols, struct quantised_source *ret,
	char ret_name[QUANTISED_NAME_MAX], struct model_error *error)
{
	const struct quantised_format *format = quantised_format_of(scheme->method);
	struct quantised_source source = {
		.format = format,
		.rows = rows,
		.cols = cols,
		.block_rows = scheme->block_rows ? scheme->block_rows : rows,
		.block_cols = scheme->block_cols ? scheme->block_cols : cols,
		.zeros_less_one = scheme->zeros_less_one,
	};
	struct quantised_search search = {checkpoint, scheme, module, &source, error};
	char name[QUANTISED_NAME_MAX];
	int rc;

	*ret = (struct quantised_source){0};
	source.data = quantised_tensor(&search, format->data, ret_name);
	/* the tensor that is not quantised may have the data's name */
	if (!source.data || (source.data->usable && !strcmp(format->data, "weight")))
		return 0;
	source.path = checkpoint->files[source.data->file].path;
	rc = quantised_find_data(&search);
	if (rc)
		return rc;
	rc = quantised_find_factors(&search);
	if (rc)
		return rc;
	rc = format->zeros ? quantised_find_zeros(&search) : 0;
	if (rc)
		return rc;
	rc = format->groups ? quantised_find_groups(&search) : 0;
	if (rc)
		return rc;
	if (format->unread)
		source.sides[QUANTISED_UNREAD] = quantised_tensor(&search, format->unread, name);
	*ret = source;
	return 0;
}

bool quantised_is_transposed(const struct quantised_source *source)
{
	return source->format->is_transposed;
}

bool quantised_is_ordered(const struct quantised_source *source)
{
	return source->row_order.groups || source->col_order.groups;
}

bool quantised_is_gathered(const struct quantised_source *source)
{
	return quantised_is_transposed(source) || quantised_is_ordered(source);
}

uint64_t quantised_row_bytes(const struct quantised_source *source)
{
	assert(!source->format->is_transposed && source->format->pack_rows == 1);
	return source->data->bytes / source->rows;
}
