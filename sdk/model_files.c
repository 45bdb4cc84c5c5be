/* SPDX-License-Identifier: MIT */
/* The files that make text of a model's tokens, which the daemon hands out. */
#include <string.h>
#include <unistd.h>

#include "ipc/cleanup.h"
#include "sdk/call.h"
#include "sdk/client.h"
#include "sdk/versioned.h"

static bool model_files_match(const struct msg_reply *reply, const int fds[static MSG_FILES_MAX])
{
	unsigned n = 0;

	while (n < MSG_FILES_MAX && fds[n] >= 0)
		n++;
	return n == (unsigned)__builtin_popcount(reply->files);
}

/* What the caller's struct has behind the fields known here are descriptors, too, and stay -1. */
static void model_files_write(struct mimeo_model_files *ret, uint32_t present, const int *fds)
{
	size_t size = ret->size;

	memset(ret, -1, size);
	ret->size = size;
	if (present & MSG_FILE_TOKENIZER)
		ret->tokenizer = *fds++;
	if (present & MSG_FILE_CONFIG)
		ret->config = *fds++;
	if (present & MSG_FILE_CHAT_TEMPLATE)
		ret->chat_template = *fds;
}

int mimeo_model_files(struct mimeo *m, uint32_t model, struct mimeo_model_files *ret_files)
{
	struct msg_call msg = {.call = MSG_CALL_MODEL_FILES};
	int fds[MSG_FILES_MAX];
	struct msg_reply reply;

	if (!ret_files || ret_files->size < sizeof(*ret_files) ||
		ret_files->size > VERSIONED_BYTES_MAX)
		return call_refuse(m, MIMEO_E_INVALID,
			"nowhere to write the files, or not a place that MIMEO_MODEL_FILES_INIT began");
	if (model >= m->n_models)
		return call_refuse(m, MIMEO_E_UNKNOWN_MODEL, "there is no model of that index");
	msg.model = (uint32_t)m->model_ids[model];
	int rc = call_daemon(m, &msg, -1, &reply, fds, MSG_FILES_MAX);
	if (rc < 0)
		return rc;
	if (!model_files_match(&reply, fds)) {
		for (unsigned i = 0; i < MSG_FILES_MAX; i++)
			cleanup_close(&fds[i]);
		return call_lose_daemon(m);
	}
	model_files_write(ret_files, reply.files, fds);
	return 0;
}
