/* A chat with the daemon's first model: lines in, answers out. An empty line ends it. */
#include <err.h>
#include <jansson.h>
#include <mimeo/mimeo.h>
#include <mimeo/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call, why) ((call) ? errx(1, "%s", why) : (void)0)

static void add(json_t *chat, const char *role, const char *content)
{
	MUST(json_array_append_new(json_object_get(chat, "messages"), json_pack("{ss ss}", "role", role, "content", content)),
		"the message is not UTF-8");
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

	MUST(mimeo_text_chat(text, json, strlen(json), &ids, &n, message, sizeof(message)), message);
	generate.tokens = ids, generate.n_tokens = (uint32_t)n;
	MUST(mimeo_text_stream_new(&stream, text, &config) || mimeo_request_prep_generate(mimeo_request_get(m), &generate) ||
		mimeo_submit(m) < 0, "the chat is too long, or the daemon is gone");
	FILE *copy = open_memstream(&whole, &n);
	while (event.kind != MIMEO_EVENT_FINAL && mimeo_event_wait(m, &event, -1) == 1) {
		MUST(mimeo_text_stream_push(stream, event.tokens, event.n_tokens, &part, &(size_t){0}), "the answer is no text");
		fputs(part, copy), fputs(part, stdout), fflush(stdout);
		mimeo_event_seen(m, &event);
	}
	if (mimeo_text_stream_end(stream, &part, &(size_t){0}) == 0) /* a part of a character that was held back */
		fputs(part, copy), fputs(part, stdout);
	fclose(copy), add(chat, "assistant", whole), puts(""), mimeo_text_stream_free(stream), free(ids), free(json), free(whole);
	event.status < 0 ? warnx("%s", mimeo_strerror(event.status)) : (void)0;
}

int main(void)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char line[4096], why[256];
	struct mimeo_config config = {.size = sizeof(config), .message = why, .message_size = sizeof(why)};
	json_t *chat = json_pack("{s[]}", "messages");
	struct mimeo_text *text;
	struct mimeo *m;

	MUST(mimeo_connect(&m, &config), why);
	MUST(mimeo_model_files(m, 0, &files), mimeo_buffer_message(m));
	MUST(mimeo_text_open_files(&text, &files, why, sizeof(why)), why);
	for (; fgets(line, sizeof(line), stdin) && strtok(line, "\n"); answer(m, text, chat))
		add(chat, "user", line);
}
