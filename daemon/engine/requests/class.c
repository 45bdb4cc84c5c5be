/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/class.h"

#include "daemon/engine/models/runner.h"
#include "daemon/engine/requests/engine_session.h"

uint32_t class_batch_slots(const struct runner *runner)
{
	const uint32_t n = runner->limits->max_requests / CLASS_BATCH_PART;

	return n ? n : 1;
}

bool class_is_spare(const struct request *request)
{
	const bool waits = request->state == REQUEST_WAITING || request->state == REQUEST_STARTING;

	return request->class == MIMEO_CLASS_BATCH &&
		request->runner->slots.n_batch + waits > class_batch_slots(request->runner);
}

bool class_computes_before(const struct request *a, const struct request *b)
{
	if (a->session->share.user != b->session->share.user)
		return share_computes_before(a->session, b->session);
	if (a->class != b->class)
		return class_is_before(a->class, b->class);
	return a->session == b->session ? a->order < b->order : share_computes_before(a->session, b->session);
}
