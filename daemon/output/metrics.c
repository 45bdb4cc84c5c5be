/* SPDX-License-Identifier: MIT */
#include "daemon/output/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const struct metric_label labels[static METRIC_LABELS_MAX], double value)
{
	struct metric *metric;

	if (metrics->n_samples == METRICS_MAX) {
		metrics->n_dropped++;
		return;
	}
	metric = &metrics->samples[metrics->n_samples++];
	*metric = (struct metric){.name = name, .help = help, .type = type, .value = value};
	memcpy(metric->labels, labels, sizeof(metric->labels));
}

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value)
{
	const struct metric_label none[METRIC_LABELS_MAX] = {{NULL, NULL}};

	metrics_add_labelled(metrics, type, name, help, none, value);
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

static void put_label(struct text *text, const struct metric_label *label)
{
	put(text, "%s=\"", label->name);
	for (const char *value = label->value; *value; value++) {
		if (*value == '\n')
			put(text, "\\n");
		else if (*value == '"' || *value == '\\')
			put(text, "\\%c", *value);
		else
			put(text, "%c", *value);
	}
	put(text, "\"");
}

/* {model="tinycalc",position="1"} */
static void put_labels(struct text *text, const struct metric_label labels[METRIC_LABELS_MAX])
{
	if (!labels[0].name)
		return;
	for (unsigned i = 0; i < METRIC_LABELS_MAX && labels[i].name; i++) {
		put(text, i ? "," : "{");
		put_label(text, &labels[i]);
	}
	put(text, "}");
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
		put_labels(&text, metric->labels);
		put_value(&text, metric->value);
	}
	return text.full ? -ENOSPC : (int)text.used;
}
