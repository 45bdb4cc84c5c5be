/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_PLAIN_H
#define MIMEO_TESTS_DAEMON_PLAIN_H

/* An engine without graphs and drafts, with which a group of tests compares; its setup and teardown. */

#include "tests/daemon/rig.h"

static struct rig plain_rig;
static struct rig_client plain;

static int open_plain(void **state)
{
	rig_open(&plain_rig, &(struct rig_options){.mode = GRAPH_NONE});
	rig_attach(&plain_rig, &plain, 8);
	return 0;
}

static int close_plain(void **state)
{
	rig_detach(&plain);
	rig_close(&plain_rig);
	return 0;
}

#endif
