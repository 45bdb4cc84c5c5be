/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TEXT_H
#define MIMEO_TEXT_H

/*
 * libmimeo-text: tokenizers and chat templates of Hugging Face models.
 *
 * A struct mimeo_text is a model's tokenizer (tokenizer.json) and, if the model has one, its chat template
 * (chat_template.jinja, or the template in tokenizer_config.json). It is OPENED from a model's folder, or from
 * descriptors that mimeo_model_files() of libmimeo gives to a client that may not read that folder. It then
 * ENCODES text or a chat to token ids, and DECODES ids to text: all at once, or as they come through a
 * STREAM, which returns whole characters only and ends at stop strings.
 *
 *	struct mimeo_text *text;
 *	char message[256];
 *	if (mimeo_text_open(&text, "/models/smollm2", message, sizeof(message)))
 *		errx(1, "%s", message);
 *	int32_t *ids;
 *	size_t n_ids;
 *	mimeo_text_encode(text, "Hello", 5, MIMEO_TEXT_SPECIAL, &ids, &n_ids);
 *	free(ids);
 *	mimeo_text_close(text);
 *
 * The library is independent of libmimeo and of the daemon. It returns the statuses of <mimeo/types.h>, but has no
 * mimeo_strerror(), which is libmimeo's. Files are untrusted: what the library does not understand is refused
 * by name when the text is opened, and time, depth and memory are bounded.
 *
 * Text is UTF-8. Bytes that are not valid UTF-8 are replaced by U+FFFD before they are encoded, as by Python's
 * errors="replace". Lengths are in bytes; no function needs or counts a terminator unless it says so.
 * Threads: a struct mimeo_text does not change after it is opened, so any number of threads may use one. A stream belongs to
 * one thread at a time.
 * Blocking: mimeo_text_open and mimeo_text_open_files read files; nothing else blocks. Memory: every call but
 * mimeo_text_id and mimeo_text_vocab_size allocates; results are the caller's and are released by free(). Errors: a
 * negative enum mimeo_status.
 * Time and memory of a call are proportional to its text: there is no text that takes quadratic time.
 */

#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mimeo_text;

/*
 * Open the tokenizer and the chat template of a Hugging Face folder, or a tokenizer.json alone if `path` is a file.
 * *ret_text is the caller's until mimeo_text_close. If it fails, one sentence that says why is written to
 * message[message_size], which may be NULL if message_size is 0.
 * A chat template that is not understood does not fail the call: mimeo_text_chat does, with its message.
 * 0, or UNSUPPORTED (a component or an option of it that the library does not understand; the message names it),
 * INVALID (no such file, no JSON, values that contradict each other or exceed a limit), NO_MEMORY.
 */
MIMEO_PUBLIC int mimeo_text_open(
	struct mimeo_text **ret_text, const char *path, char *message, size_t message_size);
/* The same from descriptors, which stay the caller's and may be closed afterwards; their file offsets do not matter
 * and do not change. */
MIMEO_PUBLIC int mimeo_text_open_files(struct mimeo_text **ret_text,
	const struct mimeo_model_files *files, char *message, size_t message_size);
/* NULL is fine. Its streams must have been freed. */
MIMEO_PUBLIC void mimeo_text_close(struct mimeo_text *text);

/* ---- ids ---- */

/* The id of the token that is written like that in the vocabulary or among the added tokens, or -1. */
MIMEO_PUBLIC int32_t mimeo_text_id(const struct mimeo_text *text, const char *token);
/* The number of ids: they are 0 to this - 1. An id may have no token. */
MIMEO_PUBLIC uint32_t mimeo_text_vocab_size(const struct mimeo_text *text);

/* ---- encoding ---- */

#define MIMEO_TEXT_SPECIAL 1u  /* add the tokens that the post-processor adds, such as the begin token */
#define MIMEO_TEXT_LITERAL 2u  /* special tokens written in the text are text, not tokens. For text of users. Added tokens
                                  that are neither normalized nor in the model's vocabulary count as special */

/*
 * Encode `length` bytes of text, as Hugging Face's `tokenizers` does (encode, add_special_tokens by
 * MIMEO_TEXT_SPECIAL), without truncation and padding.
 * *ret_ids [*ret_n] is released by free(); it is not NULL if *ret_n is 0. 0, or TOO_LONG (more than
 * MIMEO_TEXT_MAX bytes; or a normalizer makes more than 1 GiB of it; or a regular expression of the tokenizer exceeds its
 * limit of steps), INVALID (unknown flags; or a character has no token, and the vocabulary lacks the unknown token that its
 * file names), NO_MEMORY.
 */
MIMEO_PUBLIC int mimeo_text_encode(const struct mimeo_text *text, const char *utf8, size_t length,
	uint32_t flags, int32_t **ret_ids, size_t *ret_n);
#define MIMEO_TEXT_MAX (64u << 20) /* bytes of a text, and of a rendered chat */

/* ---- decoding ---- */

#define MIMEO_TEXT_SKIP_SPECIAL 4u /* leave out special tokens */

/*
 * Decode n ids, as `tokenizers` does (decode, skip_special_tokens by MIMEO_TEXT_SKIP_SPECIAL). Ids without a token are
 * left out. *ret_utf8 [*ret_length] is valid UTF-8, has a terminator that is not counted, and is released by free().
 * 0, or INVALID (unknown flags), TOO_LONG (more than 1 GiB of text), NO_MEMORY.
 */
MIMEO_PUBLIC int mimeo_text_decode(const struct mimeo_text *text, const int32_t *ids, size_t n,
	uint32_t flags, char **ret_utf8, size_t *ret_length);

/* ---- decoding as tokens come ---- */

struct mimeo_text_stream;

#define MIMEO_TEXT_STOP_MAX 16
#define MIMEO_TEXT_STOP_BYTES 1024 /* of one stop string */

struct mimeo_text_stream_config {
	size_t size;              /* sizeof(struct mimeo_text_stream_config); set by its _INIT */
	uint32_t flags;           /* MIMEO_TEXT_SKIP_SPECIAL or 0 */
	uint32_t n_stop;          /* 0 ... MIMEO_TEXT_STOP_MAX */
	const char *const *stop;  /* [n_stop] terminated strings of 1 ... MIMEO_TEXT_STOP_BYTES bytes, valid UTF-8,
	                             that end the text; copied */
	const int32_t *before;    /* [n_before] ids ahead of the first one (the end of the prompt), which decide
	                             about a leading space; not part of the text; copied */
	size_t n_before;
};
#define MIMEO_TEXT_STREAM_CONFIG_INIT                                                              \
	{                                                                                          \
		sizeof(struct mimeo_text_stream_config), 0, 0, NULL, NULL, 0                       \
	}

/* *ret_stream is the caller's until mimeo_text_stream_free; the text must live as long. `config` may be NULL (no flags, no
 * stop strings). 0, or INVALID, NO_MEMORY. */
MIMEO_PUBLIC int mimeo_text_stream_new(struct mimeo_text_stream **ret_stream,
	const struct mimeo_text *text, const struct mimeo_text_stream_config *config);
MIMEO_PUBLIC void mimeo_text_stream_free(struct mimeo_text_stream *stream);
/*
 * Add n ids. *ret_utf8 [*ret_length] is the text that is certain now: whole characters only, and nothing that may still
 * be the beginning of a stop string. It may be empty, is terminated, and lives until the next call with this stream. All
 * texts together, with that of mimeo_text_stream_end, are what mimeo_text_decode gives for all ids.
 * 0; 1 if a stop string was found: the text ends before it, and later ids are ignored. The first one that is complete
 * counts, the longest of several that are complete at once. Or INVALID (the stream has ended), TOO_LONG, NO_MEMORY.
 */
MIMEO_PUBLIC int mimeo_text_stream_push(struct mimeo_text_stream *stream, const int32_t *ids, size_t n,
	const char **ret_utf8, size_t *ret_length);
/* No further ids come: the text that was held back, up to a stop string. Parts of a character become U+FFFD. 0, or TOO_LONG,
 * NO_MEMORY. */
MIMEO_PUBLIC int mimeo_text_stream_end(
	struct mimeo_text_stream *stream, const char **ret_utf8, size_t *ret_length);
/* The index of the stop string that was found, or -1. */
MIMEO_PUBLIC int mimeo_text_stream_stopped(const struct mimeo_text_stream *stream);

/* ---- chats ---- */

/*
 * Render a chat by the model's template, as transformers' apply_chat_template does.
 *
 * `json` [length] is an object. "messages" (required) is an array of objects with "role" and "content"; what else
 * they have is handed to the template as it is, null as none. "tools", "documents", "add_generation_prompt" (true unless
 * given) and every other member are variables of the template, beside bos_token, eos_token and the other special tokens
 * of tokenizer_config.json. "chat_template" names one of several templates of the model.
 *
 * mimeo_text_chat_render gives the text, terminated, released by free(); mimeo_text_chat its ids. Special tokens
 * that the template writes become tokens; those that stand in the values of `json` stay text, so that a user's message cannot
 * imitate the template. No further special tokens are added, as in transformers.
 *
 * If it fails, one sentence is written to message[message_size]: what the template raised (raise_exception),
 * or the line and the construct that is not understood. 0, or UNSUPPORTED (the model has no template, or one that is not
 * understood), INVALID (`json`; or the template raised an error), TOO_LONG (limits of steps, depth or output), NO_MEMORY.
 */
MIMEO_PUBLIC int mimeo_text_chat_render(const struct mimeo_text *text, const char *json,
	size_t length, char **ret_utf8, size_t *ret_length, char *message, size_t message_size);
MIMEO_PUBLIC int mimeo_text_chat(const struct mimeo_text *text, const char *json, size_t length,
	int32_t **ret_ids, size_t *ret_n, char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
