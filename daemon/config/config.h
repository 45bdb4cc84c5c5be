/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CONFIG_H
#define MIMEO_DAEMON_CONFIG_H

/*
 * mimeod's configuration. The settings of files, environment and command line are collected in a struct
 * config_settings, each value checked as it is read; config_resolve adds the defaults and makes one struct config.
 *
 * One table (config_keys) describes every key: it makes the file's keys, the command line's options
 * and the help.
 *
 * Functions here return 0, -ENOMEM, or -EINVAL with a sentence in struct config_error that names the place, the
 * value and what would be accepted. Readers go on after a refusal, so that one run reports all that is wrong.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/graph/mode.h"
#include "daemon/output/log.h"
#include "daemon/config/account.h"
#include "daemon/config/mask_text.h"

#define CONFIG_MODELS_MAX 32
#define CONFIG_NAME_MAX 64 /* of a model, with terminator */
#define CONFIG_CAPTURE_SIZES_MAX 512
#define CONFIG_GROUP_MAX 33
#define CONFIG_SOCKET_MAX 102 /* so that "-admin" fits into the socket's address */
#define CONFIG_FOLDER_MAX 1024 /* of a draft, with terminator */
#define CONFIG_SESSIONS_MAX 1024 /* as many as the engine takes */
#define CONFIG_SPIN_FOREVER UINT32_MAX
#define CONFIG_WEIGHTS_MAX 64
#define CONFIG_WEIGHT_MAX 1000 /* as much as the engine takes */
#define CONFIG_WHERE_MAX 320 /* "FILE:LINE: KEY", with terminator */

/* "alice:3", "1001:2", "@batch:1" */
struct config_weight {
	struct account account;
	uint32_t weight;
};

struct config_model {
	char name[CONFIG_NAME_MAX]; /* [A-Za-z0-9._-], not empty */
	char *dir;
	enum graph_mode graph_mode;
	char breakable[16]; /* "yes", "no" */
	char deterministic[16]; /* likewise */
	char head_dtype[16];    /* "model", "fp8" */
	char kv_dtype[16];      /* likewise */
	char attention[16]; /* "auto", "naive", "paged", ... */
	struct mask_text mask; /* of requests that bring none */
	char draft[CONFIG_FOLDER_MAX]; /* its folder, or "mtp", the model's own head; "": none */
	uint32_t draft_tokens;
	uint32_t kv_pages;  /* 0: see kv_bytes */
	uint64_t kv_bytes;  /* 0, with kv_pages 0: the default, see mimeod.conf(5) */
};

struct config {
	struct config_model models[CONFIG_MODELS_MAX];
	uint32_t n_models; /* at least 1 */
	char device[16];   /* "auto", "cpu", "cuda", "cuda:N" */
	char socket[CONFIG_SOCKET_MAX]; /* "": the default place (ipc/socket.h) */
	char loop[16];                  /* "": auto */
	/* For all models; each one's own values are in `models`. */
	enum graph_mode graph_mode;
	char breakable[16];
	char deterministic[16];
	char head_dtype[16];
	char kv_dtype[16];
	char attention[16];
	struct mask_text mask;
	char draft[CONFIG_FOLDER_MAX];
	uint32_t draft_tokens;
	uint32_t kv_pages;
	uint64_t kv_bytes;

	uint32_t capture_sizes[CONFIG_CAPTURE_SIZES_MAX]; /* as given */
	uint32_t n_capture_sizes;                         /* 0: the default ladder */
	char capture[16];                                 /* "eager", "lazy" */
	char prefix_sharing[16];                          /* "none", "user", "all" */
	struct config_weight weights[CONFIG_WEIGHTS_MAX]; /* as given */
	uint32_t n_weights;                               /* 0: all users' are 1 */
	char weights_where[CONFIG_WHERE_MAX]; /* "FILE:LINE: weights", "--weights": for errors of names */
	uint32_t max_requests, max_batch_tokens;
	uint32_t page_tokens;
	uint32_t max_seq_len; /* 0: the model's */
	uint64_t memory;      /* bytes of device memory; 0: 90 % of what is free */
	uint32_t max_sessions, max_sessions_per_uid;
	uint32_t max_sequences; /* a session */
	uint64_t max_arena_bytes;
	uint64_t max_shared_bytes; /* all sessions' regions */
	uint64_t max_sequence_bytes; /* of all sessions' sequences, in the daemon */
	uint32_t max_client_buffers;      /* device buffers of a session */
	uint64_t max_client_buffer_bytes; /* theirs */
	uint64_t max_buffer_bytes;        /* all sessions' */
	char allow_client_ipc[16];        /* "same-uid", "yes", "no" */
	char monitor_group[CONFIG_GROUP_MAX]; /* name or number; "": nobody */
	uint32_t metrics_port; /* 0: none */
	uint32_t token_us; /* 0: no target */
	uint32_t spin_us; /* CONFIG_SPIN_FOREVER: never sleep */
	uint32_t drain_timeout_s; /* 0: no limit */
	enum log_level log_level;
	char log_format[16];  /* "auto", "text", "json" */
	char request_log[16]; /* "yes", "no" */
	char file[CONFIG_FOLDER_MAX]; /* the main one, which may be missing; "": there is none. Cut if it is longer */
	uint32_t n_files;             /* that were read, with fragments */
};

#define CONFIG_SENTENCE_MAX 1024 /* bytes, with terminator */

/* What is wrong: all of it. Starts zeroed. */
struct config_error {
	char text[16 * CONFIG_SENTENCE_MAX]; /* a sentence a line */
	uint32_t n, n_dropped; /* sentences; those that the text had no space for */
};

enum config_kind {
	CONFIG_INTEGER,  /* uint32_t */
	CONFIG_SIZE,     /* uint64_t, bytes */
	CONFIG_DURATION, /* uint32_t, in units of unit_us */
	CONFIG_SPIN,     /* likewise, or forever */
	CONFIG_CHOICE,   /* char[16] */
	CONFIG_MODE,     /* enum graph_mode */
	CONFIG_MASK,     /* struct mask_text */
	CONFIG_FOLDER,   /* char[CONFIG_FOLDER_MAX]; "none" is ""; a folder of that name is ./none, and one named mtp ./mtp */
	CONFIG_GROUP,    /* char[CONFIG_GROUP_MAX]; "none" is "" */
	CONFIG_LEVEL,    /* enum log_level */
	CONFIG_DEVICE,   /* char[16] */
	CONFIG_SOCKET,   /* char[CONFIG_SOCKET_MAX] */
	CONFIG_SIZES,    /* capture_sizes */
	CONFIG_WEIGHTS,  /* weights */
};

struct config_key {
	const char *name; /* with '_', which an option spells '-' */
	const char *argument;
	const char *fallback; /* the default's text; NULL: see `nothing` */
	const char *nothing; /* what holds without a default */
	const char *help;
	enum config_kind kind;
	bool per_model;    /* also a key of [model NAME] */
	bool live;         /* a reload applies it; others need a restart */
	size_t offset;     /* in struct config */
	size_t model_offset; /* in struct config_model */
	uint64_t min, max; /* of numbers */
	uint64_t unit_us;  /* of durations */
	const char *accepted; /* "auto, naive or paged"; of an integer: appended to its range; or NULL */
};

#define CONFIG_N_KEYS 41
extern const struct config_key config_keys[CONFIG_N_KEYS];

/* Adds a sentence to the error. -EINVAL. */
int config_refuse(struct config_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same with -ENOMEM. */
int config_out_of_memory(struct config_error *error);

/* ---- settings ---- */

/* A later one overrides an earlier one; among files a later file does. */
enum config_place { CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_COMMAND_LINE };

struct config_setting {
	char *value; /* NULL: not given */
	char *where; /* "--kv-bytes", "MIMEO_KV_BYTES", "mimeod.conf:3: kv_bytes" */
	enum config_place place;
	uint32_t file; /* its number */
};

struct config_model_settings {
	char name[CONFIG_NAME_MAX];
	char *where; /* that named it first */
	struct config_setting dir;
	bool dir_refused; /* the latest that was given */
	struct config_setting values[CONFIG_N_KEYS]; /* of those that are per_model */
};

/* Starts zeroed. */
struct config_settings {
	struct config_setting values[CONFIG_N_KEYS];
	struct config_model_settings models[CONFIG_MODELS_MAX];
	uint32_t n_models;
	uint32_t n_files; /* read so far */
};
void config_settings_deinit(struct config_settings *settings);

#define CONFIG_ORIGIN_MAX 256
/* "mimeod.conf:3", "MIMEO_KV_BYTES", "--kv-bytes" or "default". Returns ret. */
const char *config_origin(const struct config_setting *setting, char ret[static CONFIG_ORIGIN_MAX]);
/* The setting of a key, which exists. */
const struct config_setting *config_setting(const struct config_setting *values, const char *name);
/* kv_pages or kv_bytes? */
bool config_is_kv(const struct config_key *key);

/* Set a key for all models (model NULL) or one; for a model also the key "dir". `where` begins the
 * error texts. Places come in their order, files in theirs. A later place overrides an earlier one: a value for all
 * models also its values for single ones. A later file replaces values of the same section. An option given again
 * replaces its value; a key is given once in a file, and so is "dir" in each place. */
int config_set(struct config_settings *settings, const char *model, const char *key,
	const char *value, const char *where, enum config_place place, struct config_error *error);
/* The model of that name, added if it is new. */
int config_declare(struct config_settings *settings, const char *name, const char *where,
	struct config_model_settings **ret, struct config_error *error);
/* Read mimeod.conf, or another file after it. `name` is the file's in error texts. -errno if the file cannot be
 * read. */
int config_parse_file(struct config_settings *settings, const char *path,
	struct config_error *error);
/* Read the file, unless it does not exist and is not required, and then those of the directory PATH.d whose names
 * end in .conf, in the order of these names by bytes. There may be no such directory. */
int config_parse_files(struct config_settings *settings, const char *path, bool required, struct config_error *error);
int config_parse_memory(struct config_settings *settings, const char *name, const char *text,
	size_t length, struct config_error *error);

/* ---- the result ---- */

/* A model's own value, else the value for all, else the default. A kv_bytes for all is divided equally
 * among the models without a value of their own. */
int config_resolve(const struct config_settings *settings, struct config *ret,
	struct config_error *error);
void config_deinit(struct config *config);
/* One debug line a setting. */
void config_describe(const struct config *config);

/* All values, each with its origin, as a file (config_print.c). It has the same effect, unless a value from the command
 * line or the environment is longer than a line of a file may be, or has a " #" or " ;" in it. */
void config_print(FILE *out, const struct config_settings *settings, const struct config *config);

/* ---- values (config_value.c) ---- */

/* Check the text and write what it says to its place in config, or if `model` is not NULL in there.
 * False, and nothing written, if the key does not accept it: see config_accepted. */
bool config_store(const struct config_key *key, const char *text, struct config *config,
	struct config_model *model);
#define CONFIG_ACCEPTED_MAX 256
const char *config_accepted(const struct config_key *key, char *ret, size_t size);
/* Copy the value of a live key. */
void config_copy(const struct config_key *key, const struct config *from, struct config *to);
/* The value as text, as the file would spell it. */
const char *config_show(const struct config_key *key, const struct config *config,
	const struct config_model *model, char *ret, size_t size);

#endif
