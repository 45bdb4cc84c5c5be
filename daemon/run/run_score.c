/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_score.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/run/run_request.h"

/* The token's text as a JSON string, "" if it is part of a character; NULL without a tokenizer. */
static json_t *run_score_text(struct mimeo_text_stream *stream, int32_t token)
{
	const char *utf8 = "";
	size_t length = 0;

	if (!stream || mimeo_text_stream_push(stream, &token, 1, &utf8, &length) < 0)
		return NULL;
	return json_stringn(utf8, length);
}

static void run_score_print_object(int32_t token, const struct mimeo_logprob *entry, json_t *text)
{
	json_t *object = json_pack("{ss si so so*}", "event", "score", "token", token, "logprob",
		entry->token < 0 ? json_null() : json_real((double)entry->logprob), "text", text);

	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(object);
}

static void run_score_print_line(int32_t token, const struct mimeo_logprob *entry, json_t *text)
{
	if (entry->token < 0)
		printf("-\t%d", token);
	else
		printf("%.6f\t%d", (double)entry->logprob, token);
	if (text) {
		putchar('\t');
		json_dumpf(text, stdout, JSON_ENCODE_ANY);
	}
	putchar('\n');
	json_decref(text);
}

/* The final event has the log-probabilities. */
static int run_score_final(const struct run_session *session, const struct mimeo_event *event, void *data)
{
	void (*print)(int32_t token, const struct mimeo_logprob *entry, json_t *text) =
		session->options->json_events ? run_score_print_object : run_score_print_line;
	const struct run_ids *prompt = data;
	struct mimeo_text_stream *stream = NULL;
	double sum = 0;
	uint32_t n = 0;

	if (!event->prompt_logprobs || event->n_positions != prompt->n) {
		run_complain("--score: the daemon sent no log-probabilities");
		return RUN_REFUSED;
	}
	if (session->text.tokenizer && mimeo_text_stream_new(&stream, session->text.tokenizer, NULL) < 0)
		stream = NULL;
	for (uint32_t i = 0; i < prompt->n; i++) {
		const struct mimeo_logprob *entry = &event->prompt_logprobs[(size_t)i * event->n_logprobs];

		print(prompt->at[i], entry, run_score_text(stream, prompt->at[i]));
		sum += entry->token < 0 ? 0 : (double)entry->logprob;
		n += entry->token >= 0;
	}
	mimeo_text_stream_free(stream);
	printf(session->options->json_events
		? "{\"event\":\"final\",\"tokens\":%u,\"logprob\":%.6f,\"perplexity\":%.6g}\n"
		: "%u tokens, log-probability %.6f, perplexity %.6g\n", n, sum, n ? exp(-sum / n) : 1.0);
	if (fflush(stdout) == 0 && !ferror(stdout))
		return RUN_OK;
	run_complain("standard output: %s", strerror(errno));
	return RUN_DAEMON;
}

int run_score(const struct run_session *session, const struct run_ids *prompt)
{
	struct run_request request = {.tokens = prompt->at, .n_tokens = prompt->n, .max_tokens = 1,
		.flags = MIMEO_GENERATE_PROMPT_LOGPROBS, .final = run_score_final, .data = (void *)prompt};
	struct run_usage usage;
	int rc = run_request_check(session, prompt->n);

	return rc == RUN_OK ? run_request(session, &request, NULL, &usage) : rc;
}
