/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_MASKS_H
#define MIMEO_DAEMON_ENGINE_MASKS_H

/* The mask of a request. Hot path: no allocation, no lock, no system call. */

#include "daemon/engine/requests/request.h"

/* Check the mask and set the request's, that of its model if it brings none. Rows and results are set. 0, or a status
 * and why in *ret_detail. */
int masks_take(struct request *request, const struct mimeo_mask *mask, struct msg_detail *ret_detail);

#endif
