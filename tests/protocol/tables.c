/* SPDX-License-Identifier: MIT */
/*
 * Prints the tables of mimeo_protocol(7) as the sources have them: each begins with a line of its name and a
 * colon, then has a line for each row. test_protocol.py compares them with the page.
 */
#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "ipc/handle.h"
#include "ipc/msg_table.h"
#include "ipc/ring.h"

static void print_member(size_t offset, const char *type, size_t n, const char *name)
{
	if (n == 1)
		printf("%zu %s %s\n", offset, type, name);
	else
		printf("%zu %s[%zu] %s\n", offset, type, n, name);
}

#define TYPE(type, member)                                                                         \
	_Generic(((type *)0)->member, uint8_t : "u8", uint16_t : "u16", uint32_t : "u32",          \
		uint64_t : "u64", int32_t : "i32", int32_t * : "i32")
#define COUNT(type, member) _Generic(((type *)0)->member, int32_t * : sizeof(((type *)0)->member) / 4, default : 1)
#define MEMBER(type, member)                                                                       \
	print_member(offsetof(type, member), TYPE(type, member), COUNT(type, member), #member)

static void print_control(void)
{
	printf("control:\n");
	MEMBER(struct ring_control, magic);
	MEMBER(struct ring_control, version);
	MEMBER(struct ring_control, entries);
	MEMBER(struct ring_control, region_bytes);
	MEMBER(struct ring_control, sqe_offset);
	MEMBER(struct ring_control, cqe_offset);
	MEMBER(struct ring_control, arena_offset);
	MEMBER(struct ring_control, arena_bytes);
	MEMBER(struct ring_control, cancel_offset);
	MEMBER(struct ring_control, sq_tail);
	MEMBER(struct ring_control, sq_head);
	MEMBER(struct ring_control, daemon_need_wakeup);
	MEMBER(struct ring_control, cq_tail);
	MEMBER(struct ring_control, cq_head);
	MEMBER(struct ring_control, client_need_wakeup);
	MEMBER(struct ring_control, n_cancels);
}

static void print_submission(void)
{
	printf("submission:\n");
	MEMBER(struct ring_sqe, user_data);
	MEMBER(struct ring_sqe, request);
	MEMBER(struct ring_sqe, generation);
	MEMBER(struct ring_sqe, op);
	MEMBER(struct ring_sqe, flags);
	MEMBER(struct ring_sqe, sequence);
	MEMBER(struct ring_sqe, argument);
	MEMBER(struct ring_sqe, generation2);
	MEMBER(struct ring_sqe, submitted_ns);
	MEMBER(struct ring_sqe, header_offset);
	MEMBER(struct ring_sqe, header_length);
	MEMBER(struct ring_sqe, payload_offset);
	MEMBER(struct ring_sqe, payload_length);
	MEMBER(struct ring_sqe, output_offset);
	MEMBER(struct ring_sqe, output_length);
	MEMBER(struct ring_sqe, reserved);
	MEMBER(struct ring_sqe, stamp);
}

static void print_completion(void)
{
	printf("completion:\n");
	MEMBER(struct ring_cqe, user_data);
	MEMBER(struct ring_cqe, request);
	MEMBER(struct ring_cqe, generation);
	MEMBER(struct ring_cqe, status);
	MEMBER(struct ring_cqe, kind);
	MEMBER(struct ring_cqe, finish);
	MEMBER(struct ring_cqe, detail);
	MEMBER(struct ring_cqe, n_prompt);
	MEMBER(struct ring_cqe, n_generated);
	MEMBER(struct ring_cqe, values);
	MEMBER(struct ring_cqe, n_cached);
	MEMBER(struct ring_cqe, n_sequence);
	MEMBER(struct ring_cqe, reserved);
	MEMBER(struct ring_cqe, stamp);
}

static void print_row(void)
{
	printf("row:\n");
	MEMBER(struct msg_row, sequence);
	MEMBER(struct msg_row, n_tokens);
}

/* Where handle_encode writes each field: a byte of its own value fills it. */
static void print_handle(void)
{
	static const struct {
		const char *type, *name;
		uint8_t value, width;
	} fields[] = {{"u32", "kind", 1, 4}, {"u32", "zero", 0, 4}, {"u8", "uuid", 2, 1}, {"u64", "bytes", 3, 8},
		{"u64", "offset", 4, 8}, {"u8", "opaque", 5, 1}};
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint8_t wire[HANDLE_WIRE_BYTES];

	handle.kind = 0x01010101u;
	memset(handle.uuid, 2, sizeof(handle.uuid));
	handle.bytes = 0x0303030303030303u;
	handle.offset = 0x0404040404040404u;
	memset(handle.opaque, 5, sizeof(handle.opaque));
	handle_encode(&handle, wire);
	printf("handle:\n");
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		size_t from = 0, to;

		while (from < sizeof(wire) && wire[from] != fields[i].value)
			from++;
		assert(from < sizeof(wire));
		for (to = from; to < sizeof(wire) && wire[to] == fields[i].value;)
			to++;
		print_member(from, fields[i].type, (to - from) / fields[i].width, fields[i].name);
	}
}

/* ---- messages ---- */

static void print_limits(const char *type, double min, double max, double whole)
{
	if (min == 0 && max == whole)
		printf("%s any\n", type);
	else if (max == INT32_MAX)
		printf("%s %.0f...2^31-1\n", type, min);
	else if (max == FLT_MAX)
		printf("%s %.0f...max\n", type, min);
	else
		printf("%s %.0f...%.0f\n", type, min, max);
}

static void print_entry(const struct msg_entry *entry)
{
	printf("%u %s ", entry->field, msg_field_name(entry->field));
	switch ((enum msg_kind)entry->kind) {
	case MSG_KIND_U32:
		print_limits("u32", entry->min, entry->max, UINT32_MAX);
		break;
	case MSG_KIND_I32:
		print_limits("i32", entry->min, entry->max, 0.5);
		break;
	case MSG_KIND_F32:
		print_limits("f32", entry->min, entry->max, 0.5);
		break;
	case MSG_KIND_U64:
		printf("u64 any\n");
		break;
	case MSG_KIND_FLAGS:
		printf("bits 0x%x\n", (unsigned)entry->max);
		break;
	case MSG_KIND_IDS:
		printf("ids %u\n", entry->capacity);
		break;
	case MSG_KIND_TEXT:
		printf("text %u\n", entry->capacity - 1u);
		break;
	case MSG_KIND_BYTES:
		printf("bin %u\n", entry->capacity);
		break;
	case MSG_KIND_LIST:
		printf("maps %u\n", entry->capacity);
		break;
	}
}

static void print_message(const char *name, const struct msg_table *table)
{
	printf("%s:\n", name);
	for (unsigned i = 0; i < table->n_entries; i++)
		print_entry(&table->entries[i]);
}

/* The table's first list of maps. */
static const struct msg_table *list_element(const struct msg_table *table)
{
	unsigned i = 0;

	while (i < table->n_entries && table->entries[i].kind != MSG_KIND_LIST)
		i++;
	assert(i < table->n_entries);
	return table->entries[i].element;
}

/* As it goes over the socket. */
static void print_hello(void)
{
	const struct msg_hello hello = {
		.version = MSG_PROTOCOL_VERSION, .entries = 64, .arena_bytes = 1u << 20, .name = "demo"};
	uint8_t bytes[64];
	int n = msg_hello_encode(&hello, bytes, sizeof(bytes));

	assert(n > 0 && n < 256);
	printf("hello bytes:\n%02x 00 00 00", n);
	for (int i = 0; i < n; i++)
		printf(" %02x", bytes[i]);
	printf("\n");
}

static void print_most_bytes(void)
{
	printf("most bytes:\nHELLO %u\ncall %u\nothers %u\n", MSG_HELLO_MAX, MSG_CALL_MAX, MSG_SOCKET_MAX);
}

int main(void)
{
	const struct msg_table *welcome = &msg_welcome_table;

	printf("versions:\nMSG_PROTOCOL_VERSION %u\nRING_VERSION %u\n", MSG_PROTOCOL_VERSION, RING_VERSION);
	print_control();
	print_submission();
	print_completion();
	print_row();
	print_handle();
	print_message("HELLO", &msg_hello_table);
	print_message("WELCOME", welcome);
	print_message("model", list_element(welcome));
	print_message("generate", &msg_generate_table);
	print_message("step", &msg_step_table);
	print_message("call", &msg_call_table);
	print_message("reply", &msg_reply_table);
	print_hello();
	print_most_bytes();
	return 0;
}
