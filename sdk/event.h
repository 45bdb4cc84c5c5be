/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_EVENT_H
#define MIMEO_SDK_EVENT_H

struct mimeo;

/* Take the completions at the ring's head that make no event. Hot path: does not block, allocate or
 * call the system. */
void events_take_silent(struct mimeo *m);

#endif
