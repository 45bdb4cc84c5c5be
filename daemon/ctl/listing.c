/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/listing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/ctl/users.h"

static const struct table_column status_columns[] = {
	{"state", "state", TABLE_TEXT},
	{"progress", "progress", TABLE_TEXT},
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
	{"requests", "requests total", TABLE_COUNT},
	{"tokens_in", "tokens in", TABLE_COUNT},
	{"tokens_out", "tokens out", TABLE_COUNT},
	{"steps", "steps", TABLE_COUNT},
	{"rows", NULL, TABLE_COUNT},
	{"device_busy_s", NULL, TABLE_SECONDS},
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
	{"late_gap_s", "longest capture pause", TABLE_SECONDS},
	{"capture_seconds", "capture time", TABLE_SECONDS},
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
	{"buffer_bytes", "device buffer memory", TABLE_BYTES},
	{"buffers_closing", NULL, TABLE_COUNT},
};

static const struct table_column sessions_columns[] = {
	{"id", "ID", TABLE_COUNT},
	{"pid", "PID", TABLE_COUNT},
	{"uid", "UID", TABLE_COUNT},
	{"name", "NAME", TABLE_TEXT, .cut = true},
	{"state", "STATE", TABLE_TEXT, .usual = "open"},
	{"age_s", "AGE", TABLE_SECONDS},
	{"requests", "REQUESTS", TABLE_COUNT, .wide = true},
	{"in_flight", "RUNNING", TABLE_COUNT},
	{"waiting", "WAITING", TABLE_COUNT},
	{"sequences", "SEQUENCES", TABLE_COUNT, .wide = true},
	{"pages", "PAGES", TABLE_COUNT},
	{"prompt_tokens", "PROMPT", TABLE_COUNT, .wide = true},
	{"cached_tokens", "CACHED", TABLE_COUNT, .wide = true},
	{"tokens", "TOKENS", TABLE_COUNT},
	{"first_tokens", NULL, TABLE_COUNT},
	{"first_token_s", NULL, TABLE_SECONDS},
	{"between_tokens_s", NULL, TABLE_SECONDS},
	{"arena_bytes", "ARENA", TABLE_BYTES, .wide = true},
	{"buffers", "BUFFERS", TABLE_COUNT, .wide = true},
	{"buffer_bytes", "IN BUFFERS", TABLE_BYTES, .wide = true},
};

static const struct table_column requests_columns[] = {
	{"id", "ID", TABLE_COUNT},
	{"op", "OP", TABLE_TEXT, .wide = true},
	{"model", "MODEL", TABLE_TEXT, .cut = true},
	{"user", "USER", TABLE_TEXT, .cut = true},
	{"uid", NULL, TABLE_COUNT},
	{"session", "SESSION", TABLE_COUNT},
	{"pid", "PID", TABLE_COUNT, .wide = true},
	{"client", "CLIENT", TABLE_TEXT, .wide = true},
	{"class", "CLASS", TABLE_TEXT, .cut = true, .usual = "normal"},
	{"state", "STATE", TABLE_TEXT},
	{"rows", "ROWS", TABLE_COUNT, .wide = true},
	{"sequence", "SEQUENCE", TABLE_COUNT, .wide = true},
	{"prompt_tokens", "PROMPT", TABLE_COUNT},
	{"computed_tokens", "COMPUTED", TABLE_COUNT, .wide = true},
	{"cached_tokens", "CACHED", TABLE_COUNT, .wide = true},
	{"tokens", "TOKENS", TABLE_COUNT},
	{"max_tokens", "MAX TOKENS", TABLE_COUNT, .wide = true},
	{"age_s", "AGE", TABLE_SECONDS},
	{"wait_s", "WAIT", TABLE_SECONDS, .wide = true},
	{"deadline_s", "DEADLINE", TABLE_SECONDS, .usual = ""},
};

static const struct table_column pages_columns[] = {
	{"model", "MODEL", TABLE_TEXT, .cut = true},
	{"of", NULL, TABLE_TEXT},
	{"user", "USER", TABLE_TEXT, .cut = true},
	{"uid", NULL, TABLE_COUNT},
	{"session", "SESSION", TABLE_COUNT},
	{"client", "CLIENT", TABLE_TEXT, .wide = true},
	{"sequences", "SEQUENCES", TABLE_COUNT, .wide = true},
	{"pages", "PAGES", TABLE_COUNT},
	{"pinned", "PINNED", TABLE_COUNT},
	{"registered", "REGISTERED", TABLE_COUNT},
	{"free", "FREE", TABLE_COUNT},
	{"unused", "UNUSED", TABLE_COUNT},
	{"hits", "HITS", TABLE_COUNT},
	{"evicted", "EVICTED", TABLE_COUNT, .wide = true},
	{"cached_tokens", "CACHED TOKENS", TABLE_COUNT, .wide = true},
	{"page_tokens", NULL, TABLE_COUNT},
};

static const struct table_column limits_columns[] = {
	{"user", "USER", TABLE_TEXT, .cut = true},
	{"uid", NULL, TABLE_COUNT},
	{"resource", "RESOURCE", TABLE_TEXT},
	{"model", "MODEL", TABLE_TEXT, .cut = true, .usual = ""},
	{"used", "IN USE", TABLE_COUNT},
	{"limit", "LIMIT", TABLE_COUNT},
	{"used_bytes", "MEMORY", TABLE_BYTES},
	{"limit_bytes", "LIMIT", TABLE_BYTES},
	{"setting", "SETTING", TABLE_TEXT, .wide = true},
};

static const struct table_column models_columns[] = {
	{"name", "NAME", TABLE_TEXT, .cut = true},
	{"architecture", "ARCHITECTURE", TABLE_TEXT, .wide = true},
	{"path", NULL, TABLE_TEXT},
	{"dtype", NULL, TABLE_TEXT},
	{"quantised", NULL, TABLE_TEXT},
	{"layers", NULL, TABLE_COUNT},
	{"hidden_size", NULL, TABLE_COUNT},
	{"vocab_size", NULL, TABLE_COUNT},
	{"max_requests", NULL, TABLE_COUNT},
	{"max_batch_tokens", NULL, TABLE_COUNT},
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
	{"kv_dtype", "KV DTYPE", TABLE_TEXT, .wide = true},
	{"kv_bytes", "KV CACHE", TABLE_BYTES, .wide = true},
	{"graphs", "GRAPHS", TABLE_COUNT, .wide = true},
	{"graphs_ready", "CAPTURED", TABLE_COUNT, .wide = true},
	{"capture_seconds", "CAPTURE TIME", TABLE_SECONDS, .wide = true},
	{"graph_bytes", "GRAPH MEMORY", TABLE_BYTES, .wide = true},
	{"pool_bytes", NULL, TABLE_BYTES},
	{"load_seconds", NULL, TABLE_SECONDS},
	{"steps", NULL, TABLE_COUNT},
	{"rows", NULL, TABLE_COUNT},
	{"eager_steps", NULL, TABLE_COUNT},
	{"tokens_out", "TOKENS", TABLE_COUNT},
	{"first_tokens", NULL, TABLE_COUNT},
	{"first_token_s", NULL, TABLE_SECONDS},
	{"between_tokens_s", NULL, TABLE_SECONDS},
	{"cached_tokens", NULL, TABLE_COUNT},
	{"draft", "DRAFT", TABLE_TEXT, .wide = true},
	{"draft_tokens", "DRAFT TOKENS", TABLE_COUNT, .wide = true},
	{"tokens_per_verification", "PER VERIFICATION", TABLE_NUMBER, .wide = true},
	{"acceptance", "ACCEPTANCE", TABLE_TEXT, .wide = true},
	{"draft_seconds", "DRAFT TIME", TABLE_SECONDS, .wide = true},
	{"draft_steps", NULL, TABLE_COUNT},
	{"verified_rows", NULL, TABLE_COUNT},
	{"verified_tokens", NULL, TABLE_COUNT},
};

/* One model's, as a record; in JSON it has the columns of the list. */
static const struct table_column model_columns[] = {
	{"name", "name", TABLE_TEXT},
	{"path", "path", TABLE_TEXT},
	{"architecture", "architecture", TABLE_TEXT},
	{"dtype", "dtype", TABLE_TEXT},
	{"quantised", "quantised weights", TABLE_TEXT},
	{"layers", "layers", TABLE_COUNT},
	{"hidden_size", "hidden size", TABLE_COUNT},
	{"vocab_size", "vocabulary", TABLE_COUNT},
	{"weights_bytes", "weights", TABLE_BYTES},
	{"kv_bytes", "KV cache", TABLE_BYTES},
	{"pool_bytes", "inputs and activations", TABLE_BYTES},
	{"graph_bytes", "graph memory", TABLE_BYTES},
	{"kv_dtype", "KV dtype", TABLE_TEXT},
	{"page_tokens", "tokens of a page", TABLE_COUNT},
	{"pages_total", "pages", TABLE_COUNT},
	{"pages_free", "pages free", TABLE_COUNT},
	{"max_seq_len", "longest sequence", TABLE_COUNT},
	{"max_requests", "slots", TABLE_COUNT},
	{"max_batch_tokens", "tokens of a step", TABLE_COUNT},
	{"attention", "attention", TABLE_TEXT},
	{"support", "graph support", TABLE_TEXT},
	{"mask", "mask", TABLE_TEXT},
	{"configured", "graph mode configured", TABLE_TEXT},
	{"resolved", "graph mode", TABLE_TEXT},
	{"reason", "reason", TABLE_TEXT},
	{"graphs", "graphs", TABLE_COUNT},
	{"graphs_ready", "graphs captured", TABLE_COUNT},
	{"load_seconds", "load time", TABLE_SECONDS},
	{"capture_seconds", "capture time", TABLE_SECONDS},
	{"draft", "draft", TABLE_TEXT},
	{"draft_tokens", "draft tokens", TABLE_COUNT},
	{"tokens_per_verification", "tokens per verification", TABLE_NUMBER},
	{"acceptance", "acceptance", TABLE_TEXT},
	{"steps", "steps", TABLE_COUNT},
	{"eager_steps", "eager steps", TABLE_COUNT},
	{"tokens_out", "tokens out", TABLE_COUNT},
	{"cached_tokens", "cached tokens", TABLE_COUNT},
};

/* A second table on a terminal, of models with a draft model; the wide table has these as columns. */
static const struct table_column drafts_columns[] = {
	{"name", "NAME", TABLE_TEXT, .cut = true},
	{"draft", "DRAFT", TABLE_TEXT},
	{"draft_tokens", "K", TABLE_COUNT},
#define DRAFTS_WITHOUT_FIGURES 3
	{"tokens_per_verification", "PER VERIFY", TABLE_NUMBER},
	{"acceptance", "ACCEPTANCE", TABLE_TEXT},
	{"draft_seconds", "TIME", TABLE_SECONDS},
};

static const struct table_column graphs_columns[] = {
	{"model", "MODEL", TABLE_TEXT, .cut = true},
	{"owner", "OWNER", TABLE_TEXT, .usual = "target"},
	{"graph", "GRAPH", TABLE_TEXT},
	{"mode", NULL, TABLE_TEXT},
	{"state", "STATE", TABLE_TEXT},
	{"tokens", NULL, TABLE_COUNT},
	{"rows", NULL, TABLE_COUNT},
	{"query_len", NULL, TABLE_COUNT},
	{"captures", "CAPTURES", TABLE_COUNT, .wide = true},
	{"drops", "DROPS", TABLE_COUNT, .wide = true},
	{"segments", "SEGMENTS", TABLE_COUNT, .wide = true},
	{"nodes", "NODES", TABLE_COUNT, .wide = true},
	{"bytes", "MEMORY", TABLE_BYTES},
	{"seconds", "CAPTURE TIME", TABLE_SECONDS, .wide = true},
	{"replays", "REPLAYS", TABLE_COUNT},
	{"shared_replays", "SHARED", TABLE_COUNT, .wide = true},
	{"padded_rows", "PADDED", TABLE_COUNT},
	{"eager_steps", "EAGER", TABLE_COUNT},
};

/* JSON only: as text, metrics are in Prometheus' format. */
static const struct table_column metrics_columns[] = {
	{"name", "NAME", TABLE_TEXT},
	{"type", "TYPE", TABLE_TEXT},
	{"label", "LABEL", TABLE_TEXT},
	{"label_value", "LABEL VALUE", TABLE_TEXT},
	{"label_2", "LABEL 2", TABLE_TEXT},
	{"label_2_value", "LABEL 2 VALUE", TABLE_TEXT},
	{"value", "VALUE", TABLE_NUMBER},
};

#define LISTING(name, ...)                                                                         \
	{                                                                                          \
		.op = #name, .columns = name##_columns,                                            \
		.n_columns = sizeof(name##_columns) / sizeof(name##_columns[0]),                   \
		__VA_ARGS__                                                                        \
	}

static const struct listing listings[] = {
	LISTING(status, .flags = TABLE_RECORD),
	LISTING(sessions, .flags = TABLE_NARROW, .none = "no sessions"),
	LISTING(requests, .flags = TABLE_NARROW, .none = "no requests"),
	LISTING(pages, .flags = TABLE_NARROW),
	LISTING(limits, .flags = TABLE_NARROW),
	LISTING(models, .flags = TABLE_NARROW),
	LISTING(graphs, .flags = TABLE_NARROW),
	LISTING(metrics, .flags = 0),
};
static const struct listing listing_model = LISTING(model, .flags = TABLE_RECORD);
static const struct listing listing_drafts = LISTING(drafts, .flags = TABLE_NARROW);

const struct listing *listing_find(const char *op)
{
	for (size_t i = 0; i < sizeof(listings) / sizeof(listings[0]); i++) {
		if (strcmp(listings[i].op, op) == 0)
			return &listings[i];
	}
	return NULL;
}

/* An empty text is an empty cell; so is a value that another version of the daemon lacks or sends as
 * another type. */
static void listing_fill_cell(struct table *table, const struct table_column *column,
	const struct answer *answer, size_t row)
{
	const msgpack_object *cell = answer_cell(answer, row, column->key);
	char text[512];

	if (!cell)
		return;
	if (column->unit == TABLE_TEXT) {
		if (answer_text(answer, row, column->key, text, sizeof(text))[0])
			table_set_text(table, column->key, text);
	} else if (cell->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
		table_set_count(table, column->key, cell->via.u64);
	} else if (cell->type == MSGPACK_OBJECT_FLOAT32 || cell->type == MSGPACK_OBJECT_FLOAT64) {
		table_set_number(table, column->key, cell->via.f64);
	}
}

static bool listing_holds(const struct answer *answer, size_t row, const struct listing_filter *filter)
{
	char name[128];

	if (filter->model && strcmp(answer_text(answer, row, "model", name, sizeof(name)), filter->model) != 0)
		return false;
	return !filter->has_uid || answer_count(answer, row, "uid", UINT64_MAX) == filter->uid;
}

static void listing_fill_user(struct table *table, const struct answer *answer, size_t row)
{
	const uint64_t uid = answer_count(answer, row, "uid", UINT64_MAX);
	char name[64];

	if (uid > UINT32_MAX)
		return;
	users_name((uid_t)uid, name, sizeof(name));
	table_set_text(table, "user", name);
}

static void listing_fill_row(struct table *table, const struct listing *listing,
	const struct answer *answer, size_t row)
{
	table_row(table);
	for (size_t i = 0; i < listing->n_columns; i++) {
		if (strcmp(listing->columns[i].key, "user") == 0)
			listing_fill_user(table, answer, row);
		else
			listing_fill_cell(table, &listing->columns[i], answer, row);
	}
}

/* The draft model's architecture is shortened to its distinguishing part, "Eagle3". Before the first
 * verification there are no figures. */
static void listing_fill_draft(struct table *table, const struct answer *answer, size_t row)
{
	static const char common[] = "ForCausalLM";
	struct listing columns = listing_drafts;
	char draft[64];

	if (answer_count(answer, row, "verified_rows", 0) == 0)
		columns.n_columns = DRAFTS_WITHOUT_FIGURES;
	listing_fill_row(table, &columns, answer, row);
	answer_text(answer, row, "draft", draft, sizeof(draft));
	const char *kind = strstr(draft, common);
	if (kind && kind[sizeof(common) - 1])
		table_set_text(table, "draft", kind + sizeof(common) - 1);
}

static int listing_print_drafts(const struct answer *answer, FILE *file)
{
	CLEANUP(cleanup_table) struct table *table = NULL;
	bool any = false;

	int rc = table_new(
		&table, listing_drafts.columns, listing_drafts.n_columns, listing_drafts.flags);
	if (rc < 0)
		return rc;
	for (size_t row = 0; row < answer->n_rows; row++) {
		if (answer_count(answer, row, "draft_tokens", 0) == 0)
			continue;
		listing_fill_draft(table, answer, row);
		any = true;
	}
	if (!any)
		return 0;
	return fputc('\n', file) == EOF ? -EIO : table_print(table, file, TABLE_AS_TEXT);
}

/* How much of the text fits on the next line: up to its last blank, unless a single word is longer. */
static size_t listing_fitting(const char *text, size_t columns)
{
	size_t length = strcspn(text, "\n"), fitting = columns;

	if (length <= columns)
		return length;
	while (fitting > 0 && text[fitting] != ' ')
		fitting--;
	return fitting > 0 ? fitting : strcspn(text, " \n");
}

int listing_print_text(const char *text, FILE *file, enum table_form form)
{
	static const char indent[] = "    ";

	if (form == TABLE_AS_TEXT) {
		for (size_t skip = 0;;) {
			size_t length = listing_fitting(text, TABLE_NARROW_COLUMNS - skip);

			if (fprintf(file, "%.*s", (int)length, text) < 0)
				return -EIO;
			text += length;
			if (*text != ' ' && *text != '\n')
				break;
			skip = *text++ == ' ' ? sizeof(indent) - 1 : 0;
			if (fprintf(file, "\n%s", skip ? indent : "") < 0)
				return -EIO;
		}
	} else {
		int rc = table_write(file, text, strlen(text));

		if (rc < 0)
			return rc;
	}
	return table_write(file, "\n", 1);
}

int listing_print(const struct listing *listing, const struct answer *answer, const struct listing_filter *filter,
	FILE *file, enum table_form form)
{
	CLEANUP(cleanup_table) struct table *table = NULL;
	size_t n_rows = 0;

	int rc = table_new(&table, listing->columns, listing->n_columns, listing->flags);
	if (rc < 0)
		return rc;
	for (size_t row = 0; row < answer->n_rows; row++) {
		if (!listing_holds(answer, row, filter))
			continue;
		listing_fill_row(table, listing, answer, row);
		n_rows++;
	}
	if (listing->none && n_rows == 0 && form != TABLE_AS_JSON)
		return listing_print_text(listing->none, file, form);
	rc = table_print(table, file, form);
	if (rc < 0 || form != TABLE_AS_TEXT || listing->columns != models_columns)
		return rc;
	return listing_print_drafts(answer, file);
}

static int listing_print_row(const struct listing *listing, const struct answer *answer, size_t row, FILE *file,
	enum table_form form)
{
	CLEANUP(cleanup_table) struct table *table = NULL;

	if (row == answer->n_rows)
		return -ENOENT;
	int rc = table_new(&table, listing->columns, listing->n_columns, TABLE_RECORD);
	if (rc < 0)
		return rc;
	listing_fill_row(table, listing, answer, row);
	return table_print(table, file, form == TABLE_AS_TEXT ? TABLE_AS_WIDE_TEXT : form);
}

int listing_print_one(const struct listing *listing, const struct answer *answer, uint64_t id, FILE *file,
	enum table_form form)
{
	size_t row = 0;

	while (row < answer->n_rows && answer_count(answer, row, "id", UINT64_MAX) != id)
		row++;
	return listing_print_row(listing, answer, row, file, form);
}

int listing_print_model(const struct answer *answer, const char *model, FILE *file, enum table_form form)
{
	char name[128];
	size_t row = 0;

	while (row < answer->n_rows && strcmp(answer_text(answer, row, "name", name, sizeof(name)), model) != 0)
		row++;
	return listing_print_row(form == TABLE_AS_JSON ? listing_find("models") : &listing_model, answer, row, file,
		form);
}
