/* SPDX-License-Identifier: MIT */
/* The live view: tables as top_rows.c prints them, keys, and a question ahead of each order. */
#include <errno.h>
#include <locale.h>
#include <inttypes.h>
#include <math.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/ctl/top.h"
#include "ipc/clock.h"

#define SCREEN_KEYS "q quit  Tab sessions/requests  s sort  / filter  k kill session  c cancel"
#define SCREEN_ESCAPE 27

struct screen {
	int fd;
	const struct top_options *options;
	struct top_reading before, now;
	struct top_rows rows;  /* of these two */
	enum top_kind view;    /* TOP_SESSION or TOP_REQUEST */
	enum top_field order;
	size_t selected;       /* among the rows of the view */
	char filter[48];
	bool types;            /* the filter is being typed */
	const char *order_op;  /* asked for, and not confirmed: "kill", "cancel"; NULL */
	uint64_t order_id;
	char message[160];     /* in the last line; "": the keys */
	bool quits;
};

/* ---- rows ---- */

static const struct top_row *screen_row(const struct screen *screen, size_t index)
{
	for (size_t i = 0; i < screen->rows.n; i++) {
		if (screen->rows.rows[i].kind == screen->view && index-- == 0)
			return &screen->rows.rows[i];
	}
	return NULL;
}

static size_t screen_n_rows(const struct screen *screen)
{
	size_t n = 0;

	for (size_t i = 0; i < screen->rows.n; i++)
		n += screen->rows.rows[i].kind == screen->view;
	return n;
}

/* The rows of the two readings, in the present order; the selection stays with its row. */
static int screen_make_rows(struct screen *screen)
{
	const struct top_row *old = screen_row(screen, screen->selected), *row;
	const double id = old ? old->numbers[TOP_F_ID] : NAN;

	top_rows_deinit(&screen->rows);
	int rc = top_rows_make(&screen->rows, &screen->before, &screen->now);
	if (rc < 0)
		return rc;
	top_rows_filter(&screen->rows, screen->filter);
	top_rows_sort(&screen->rows, screen->order);
	for (size_t i = 0; (row = screen_row(screen, i)); i++) {
		if (row->numbers[TOP_F_ID] == id)
			screen->selected = i;
	}
	const size_t n = screen_n_rows(screen);
	if (screen->selected >= n)
		screen->selected = n ? n - 1 : 0;
	return 0;
}

static int screen_read(struct screen *screen)
{
	struct top_reading next;

	int rc = top_read(screen->fd, &next);
	if (rc < 0) {
		top_reading_deinit(&next);
		return rc;
	}
	top_reading_deinit(&screen->before);
	screen->before = screen->now;
	screen->now = next;
	return screen_make_rows(screen);
}

/* ---- drawing ---- */

/* Line `index` of a text, or NULL. */
static const char *screen_line(const char *text, size_t index)
{
	while (index-- > 0 && text) {
		text = strchr(text, '\n');
		text += text != NULL;
	}
	return text && *text ? text : NULL;
}

static void screen_put(int y, const char *line, attr_t attributes)
{
	attrset(attributes);
	mvaddnstr(y, 0, line, (int)strcspn(line, "\n") < COLS ? (int)strcspn(line, "\n") : COLS);
	attrset(A_NORMAL);
}

/* The table of the kind in at most `most` lines from y on, from its row `first` on; selected: SIZE_MAX for none.
 * Returns the line below. */
static int screen_draw_table(
	const struct screen *screen, enum top_kind kind, int y, int most, size_t first, size_t selected)
{
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		return y;
	int rc = top_rows_print(&screen->rows, kind, file, TABLE_AS_TEXT);
	fclose(file);
	const char *line = rc == 0 ? screen_line(text, 0) : NULL;
	for (int i = 0; line && i < most; i++) {
		const size_t row = first + (size_t)i - 1;

		screen_put(y++, line, i == 0 ? A_BOLD : row == selected ? A_REVERSE : A_NORMAL);
		line = screen_line(text, first + (size_t)i + 1);
	}
	free(text);
	return y;
}

static void screen_draw_head(const struct screen *screen)
{
	char line[160], clock[16];
	const time_t now = time(NULL);
	struct tm at;

	localtime_r(&now, &at);
	strftime(clock, sizeof(clock), "%H:%M:%S", &at);
	snprintf(line, sizeof(line), "mimeoctl top  %s  every %g s  %s by %s%s%s", clock, screen->options->delay_s,
		screen->view == TOP_SESSION ? "sessions" : "requests", top_field_name(screen->order),
		screen->filter[0] ? "  filter: " : "", screen->filter);
	screen_put(0, line, A_BOLD);
}

static void screen_draw_foot(const struct screen *screen)
{
	char line[256];

	if (screen->order_op)
		snprintf(line, sizeof(line), "%s %s %" PRIu64 "? y: yes, any other key: no", screen->order_op,
			strcmp(screen->order_op, "kill") == 0 ? "session" : "request", screen->order_id);
	else if (screen->types)
		snprintf(line, sizeof(line), "filter: %s_  (Enter: keep, Escape: none)", screen->filter);
	else
		snprintf(line, sizeof(line), "%s", screen->message[0] ? screen->message : SCREEN_KEYS);
	screen_put(LINES - 1, line, A_REVERSE);
}

static void screen_draw(const struct screen *screen)
{
	/* Models and users have a quarter of the screen each. */
	const int part = LINES / 4 > 2 ? LINES / 4 : 2;
	int y = 2;

	erase();
	screen_draw_head(screen);
	for (int kind = TOP_DEVICE; kind <= TOP_USER; kind++)
		y = screen_draw_table(screen, (enum top_kind)kind, y, part, 0, SIZE_MAX) + 1;
	const int most = LINES - 1 - y, n_shown = most - 1;
	if (most > 1) {
		const size_t first = screen->selected >= (size_t)n_shown ? screen->selected - (size_t)n_shown + 1 : 0;

		screen_draw_table(screen, screen->view, y, most, first, screen->selected);
	}
	screen_draw_foot(screen);
	refresh();
}

/* ---- keys ---- */

static void screen_begin_order(struct screen *screen, const char *op)
{
	const struct top_row *row = screen_row(screen, screen->selected);

	if (!row)
		return;
	const bool kills = strcmp(op, "kill") == 0;
	if (!kills && screen->view != TOP_REQUEST) {
		snprintf(screen->message, sizeof(screen->message), "Tab shows requests: c cancels the one selected");
		return;
	}
	screen->order_op = op;
	screen->order_id = (uint64_t)row->numbers[kills && screen->view == TOP_REQUEST ? TOP_F_SESSION : TOP_F_ID];
}

static int screen_end_order(struct screen *screen, bool confirmed)
{
	const struct ask ask = {
		.op = screen->order_op,
		.session = screen->order_id,
		.has_session = strcmp(screen->order_op, "kill") == 0,
		.request = screen->order_id,
		.has_request = strcmp(screen->order_op, "cancel") == 0,
	};
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	screen->order_op = NULL;
	if (!confirmed)
		return 0;
	int rc = ask_once(screen->fd, &ask, &answer);
	if (rc == 0)
		snprintf(screen->message, sizeof(screen->message), "%s", answer->text);
	return rc;
}

static void screen_type(struct screen *screen, int key)
{
	const size_t length = strlen(screen->filter);

	if (key == '\n' || key == KEY_ENTER) {
		screen->types = false;
	} else if (key == SCREEN_ESCAPE) {
		screen->types = false;
		screen->filter[0] = '\0';
	} else if ((key == KEY_BACKSPACE || key == 127 || key == '\b') && length > 0) {
		screen->filter[length - 1] = '\0';
	} else if (key >= ' ' && key < 127 && length + 1 < sizeof(screen->filter)) {
		screen->filter[length] = (char)key;
		screen->filter[length + 1] = '\0';
	}
}

static void screen_command(struct screen *screen, int key)
{
	screen->message[0] = '\0';
	switch (key) {
	case 'q':
		screen->quits = true;
		break;
	case '\t':
		screen->view = screen->view == TOP_SESSION ? TOP_REQUEST : TOP_SESSION;
		screen->selected = 0;
		break;
	case 's':
		screen->order = top_field_next(screen->view, screen->order);
		break;
	case '/':
		screen->types = true;
		break;
	case 'k':
		screen_begin_order(screen, "kill");
		break;
	case 'c':
		screen_begin_order(screen, "cancel");
		break;
	case KEY_UP:
		screen->selected -= screen->selected > 0;
		break;
	case KEY_DOWN:
		screen->selected += screen->selected + 1 < screen_n_rows(screen);
		break;
	default:
		break;
	}
}

/* 0 or -errno. */
static int screen_key(struct screen *screen, int key)
{
	int rc = 0;

	if (screen->order_op)
		rc = screen_end_order(screen, key == 'y');
	else if (screen->types)
		screen_type(screen, key);
	else
		screen_command(screen, key);
	return rc < 0 ? rc : screen_make_rows(screen);
}

/* ---- the view ---- */

/* Keys until the time of the next reading. */
static int screen_wait(struct screen *screen, uint64_t until_ns)
{
	while (!screen->quits) {
		const uint64_t now = clock_ns();

		if (now >= until_ns)
			return 0;
		timeout((int)((until_ns - now) / 1000000) + 1);
		const int key = getch();
		if (key == ERR)
			continue;
		int rc = screen_key(screen, key);
		if (rc < 0)
			return rc;
		screen_draw(screen);
	}
	return 0;
}

static int screen_loop(struct screen *screen)
{
	/* Two readings at once: the first picture has counts, and rates from the second picture on. */
	int rc = top_read(screen->fd, &screen->now);

	while (rc == 0 && !screen->quits) {
		rc = screen_read(screen);
		if (rc < 0)
			break;
		screen_draw(screen);
		rc = screen_wait(screen, screen->now.ns + (uint64_t)(screen->options->delay_s * 1e9));
	}
	return rc;
}

int top_screen(int fd, const struct top_options *options)
{
	struct screen screen = {.fd = fd, .options = options, .view = TOP_SESSION, .order = options->order};

	setlocale(LC_CTYPE, "");
	SCREEN *terminal = newterm(NULL, stdout, stdin);
	if (!terminal)
		return -ENOTTY;
	cbreak();
	noecho();
	keypad(stdscr, true);
	set_escdelay(100);
	curs_set(0);
	int rc = screen_loop(&screen);
	endwin();
	delscreen(terminal);
	top_rows_deinit(&screen.rows);
	top_reading_deinit(&screen.before);
	top_reading_deinit(&screen.now);
	return rc;
}
