/* SPDX-License-Identifier: MIT */
#include "daemon/model/d2t.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "ipc/cleanup.h"

struct d2t_reading {
	const struct safetensors_tensor *tensor;
	const char *path;
	int fd;
	uint32_t n, vocab;
	struct model_error *error;
};

static int d2t_check_shape(const struct d2t_reading *r)
{
	if (strcmp(r->tensor->dtype_name, "I64"))
		return model_fail(r->error, -ENOTSUP,
			"%s: tensor \"d2t\": dtype %s is not I64", r->path, r->tensor->dtype_name);
	if (r->tensor->n_dims != 1 || r->tensor->shape[0] != r->n)
		return model_fail(r->error, -EINVAL,
			"%s: tensor \"d2t\" is not a vector of draft_vocab_size %u", r->path, r->n);
	return 0;
}

/* `seen`: a bit an id of the target's. Narrows in place: an entry of four bytes is written after
 * the one of eight was read. */
static int d2t_check_and_narrow(const struct d2t_reading *r, int64_t *table, uint64_t *seen)
{
	for (uint32_t i = 0; i < r->n; i++) {
		int64_t id, more = table[i];
		int32_t narrow;

		if (__builtin_add_overflow(more, (int64_t)i, &id) || id < 0 || id >= r->vocab)
			return model_fail(r->error, -EINVAL,
				"%s: tensor \"d2t\": draft id %u plus %" PRId64
				" is not an id of the target's vocabulary of %u",
				r->path, i, more, r->vocab);
		if (seen[id / 64] >> (id % 64) & 1)
			return model_fail(r->error, -EINVAL,
				"%s: tensor \"d2t\" makes the target's id %" PRId64
				" of two draft ids, the second being %u",
				r->path, id, i);
		seen[id / 64] |= UINT64_C(1) << (id % 64);
		narrow = (int32_t)more;
		memcpy((uint8_t *)table + i * sizeof(narrow), &narrow, sizeof(narrow));
	}
	return 0;
}

static int d2t_read_table(const struct d2t_reading *r, int32_t **ret)
{
	CLEANUP(cleanup_free) int64_t *table = calloc(r->n, sizeof(*table));
	CLEANUP(cleanup_free) uint64_t *seen = calloc(r->vocab / 64 + 1, sizeof(*seen));
	int rc;

	if (!table || !seen)
		return model_fail(r->error, -ENOMEM, "%s: no memory for d2t", r->path);
	rc = file_read(r->fd, r->path, r->tensor->offset, table, r->n * sizeof(*table), r->error);
	if (rc)
		return rc;
	rc = d2t_check_and_narrow(r, table, seen);
	if (rc)
		return rc;
	if (ret)
		*ret = (int32_t *)STEAL(table);
	return 0;
}

int d2t_read(const struct safetensors *checkpoint, const char *directory,
	const struct model_config *config, int32_t **ret, struct model_error *error)
{
	struct d2t_reading r = {.n = config->draft.vocab_size, .vocab = config->vocab_size,
		.error = error};
	int rc;

	if (config->family != MODEL_EAGLE3)
		return 0;
	r.tensor = safetensors_find(checkpoint, "d2t");
	if (!r.tensor && r.n != r.vocab)
		return model_fail(error, -EINVAL,
			"%s: tensor \"d2t\" is missing, and draft_vocab_size %u is not vocab_size "
			"%u",
			directory, r.n, r.vocab);
	if (!r.tensor) {
		if (ret)
			*ret = NULL;
		return 0;
	}
	assert(r.tensor->file < checkpoint->n_files);
	r.path = checkpoint->files[r.tensor->file].path;
	r.fd = checkpoint->files[r.tensor->file].fd;
	rc = d2t_check_shape(&r);
	return rc ? rc : d2t_read_table(&r, ret);
}
