/* SPDX-License-Identifier: MIT */
#include "daemon/serve/trace_json.h"

#include <inttypes.h>

#include <mimeo/types.h>

#define JSON_SESSIONS 1u /* process of session N: JSON_SESSIONS + N */
enum { JSON_STEPS = 1, JSON_ENGINE = 2 };

/* Slices of a thread are nested or apart, so a request's rows, which overlap its phases, have a thread of their own. */
static uint64_t json_phases(const struct trace_event *event)
{
	return 2 * event->id;
}

static uint64_t json_rows(const struct trace_event *event)
{
	return 2 * event->id + 1;
}

static double json_us(uint64_t ns)
{
	return (double)ns * 1e-3;
}

/* A name, which may have any bytes. */
static void json_put_text(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
			fprintf(out, "\\u%04x", (unsigned char)*text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

static void json_name(FILE *out, const char *what, uint64_t process, uint64_t thread, const char *name, uint64_t number)
{
	fprintf(out, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64 ",\"args\":{\"name\":\"%s",
		what, process, thread, name);
	if (number)
		fprintf(out, " %" PRIu64, number);
	fputs("\"}}", out);
}

void trace_json_begin(FILE *out)
{
	json_name(out, "process_name", 1, 0, "mimeod", 0);
	fputs(",\n", out);
	json_name(out, "thread_name", 1, JSON_STEPS, "device: steps", 0);
	fputs(",\n", out);
	json_name(out, "thread_name", 1, JSON_ENGINE, "engine thread", 0);
}

/* {..."args":{ of a slice; the caller adds arguments and closes both. */
static void json_slice(
	FILE *out, const char *name, uint64_t process, uint64_t thread, uint64_t begin_ns, uint64_t end_ns)
{
	fprintf(out, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
		",\"ts\":%.3f,\"dur\":%.3f,\"args\":{", name, process, thread, json_us(begin_ns),
		json_us(end_ns > begin_ns ? end_ns - begin_ns : 0));
}

static void json_model(FILE *out, const char *model)
{
	fputs(",\"model\":", out);
	json_put_text(out, model);
}

static void json_step(FILE *out, const struct trace_event *event, const char *model)
{
	const uint32_t *values = event->values;

	json_slice(out, "step", 1, JSON_STEPS, event->begin_ns, event->end_ns);
	fprintf(out, "\"step\":%" PRIu64 ",\"rows\":%u,\"tokens\":%u,\"prompt_tokens\":%u", event->id, values[0],
		values[1], values[2]);
	if (values[4])
		fprintf(out, ",\"graph\":\"%s\",\"graph_tokens\":%u,\"graph_rows\":%u,\"padding\":%u", event->name,
			values[4], values[5], values[3]);
	else
		fprintf(out, ",\"eager\":\"%s\"", event->name);
	json_model(out, model);
	fputs("}}", out);
	if (!event->middle_ns[0])
		return;
	json_slice(out, "behind the results", 1, JSON_STEPS, event->middle_ns[0], event->end_ns);
	fputs("}}", out);
}

static void json_engine(FILE *out, const char *name, const struct trace_event *event)
{
	json_slice(out, name, 1, JSON_ENGINE, event->begin_ns, event->end_ns);
	if (event->id)
		fprintf(out, "\"step\":%" PRIu64, event->id);
	if (event->kind == TRACE_CAPTURE)
		fprintf(out, "\"graph\":\"%s\",\"graph_tokens\":%u,\"graph_rows\":%u", event->name, event->values[4],
			event->values[5]);
	fputs("}}", out);
}

static void json_row(FILE *out, const struct trace_event *event)
{
	json_slice(out, event->name, JSON_SESSIONS + event->session, json_rows(event), event->begin_ns, event->end_ns);
	fprintf(out, "\"tokens\":%u,\"step\":%u}}", event->values[0], event->values[1]);
}

/* The request's life as a slice, with its parts within. */
static void json_request(FILE *out, const struct trace_event *event, const char *model)
{
	const uint64_t process = JSON_SESSIONS + event->session;
	const uint64_t started = event->middle_ns[0], first = event->middle_ns[1];
	const uint64_t thread = json_phases(event);
	const uint32_t *values = event->values;

	fputs(",\n", out);
	json_name(out, "process_name", process, 0, "session", event->session);
	fputs(",\n", out);
	json_name(out, "thread_name", process, thread, "request", event->id);
	fputs(",\n", out);
	json_name(out, "thread_name", process, json_rows(event), "rows of request", event->id);
	json_slice(out, event->name, process, thread, event->begin_ns, event->end_ns);
	fprintf(out, "\"request\":%" PRIu64 ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"generated_tokens\":%u"
		",\"status\":\"%s\"", event->id, values[0], values[1], values[2],
		mimeo_status_name(-(int)values[3]));
	json_model(out, model);
	fputs("}}", out);
	json_slice(out, "queue", process, thread, event->begin_ns, started ? started : event->end_ns);
	fputs("}}", out);
	if (!started)
		return;
	json_slice(out, "first token", process, thread, started, first ? first : event->end_ns);
	fputs("}}", out);
	if (!first)
		return;
	json_slice(out, "further tokens", process, thread, first, event->end_ns);
	fputs("}}", out);
}

void trace_json_event(FILE *out, const struct engine *engine, const struct trace_event *event)
{
	switch (event->kind) {
	case TRACE_STEP:
		json_step(out, event, engine_model_name(engine, event->model));
		break;
	case TRACE_ROW:
		json_row(out, event);
		break;
	case TRACE_LAUNCH:
		json_engine(out, "launch", event);
		break;
	case TRACE_RESULTS:
		json_engine(out, "results", event);
		break;
	case TRACE_ADMIT:
		json_engine(out, "admit", event);
		break;
	case TRACE_CAPTURE:
		json_engine(out, "capture", event);
		break;
	case TRACE_SLEEP:
		json_engine(out, "sleep", event);
		break;
	case TRACE_REQUEST:
		json_request(out, event, engine_model_name(engine, event->model));
		break;
	}
}
