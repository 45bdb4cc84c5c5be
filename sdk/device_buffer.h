/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_DEVICE_BUFFER_H
#define MIMEO_SDK_DEVICE_BUFFER_H

struct mimeo;

/* Release this process's mappings and descriptors of buffers and fences; the daemon keeps its own. */
void device_buffers_deinit(struct mimeo *m);

#endif
