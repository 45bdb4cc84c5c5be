/* A chat with the daemon's first model: lines in, answers out. An empty line ends it. */
#include <err.h>
#include <jansson.h>
#include <mimeo/mimeo.h>
#include <mimeo/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(json_t *chat, const char *role, const char *content)
{
	if (json_array_append_new(json_object_get(chat, "messages"), json_pack("{ss ss}", "role", role, "content", content)))
		errx(1, "the message is not UTF-8");
}

/* Print the answer as it comes, and add it to the chat. */
static void answer(struct mimeo *m, const struct mimeo_text *text, json_t *chat)
{
	struct mimeo_text_stream_config config = {.size = sizeof(config), .flags = MIMEO_TEXT_SKIP_SPECIAL};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_event event = {0};
	struct mimeo_text_stream *stream;
	char message[256], *json = json_dumps(chat, 0), *whole;
	const char *part;
	int32_t *ids;
	size_t n;

	if (mimeo_text_chat(text, json, strlen(json), &ids, &n, message, sizeof(message)))
		errx(1, "%s", message);
	generate.tokens = ids, generate.n_tokens = (uint32_t)n;
	if (mimeo_text_stream_new(&stream, text, &config) ||
		mimeo_request_prep_generate(mimeo_request_get(m), &generate) || mimeo_submit(m) < 0)
		errx(1, "the chat is too long, or the daemon is gone");
	FILE *copy = open_memstream(&whole, &n);
	while (event.kind != MIMEO_EVENT_FINAL && mimeo_event_wait(m, &event, -1) == 1) {
		if (mimeo_text_stream_push(stream, event.tokens, event.n_tokens, &part, &(size_t){0}))
			errx(1, "the answer is no text, or there is no memory");
		fputs(part, copy), fputs(part, stdout), fflush(stdout);
		mimeo_event_seen(m, &event);
	}
	if (mimeo_text_stream_end(stream, &part, &(size_t){0}) == 0) /* a part of a character that was held back */
		fputs(part, copy), fputs(part, stdout);
	fclose(copy), add(chat, "assistant", whole);
	mimeo_text_stream_free(stream), free(ids), free(json), free(whole), puts("");
	event.status < 0 ? warnx("%s", mimeo_strerror(event.status)) : (void)0;
}

int main(void)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char line[4096], why[256] = "no daemon";
	json_t *chat = json_pack("{s[]}", "messages");
	struct mimeo_text *text;
	struct mimeo *m;

	if (mimeo_connect(&m, NULL) || mimeo_model_files(m, 0, &files) || mimeo_text_open_files(&text, &files, why, 256))
		errx(1, "%s", why);
	for (; fgets(line, sizeof(line), stdin) && strtok(line, "\n"); answer(m, text, chat))
		add(chat, "user", line);
}
