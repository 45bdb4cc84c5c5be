/* SPDX-License-Identifier: MIT */
#include "daemon/serve/request_lines.h"

#include <string.h>

#include <mimeo/types.h>

#include "daemon/engine/request_log.h"

#define LINES_FIELDS_MAX 16

struct lines_fields {
	struct log_field at[LINES_FIELDS_MAX];
	size_t n;
};

static void lines_add_text(struct lines_fields *fields, const char *name, const char *text)
{
	if (text)
		fields->at[fields->n++] = (struct log_field){.name = name, .kind = LOG_FIELD_TEXT, .text = text};
}

static void lines_add_count(struct lines_fields *fields, const char *name, uint64_t count)
{
	fields->at[fields->n++] = (struct log_field){.name = name, .kind = LOG_FIELD_COUNT, .count = count};
}

/* From one moment to another; left out if either is unknown. */
static void lines_add_time(struct lines_fields *fields, const char *name, uint64_t from_ns, uint64_t to_ns)
{
	if (from_ns && to_ns)
		fields->at[fields->n++] = (struct log_field){.name = name,
			.kind = LOG_FIELD_SECONDS,
			.seconds = to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0};
}

/* "stop", "length" or "done"; else the status: "MIMEO_E_DEADLINE". */
static const char *lines_outcome(const struct request_record *record)
{
	if (record->status)
		return mimeo_status_name(record->status);
	return record->finish == MIMEO_FINISH_STOP ? "stop" : record->finish == MIMEO_FINISH_LENGTH ? "length" : "done";
}

static void lines_write(const struct request_record *record)
{
	struct lines_fields fields = {.n = 0};

	if (record->id)
		lines_add_count(&fields, "request", record->id);
	lines_add_text(&fields, "outcome", lines_outcome(record));
	lines_add_text(&fields, "op", record->op);
	lines_add_text(&fields, "model", record->model[0] ? record->model : NULL);
	lines_add_text(&fields, "class", record->class);
	lines_add_count(&fields, "session", record->session);
	lines_add_count(&fields, "user", record->uid);
	lines_add_count(&fields, "pid", (uint64_t)record->pid);
	lines_add_text(&fields, "client", record->client);
	lines_add_count(&fields, "prompt_tokens", record->n_prompt);
	lines_add_count(&fields, "cached_tokens", record->n_cached);
	lines_add_count(&fields, "generated_tokens", record->n_generated);
	lines_add_time(&fields, "queue_s", record->submitted_ns, record->started_ns);
	lines_add_time(&fields, "first_token_s", record->submitted_ns, record->first_token_ns);
	lines_add_time(&fields, "total_s", record->submitted_ns, record->ended_ns);
	log_write_fields(LOG_LEVEL_INFO, record->id ? "request ended" : "request refused", fields.at, fields.n);
}

static void lines_write_all(struct serve *serve)
{
	struct request_log *log = engine_request_log(serve->options.engine);
	struct request_record record;

	while (request_log_take(log, &record))
		lines_write(&record);
	uint64_t n_lost = atomic_exchange(&log->n_lost, 0);
	if (n_lost > 0)
		log_warn("requests that are missing in the log, because more than %u ended within %u ms: %llu",
			REQUEST_LOG_SIZE, REQUEST_LINES_MS, (unsigned long long)n_lost);
}

static void lines_on_tick(void *userdata, struct loop_source *source, uint32_t events)
{
	lines_write_all(userdata);
}

void request_lines_set(struct serve *serve)
{
	struct request_log *log = engine_request_log(serve->options.engine);

	if (!serve->options.request_log) {
		request_lines_end(serve);
		return;
	}
	if (serve->request_lines)
		return;
	int rc = loop_add_timer(serve->loop, REQUEST_LINES_MS, lines_on_tick, serve, &serve->request_lines);
	if (rc < 0)
		log_warn("requests are not logged: %s", strerror(-rc));
	else
		atomic_store(&log->on, true);
}

void request_lines_end(struct serve *serve)
{
	if (!serve->request_lines)
		return;
	atomic_store(&engine_request_log(serve->options.engine)->on, false);
	lines_write_all(serve);
	loop_remove(serve->loop, serve->request_lines);
	serve->request_lines = NULL;
}
