/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ADMIT_H
#define MIMEO_DAEMON_ENGINE_ADMIT_H

#include "daemon/engine/requests/accounting.h"

/* Start the waiting requests that may start. True if any was started or ended. */
bool admit(struct accounting *accounting);
/* The session is about to end. */
void admit_detach(const struct engine_session *session);

#endif
