/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition_users.h"

#include <stddef.h>
#include <stdio.h>
#include <utlist.h>

#include "daemon/serve/session.h"

static const struct exposition_user_metric {
	const char *name, *help;
	enum metric_type type;
	size_t offset;
} exposition_user_metrics[] = {
	{"mimeo_user_sessions", "Sessions of a user.", METRIC_GAUGE, offsetof(struct user_total, n_sessions)},
	{"mimeo_user_requests_in_flight", "Requests of a user that have not ended.", METRIC_GAUGE,
		offsetof(struct user_total, n_in_flight)},
	{"mimeo_user_pages", "Pages of the KV cache in a user's sequences; shared ones count for each.", METRIC_GAUGE,
		offsetof(struct user_total, n_pages)},
	{"mimeo_user_requests_total", "Requests of a user that were accepted.", METRIC_COUNTER,
		offsetof(struct user_total, n_requests)},
	{"mimeo_user_requests_failed_total", "Requests of a user that ended with an error.", METRIC_COUNTER,
		offsetof(struct user_total, n_failed)},
	{"mimeo_user_deadlines_missed_total", "Requests of a user that passed a deadline.", METRIC_COUNTER,
		offsetof(struct user_total, n_deadlines)},
	{"mimeo_user_quota_refusals_total", "Requests of a user that were refused for a limit.", METRIC_COUNTER,
		offsetof(struct user_total, n_quotas)},
	{"mimeo_user_prompt_tokens_total", "Prompt tokens of a user, cached ones included.", METRIC_COUNTER,
		offsetof(struct user_total, n_prompt_tokens)},
	{"mimeo_user_cached_tokens_total", "Prompt tokens of a user that the prefix cache had.", METRIC_COUNTER,
		offsetof(struct user_total, n_cached_tokens)},
	{"mimeo_user_tokens_generated_total", "Tokens generated for a user.", METRIC_COUNTER,
		offsetof(struct user_total, n_tokens)},
};

void exposition_users(const struct serve *serve, struct exposition_names *names, struct metrics *metrics)
{
	struct user_totals now = serve->user_totals;
	struct session *session;

	DL_FOREACH (serve->sessions, session)
		user_totals_add(&now, &session->port, true);
	for (uint32_t i = 0; i < now.n; i++)
		snprintf(names->users[i], sizeof(names->users[i]), "%u", (unsigned)now.users[i].uid);
	snprintf(names->users[now.n], sizeof(names->users[now.n]), "other");
	if (now.n == USER_TOTALS_MAX)
		now.n++;
	for (size_t m = 0; m < sizeof(exposition_user_metrics) / sizeof(exposition_user_metrics[0]); m++) {
		const struct exposition_user_metric *metric = &exposition_user_metrics[m];

		for (uint32_t i = 0; i < now.n; i++)
			metrics_add_labelled(metrics, metric->type, metric->name, metric->help,
				(const struct metric_label[METRIC_LABELS_MAX]){{"user", names->users[i]}},
				(double)*(const uint64_t *)((const char *)&now.users[i] + metric->offset));
	}
}
