/* SPDX-License-Identifier: MIT */
#include "daemon/output/metrics.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const struct metric_label labels[static METRIC_LABELS_MAX], double value)
{
	assert(metrics->n_samples <= METRICS_MAX);
	if (metrics->n_samples == METRICS_MAX) {
		metrics->n_dropped++;
		return;
	}
	struct metric *metric = &metrics->samples[metrics->n_samples++];
	*metric = (struct metric){.name = name, .help = help, .type = type, .value = value};
	memcpy(metric->labels, labels, sizeof(metric->labels));
}

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value)
{
	const struct metric_label none[METRIC_LABELS_MAX] = {{NULL, NULL}};

	metrics_add_labelled(metrics, type, name, help, none, value);
}

struct metrics_text {
	char *buffer;
	size_t size, used;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void metrics_put(
	struct metrics_text *text, const char *format, ...)
{
	va_list arguments;

	if (text->full)
		return;
	assert(text->used < text->size);
	va_start(arguments, format);
	int n = vsnprintf(text->buffer + text->used, text->size - text->used, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= text->size - text->used)
		text->full = true;
	else
		text->used += (size_t)n;
}

static void metrics_put_label(struct metrics_text *text, const struct metric_label *label)
{
	metrics_put(text, "%s=\"", label->name);
	for (const char *value = label->value; *value; value++) {
		if (*value == '\n')
			metrics_put(text, "\\n");
		else if (*value == '"' || *value == '\\')
			metrics_put(text, "\\%c", *value);
		else
			metrics_put(text, "%c", *value);
	}
	metrics_put(text, "\"");
}

/* {model="tinycalc",position="1"} */
static void metrics_put_labels(struct metrics_text *text, const struct metric_label labels[METRIC_LABELS_MAX])
{
	if (!labels[0].name)
		return;
	for (unsigned i = 0; i < METRIC_LABELS_MAX && labels[i].name; i++) {
		metrics_put(text, i ? "," : "{");
		metrics_put_label(text, &labels[i]);
	}
	metrics_put(text, "}");
}

static void metrics_put_value(struct metrics_text *text, double value)
{
	/* below 2^53 a whole number is exact */
	if (value == floor(value) && fabs(value) < 9007199254740992.0)
		metrics_put(text, " %.0f\n", value);
	else
		metrics_put(text, " %.9g\n", value);
}

int metrics_render(const struct metrics *metrics, char *buffer, size_t size)
{
	struct metrics_text text = {.buffer = buffer, .size = size, .full = size == 0};
	const char *last = "";

	for (uint32_t i = 0; i < metrics->n_samples; i++) {
		const struct metric *metric = &metrics->samples[i];

		if (strcmp(metric->name, last) != 0) {
			metrics_put(&text, "# HELP %s %s\n", metric->name, metric->help);
			metrics_put(&text, "# TYPE %s %s\n", metric->name,
				metric->type == METRIC_COUNTER ? "counter" : "gauge");
			last = metric->name;
		}
		metrics_put(&text, "%s", metric->name);
		metrics_put_labels(&text, metric->labels);
		metrics_put_value(&text, metric->value);
	}
	return text.full ? -ENOSPC : (int)text.used;
}
