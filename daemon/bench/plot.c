/* SPDX-License-Identifier: MIT */
#include "daemon/bench/bench.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 720
#define HEADING 34
#define HEIGHT 300 /* of a panel */
#define LEFT 80
#define RIGHT 190 /* holds the legend */
#define TOP 40
#define BOTTOM 50
#define LINES_MAX 24u
#define POINTS_MAX 64u
#define TICKS 5

/* The Okabe-Ito palette, which is distinguishable with colour vision deficiencies. */
static const char *const colours[] = {
	"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
#define N_COLOURS (sizeof(colours) / sizeof(colours[0]))

struct line {
	const char *label;
	double group; /* NAN: none */
	uint32_t n;
	double x[POINTS_MAX], y[POINTS_MAX];
};

struct panel {
	const struct bench_panel *what;
	struct line lines[LINES_MAX];
	uint32_t n_lines;
	double x_min, x_max, y_max;
};

/* ---- which points ---- */

static struct line *plot_line(struct panel *panel, const char *label, double group)
{
	for (uint32_t i = 0; i < panel->n_lines; i++) {
		struct line *line = &panel->lines[i];

		if (line->label == label && (line->group == group || isnan(group)))
			return line;
	}
	if (panel->n_lines == LINES_MAX)
		return NULL;
	struct line *line = &panel->lines[panel->n_lines++];
	*line = (struct line){.label = label, .group = group};
	return line;
}

/* Insert the point in order of x. */
static void plot_add(struct panel *panel, struct line *line, double x, double y)
{
	uint32_t at = line->n;

	if (line->n == POINTS_MAX)
		return;
	for (; at > 0 && line->x[at - 1] > x; at--) {
		line->x[at] = line->x[at - 1];
		line->y[at] = line->y[at - 1];
	}
	line->x[at] = x;
	line->y[at] = y;
	line->n++;
	panel->x_min = fmin(panel->x_min, x);
	panel->x_max = fmax(panel->x_max, x);
	panel->y_max = fmax(panel->y_max, y);
}

/* Is there anything to draw? */
static bool plot_collect(
	struct panel *panel, const struct results *results, const struct bench_panel *what)
{
	*panel = (struct panel){.what = what, .x_min = INFINITY};
	for (uint32_t row = 0; row < results_n_rows(results); row++) {
		double x = results_get(results, row, what->x);
		double group = what->group ? results_get(results, row, what->group) : NAN;

		for (uint32_t i = 0; i < 4 && what->keys[i]; i++) {
			double y = results_get(results, row, what->keys[i]);

			if (!isfinite(x) || x <= 0 || !isfinite(y))
				continue;
			struct line *line = plot_line(panel, what->labels[i], group);
			if (line)
				plot_add(panel, line, x, y);
		}
	}
	return panel->n_lines > 0 && panel->y_max > 0;
}

/* ---- drawing ---- */

/* x is logarithmic, because numbers of processes, rows and tokens are usually powers of 2. */
static double plot_x(const struct panel *panel, double x)
{
	double width = WIDTH - LEFT - RIGHT;

	if (panel->x_max <= panel->x_min)
		return LEFT + width / 2;
	return LEFT + width * log(x / panel->x_min) / log(panel->x_max / panel->x_min);
}

static double plot_y(double top, double most, double y)
{
	assert(y <= most);
	return top + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / most;
}

/* The smallest of 1, 2 and 5 times a power of ten of which TICKS reach the largest value. */
static double plot_tick(double most)
{
	double power = pow(10, floor(log10(most / TICKS)));

	for (int i = 0; i < 3; i++) {
		static const double steps[] = {1, 2, 5};

		if (power * steps[i] * TICKS >= most)
			return power * steps[i];
	}
	return power * 10;
}

static void plot_text(FILE *file, double x, double y, const char *anchor, const char *text)
{
	fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", file);
		else if (*text == '&')
			fputs("&amp;", file);
		else if ((unsigned char)*text >= ' ')
			fputc(*text, file);
	}
	fputs("</text>\n", file);
}

static bool plot_is_seconds(const struct panel *panel)
{
	const char *key = panel->what->keys[0];
	size_t length = strlen(key);

	return length > 2 && strcmp(key + length - 2, "_s") == 0 && !strstr(key, "per_s");
}

static void plot_axes(FILE *file, const struct panel *panel, double top, double tick)
{
	double most = tick * TICKS;

	for (int i = 0; i <= TICKS; i++) {
		double y = plot_y(top, most, tick * i);
		char text[TABLE_FORMAT_MAX];

		fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" "
			"stroke=\"#cccccc\"/>\n", LEFT, y, WIDTH - RIGHT, y);
		plot_text(file, LEFT - 6, y + 4, "end",
			i == 0 ? "0" : plot_is_seconds(panel) ? table_format_seconds(text, tick * i)
							      : table_format_number(text, tick * i));
	}
	/* lines with the same x draw the same label twice */
	for (uint32_t i = 0; i < panel->n_lines; i++) {
		for (uint32_t j = 0; j < panel->lines[i].n; j++) {
			double x = panel->lines[i].x[j];
			char text[32];

			snprintf(text, sizeof(text), "%g", x);
			plot_text(file, plot_x(panel, x), top + HEIGHT - BOTTOM + 16, "middle", text);
		}
	}
	plot_text(file, (LEFT + WIDTH - RIGHT) / 2.0, top + HEIGHT - BOTTOM + 34, "middle",
		panel->what->x);
	plot_text(file, LEFT, top + TOP - 14, "start", panel->what->title);
}

static void plot_lines(FILE *file, const struct panel *panel, double top, double most)
{
	for (uint32_t i = 0; i < panel->n_lines; i++) {
		const struct line *line = &panel->lines[i];
		const char *colour = colours[i % N_COLOURS];
		double legend = top + TOP + 18.0 * i;
		char label[96];

		fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
		for (uint32_t j = 0; j < line->n; j++)
			fprintf(file, "%s%.1f,%.1f", j ? " " : "", plot_x(panel, line->x[j]),
				plot_y(top, most, line->y[j]));
		fputs("\"/>\n", file);
		for (uint32_t j = 0; j < line->n; j++)
			fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
				plot_x(panel, line->x[j]), plot_y(top, most, line->y[j]), colour);
		fprintf(file, "<rect x=\"%d\" y=\"%.1f\" width=\"12\" height=\"4\" fill=\"%s\"/>\n",
			WIDTH - RIGHT + 14, legend - 4, colour);
		if (panel->what->group)
			snprintf(label, sizeof(label), "%s, %s %g", line->label, panel->what->group,
				line->group);
		else
			snprintf(label, sizeof(label), "%s", line->label);
		plot_text(file, WIDTH - RIGHT + 32, legend + 1, "start", label);
	}
}

int plot_write(const char *path, const struct results *results, const struct bench_panel *panels,
	const char *heading)
{
	double top = HEADING;
	struct panel panel;
	FILE *file = fopen(path, "we");

	if (!file)
		return bench_fail(-errno, "%s: %s", path, strerror(errno));
	for (const struct bench_panel *what = panels; what->title; what++)
		top += plot_collect(&panel, results, what) ? HEIGHT : 0;
	fprintf(file,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
		"viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		WIDTH, top, WIDTH, top);
	plot_text(file, LEFT, 22, "start", heading);
	top = HEADING;
	for (const struct bench_panel *what = panels; what->title; what++) {
		if (!plot_collect(&panel, results, what))
			continue;
		double tick = plot_tick(panel.y_max);
		plot_axes(file, &panel, top, tick);
		plot_lines(file, &panel, top, tick * TICKS);
		top += HEIGHT;
	}
	fputs("</svg>\n", file);
	bool failed = ferror(file);
	if (fclose(file) != 0 || failed)
		return bench_fail(-EIO, "%s: it cannot be written", path);
	return 0;
}
