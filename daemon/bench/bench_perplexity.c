/* SPDX-License-Identifier: MIT */
/*
 * The perplexity of a model on a text: exp of the mean negative log-likelihood of a token, given those before it in its
 * window. Each window is one step of a client on a new sequence, so the log-probabilities are those that clients get;
 * the daemon sums their exponentials in double precision, and they are summed in it here. A window's first token only
 * gives context. It is the begin token where the tokenizer begins a text with it: a model that was trained so is bad
 * without it.
 */
#include "daemon/bench/users.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <mimeo/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/spawn.h"

#define SHIPPED_TEXT "alice.txt"
#define MESSAGE_MAX 320
#define ON_CPU "the cpu device computes in float32; a device that computes in bf16 gives another perplexity"

/* ---- the text ---- */

struct perplexity_text {
	const char *path;
	char *utf8;
	size_t length;
};

static void perplexity_text_deinit(struct perplexity_text *text)
{
	free(text->utf8);
}

static int perplexity_text_read(const char *path, struct perplexity_text *ret)
{
	FILE *file = fopen(path, "re");

	*ret = (struct perplexity_text){.path = path};
	if (!file)
		return bench_fail(-errno, "%s: %s", path, strerror(errno));
	/* A pipe does not tell its size; pages that are not written take no memory. */
	ret->utf8 = malloc(MIMEO_TEXT_MAX + 1);
	if (ret->utf8)
		ret->length = fread(ret->utf8, 1, MIMEO_TEXT_MAX + 1, file);
	bool failed = ferror(file);
	int why = errno;
	fclose(file);
	if (!ret->utf8)
		return bench_fail(-ENOMEM, "%s: no memory", path);
	if (failed)
		return bench_fail(-why, "%s: %s", path, strerror(why));
	if (ret->length > MIMEO_TEXT_MAX)
		return bench_fail(-EFBIG, "%s has more than %u bytes", path, MIMEO_TEXT_MAX);
	return 0;
}

/* ---- its tokens ---- */

struct perplexity {
	const struct target_work *work;
	struct mimeo *m;
	uint32_t model;
	const struct mimeo_model_info *info;
	struct mimeo_text *tokenizer;
	int32_t *ids;  /* [n_ids] of the text, without the begin token */
	size_t n_ids;
	bool has_begin; /* windows begin with info->bos */
	char graph_mode[32]; /* "": the daemon does not tell */
};

static void perplexity_deinit(struct perplexity *p)
{
	free(p->ids);
	mimeo_text_close(p->tokenizer);
	if (p->m)
		mimeo_close(p->m);
}

static int perplexity_open_tokenizer(struct perplexity *p)
{
	const char *directory = p->work->options->model_dir, *model = directory ? directory : p->info->name;
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char message[MESSAGE_MAX];
	int rc = mimeo_model_files(p->m, p->model, &files);

	if (rc < 0)
		return bench_fail(rc, "the tokenizer of %s: %s", model, mimeo_strerror(rc));
	const int fds[] = {files.tokenizer, files.config, files.chat_template};
	if (files.tokenizer >= 0)
		rc = mimeo_text_open_files(&p->tokenizer, &files, message, sizeof(message));
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	if (files.tokenizer < 0)
		return bench_fail(MIMEO_E_INVALID,
			"%s has no tokenizer (tokenizer.json), which the text has to be encoded with", model);
	return rc < 0 ? bench_fail(rc, "the tokenizer of %s cannot be used: %s", model, message) : 0;
}

static int perplexity_encode(struct perplexity *p, const struct perplexity_text *text)
{
	int rc = mimeo_text_encode(p->tokenizer, text->utf8, text->length, MIMEO_TEXT_SPECIAL, &p->ids, &p->n_ids);

	if (rc < 0)
		return bench_fail(rc, "%s cannot be encoded: %s", text->path, mimeo_strerror(rc));
	p->has_begin = p->n_ids > 0 && p->ids[0] == p->info->bos;
	if (p->has_begin)
		memmove(p->ids, p->ids + 1, --p->n_ids * sizeof(*p->ids));
	return 0;
}

static void perplexity_ask_graph_mode(struct perplexity *p)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	if (target_ask(p->work->target, "models", &answer) == 0 && p->model < answer->n_rows)
		answer_text(answer, p->model, "resolved", p->graph_mode, sizeof(p->graph_mode));
}

static int perplexity_open(struct perplexity *p, const struct perplexity_text *text)
{
	const char *name = p->work->options->model_name;
	int rc = client_connect(&p->m, p->work->target->socket, MIMEO_SPIN_DEFAULT);

	if (rc < 0)
		return rc;
	int index = name ? mimeo_model_find(p->m, name) : 0;
	if (index < 0)
		return bench_fail(index, "%s: %s", name, mimeo_strerror(index));
	p->model = (uint32_t)index;
	p->info = mimeo_model_get(p->m, p->model);
	perplexity_ask_graph_mode(p);
	rc = perplexity_open_tokenizer(p);
	return rc < 0 ? rc : perplexity_encode(p, text);
}

/* ---- windows ---- */

struct perplexity_sum {
	double nll; /* negative log-likelihood of the tokens that count, in nats */
	uint64_t n_windows, n_tokens, n_bytes; /* tokens that count, and their text */
};

DEFINE_CLEANUP(stream, struct mimeo_text_stream, mimeo_text_stream_free)

static int perplexity_open_stream(const struct perplexity *p, struct mimeo_text_stream **ret)
{
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;

	config.flags = MIMEO_TEXT_SKIP_SPECIAL;
	int rc = mimeo_text_stream_new(ret, p->tokenizer, &config);
	return rc < 0 ? bench_fail(rc, "decoding tokens: %s", mimeo_strerror(rc)) : 0;
}

/* The length of the text that the next ids complete; n 0: of what is held back at the end. */
static int perplexity_decode(struct mimeo_text_stream *stream, const int32_t *ids, size_t n, size_t *ret_length)
{
	const char *utf8;
	int rc = n > 0 ? mimeo_text_stream_push(stream, ids, n, &utf8, ret_length)
		       : mimeo_text_stream_end(stream, &utf8, ret_length);

	return rc < 0 ? bench_fail(rc, "decoding tokens: %s", mimeo_strerror(rc)) : 0;
}

/* Add the bytes of the next window's own tokens that count. One stream decodes all windows: many a decoder drops the
 * space ahead of a text, and a character's tokens may lie in two windows. It counts where it is complete. */
static int perplexity_count_bytes(
	struct mimeo_text_stream *stream, const int32_t *ids, size_t n, bool first_counts, uint64_t *n_bytes)
{
	size_t first, others = 0;
	int rc = perplexity_decode(stream, ids, 1, &first);

	if (rc == 0 && n > 1)
		rc = perplexity_decode(stream, ids + 1, n - 1, &others);
	if (rc == 0)
		*n_bytes += others + (first_counts ? first : 0);
	return rc;
}

static int perplexity_score(const struct perplexity *p, const int32_t *window, uint32_t n, struct perplexity_sum *sum)
{
	struct mimeo_event event;
	int rc = client_score(p->m, p->model, window, n);

	if (rc == 0)
		rc = client_next(p->m, &event);
	if (rc < 0)
		return rc;
	if (!event.prompt_logprobs || event.n_positions != n)
		rc = bench_fail(MIMEO_E_PROTOCOL, "the daemon sent no log-probabilities");
	for (uint32_t i = 1; i < n && rc == 0; i++)
		sum->nll -= (double)event.prompt_logprobs[(size_t)i * event.n_logprobs].logprob;
	mimeo_event_seen(p->m, &event);
	return rc;
}

/* Tokens after the last whole window are left out. */
static int perplexity_sum(const struct perplexity *p, uint32_t n, struct perplexity_sum *ret)
{
	CLEANUP(cleanup_free) int32_t *window = calloc(n, sizeof(*window));
	CLEANUP(cleanup_stream) struct mimeo_text_stream *stream = NULL;
	const uint32_t begin = p->has_begin ? 1 : 0, own = n - begin;
	size_t held;

	assert(n >= 2);
	*ret = (struct perplexity_sum){.n_windows = p->n_ids / own};
	ret->n_tokens = ret->n_windows * (n - 1);
	if (!window)
		return bench_fail(-ENOMEM, "no memory");
	window[0] = p->info->bos;
	int rc = perplexity_open_stream(p, &stream);
	for (size_t i = 0; i < ret->n_windows && rc == 0; i++) {
		const int32_t *ids = p->ids + i * own;

		memcpy(window + begin, ids, own * sizeof(*window));
		rc = perplexity_score(p, window, n, ret);
		if (rc == 0)
			rc = perplexity_count_bytes(stream, ids, own, begin, &ret->n_bytes);
	}
	if (rc == 0)
		rc = perplexity_decode(stream, NULL, 0, &held);
	if (rc == 0)
		ret->n_bytes += held;
	return rc;
}

/* ---- results ---- */

static int perplexity_row(const struct perplexity *p, const struct perplexity_text *text, uint32_t context)
{
	struct results *results = p->work->results;
	struct perplexity_sum sum;

	if (context > p->info->max_seq_len)
		return bench_fail(MIMEO_E_TOO_LONG, "a window of %u tokens: model %s takes %u (--contexts)", context,
			p->info->name, p->info->max_seq_len);
	if (p->n_ids + p->has_begin < context)
		return bench_fail(MIMEO_E_INVALID, "%s has %zu tokens, less than a window of %u (--contexts)", text->path,
			p->n_ids + p->has_begin, context);
	uint64_t start = clock_ns();
	int rc = perplexity_sum(p, context, &sum);
	if (rc < 0)
		return rc;
	double nll = sum.nll / (double)sum.n_tokens;
	results_row(results);
	if (p->work->options->socket)
		results_text(results, "model", NULL, p->info->name);
	results_text(results, "text", NULL, text->path);
	results_count(results, "context", "CONTEXT", context);
	results_count(results, "windows", "WINDOWS", sum.n_windows);
	results_count(results, "tokens", "TOKENS", sum.n_tokens);
	results_count(results, "bytes", NULL, sum.n_bytes);
	results_number(results, "nats_per_token", NULL, nll);
	results_value(results, "perplexity", "PERPLEXITY", TABLE_PRECISE, exp(nll));
	results_value(results, "bits_per_byte", "BITS/BYTE", TABLE_PRECISE, sum.nll / M_LN2 / (double)sum.n_bytes);
	results_seconds(results, "seconds", "TIME", (double)(clock_ns() - start) * 1e-9);
	results_text(results, "graph_mode", NULL, *p->graph_mode ? p->graph_mode : NULL);
	results_floor(results, NULL);
	results_note(results, results_on_cpu(results) ? ON_CPU : NULL);
	return 0;
}

static int perplexity_child(void *arg, int fd)
{
	const struct target_work *work = arg;
	const struct perplexity_text *text = work->what;
	CLEANUP(perplexity_deinit) struct perplexity p = {.work = work};
	int rc = perplexity_open(&p, text);

	for (uint32_t i = 0; i < work->options->contexts.n && rc == 0; i++)
		rc = perplexity_row(&p, text, work->options->contexts.at[i]);
	results_explain(work->results, "text: %s, in windows of CONTEXT tokens; the first token of a window%s is context "
		"and does not count", text->path, p.has_begin ? ", the begin token," : "");
	return rc < 0;
}

int bench_perplexity(const struct bench_options *options, struct results *results)
{
	CLEANUP(perplexity_text_deinit) struct perplexity_text text = {.path = NULL};
	char found[SPAWN_PATH_MAX];
	const char *path = options->text ? options->text : spawn_find(SPAWN_TEXT, SHIPPED_TEXT, found);
	uint32_t most = 0;

	if (!path)
		return -ENOENT;
	int rc = perplexity_text_read(path, &text);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < options->contexts.n; i++)
		most = options->contexts.at[i] > most ? options->contexts.at[i] : most;
	/* One prompt after the other: capturing graphs would take longer than most texts. */
	const struct spawn_needs needs = {
		.graph_mode = options->graph_mode ? options->graph_mode : "none",
		.max_requests = 1,
		.kv_pages = client_pages(most, 0),
	};
	return target_run(options, &needs, results, "perplexity", perplexity_child, &text);
}
