/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/listing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct table_column status_columns[] = {
	{"state", "state", TABLE_TEXT},
	{"pid", "pid", TABLE_COUNT},
	{"uptime_s", "up", TABLE_SECONDS},
	{"version", "version", TABLE_TEXT},
	{"socket", "socket", TABLE_TEXT},
	{"device", "device", TABLE_TEXT},
	{"loop", "loop", TABLE_TEXT},
	{"loop_reason", NULL, TABLE_TEXT},
	{"models", "models", TABLE_COUNT},
	{"sessions", "sessions", TABLE_COUNT},
	{"handshakes", NULL, TABLE_COUNT},
	{"operators", NULL, TABLE_COUNT},
	{"sequences", "sequences", TABLE_COUNT},
	{"running", "running", TABLE_COUNT},
	{"waiting", "waiting", TABLE_COUNT},
	{"requests", "requests in all", TABLE_COUNT},
	{"tokens_in", "tokens in", TABLE_COUNT},
	{"tokens_out", "tokens out", TABLE_COUNT},
	{"steps", "steps", TABLE_COUNT},
	{"replays", "replays", TABLE_COUNT},
	{"shared_replays", "shared replays", TABLE_COUNT},
	{"eager_mode", "eager, by mode", TABLE_COUNT},
	{"eager_mixed", "eager, mixed batch", TABLE_COUNT},
	{"eager_too_wide", "eager, too wide", TABLE_COUNT},
	{"eager_not_captured", "eager, not captured", TABLE_COUNT},
	{"graphs", "graphs", TABLE_COUNT},
	{"graphs_ready", "graphs captured", TABLE_COUNT},
	{"graph_orders", NULL, TABLE_COUNT},
	{"late_captures", "captures while serving", TABLE_COUNT},
	{"late_gap_s", "longest gap of one", TABLE_SECONDS},
	{"capture_seconds", "captured in", TABLE_SECONDS},
	{"slots_free", "slots free", TABLE_COUNT},
	{"slots_total", "slots", TABLE_COUNT},
	{"pages_free", "pages free", TABLE_COUNT},
	{"pages_total", "pages", TABLE_COUNT},
	{"weights_bytes", "weights", TABLE_BYTES},
	{"kv_bytes", "kv cache", TABLE_BYTES},
	{"pool_bytes", "pool", TABLE_BYTES},
	{"graph_bytes", "graph memory", TABLE_BYTES},
	{"resident_bytes", "resident", TABLE_BYTES},
	{"device_used_bytes", "device memory used", TABLE_BYTES},
	{"open_fds", "open fds", TABLE_COUNT},
	{"buffers", "device buffers", TABLE_COUNT},
	{"buffer_bytes", "device buffers, bytes", TABLE_BYTES},
	{"buffers_closing", NULL, TABLE_COUNT},
};

static const struct table_column sessions_columns[] = {
	{"id", "ID", TABLE_COUNT},
	{"pid", "PID", TABLE_COUNT},
	{"uid", "UID", TABLE_COUNT},
	{"name", "NAME", TABLE_TEXT},
	{"state", "STATE", TABLE_TEXT},
	{"age_s", "AGE", TABLE_SECONDS},
	{"requests", "REQUESTS", TABLE_COUNT},
	{"in_flight", "IN FLIGHT", TABLE_COUNT},
	{"waiting", "WAITING", TABLE_COUNT},
	{"sequences", "SEQUENCES", TABLE_COUNT},
	{"pages", "PAGES", TABLE_COUNT},
	{"prompt_tokens", "PROMPT", TABLE_COUNT},
	{"tokens", "TOKENS", TABLE_COUNT},
	{"arena_bytes", "ARENA", TABLE_BYTES},
	{"buffers", "BUFFERS", TABLE_COUNT, .wide = true},
	{"buffer_bytes", "IN BUFFERS", TABLE_BYTES, .wide = true},
};

static const struct table_column models_columns[] = {
	{"name", "NAME", TABLE_TEXT},
	{"architecture", "ARCHITECTURE", TABLE_TEXT},
	{"weights_bytes", "WEIGHTS", TABLE_BYTES},
	{"attention", "ATTENTION", TABLE_TEXT},
	{"support", "SUPPORT", TABLE_TEXT, .wide = true},
	{"mask", "MASK", TABLE_TEXT, .wide = true},
	{"configured", "CONFIGURED", TABLE_TEXT, .wide = true},
	{"resolved", "RESOLVED", TABLE_TEXT},
	{"reason", "REASON", TABLE_TEXT, .wide = true},
	{"max_seq_len", "MAX LENGTH", TABLE_COUNT, .wide = true},
	{"page_tokens", NULL, TABLE_COUNT},
	{"pages_free", "PAGES FREE", TABLE_COUNT},
	{"pages_total", "PAGES", TABLE_COUNT, .wide = true},
	{"kv_bytes", "KV CACHE", TABLE_BYTES, .wide = true},
	{"graphs", "GRAPHS", TABLE_COUNT, .wide = true},
	{"graphs_ready", "CAPTURED", TABLE_COUNT, .wide = true},
	{"capture_seconds", "CAPTURED IN", TABLE_SECONDS, .wide = true},
	{"graph_bytes", "GRAPH MEMORY", TABLE_BYTES, .wide = true},
	{"pool_bytes", NULL, TABLE_BYTES},
	{"load_seconds", NULL, TABLE_SECONDS},
	{"steps", NULL, TABLE_COUNT},
	{"tokens_out", "TOKENS", TABLE_COUNT},
	{"draft", "DRAFT", TABLE_TEXT, .wide = true},
	{"draft_tokens", "DRAFT TOKENS", TABLE_COUNT, .wide = true},
	{"tokens_per_verification", "PER VERIFICATION", TABLE_NUMBER, .wide = true},
	{"acceptance", "ACCEPTANCE", TABLE_TEXT, .wide = true},
	{"draft_seconds", "DRAFT TIME", TABLE_SECONDS, .wide = true},
	{"draft_steps", NULL, TABLE_COUNT},
	{"verified_rows", NULL, TABLE_COUNT},
	{"verified_tokens", NULL, TABLE_COUNT},
};

/* On a terminal below them, of models with a draft, where the wide table has columns. */
static const struct table_column drafts_columns[] = {
	{"name", "NAME", TABLE_TEXT},
	{"draft", "DRAFT", TABLE_TEXT},
	{"draft_tokens", "K", TABLE_COUNT},
	{"tokens_per_verification", "PER VERIFICATION", TABLE_NUMBER},
	{"acceptance", "ACCEPTANCE", TABLE_TEXT},
	{"draft_seconds", "TIME", TABLE_SECONDS},
};

static const struct table_column graphs_columns[] = {
	{"model", "MODEL", TABLE_TEXT},
	{"owner", "OWNER", TABLE_TEXT, .usual = "target"},
	{"graph", "GRAPH", TABLE_TEXT},
	{"mode", NULL, TABLE_TEXT},
	{"state", "STATE", TABLE_TEXT},
	{"tokens", NULL, TABLE_COUNT},
	{"rows", NULL, TABLE_COUNT},
	{"query_len", NULL, TABLE_COUNT},
	{"captures", "CAPTURES", TABLE_COUNT},
	{"drops", "DROPS", TABLE_COUNT, .wide = true},
	{"segments", "SEGMENTS", TABLE_COUNT, .wide = true},
	{"nodes", "NODES", TABLE_COUNT, .wide = true},
	{"bytes", "MEMORY", TABLE_BYTES},
	{"seconds", "CAPTURED IN", TABLE_SECONDS},
	{"replays", "REPLAYS", TABLE_COUNT},
	{"shared_replays", "SHARED", TABLE_COUNT},
	{"padded_rows", "PADDED ROWS", TABLE_COUNT},
	{"eager_steps", "EAGER STEPS", TABLE_COUNT},
};

/* As JSON only: for people there is the exposition. */
static const struct table_column metrics_columns[] = {
	{"name", "NAME", TABLE_TEXT},
	{"type", "TYPE", TABLE_TEXT},
	{"label", "LABEL", TABLE_TEXT},
	{"label_value", "LABEL VALUE", TABLE_TEXT},
	{"label_2", "LABEL 2", TABLE_TEXT},
	{"label_2_value", "LABEL 2 VALUE", TABLE_TEXT},
	{"value", "VALUE", TABLE_NUMBER},
};

#define LISTING(name, list_flags)                                                                  \
	{                                                                                          \
		.op = #name, .columns = name##_columns,                                            \
		.n_columns = sizeof(name##_columns) / sizeof(name##_columns[0]),                   \
		.flags = (list_flags)                                                              \
	}

static const struct listing listings[] = {
	LISTING(status, TABLE_RECORD),
	LISTING(sessions, 0),
	LISTING(models, 0),
	LISTING(graphs, 0),
	LISTING(metrics, 0),
};

const struct listing *listing_find(const char *op)
{
	for (size_t i = 0; i < sizeof(listings) / sizeof(listings[0]); i++) {
		if (strcmp(listings[i].op, op) == 0)
			return &listings[i];
	}
	return NULL;
}

/* An empty text is an empty cell; so is what another version of the daemon leaves out, or has as
 * another type. */
static void fill_cell(struct table *table, const struct table_column *column,
	const struct answer *answer, size_t row)
{
	const msgpack_object *cell = answer_cell(answer, row, column->key);
	char text[512];

	if (!cell)
		return;
	if (column->unit == TABLE_TEXT) {
		if (cell->type == MSGPACK_OBJECT_STR && cell->via.str.size > 0)
			table_set_text(table, column->key,
				answer_text(answer, row, column->key, text, sizeof(text)));
	} else if (cell->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
		table_set_count(table, column->key, cell->via.u64);
	} else if (cell->type == MSGPACK_OBJECT_FLOAT32 || cell->type == MSGPACK_OBJECT_FLOAT64) {
		table_set_number(table, column->key, cell->via.f64);
	}
}

static bool is_of_model(const struct answer *answer, size_t row, const char *model)
{
	char name[128];

	return !model || strcmp(answer_text(answer, row, "model", name, sizeof(name)), model) == 0;
}

/* "Eagle3": of a draft's architecture what tells it from others. Where nothing was verified yet
 * there are no figures. */
static void fill_draft(struct table *table, const struct answer *answer, size_t row)
{
	static const char common[] = "ForCausalLM";
	bool none = answer_count(answer, row, "verified_rows", 0) == 0;
	char draft[64];
	const char *kind;

	table_row(table);
	for (size_t i = 0; i < sizeof(drafts_columns) / sizeof(drafts_columns[0]); i++) {
		if (!none || (drafts_columns[i].unit != TABLE_NUMBER &&
				     drafts_columns[i].unit != TABLE_SECONDS))
			fill_cell(table, &drafts_columns[i], answer, row);
	}
	answer_text(answer, row, "draft", draft, sizeof(draft));
	kind = strstr(draft, common);
	if (kind && kind[sizeof(common) - 1])
		table_set_text(table, "draft", kind + sizeof(common) - 1);
}

static int print_drafts(const struct answer *answer, FILE *file)
{
	struct table *table;
	size_t n = 0;
	int r = table_new(
		&table, drafts_columns, sizeof(drafts_columns) / sizeof(drafts_columns[0]), 0);

	if (r < 0)
		return r;
	for (size_t row = 0; row < answer->n_rows; row++) {
		if (answer_count(answer, row, "draft_tokens", 0) == 0)
			continue;
		fill_draft(table, answer, row);
		n++;
	}
	if (n > 0 && fputc('\n', file) == EOF)
		r = -EIO;
	if (n > 0 && r == 0)
		r = table_print(table, file, TABLE_AS_TEXT);
	table_free(table);
	return r;
}

int listing_print(const struct listing *listing, const struct answer *answer, const char *model,
	FILE *file, enum table_form form)
{
	struct table *table;

	int r = table_new(&table, listing->columns, listing->n_columns, listing->flags);
	if (r < 0)
		return r;
	for (size_t row = 0; row < answer->n_rows; row++) {
		if (!is_of_model(answer, row, model))
			continue;
		table_row(table);
		for (size_t i = 0; i < listing->n_columns; i++)
			fill_cell(table, &listing->columns[i], answer, row);
	}
	r = table_print(table, file, form);
	table_free(table);
	if (r == 0 && form == TABLE_AS_TEXT && listing->columns == models_columns)
		r = print_drafts(answer, file);
	return r;
}
