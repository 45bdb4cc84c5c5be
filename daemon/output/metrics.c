/* SPDX-License-Identifier: MIT */
#include "daemon/output/metrics.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *metric_type_name(enum metric_type type)
{
	switch (type) {
	case METRIC_COUNTER:
	case METRIC_SECONDS:
		return "counter";
	case METRIC_HISTOGRAM:
		return "histogram";
	case METRIC_GAUGE:
		break;
	}
	return "gauge";
}

bool metric_is_whole(const struct metric *metric)
{
	return metric->type == METRIC_COUNTER ||
	       (metric->type == METRIC_HISTOGRAM && strcmp(metric->suffix, "_sum") != 0);
}

static struct metric *metrics_next(struct metrics *metrics)
{
	assert(metrics->n_samples <= METRICS_MAX);
	if (metrics->n_samples < METRICS_MAX)
		return &metrics->samples[metrics->n_samples++];
	metrics->n_dropped++;
	return NULL;
}

void metrics_add_labelled(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, const struct metric_label labels[static METRIC_LABELS_MAX], double value)
{
	struct metric *metric = metrics_next(metrics);
	if (!metric)
		return;
	*metric = (struct metric){.name = name, .help = help, .suffix = "", .type = type, .value = value};
	memcpy(metric->labels, labels, sizeof(metric->labels));
}

void metrics_add(struct metrics *metrics, enum metric_type type, const char *name,
	const char *help, double value)
{
	const struct metric_label none[METRIC_LABELS_MAX] = {{NULL, NULL}};

	metrics_add_labelled(metrics, type, name, help, none, value);
}

void metrics_add_histogram(struct metrics *metrics, const char *name, const char *help,
	struct metric_label label, const struct metric_histogram *histogram)
{
	struct metric sample = {.name = name, .help = help, .suffix = "_bucket", .type = METRIC_HISTOGRAM};
	struct metric_label *le = &sample.labels[label.name ? 1 : 0];
	uint64_t n = 0;

	sample.labels[0] = label;
	for (unsigned i = 0; i <= histogram->n + 2; i++) {
		struct metric *metric = metrics_next(metrics);

		if (!metric)
			return;
		if (i <= histogram->n) {
			n += histogram->counts[i];
			*le = (struct metric_label){"le", i < histogram->n ? histogram->bounds[i] : "+Inf"};
		} else {
			*le = (struct metric_label){NULL, NULL};
			sample.suffix = i == histogram->n + 1 ? "_sum" : "_count";
		}
		sample.value = i == histogram->n + 1 ? histogram->sum : (double)n;
		*metric = sample;
	}
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
		metrics_put(text, " %.15g\n", value);
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
				metric_type_name(metric->type));
			last = metric->name;
		}
		metrics_put(&text, "%s%s", metric->name, metric->suffix);
		metrics_put_labels(&text, metric->labels);
		metrics_put_value(&text, metric->value);
	}
	return text.full ? -ENOSPC : (int)text.used;
}
