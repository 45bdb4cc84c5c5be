/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_NAMES_H
#define MIMEO_DAEMON_ENGINE_NAMES_H

#include <stdint.h>

/* What people call them; static. op: enum ring_op; class: enum mimeo_class. */
const char *request_op_name(unsigned op);
const char *request_class_name(uint32_t class);

#endif
