/* SPDX-License-Identifier: MIT */
#include "daemon/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const char *label, const char *label_value, double value)
{
	if (metrics->n_samples == METRICS_MAX) {
		metrics->n_dropped++;
		return;
	}
	metrics->samples[metrics->n_samples++] = (struct metric){
		.name = name,
		.help = help,
		.type = type,
		.label = label,
		.label_value = label_value,
		.value = value,
	};
}

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value)
{
	metrics_add_labelled(metrics, type, name, help, NULL, NULL, value);
}

struct text {
	char *buffer;
	size_t size, used;
	bool full;
};

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *text, const char *format, ...)
{
	va_list arguments;

	if (text->full)
		return;
	va_start(arguments, format);
	int n = vsnprintf(text->buffer + text->used, text->size - text->used, format, arguments);
	va_end(arguments);
	if (n < 0 || (size_t)n >= text->size - text->used)
		text->full = true;
	else
		text->used += (size_t)n;
}

static void put_label(struct text *text, const char *label, const char *value)
{
	put(text, "{%s=\"", label);
	for (; *value; value++) {
		if (*value == '\n')
			put(text, "\\n");
		else if (*value == '"' || *value == '\\')
			put(text, "\\%c", *value);
		else
			put(text, "%c", *value);
	}
	put(text, "\"}");
}

static void put_value(struct text *text, double value)
{
	/* below 2^53 a whole number is exact */
	if (value == floor(value) && fabs(value) < 9007199254740992.0)
		put(text, " %.0f\n", value);
	else
		put(text, " %.9g\n", value);
}

int metrics_render(const struct metrics *metrics, char *buffer, size_t size)
{
	struct text text = {.buffer = buffer, .size = size, .full = size == 0};
	const char *last = "";

	for (uint32_t i = 0; i < metrics->n_samples; i++) {
		const struct metric *metric = &metrics->samples[i];

		if (strcmp(metric->name, last) != 0) {
			put(&text, "# HELP %s %s\n", metric->name, metric->help);
			put(&text, "# TYPE %s %s\n", metric->name,
				metric->type == METRIC_COUNTER ? "counter" : "gauge");
			last = metric->name;
		}
		put(&text, "%s", metric->name);
		if (metric->label)
			put_label(&text, metric->label, metric->label_value);
		put_value(&text, metric->value);
	}
	return text.full ? -ENOSPC : (int)text.used;
}
