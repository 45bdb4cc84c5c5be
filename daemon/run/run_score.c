/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_score.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/run/run_request.h"

/* The token as a JSON string; "" if it is part of a character. */
static void run_score_print_text(struct mimeo_text_stream *stream, int32_t token)
{
	const char *utf8 = "";
	size_t length = 0;
	json_t *string;

	if (!stream || mimeo_text_stream_push(stream, &token, 1, &utf8, &length) < 0)
		return;
	string = json_stringn(utf8, length);
	putchar('\t');
	json_dumpf(string, stdout, JSON_ENCODE_ANY);
	json_decref(string);
}

static void run_score_print_token(const struct run_session *session, struct mimeo_text_stream *stream, int32_t token,
	const struct mimeo_logprob *entry)
{
	bool json = session->options->json_events;

	if (json)
		printf("{\"event\":\"score\",\"token\":%d,\"logprob\":", token);
	if (entry->token < 0)
		fputs(json ? "null" : "-", stdout);
	else
		printf("%.6f", (double)entry->logprob);
	if (json) {
		puts("}");
		return;
	}
	printf("\t%d", token);
	run_score_print_text(stream, token);
	putchar('\n');
}

/* The final event has the log-probabilities. */
static int run_score_final(const struct run_session *session, const struct mimeo_event *event, void *data)
{
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

		run_score_print_token(session, stream, prompt->at[i], entry);
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
