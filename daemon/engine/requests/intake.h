/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_INTAKE_H
#define MIMEO_DAEMON_ENGINE_INTAKE_H

#include "daemon/engine/requests/engine_session.h"

/* Take what the session submitted. True if there was anything. */
bool intake(struct engine_session *session);

#endif
