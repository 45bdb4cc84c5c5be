/* SPDX-License-Identifier: MIT */
#include "examples/make-checkpoint/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "examples/make-checkpoint/files.h"
#include "examples/make-checkpoint/normal.h"

#define CHUNK_ELEMENTS (4u << 20)
#define SHARDS_MAX 4096u

/* Where a tensor is. */
struct place {
	uint32_t shard;
	uint64_t offset; /* in the shard's data */
};

struct shard {
	char name[64];
	int fd;
	uint64_t data_bytes, header_bytes;
	uint32_t first, end; /* tensors */
};

struct chunk {
	uint32_t tensor;
	uint64_t first; /* element */
};

struct job {
	const struct model *model;
	const struct weights_options *options;
	struct place *places; /* of the model's tensors */
	struct shard *shards;
	uint32_t n_shards;
	struct chunk *chunks;
	uint64_t n_chunks;
	struct normal normal;
	_Atomic uint64_t next, done_bytes;
	_Atomic int error; /* an errno; the first one's place: */
	_Atomic uint32_t error_shard;
};

static int weights_fail_shard(const struct job *job, uint32_t shard, int error)
{
	return fail("%s/%s: %s", job->options->directory, job->shards[shard].name, strerror(error));
}

/* ---- shards ---- */

/* Tensors in order, a new shard where one more would exceed the limit. */
static int weights_share_out(struct job *job)
{
	for (uint32_t i = 0; i < job->model->n_tensors; i++) {
		uint64_t bytes = tensor_bytes(&job->model->tensors[i]);
		struct shard *shard = &job->shards[job->n_shards ? job->n_shards - 1 : 0];

		if (!job->n_shards || shard->data_bytes + bytes > job->options->shard_bytes) {
			if (job->n_shards == SHARDS_MAX)
				return fail("more than %u shards: raise --shard-bytes", SHARDS_MAX);
			shard = &job->shards[job->n_shards++];
			*shard = (struct shard){.fd = -1, .first = i};
		}
		job->places[i] = (struct place){job->n_shards - 1, shard->data_bytes};
		shard->data_bytes += bytes;
		shard->end = i + 1;
	}
	for (uint32_t i = 0; i < job->n_shards; i++) {
		if (job->n_shards == 1)
			strcpy(job->shards[i].name, "model.safetensors");
		else
			snprintf(job->shards[i].name, sizeof(job->shards[i].name),
				"model-%05u-of-%05u.safetensors", i + 1, job->n_shards);
	}
	return 0;
}

static void weights_print_index(const void *arg, FILE *file)
{
	const struct job *job = arg;

	fprintf(file, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {\n",
		job->model->bytes);
	for (uint32_t i = 0; i < job->model->n_tensors; i++)
		fprintf(file, "    \"%s\": \"%s\"%s\n", job->model->tensors[i].name,
			job->shards[job->places[i].shard].name,
			i + 1 < job->model->n_tensors ? "," : "");
	fprintf(file, "  }\n}\n");
}

/* Length, then JSON, padded with blanks so that the data begins at a page. */
static int weights_write_header(const struct job *job, struct shard *shard)
{
	static const char *const dtypes[] = {[NORMAL] = "BF16", [D2T] = "I64", [T2D] = "BOOL"};
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		return errno;
	fwrite("\0\0\0\0\0\0\0\0{", 1, 9, file);
	fprintf(file, "\"__metadata__\":{\"format\":\"pt\"}");
	for (uint32_t i = shard->first; i < shard->end; i++) {
		const struct tensor *tensor = &job->model->tensors[i];

		fprintf(file, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name,
			dtypes[tensor->contents]);
		if (tensor->rows)
			fprintf(file, "%" PRIu64 ",", tensor->rows);
		fprintf(file, "%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			tensor->cols, job->places[i].offset,
			job->places[i].offset + tensor_bytes(tensor));
	}
	fprintf(file, "}");
	for (long at = ftell(file); at % 4096 != 0; at++)
		fputc(' ', file);
	if (fclose(file) != 0) {
		free(text);
		return ENOMEM;
	}
	for (int i = 0; i < 8; i++)
		text[i] = (char)((size - 8) >> (8 * i));
	shard->header_bytes = size;
	int error = file_write_all(shard->fd, text, size, 0);
	free(text);
	return error;
}

static int weights_open_shards(struct job *job)
{
	for (uint32_t i = 0; i < job->n_shards; i++) {
		struct shard *shard = &job->shards[i];

		shard->fd = file_create(job->options->directory, shard->name);
		if (shard->fd < 0)
			return -1;
		int error = weights_write_header(job, shard);
		if (!error &&
			ftruncate(shard->fd, (off_t)(shard->header_bytes + shard->data_bytes)) < 0)
			error = errno;
		if (error)
			return weights_fail_shard(job, i, error);
	}
	return 0;
}

/* ---- chunks ---- */

/* n elements of the tensor from `first` on; NORMAL fills up to three more. */
static void weights_fill(struct job *job, const struct tensor *tensor, uint64_t first, uint64_t n, void *to)
{
	const struct model *model = job->model;
	const uint64_t n_drafts = model->shape.n[DRAFT_VOCAB], vocab = model->shape.n[VOCAB];

	if (tensor->contents == NORMAL)
		normal_fill(&job->normal, tensor->name, tensor->mean, tensor->deviation, first, n,
			to);
	for (uint64_t i = 0; i < n && tensor->contents == D2T; i++)
		((int64_t *)to)[i] =
			(int64_t)(model_target_id(model, first + i) - (first + i));
	for (uint64_t i = 0; i < n && tensor->contents == T2D; i++) {
		/* the first draft id whose target's is not below */
		uint64_t id = ((first + i) * n_drafts + vocab - 1) / vocab;

		((uint8_t *)to)[i] = id < n_drafts && model_target_id(model, id) == first + i;
	}
}

static int weights_write_chunk(struct job *job, const struct chunk *chunk, void *buffer)
{
	const struct tensor *tensor = &job->model->tensors[chunk->tensor];
	const struct place *place = &job->places[chunk->tensor];
	const struct shard *shard = &job->shards[place->shard];
	uint64_t n = tensor_elements(tensor) - chunk->first, width = tensor_width(tensor);

	n = n < CHUNK_ELEMENTS ? n : CHUNK_ELEMENTS;
	weights_fill(job, tensor, chunk->first, n, buffer);
	int error = file_write_all(shard->fd, buffer, width * n,
		shard->header_bytes + place->offset + width * chunk->first);
	if (!error)
		atomic_fetch_add(&job->done_bytes, width * n);
	return error;
}

static void *weights_work(void *arg)
{
	struct job *job = arg;
	/* of the widest elements; pages that are not written cost nothing */
	void *buffer = malloc(CHUNK_ELEMENTS * sizeof(int64_t));
	int error = buffer ? 0 : ENOMEM, none = 0;
	uint64_t i = 0;

	while (!error && !atomic_load(&job->error) &&
		(i = atomic_fetch_add(&job->next, 1)) < job->n_chunks)
		error = weights_write_chunk(job, &job->chunks[i], buffer);
	if (error && i < job->n_chunks && atomic_compare_exchange_strong(&job->error, &none, error))
		atomic_store(&job->error_shard, job->places[job->chunks[i].tensor].shard);
	free(buffer);
	return NULL;
}

/* In each shard ascending, the shards in turn: chunk k of every shard before chunk k + 1 of any. */
static int weights_cut(struct job *job)
{
	uint32_t *tensor = calloc(job->n_shards, sizeof(*tensor));
	uint64_t *first = calloc(job->n_shards, sizeof(*first)), most = 0;

	for (uint32_t i = 0; i < job->model->n_tensors; i++)
		most += tensor_elements(&job->model->tensors[i]) / CHUNK_ELEMENTS + 1;
	job->chunks = calloc(most, sizeof(*job->chunks));
	for (uint32_t left = job->n_shards; tensor && first && job->chunks && left > 0;) {
		left = 0;
		for (uint32_t i = 0; i < job->n_shards; i++) {
			uint32_t at = job->shards[i].first + tensor[i];

			if (at == job->shards[i].end)
				continue;
			job->chunks[job->n_chunks++] = (struct chunk){at, first[i]};
			first[i] += CHUNK_ELEMENTS;
			if (first[i] >= tensor_elements(&job->model->tensors[at])) {
				first[i] = 0;
				tensor[i]++;
			}
			left++;
		}
	}
	free(first);
	free(tensor);
	return job->n_chunks ? 0 : fail("%s", strerror(ENOMEM));
}

double weights_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* On a terminal, one line that is written over and over. */
static void weights_show_progress(struct job *job, double start)
{
	while (!atomic_load(&job->error) && atomic_load(&job->done_bytes) < job->model->bytes) {
		double done = (double)atomic_load(&job->done_bytes);

		fprintf(stderr, "\rmake-checkpoint: %.1f of %.1f GB, %.2f GB/s ", done * 1e-9,
			(double)job->model->bytes * 1e-9, done * 1e-9 / (weights_now() - start));
		usleep(100000);
	}
	fprintf(stderr, "\r%*s\r", 60, "");
}

static int weights_run_threads(struct job *job)
{
	pthread_t threads[THREADS_MAX];
	uint32_t n = 0;
	double start = weights_now();
	int error = 0;

	for (; n < job->options->n_threads && !error; n += !error)
		error = pthread_create(&threads[n], NULL, weights_work, job);
	if (n > 0 && isatty(STDERR_FILENO))
		weights_show_progress(job, start);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (n == 0)
		return fail("threads: %s", strerror(error));
	error = atomic_load(&job->error);
	if (error)
		return weights_fail_shard(job, atomic_load(&job->error_shard), error);
	return 0;
}

/* ---- all of it ---- */

static int weights_close_shards(const struct job *job)
{
	int rc = 0;

	for (uint32_t i = 0; i < job->n_shards; i++) {
		if (job->shards[i].fd >= 0 && close(job->shards[i].fd) < 0)
			rc = weights_fail_shard(job, i, errno);
	}
	return rc;
}

static int weights_write_all(struct job *job)
{
	int rc, closed;

	if (weights_share_out(job) < 0 || weights_cut(job) < 0)
		return -1;
	rc = weights_open_shards(job) < 0 ? -1 : weights_run_threads(job);
	closed = weights_close_shards(job);
	if (rc < 0 || closed < 0)
		return -1;
	if (job->n_shards == 1)
		return 0;
	return file_write_text(
		job->options->directory, "model.safetensors.index.json", weights_print_index, job);
}

static void weights_take_back(const struct job *job)
{
	char path[4200];

	for (uint32_t i = 0; i < job->n_shards; i++) {
		snprintf(path, sizeof(path), "%s/%s", job->options->directory, job->shards[i].name);
		if (job->shards[i].fd >= 0)
			unlink(path);
	}
}

int weights_write(
	const struct model *model, const struct weights_options *options, uint32_t *ret_n_files)
{
	struct job job = {.model = model, .options = options};
	int rc;

	job.places = calloc(model->n_tensors, sizeof(*job.places));
	job.shards = calloc(SHARDS_MAX, sizeof(*job.shards));
	normal_init(&job.normal, options->seed);
	rc = job.places && job.shards ? weights_write_all(&job) : fail("%s", strerror(ENOMEM));
	if (rc < 0)
		weights_take_back(&job);
	else
		*ret_n_files = job.n_shards;
	free(job.chunks);
	free(job.shards);
	free(job.places);
	return rc;
}
