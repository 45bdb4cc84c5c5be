/* SPDX-License-Identifier: MIT */
#include "daemon/serve/welcome.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "ipc/region.h"

#define SESSION_DESCRIPTORS 5u /* socket, pidfd, region, two doorbells */

struct quota_amounts welcome_charges(const struct serve *serve, const struct msg_hello *hello)
{
	return (struct quota_amounts){.of = {
		[QUOTA_SESSIONS] = 1,
		[QUOTA_SHARED_BYTES] = region_bytes(hello->entries, hello->arena_bytes),
		[QUOTA_SEQUENCE_BYTES] = engine_bytes_of_session(
			serve->options.engine, hello->entries, hello->arena_bytes),
		[QUOTA_DESCRIPTORS] = SESSION_DESCRIPTORS,
	}};
}

int welcome_admit(struct serve *serve, const struct socket_peer *peer,
	const struct msg_hello *hello, char text[static MSG_TEXT_MAX])
{
	const struct serve_options *options = &serve->options;
	uint64_t n_of_uid = quota_used_by(serve->quota, peer->uid, QUOTA_SESSIONS);

	if (serve->state == SERVE_FAILED) {
		snprintf(text, MSG_TEXT_MAX, "the device failed, the daemon is about to exit");
		return MIMEO_E_DEVICE_LOST;
	}
	if (serve->state != SERVE_SERVING) {
		snprintf(text, MSG_TEXT_MAX, "the daemon is draining and takes no new session");
		return MIMEO_E_DRAINING;
	}
	assert(n_of_uid <= serve->n_sessions);
	if (n_of_uid >= options->max_sessions_per_uid) {
		quota_refuse(&(struct msg_quota){
			.what = "sessions", .unit = "", .asked = 1, .limit = "max_sessions_per_uid"},
			peer->uid, text, MSG_TEXT_MAX);
		return MIMEO_E_QUOTA;
	}
	if (hello->entries > options->max_entries) {
		snprintf(text, MSG_TEXT_MAX, "entries %u exceeds max_entries %u", hello->entries,
			options->max_entries);
		return MIMEO_E_INVALID;
	}
	if (hello->arena_bytes > options->max_arena_bytes) {
		snprintf(text, MSG_TEXT_MAX,
			"arena_bytes %" PRIu64 " exceeds max_arena_bytes %" PRIu64,
			hello->arena_bytes, options->max_arena_bytes);
		return MIMEO_E_INVALID;
	}
	const struct quota_amounts amounts = welcome_charges(serve, hello);
	return quota_fits(serve->quota, peer->uid, &amounts, text, MSG_TEXT_MAX) ? 0 : MIMEO_E_QUOTA;
}

static uint32_t welcome_activation(const struct model *model)
{
	return model->activation_dtype == DTYPE_BF16 ? MIMEO_ACTIVATION_BF16
		: model->activation_dtype == DTYPE_F16 ? MIMEO_ACTIVATION_F16 : MIMEO_ACTIVATION_F32;
}

static void welcome_describe_model(const struct engine_model_facts *facts, struct mimeo_model_info *ret)
{
	const struct model_config *config = &facts->model->config;
	const struct slot_sampling *sampling = &config->sampling;

	*ret = (struct mimeo_model_info){
		.vocab_size = config->vocab_size,
		.hidden_size = config->hidden_size,
		.max_seq_len = facts->max_seq_len,
		.page_tokens = facts->page_tokens,
		.bos = config->bos,
		.activation = welcome_activation(facts->model),
		.masks = facts->masks,
		.mask = *facts->mask,
		.max_batch_tokens = facts->max_batch_tokens,
		.draft_tokens = facts->n_drafts,
		.deterministic = facts->model->deterministic,
		.max_rows = facts->max_rows,
		.sampling = {
			.temperature = sampling->temperature,
			.top_p = sampling->top_p,
			.min_p = sampling->min_p,
			.top_k = sampling->top_k,
		},
	};
	snprintf(ret->name, sizeof(ret->name), "%s", facts->name);
	for (uint32_t i = 0; i < config->n_eos && i < MIMEO_STOP_MAX; i++)
		ret->eos[ret->n_eos++] = config->eos[i];
}

static void welcome_close(const int *fds, size_t n)
{
	while (n > 0)
		close(fds[--n]);
}

/* The largest WELCOME fits into an empty socket. 0 or -errno. */
static int welcome_write(struct serve *serve, int fd, const struct msg_welcome *msg, const int *fds,
	size_t n_fds)
{
	int n = msg_welcome_encode(msg, serve->welcome, sizeof(serve->welcome));

	return n < 0 ? n : socket_send_now(fd, serve->welcome, (size_t)n, fds, n_fds);
}

int welcome_send(struct serve *serve, const struct session *session)
{
	const struct engine_port *port = &session->port;
	int fds[MSG_WELCOME_FDS + MSG_LIFE_FDS] = {port->region.fd, port->sq_bell, port->cq_bell};
	size_t n_lives = life_open(serve->life, fds + MSG_WELCOME_FDS);
	struct msg_welcome msg = {
		.version = MSG_PROTOCOL_VERSION,
		.nonce = serve->nonce,
		.session = port->session,
		.max_sequences = serve->options.max_sequences,
		.entries = port->region.ring.entries,
		.arena_bytes = port->region.arena_bytes,
		.n_models = engine_n_models(serve->options.engine),
	};

	assert(msg.n_models <= MSG_MODELS_MAX && (n_lives == 0 || n_lives == MSG_LIFE_FDS));
	for (uint32_t i = 0; i < msg.n_models; i++) {
		struct engine_model_facts facts;

		engine_model_facts(serve->options.engine, i, &facts);
		welcome_describe_model(&facts, &msg.models[i]);
		msg.model_ids[msg.n_model_ids++] = (int32_t)facts.id;
	}
	int rc = welcome_write(serve, session->fd, &msg, fds, MSG_WELCOME_FDS + n_lives);
	welcome_close(fds + MSG_WELCOME_FDS, n_lives);
	return rc;
}

void welcome_refuse(struct serve *serve, int fd, int status, const char *text)
{
	struct msg_welcome msg = {.status = status, .version = MSG_PROTOCOL_VERSION};

	snprintf(msg.text, sizeof(msg.text), "%s", text);
	/* Best effort: the peer may not receive this. */
	(void)welcome_write(serve, fd, &msg, NULL, 0);
}
