/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/msg_table.h"
#include "tests/ipc/listen.h"
#include "tests/sdk/session.h"

/* ---- connect ---- */

static int connect_to(const char *path, uint32_t timeout_ms)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m;

	config.socket_path = path;
	config.connect_timeout_ms = timeout_ms;
	int r = mimeo_connect(&m, &config);
	if (r == 0)
		mimeo_close(m);
	return r;
}

static int connect_script(const struct fake_script *script)
{
	struct fake fake;

	fake_init(&fake, script);
	int r = connect_to(fake.path, script && script->silent ? 20 : 0);
	fake_session(&fake);
	fake_deinit(&fake);
	return r;
}

static void test_connect_without_daemon_is_unreachable(void **state)
{
	assert_int_equal(connect_to("/tmp/mimeo-no-such-folder/d.sock", 0), MIMEO_E_UNREACHABLE);
}

static void test_connect_message_is_the_daemons_or_names_the_socket(void **state)
{
	const struct fake_script script = {
		.welcome_status = MIMEO_E_QUOTA, .welcome_text = "max_sessions 64 is reached"};
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char message[256] = "", cut[8] = "";
	struct mimeo *m;
	struct fake fake;

	fake_init(&fake, &script);
	config.socket_path = fake.path;
	config.message = message;
	config.message_size = sizeof(message);
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_QUOTA);
	assert_string_equal(message, script.welcome_text);
	fake_session(&fake);
	fake_deinit(&fake);

	config.socket_path = "/tmp/mimeo-no-such-folder/d.sock";
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_UNREACHABLE);
	assert_non_null(strstr(message, "/tmp/mimeo-no-such-folder/d.sock"));
	assert_non_null(strstr(message, strerror(ENOENT)));
	config.message = cut;
	config.message_size = sizeof(cut);
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_UNREACHABLE);
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
}

/* A daemon at its limit refuses a client and closes before HELLO can have come: here, while the client
 * sends it. */
static _Atomic int crowded_listener = -1; /* the greeter sends as well */

static void refuse_client(int listener)
{
	const struct msg_welcome welcome = {.version = MSG_PROTOCOL_VERSION,
		.status = MIMEO_E_QUOTA, .text = "too many clients"};
	uint8_t buffer[MSG_HEADER_MAX];

	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	int n = msg_table_write(&msg_welcome_table, &welcome, buffer, sizeof(buffer));
	assert_true(fd >= 0 && n > 0);
	assert_int_equal(socket_send(fd, buffer, (size_t)n, NULL, 0), 0);
	close(fd);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	int listener = atomic_exchange(&crowded_listener, -1);

	if (listener >= 0)
		refuse_client(listener);
	return syscall(SYS_sendmsg, fd, message, flags);
}

static void test_connect_receives_a_refusal_sent_before_its_hello(void **state)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	char folder[] = "/tmp/mimeo-sdk-XXXXXX", path[64], lock[80], message[256] = "";
	struct mimeo *m;
	int lock_fd = -1;

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/d.sock", folder);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	int listener = socket_listen(path, &lock_fd);
	assert_true(fcntl(listener, F_SETFL, 0) == 0);
	config.socket_path = path;
	config.message = message;
	config.message_size = sizeof(message);
	crowded_listener = listener;
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_QUOTA);
	assert_int_equal(crowded_listener, -1);
	assert_string_equal(message, "too many clients");
	close(listener);
	close(lock_fd);
	unlink(path);
	unlink(lock);
	rmdir(folder);
}

static void test_connect_gives_a_status_for_each_way_to_be_refused(void **state)
{
	static const uint8_t garbage[] = {0xdd, 0xff, 0xff, 0xff, 0xff};
	static const uint8_t other[] = {0x81, MSG_VERSION, 99};
	static const struct {
		const char *claim;
		struct fake_script script;
		int status;
	} cases[] = {
		{"no answer within the timeout", {.silent = true}, MIMEO_E_UNREACHABLE},
		{"the daemon's refusals are forwarded", {.welcome_status = MIMEO_E_QUOTA}, MIMEO_E_QUOTA},
		{"draining", {.welcome_status = MIMEO_E_DRAINING}, MIMEO_E_DRAINING},
		{"no memory", {.welcome_status = MIMEO_E_NO_MEMORY}, MIMEO_E_NO_MEMORY},
		{"an unknown refusal", {.welcome_status = -55}, MIMEO_E_PROTOCOL},
		{"garbage", {.raw_welcome = garbage, .raw_welcome_bytes = sizeof(garbage)},
			MIMEO_E_PROTOCOL},
		{"another version", {.raw_welcome = other, .raw_welcome_bytes = sizeof(other)},
			MIMEO_E_VERSION},
		{"too few descriptors", {.n_fds = 2}, MIMEO_E_PROTOCOL},
		{"a number of descriptors that does not exist", {.n_fds = 4}, MIMEO_E_PROTOCOL},
		{"a WELCOME that contradicts the region", {.claim_entries = 128}, MIMEO_E_PROTOCOL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		print_message("# %s\n", cases[i].claim);
		assert_int_equal(connect_script(&cases[i].script), cases[i].status);
	}
}

static void test_connect_refuses_values_out_of_range(void **state)
{
	const struct {
		size_t size;
		uint32_t entries;
		uint64_t arena;
		uint32_t reserved;
		const char *named;
	} cases[] = {
		{4, 0, 0, 0, ""}, {0, 1, 0, 0, "entries 1 "}, {0, 3, 0, 0, "entries 3 "},
		{0, 8192, 0, 0, "entries 8192 "}, {0, 0, 1, 0, "arena_bytes 1 "},
		{0, 0, (1ull << 30) + 1, 0, "arena_bytes 1073741825 "},
		{0, 0, 0, 1, "reserved is 1 "}};
	char path[300], message[256];
	struct mimeo *m;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct mimeo_config config = MIMEO_CONFIG_INIT;

		config.size = cases[i].size ? cases[i].size : sizeof(config);
		config.entries = cases[i].entries;
		config.arena_bytes = cases[i].arena;
		config.reserved = cases[i].reserved;
		config.message = message;
		config.message_size = sizeof(message);
		message[0] = '\0';
		assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_INVALID);
		assert_memory_equal(message, cases[i].named, strlen(cases[i].named));
	}
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(connect_to(path, 0), MIMEO_E_INVALID);
	assert_int_equal(mimeo_connect(NULL, NULL), MIMEO_E_INVALID);
}

struct grown {
	struct mimeo_config config;
	uint64_t later;
};

static void test_connect_takes_a_newer_config_whose_new_fields_are_zero(void **state)
{
	struct fake fake;
	struct grown grown = {.config = MIMEO_CONFIG_INIT};
	struct mimeo *m;

	fake_init(&fake, NULL);
	grown.config.size = sizeof(grown);
	grown.config.socket_path = fake.path;
	assert_int_equal(mimeo_connect(&m, &grown.config), 0);
	mimeo_close(m);
	grown.later = 1;
	assert_int_equal(mimeo_connect(&m, &grown.config), MIMEO_E_INVALID);
	fake_deinit(&fake);
}

static void test_connect_asks_for_what_the_config_says(void **state)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct session s;

	config.entries = 16;
	config.arena_bytes = 100000;
	config.name = "a name that is much longer than fits the field";
	session_start(&s, NULL, &config);
	assert_int_equal(s.fake.hello.entries, 16);
	assert_int_equal(s.fake.hello.arena_bytes, 131072);
	assert_string_equal(s.fake.hello.name, "a name that is much longer than");
	session_stop(&s);
}

static void test_connect_finds_the_socket_by_environment(void **state)
{
	struct fake fake;
	struct mimeo *m;

	fake_init(&fake, NULL);
	setenv("MIMEO_SOCKET", fake.path, 1);
	assert_int_equal(mimeo_connect(&m, NULL), 0);
	unsetenv("MIMEO_SOCKET");
	mimeo_close(m);
	fake_deinit(&fake);
}

static void test_close_takes_null(void **state)
{
	mimeo_close(NULL);
}

/* ---- after a fork ---- */

/* Where regions are mapped in this process. */
static unsigned mapped_regions(void *ret[2])
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned n = 0;

	if (!maps)
		abort();
	while (fgets(line, sizeof(line), maps)) {
		if (strstr(line, "mimeo-region") && n < 2)
			ret[n++] = (void *)(uintptr_t)strtoull(line, NULL, 16);
	}
	fclose(maps);
	return n;
}

/* In the child: the fake daemon's mapping is there, the client's is not, and what has taken its
 * place since survives the close. */
static int check_child(struct mimeo *m, void *regions[2])
{
	void *left[2];

	if (mapped_regions(left) != 1)
		return 1;
	void *gone = left[0] == regions[0] ? regions[1] : regions[0];
	void *page = mmap(gone, 4096, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (page != gone)
		return 2;
	mimeo_close(m);
	return msync(page, 4096, MS_ASYNC) == 0 ? 0 : 3;
}

static void test_forked_child_lacks_the_shared_memory(void **state)
{
	struct session *s = *state;
	void *regions[2];
	int status;

	assert_int_equal(mapped_regions(regions), 2);
	pid_t child = fork();
	if (child == 0)
		_exit(check_child(s->m, regions));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_close_in_a_forked_child_leaves_the_parents_session(void **state)
{
	struct session *s = *state;
	int status;

	pid_t child = fork();
	if (child == 0) {
		mimeo_close(s->m);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);

	session_generate(s, 1);
	assert_int_equal(mimeo_submit(s->m), 1);
	struct ring_sqe sqe = session_pop(s);
	assert_true(fake_answer(&s->fake, &sqe));
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.tokens[0], 11);
}

/* ---- models ---- */

static void test_models_are_as_the_daemon_describes_them(void **state)
{
	struct session *s = *state;

	assert_int_equal(mimeo_model_count(s->m), 2);
	assert_int_equal(mimeo_model_find(s->m, "wide"), 1);
	assert_int_equal(mimeo_model_find(s->m, "none"), MIMEO_E_UNKNOWN_MODEL);
	assert_int_equal(mimeo_model_find(s->m, NULL), MIMEO_E_UNKNOWN_MODEL);
	assert_null(mimeo_model_get(s->m, 2));
	const struct mimeo_model_info *info = mimeo_model_get(s->m, 0);
	assert_string_equal(info->name, "count");
	assert_int_equal(info->vocab_size, FAKE_VOCAB);
	assert_int_equal(info->hidden_size, FAKE_HIDDEN);
	assert_int_equal(info->max_seq_len, FAKE_MAX_SEQ_LEN);
	assert_int_equal(info->n_eos, 1);
	assert_int_equal(info->eos[0], FAKE_EOS);
	assert_int_equal(info->bos, FAKE_BOS);
	assert_int_equal(info->page_tokens, 16);
	assert_int_equal(info->sampling.top_k, 40);
	assert_true(info->sampling.temperature == 0.5f);
}

static void test_models_have_masks_limits_and_draft_tokens(void **state)
{
	struct session *s = *state;
	const struct mimeo_model_info *info = mimeo_model_get(s->m, 1);

	assert_int_equal(info->masks, 1);
	assert_int_equal(info->mask.kind, MIMEO_MASK_DEFAULT);
	assert_int_equal(info->max_batch_tokens, FAKE_BATCH_TOKENS);
	assert_int_equal(info->max_rows, 16);
	assert_int_equal(info->draft_tokens, FAKE_DRAFT_TOKENS);
}

static void test_models_without_masks_and_draft_model(void **state)
{
	struct session *s = *state;

	assert_int_equal(mimeo_model_get(s->m, 0)->masks, 0);
	assert_int_equal(mimeo_model_get(s->m, 1)->draft_tokens, 0);
}

static void test_models_have_their_default_mask(void **state)
{
	struct session *s = *state;
	const struct mimeo_model_info *info = mimeo_model_get(s->m, 0);

	assert_int_equal(info->mask.kind, MIMEO_MASK_WINDOW);
	assert_int_equal(info->mask.window, 9);
	assert_int_equal(info->mask.sinks, 2);
	assert_int_equal(info->mask.prefix, 0);
	assert_null(info->mask.words);
}

/* ---- statuses ---- */

static void test_every_status_has_a_name_and_a_sentence(void **state)
{
	unsigned n = 0;

	for (int status = -300; status <= 0; status++) {
		bool named = strcmp(mimeo_status_name(status), "MIMEO_E_?") != 0;

		assert_int_equal(named, strcmp(mimeo_strerror(status), "unknown status") != 0);
		n += named;
	}
	assert_int_equal(n, 22);
	assert_string_equal(mimeo_status_name(MIMEO_OK), "MIMEO_OK");
	assert_string_equal(mimeo_status_name(MIMEO_E_DRAINING), "MIMEO_E_DRAINING");
	assert_string_equal(mimeo_status_name(1), "MIMEO_E_?");
	assert_string_equal(mimeo_strerror(MIMEO_OK), "done");
}

static void test_message_names_the_offending_value(void **state)
{
	struct mimeo_event event = {.status = MIMEO_E_INVALID, .detail = RING_DETAIL_TOKEN,
		.detail_values = {3, 999, 256}};
	char text[100], cut[10];

	int n = mimeo_event_message(&event, text, sizeof(text));
	assert_string_equal(text, "token 3 is 999, outside the vocabulary of 256");
	assert_int_equal(n, strlen(text));
	assert_int_equal(mimeo_event_message(&event, cut, sizeof(cut)), n);
	assert_string_equal(cut, "token 3 i");
	event.detail = RING_DETAIL_RANGE;
	event.detail_values[0] = MSG_TOP_P;
	mimeo_event_message(&event, text, sizeof(text));
	assert_string_equal(text, "top_p is out of range");
}

static void assert_message(
	int status, uint32_t detail, const int32_t values[4], const char *expected)
{
	struct mimeo_event event = {.status = status, .detail = detail};
	char text[256];

	memcpy(event.detail_values, values, sizeof(event.detail_values));
	mimeo_event_message(&event, text, sizeof(text));
	assert_string_equal(text, expected);
}

static void test_message_about_a_missing_head_says_what_there_is(void **state)
{
	assert_message(MIMEO_E_UNSUPPORTED, RING_DETAIL_HEAD, (int32_t[4]){0},
		"the model's files have no head: it gives hidden states (embeddings) alone, no tokens, logits or "
		"log-probabilities");
}

static void test_message_about_a_mask_names_field_value_limit_and_remedy(void **state)
{
	int32_t paged[4] = {MIMEO_MASK_WINDOW}, forged[4] = {MIMEO_MASK_TREE, 0x1b};

	memcpy(&paged[1], "paged", 5);
	assert_message(MIMEO_E_UNSUPPORTED, RING_DETAIL_MASK, paged,
		"mask window: the model's attention backend (paged) knows the causal mask alone; the "
		"operator gives a model masks by --attention flex, unless its attention is latent");
	assert_message(MIMEO_E_UNSUPPORTED, RING_DETAIL_MASK, forged,
		"mask tree: the model's attention backend knows the causal mask alone; the operator "
		"gives a model masks by --attention flex, unless its attention is latent");
	assert_message(MIMEO_E_TOO_LONG, RING_DETAIL_MASK_TOKENS,
		(int32_t[4]){2, 65, 64, MIMEO_MASK_PREFIX},
		"row 2: its prefix of 65 tokens has to fit one step, and the daemon's "
		"max_batch_tokens is 64");
	assert_message(MIMEO_E_INVALID, RING_DETAIL_MASK_TOKENS,
		(int32_t[4]){1, 9, 4, MIMEO_MASK_PREFIX},
		"row 1: mask_prefix 9 is more than its 4 tokens");
	assert_message(MIMEO_E_INVALID, RING_DETAIL_MASK_TOKENS,
		(int32_t[4]){0, 65, 64, MIMEO_MASK_TREE},
		"row 0: its 65 tokens are more than the 64 of a tree (MIMEO_TREE_MAX)");
	assert_message(MIMEO_E_INVALID, RING_DETAIL_RANGE,
		(int32_t[4]){MSG_MASK_WINDOW, 0, MIMEO_MASK_WINDOW},
		"mask_window is 0, and a mask of kind window needs 1 or more");
	assert_message(MIMEO_E_INVALID, RING_DETAIL_RANGE,
		(int32_t[4]){MSG_MASK_SINKS, -1, MIMEO_MASK_PREFIX},
		"mask_sinks is 4294967295, and a mask of kind prefix has none");
}

static void test_message_about_a_deadline_names_which_it_was(void **state)
{
	assert_message(MIMEO_E_DEADLINE, RING_DETAIL_DEADLINE, (int32_t[4]){MSG_DEADLINE_MS, 1500},
		"deadline_ms: the request had not ended 1500 ms after its submission");
	assert_message(MIMEO_E_DEADLINE, RING_DETAIL_DEADLINE, (int32_t[4]){MSG_FIRST_TOKEN_MS, 300},
		"first_token_ms: no token came within 300 ms of the submission");
	assert_message(MIMEO_E_DEADLINE, RING_DETAIL_DEADLINE, (int32_t[4]){MSG_FIRST_TOKEN_MS, INT32_MAX},
		"first_token_ms: no token came within at least 2147483647 ms of the submission");
}

static void test_message_about_a_payload_names_its_limit(void **state)
{
	assert_message(MIMEO_E_TOO_LONG, RING_DETAIL_PAYLOAD_MOST, (int32_t[4]){9000000, 8388608},
		"the step's rows and tokens have 9000000 bytes, and the daemon takes at most 8388608 at once: divide "
		"the rows among several steps");
}

static void test_message_about_a_quota_names_it_and_what_was_asked_for_and_is_left(void **state)
{
	assert_message(MIMEO_E_QUOTA, RING_DETAIL_BUDGET, (int32_t[4]){RING_BUDGET_SEQUENCES, 44, 0},
		"open sequences: 44 asked for, 0 left for this session (max_sequences)");
	assert_message(MIMEO_E_QUOTA, RING_DETAIL_BUDGET, (int32_t[4]){RING_BUDGET_PAGES, 70, 12},
		"KV pages of sequences that cannot be evicted: 70 asked for, 12 left for this user (kv_pages)");
	assert_message(MIMEO_E_QUOTA, RING_DETAIL_BUDGET, (int32_t[4]){99, 1, 0},
		"?: 1 asked for, 0 left for ? (?)");
}

static void test_message_without_detail_is_the_statuss_sentence(void **state)
{
	struct mimeo_event event = {.status = MIMEO_E_CANCELLED};
	char text[100];

	for (event.detail = 0; event.detail < 40; event.detail++) {
		mimeo_event_message(&event, text, sizeof(text));
		bool sentence = strcmp(text, mimeo_strerror(event.status)) == 0;
		assert_int_equal(sentence, event.detail == RING_DETAIL_NONE ||
			event.detail > RING_DETAIL_UNLOADED);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connect_without_daemon_is_unreachable),
		cmocka_unit_test(test_connect_gives_a_status_for_each_way_to_be_refused),
		cmocka_unit_test(test_connect_message_is_the_daemons_or_names_the_socket),
		cmocka_unit_test(test_connect_receives_a_refusal_sent_before_its_hello),
		cmocka_unit_test(test_connect_refuses_values_out_of_range),
		cmocka_unit_test(test_connect_takes_a_newer_config_whose_new_fields_are_zero),
		cmocka_unit_test(test_connect_asks_for_what_the_config_says),
		cmocka_unit_test(test_connect_finds_the_socket_by_environment),
		cmocka_unit_test(test_close_takes_null),
		session_test(test_forked_child_lacks_the_shared_memory),
		session_test(test_close_in_a_forked_child_leaves_the_parents_session),
		session_test(test_models_are_as_the_daemon_describes_them),
		session_test(test_models_have_masks_limits_and_draft_tokens),
		session_test_with(test_models_without_masks_and_draft_model,
			.script = {.no_masks = true, .no_draft = true}),
		session_test_with(test_models_have_their_default_mask,
			.script.default_mask = {.kind = MIMEO_MASK_WINDOW, .window = 9, .sinks = 2}),
		cmocka_unit_test(test_every_status_has_a_name_and_a_sentence),
		cmocka_unit_test(test_message_names_the_offending_value),
		cmocka_unit_test(test_message_about_a_missing_head_says_what_there_is),
		cmocka_unit_test(test_message_about_a_mask_names_field_value_limit_and_remedy),
		cmocka_unit_test(test_message_about_a_deadline_names_which_it_was),
		cmocka_unit_test(test_message_about_a_payload_names_its_limit),
		cmocka_unit_test(test_message_about_a_quota_names_it_and_what_was_asked_for_and_is_left),
		cmocka_unit_test(test_message_without_detail_is_the_statuss_sentence),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
