/* SPDX-License-Identifier: MIT */
/*
 * sdk_load SOCKET REQUESTS SECONDS MAX_TOKENS ID...: keeps so many generate requests in flight for so long, each with
 * this prompt and an answer of MAX_TOKENS / 2 + 1 to MAX_TOKENS tokens, and prints the tokens per second. What load.py
 * sets HTTP against, with the same lengths.
 */
#include <err.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <mimeo/mimeo.h>

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Answers of one length would end, and start, together. */
static uint32_t length_of(uint64_t request, uint32_t most)
{
	return most / 2 + 1 + (uint32_t)(request * 7919 % ((most + 1) / 2));
}

static void ask(struct mimeo *m, struct mimeo_generate *generate, uint32_t most)
{
	static uint64_t n_asked;
	struct mimeo_request *request = mimeo_request_get(m);

	if (!request)
		errx(1, "no free request");
	generate->max_tokens = length_of(n_asked++, most);
	int rc = mimeo_request_prep_generate(request, generate);
	if (rc < 0)
		errx(1, "%s", mimeo_request_message(request));
}

int main(int argc, char **argv)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_event event;
	struct mimeo *m;
	char message[256];
	uint64_t n = 0;

	if (argc < 6)
		errx(2, "usage: sdk_load SOCKET REQUESTS SECONDS MAX_TOKENS ID...");
	if (atoi(argv[4]) < 1)
		errx(2, "MAX_TOKENS must be at least 1");
	config.socket_path = argv[1];
	config.entries = 256;
	config.arena_bytes = 64u << 20;
	config.message = message;
	config.message_size = sizeof(message);
	if (mimeo_connect(&m, &config) < 0)
		errx(1, "%s", message);
	int32_t *ids = calloc((size_t)argc - 5, sizeof(*ids));
	if (!ids)
		err(1, "ids");
	for (int i = 5; i < argc; i++)
		ids[i - 5] = atoi(argv[i]);
	generate.tokens = ids;
	generate.n_tokens = (uint32_t)argc - 5;
	const uint32_t most = (uint32_t)atoi(argv[4]);
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	for (int i = 0; i < atoi(argv[2]); i++)
		ask(m, &generate, most);
	mimeo_submit(m);
	double began = now_s(), until = began + atof(argv[3]);
	while (now_s() < until && mimeo_event_wait(m, &event, 10000) > 0) {
		bool last = event.kind == MIMEO_EVENT_FINAL;

		n += event.n_tokens;
		if (event.status < 0)
			errx(1, "%s", mimeo_strerror(event.status));
		mimeo_event_seen(m, &event);
		if (last) {
			ask(m, &generate, most);
			mimeo_submit(m);
		}
	}
	printf("%.1f\n", (double)n / (now_s() - began));
	mimeo_close(m);
	free(ids);
	return 0;
}
