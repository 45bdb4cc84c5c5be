/* SPDX-License-Identifier: MIT */
/*
 * Writes a Hugging Face model directory of any size with seeded random weights: config.json and
 * bf16 safetensors, in shards with an index where they exceed --shard-bytes. For measuring and for
 * tests: what such a model says means nothing, but it takes the time and memory of a real one.
 *
 * Each matrix is normal with variance 1 / columns, those that write the residual smaller by the
 * root of twice the layers (as GPT-2 does), norms are 1 +- 0.1, biases +- 0.1: activations and
 * logits keep the size of one at any depth. An element depends on the seed, its tensor's name and
 * its index alone: not on threads, chunks or shards. 16 random bits choose one of 4096 quantiles
 * of the normal distribution, so that a thread fills gigabytes a second.
 *
 * Threads take chunks in turn from all shards, since a file system lets one write at a time into a
 * file. config.json comes last: a directory that has it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_ELEMENTS (4u << 20)
#define QUANTILES 4096u
#define LAYERS_MAX 1000u
#define TENSORS_A_LAYER 14u
#define SHARDS_MAX 4096u
#define THREADS_MAX 256u
#define NAME_BYTES 80u
#define NAME_SHOWN 79 /* of --family and --shape in errors */

/* ---- what there is to make ---- */

enum family { LLAMA, MISTRAL, QWEN2, QWEN3, N_FAMILIES };

static const struct {
	const char *name, *architecture, *type;
} families[N_FAMILIES] = {
	{"llama", "LlamaForCausalLM", "llama"},
	{"mistral", "MistralForCausalLM", "mistral"},
	{"qwen2", "Qwen2ForCausalLM", "qwen2"},
	{"qwen3", "Qwen3ForCausalLM", "qwen3"},
};

enum number {
	HIDDEN,
	LAYERS,
	HEADS,
	KV_HEADS,
	HEAD_DIM,
	INNER,
	VOCAB,
	MAX_LENGTH,
	TIED,
	WINDOW,
	N_NUMBERS
};

struct shape {
	const char *name;
	uint32_t n[N_NUMBERS];          /* WINDOW 0: none */
	double rope_theta, rope_factor; /* factor 0: plain */
};

static const struct shape shapes[] = {
	{"tiny", {64, 2, 4, 2, 16, 160, 256, 2048, 1, 0}, 10000, 0},
	{"1B", {2048, 16, 32, 8, 64, 8192, 128256, 131072, 1, 0}, 500000, 32},  /* Llama-3.2-1B */
	{"8B", {4096, 32, 32, 8, 128, 14336, 128256, 131072, 0, 0}, 500000, 8}, /* Llama-3.1-8B */
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

enum kind { MATRIX, NORM, BIAS };

struct tensor {
	char name[NAME_BYTES];
	uint64_t rows, cols; /* rows 0: a vector */
	double deviation, mean;
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
	const char *directory;
	enum family family;
	struct shape shape;
	uint64_t seed, shard_bytes;
	uint32_t n_threads;
	bool config_only;
	struct tensor *tensors;
	uint32_t n_tensors, n_shards;
	struct shard *shards;
	uint64_t bytes; /* of all tensors */
	struct chunk *chunks;
	uint64_t n_chunks;
	float quantiles[QUANTILES];
	_Atomic uint64_t next, done_bytes;
	_Atomic int error; /* an errno; the first one's place: */
	_Atomic uint32_t error_shard;
};

static int __attribute__((format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "make-checkpoint: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	return -1;
}

static uint64_t elements(const struct tensor *tensor)
{
	return (tensor->rows ? tensor->rows : 1) * tensor->cols;
}

static void __attribute__((format(printf, 6, 7))) add(struct job *job, enum kind kind,
	double shrink, uint64_t rows, uint64_t cols, const char *format, ...)
{
	struct tensor *tensor = &job->tensors[job->n_tensors++];
	va_list arguments;

	*tensor =
		(struct tensor){.rows = rows, .cols = cols, .mean = kind == NORM, .deviation = 0.1};
	if (kind == MATRIX)
		tensor->deviation = shrink / sqrt((double)cols);
	va_start(arguments, format);
	vsnprintf(tensor->name, sizeof(tensor->name), format, arguments);
	va_end(arguments);
	job->bytes += 2 * elements(tensor);
}

static void add_layer(struct job *job, uint32_t i)
{
	const uint32_t *n = job->shape.n;
	uint64_t hidden = n[HIDDEN], inner = n[INNER];
	uint64_t q = (uint64_t)n[HEADS] * n[HEAD_DIM], kv = (uint64_t)n[KV_HEADS] * n[HEAD_DIM];
	double residual = 1 / sqrt(2.0 * n[LAYERS]);

	add(job, NORM, 1, 0, hidden, "model.layers.%u.input_layernorm.weight", i);
	add(job, MATRIX, 1, q, hidden, "model.layers.%u.self_attn.q_proj.weight", i);
	add(job, MATRIX, 1, kv, hidden, "model.layers.%u.self_attn.k_proj.weight", i);
	add(job, MATRIX, 1, kv, hidden, "model.layers.%u.self_attn.v_proj.weight", i);
	if (job->family == QWEN2) {
		add(job, BIAS, 1, 0, q, "model.layers.%u.self_attn.q_proj.bias", i);
		add(job, BIAS, 1, 0, kv, "model.layers.%u.self_attn.k_proj.bias", i);
		add(job, BIAS, 1, 0, kv, "model.layers.%u.self_attn.v_proj.bias", i);
	}
	if (job->family == QWEN3) {
		add(job, NORM, 1, 0, n[HEAD_DIM], "model.layers.%u.self_attn.q_norm.weight", i);
		add(job, NORM, 1, 0, n[HEAD_DIM], "model.layers.%u.self_attn.k_norm.weight", i);
	}
	add(job, MATRIX, residual, hidden, q, "model.layers.%u.self_attn.o_proj.weight", i);
	add(job, NORM, 1, 0, hidden, "model.layers.%u.post_attention_layernorm.weight", i);
	add(job, MATRIX, 1, inner, hidden, "model.layers.%u.mlp.gate_proj.weight", i);
	add(job, MATRIX, 1, inner, hidden, "model.layers.%u.mlp.up_proj.weight", i);
	add(job, MATRIX, residual, hidden, inner, "model.layers.%u.mlp.down_proj.weight", i);
}

static void add_all(struct job *job)
{
	const uint32_t *n = job->shape.n;

	add(job, MATRIX, 1, n[VOCAB], n[HIDDEN], "model.embed_tokens.weight");
	for (uint32_t i = 0; i < n[LAYERS]; i++)
		add_layer(job, i);
	add(job, NORM, 1, 0, n[HIDDEN], "model.norm.weight");
	if (!n[TIED])
		add(job, MATRIX, 1, n[VOCAB], n[HIDDEN], "lm_head.weight");
}

/* Tensors in order, a new shard where one more would exceed the limit. */
static int share_out(struct job *job)
{
	for (uint32_t i = 0; i < job->n_tensors; i++) {
		struct tensor *tensor = &job->tensors[i];
		struct shard *shard = &job->shards[job->n_shards ? job->n_shards - 1 : 0];

		if (!job->n_shards || shard->data_bytes + 2 * elements(tensor) > job->shard_bytes) {
			if (job->n_shards == SHARDS_MAX)
				return fail("more than %u shards: raise --shard-bytes", SHARDS_MAX);
			shard = &job->shards[job->n_shards++];
			*shard = (struct shard){.fd = -1, .first = i};
		}
		tensor->shard = job->n_shards - 1;
		tensor->offset = shard->data_bytes;
		shard->data_bytes += 2 * elements(tensor);
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

/* ---- files ---- */

/* A new file in the directory, or -1 with a sentence. */
static int create(const struct job *job, const char *name)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", job->directory, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	return fd < 0 ? fail("%s: %s", path, strerror(errno)) : fd;
}

/* A text file made by `print`. */
static int write_text(
	const struct job *job, const char *name, void (*print)(const struct job *job, FILE *file))
{
	int fd = create(job, name);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (!file) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	print(job, file);
	if (ferror(file) | fclose(file))
		return fail("%s/%s: %s", job->directory, name, strerror(errno));
	return 0;
}

static void print_rope(const struct shape *shape, FILE *file)
{
	fprintf(file, "  \"rope_theta\": %.1f,\n", shape->rope_theta);
	if (shape->rope_factor > 0)
		fprintf(file,
			"  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %.1f, "
			"\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
			"\"original_max_position_embeddings\": 8192},\n",
			shape->rope_factor);
}

static void print_config(const struct job *job, FILE *file)
{
	const uint32_t *n = job->shape.n;
	bool llama3 = n[VOCAB] == 128256;

	fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
		families[job->family].architecture, families[job->family].type);
	fprintf(file,
		"  \"hidden_size\": %u,\n  \"intermediate_size\": %u,\n  \"vocab_size\": %u,\n"
		"  \"num_hidden_layers\": %u,\n  \"num_attention_heads\": %u,\n"
		"  \"num_key_value_heads\": %u,\n  \"head_dim\": %u,\n"
		"  \"max_position_embeddings\": %u,\n",
		n[HIDDEN], n[INNER], n[VOCAB], n[LAYERS], n[HEADS], n[KV_HEADS], n[HEAD_DIM],
		n[MAX_LENGTH]);
	if (job->family == MISTRAL && n[WINDOW])
		fprintf(file, "  \"sliding_window\": %u,\n", n[WINDOW]);
	else if (job->family != LLAMA)
		fprintf(file, "  \"sliding_window\": null,\n");
	if (job->family == QWEN2 || job->family == QWEN3)
		fprintf(file, "  \"use_sliding_window\": false,\n");
	print_rope(&job->shape, file);
	fprintf(file,
		"  \"rms_norm_eps\": 1e-05,\n  \"hidden_act\": \"silu\",\n"
		"  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": %u,\n"
		"  \"eos_token_id\": %u,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
		n[TIED] ? "true" : "false", llama3 ? 128000 : 1, llama3 ? 128001 : 2);
}

static void print_index(const struct job *job, FILE *file)
{
	fprintf(file, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {\n",
		job->bytes);
	for (uint32_t i = 0; i < job->n_tensors; i++)
		fprintf(file, "    \"%s\": \"%s\"%s\n", job->tensors[i].name,
			job->shards[job->tensors[i].shard].name, i + 1 < job->n_tensors ? "," : "");
	fprintf(file, "  }\n}\n");
}

static int write_all(int fd, const void *data, uint64_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		ssize_t n = pwrite(fd, data, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : EIO;
		data = (const char *)data + n;
		bytes -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* Length, then JSON, padded with blanks so that the data begins at a page. */
static int write_header(const struct job *job, struct shard *shard)
{
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		return errno;
	fwrite("\0\0\0\0\0\0\0\0{", 1, 9, file);
	fprintf(file, "\"__metadata__\":{\"format\":\"pt\"}");
	for (uint32_t i = shard->first; i < shard->end; i++) {
		const struct tensor *tensor = &job->tensors[i];

		fprintf(file, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", tensor->name);
		if (tensor->rows)
			fprintf(file, "%" PRIu64 ",", tensor->rows);
		fprintf(file, "%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			tensor->cols, tensor->offset, tensor->offset + 2 * elements(tensor));
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
	int error = write_all(shard->fd, text, size, 0);
	free(text);
	return error;
}

static int open_shards(struct job *job)
{
	for (uint32_t i = 0; i < job->n_shards; i++) {
		struct shard *shard = &job->shards[i];

		shard->fd = create(job, shard->name);
		if (shard->fd < 0)
			return -1;
		int error = write_header(job, shard);
		if (!error &&
			ftruncate(shard->fd, (off_t)(shard->header_bytes + shard->data_bytes)) < 0)
			error = errno;
		if (error)
			return fail("%s/%s: %s", job->directory, shard->name, strerror(error));
	}
	return 0;
}

/* ---- the numbers ---- */

/* x with erf(x / sqrt 2) as the middle of each of QUANTILES equal parts has it, by bisection. */
static void fill_quantiles(float quantiles[QUANTILES])
{
	for (uint32_t i = 0; i < QUANTILES / 2; i++) {
		double want = (2 * i + 1.0) / QUANTILES, low = 0, high = 8;

		for (int step = 0; step < 50; step++) {
			double middle = (low + high) / 2;

			if (erf(middle * M_SQRT1_2) < want)
				low = middle;
			else
				high = middle;
		}
		quantiles[QUANTILES / 2 + i] = (float)low;
		quantiles[QUANTILES / 2 - 1 - i] = (float)-low;
	}
}

static uint16_t bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t key_of(const struct job *job, const char *name)
{
	uint64_t key = mix(job->seed + 0x9e3779b97f4a7c15u);

	for (; *name; name++)
		key = mix(key ^ (uint8_t)*name);
	return key;
}

/* Elements 4 * group ...; one word of random bits makes four. */
static void fill(uint16_t *to, uint64_t n_groups, uint64_t key, uint64_t group,
	const uint16_t table[QUANTILES])
{
	for (uint64_t i = 0; i < n_groups; i++, to += 4) {
		uint64_t bits = mix(key + (group + i) * 0x9e3779b97f4a7c15u);

		to[0] = table[bits & (QUANTILES - 1)];
		to[1] = table[bits >> 16 & (QUANTILES - 1)];
		to[2] = table[bits >> 32 & (QUANTILES - 1)];
		to[3] = table[bits >> 48 & (QUANTILES - 1)];
	}
}

static int write_chunk(struct job *job, const struct chunk *chunk, uint16_t *buffer)
{
	const struct tensor *tensor = &job->tensors[chunk->tensor];
	const struct shard *shard = &job->shards[tensor->shard];
	uint64_t n = elements(tensor) - chunk->first;
	uint16_t table[QUANTILES];

	n = n < CHUNK_ELEMENTS ? n : CHUNK_ELEMENTS;
	for (uint32_t i = 0; i < QUANTILES; i++)
		table[i] = bf16((float)(tensor->mean + tensor->deviation * job->quantiles[i]));
	fill(buffer, (n + 3) / 4, key_of(job, tensor->name), chunk->first / 4, table);
	int error = write_all(
		shard->fd, buffer, 2 * n, shard->header_bytes + tensor->offset + 2 * chunk->first);
	if (!error)
		atomic_fetch_add(&job->done_bytes, 2 * n);
	return error;
}

static void *work(void *arg)
{
	struct job *job = arg;
	uint16_t *buffer = malloc(CHUNK_ELEMENTS * sizeof(*buffer));
	int error = buffer ? 0 : ENOMEM, none = 0;
	uint64_t i = 0;

	while (!error && !atomic_load(&job->error) &&
		(i = atomic_fetch_add(&job->next, 1)) < job->n_chunks)
		error = write_chunk(job, &job->chunks[i], buffer);
	if (error && i < job->n_chunks && atomic_compare_exchange_strong(&job->error, &none, error))
		atomic_store(&job->error_shard, job->tensors[job->chunks[i].tensor].shard);
	free(buffer);
	return NULL;
}

/* In each shard ascending, the shards in turn: chunk k of every shard before chunk k + 1 of any. */
static int cut(struct job *job)
{
	uint32_t *tensor = calloc(job->n_shards, sizeof(*tensor));
	uint64_t *first = calloc(job->n_shards, sizeof(*first)), most = 0;

	for (uint32_t i = 0; i < job->n_tensors; i++)
		most += elements(&job->tensors[i]) / CHUNK_ELEMENTS + 1;
	job->chunks = calloc(most, sizeof(*job->chunks));
	for (uint32_t left = job->n_shards; tensor && first && job->chunks && left > 0;) {
		left = 0;
		for (uint32_t i = 0; i < job->n_shards; i++) {
			uint32_t at = job->shards[i].first + tensor[i];

			if (at == job->shards[i].end)
				continue;
			job->chunks[job->n_chunks++] = (struct chunk){at, first[i]};
			first[i] += CHUNK_ELEMENTS;
			if (first[i] >= elements(&job->tensors[at])) {
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

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* On a terminal, one line that is written over and over. */
static void show_progress(struct job *job, double start)
{
	while (!atomic_load(&job->error) && atomic_load(&job->done_bytes) < job->bytes) {
		double done = (double)atomic_load(&job->done_bytes);

		fprintf(stderr, "\rmake-checkpoint: %.1f of %.1f GB, %.2f GB/s ", done * 1e-9,
			(double)job->bytes * 1e-9, done * 1e-9 / (now() - start));
		usleep(100000);
	}
	fprintf(stderr, "\r%*s\r", 60, "");
}

static int run_threads(struct job *job)
{
	pthread_t threads[THREADS_MAX];
	uint32_t n = 0;
	double start = now();
	int error = 0;

	for (; n < job->n_threads && !error; n += !error)
		error = pthread_create(&threads[n], NULL, work, job);
	if (n > 0 && isatty(STDERR_FILENO))
		show_progress(job, start);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (n == 0)
		return fail("threads: %s", strerror(error));
	error = atomic_load(&job->error);
	if (error)
		return fail("%s/%s: %s", job->directory,
			job->shards[atomic_load(&job->error_shard)].name, strerror(error));
	return 0;
}

/* ---- a checkpoint ---- */

static int write_weights(struct job *job)
{
	int r = share_out(job);

	fill_quantiles(job->quantiles);
	if (r == 0)
		r = cut(job);
	if (r == 0)
		r = open_shards(job);
	if (r == 0)
		r = run_threads(job);
	for (uint32_t i = 0; i < job->n_shards; i++) {
		if (job->shards[i].fd >= 0 && close(job->shards[i].fd) < 0 && r == 0)
			r = fail("%s/%s: %s", job->directory, job->shards[i].name, strerror(errno));
	}
	if (r == 0 && job->n_shards > 1)
		r = write_text(job, "model.safetensors.index.json", print_index);
	return r;
}

/* What this run made goes again; files that were there before are not ours. */
static void take_back(const struct job *job)
{
	char path[4200];

	for (uint32_t i = 0; i < job->n_shards; i++) {
		snprintf(path, sizeof(path), "%s/%s", job->directory, job->shards[i].name);
		if (job->shards[i].fd >= 0)
			unlink(path);
	}
}

static int make(struct job *job)
{
	double start = now();

	if (strlen(job->directory) > 4096)
		return fail("%.64s...: %s", job->directory, strerror(ENAMETOOLONG));
	if (mkdir(job->directory, 0755) < 0 && errno != EEXIST)
		return fail("%s: %s", job->directory, strerror(errno));
	add_all(job);
	if (!job->config_only && write_weights(job) < 0) {
		take_back(job);
		return -1;
	}
	if (write_text(job, "config.json", print_config) < 0)
		return -1;
	double seconds = now() - start;
	printf("%s: %s, ", job->directory, families[job->family].architecture);
	if (job->config_only)
		printf("config.json alone\n");
	else
		printf("%" PRIu64 " bytes in %u tensors and %u file%s, %.2f s (%.2f GB/s)\n",
			job->bytes, job->n_tensors, job->n_shards, job->n_shards > 1 ? "s" : "",
			seconds, (double)job->bytes * 1e-9 / seconds);
	return 0;
}

/* ---- the command line ---- */

enum option_name {
	OPT_SHAPE = N_NUMBERS,
	OPT_FAMILY,
	OPT_SEED,
	OPT_SHARD_BYTES,
	OPT_THREADS,
	OPT_CONFIG_ONLY,
	OPT_HELP,
	OPT_VERSION,
	N_OPTIONS
};

static const struct option names[N_OPTIONS + 1] = {
	[HIDDEN] = {"hidden", required_argument, NULL, HIDDEN},
	[LAYERS] = {"layers", required_argument, NULL, LAYERS},
	[HEADS] = {"heads", required_argument, NULL, HEADS},
	[KV_HEADS] = {"kv-heads", required_argument, NULL, KV_HEADS},
	[HEAD_DIM] = {"head-dim", required_argument, NULL, HEAD_DIM},
	[INNER] = {"inner", required_argument, NULL, INNER},
	[VOCAB] = {"vocab", required_argument, NULL, VOCAB},
	[MAX_LENGTH] = {"max-length", required_argument, NULL, MAX_LENGTH},
	[TIED] = {"tied", required_argument, NULL, TIED},
	[WINDOW] = {"window", required_argument, NULL, WINDOW},
	[OPT_SHAPE] = {"shape", required_argument, NULL, OPT_SHAPE},
	[OPT_FAMILY] = {"family", required_argument, NULL, OPT_FAMILY},
	[OPT_SEED] = {"seed", required_argument, NULL, OPT_SEED},
	[OPT_SHARD_BYTES] = {"shard-bytes", required_argument, NULL, OPT_SHARD_BYTES},
	[OPT_THREADS] = {"threads", required_argument, NULL, OPT_THREADS},
	[OPT_CONFIG_ONLY] = {"config-only", no_argument, NULL, OPT_CONFIG_ONLY},
	[OPT_HELP] = {"help", no_argument, NULL, OPT_HELP},
	[OPT_VERSION] = {"version", no_argument, NULL, OPT_VERSION},
};

static void print_help(void)
{
	printf("Usage: make-checkpoint [OPTION]... DIRECTORY\n\n"
	       "Write a Hugging Face model directory with seeded random bf16 weights.\n\n"
	       "  --shape NAME       tiny (default), 1B (Llama-3.2-1B), 8B (Llama-3.1-8B)\n"
	       "  --family NAME      llama (default), mistral, qwen2, qwen3\n"
	       "  --hidden N, --layers N, --heads N, --kv-heads N, --head-dim N, --inner N,\n"
	       "  --vocab N, --max-length N\n"
	       "                     sizes in place of the shape's\n"
	       "  --tied 0|1         the head is the embedding\n"
	       "  --window N         mistral: sliding window in tokens (default: 0, none)\n"
	       "  --seed N           of the weights (default: 1)\n"
	       "  --shard-bytes N    the most tensor bytes of a file (default: 4000000000)\n"
	       "  --threads N        (default: as many as CPUs)\n"
	       "  --config-only      write config.json and no weights\n"
	       "  --help             print this and exit\n"
	       "  --version          print the version and exit\n\n"
	       "The directory is made if it is missing; nothing in it is overwritten. Exit status: "
	       "0 done;\n1 a file could not be written; 2 the command line makes no sense.\n");
}

static bool parse(const char *text, uint64_t most, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *ret <= most;
}

static int take_shape(struct job *job, const char *name)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		if (strcmp(shapes[i].name, name) == 0) {
			job->shape = shapes[i];
			return 0;
		}
	}
	return fail("there is no shape \"%.*s\": tiny, 1B, 8B", NAME_SHOWN, name);
}

static int take_family(struct job *job, const char *name)
{
	for (int i = 0; i < N_FAMILIES; i++) {
		if (strcmp(families[i].name, name) == 0) {
			job->family = (enum family)i;
			return 0;
		}
	}
	return fail("there is no family \"%.*s\": llama, mistral, qwen2, qwen3", NAME_SHOWN, name);
}

/* What a number may be; a model that Mimeo would refuse is not made. */
static int take_number(enum number number, const char *text, uint32_t *ret)
{
	static const uint32_t most[N_NUMBERS] = {
		1 << 20, LAYERS_MAX, 4096, 4096, 1024, 1 << 20, 1 << 24, 1 << 28, 1, 1 << 28};
	uint64_t value;

	if (!parse(text, most[number], &value) ||
		(value == 0 && number != TIED && number != WINDOW))
		return fail("--%s %s: not a number from %d to %u", names[number].name, text,
			number != TIED && number != WINDOW, most[number]);
	*ret = (uint32_t)value;
	return 0;
}

static int take_other(struct job *job, int option, const char *text)
{
	uint64_t value;

	if (option == OPT_SHAPE)
		return 0; /* taken before */
	if (option == OPT_FAMILY)
		return take_family(job, text);
	if (option == OPT_CONFIG_ONLY) {
		job->config_only = true;
		return 0;
	}
	if (!parse(text, option == OPT_THREADS ? THREADS_MAX : UINT64_MAX, &value) ||
		(value == 0 && option != OPT_SEED))
		return fail("--%s %s: out of range or not a number", names[option].name, text);
	if (option == OPT_SEED)
		job->seed = value;
	else if (option == OPT_SHARD_BYTES)
		job->shard_bytes = value;
	else
		job->n_threads = (uint32_t)value;
	return 0;
}

/* What the numbers have to do with each other, and rope scaling, which is Llama's. */
static int check(struct job *job)
{
	const uint32_t *n = job->shape.n;

	if (n[HEADS] % n[KV_HEADS] != 0)
		return fail("--heads %u is not a multiple of --kv-heads %u", n[HEADS], n[KV_HEADS]);
	if (n[HEAD_DIM] % 2 != 0)
		return fail("--head-dim %u is odd", n[HEAD_DIM]);
	if (n[WINDOW] && job->family != MISTRAL)
		return fail("--window is for --family mistral");
	if (job->family != LLAMA || n[MAX_LENGTH] <= 8192)
		job->shape.rope_factor = 0;
	return 0;
}

/* 0, -1 with a sentence, or 1: there is nothing more to do. */
static int read_options(struct job *job, int argc, char **argv)
{
	uint32_t given[N_NUMBERS];
	bool is_given[N_NUMBERS] = {false};
	int option, r = 0;

	take_shape(job, "tiny");
	while (r == 0 && (option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		if (option == '?')
			return -1;
		if (option == OPT_HELP)
			print_help();
		if (option == OPT_VERSION)
			printf("make-checkpoint %s\n", MIMEO_VERSION);
		if (option == OPT_HELP || option == OPT_VERSION)
			return 1;
		if (option == OPT_SHAPE)
			r = take_shape(job, optarg);
		else if (option < N_NUMBERS) {
			r = take_number((enum number)option, optarg, &given[option]);
			is_given[option] = true;
		} else
			r = take_other(job, option, optarg);
	}
	for (int i = 0; i < N_NUMBERS && r == 0; i++)
		job->shape.n[i] = is_given[i] ? given[i] : job->shape.n[i];
	if (r == 0 && optind + 1 != argc)
		r = fail(optind == argc ? "no directory is named; see --help"
					: "one directory at a time; see --help");
	return r == 0 ? check(job) : r;
}

int main(int argc, char **argv)
{
	long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct job job = {.seed = 1, .shard_bytes = 4000000000};
	int r = read_options(&job, argc, argv);

	if (r != 0)
		return r < 0 ? 2 : 0;
	if (job.n_threads == 0)
		job.n_threads = n_cpus < 1 ? 1 : n_cpus > 64 ? 64 : (uint32_t)n_cpus;
	job.directory = argv[optind];
	job.tensors = calloc(job.shape.n[LAYERS] * TENSORS_A_LAYER + 3, sizeof(*job.tensors));
	job.shards = calloc(SHARDS_MAX, sizeof(*job.shards));
	r = job.tensors && job.shards ? make(&job) : fail("%s", strerror(ENOMEM));
	free(job.chunks);
	free(job.shards);
	free(job.tensors);
	return r < 0 ? 1 : 0;
}
