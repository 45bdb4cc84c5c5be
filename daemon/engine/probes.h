/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_PROBES_H
#define MIMEO_DAEMON_ENGINE_PROBES_H

/*
 * Probes for bpftrace, perf and SystemTap (USDT), of the provider "mimeo": mimeod(8) lists them. Where nobody is
 * attached, a probe is one instruction that does nothing. Without <sys/sdt.h> there are none.
 */

#include "build-config.h"

#if HAVE_SDT
#include <sys/sdt.h>
#define PROBE_STEP_LAUNCH(step, rows, tokens) DTRACE_PROBE3(mimeo, step_launch, step, rows, tokens)
#define PROBE_STEP_END(step, device_ns) DTRACE_PROBE2(mimeo, step_end, step, device_ns)
#define PROBE_REQUEST_START(request, session) DTRACE_PROBE2(mimeo, request_start, request, session)
#define PROBE_REQUEST_TOKEN(request, tokens) DTRACE_PROBE2(mimeo, request_token, request, tokens)
#define PROBE_REQUEST_END(request, session, status, tokens)                                                          \
	DTRACE_PROBE4(mimeo, request_end, request, session, status, tokens)
#define PROBE_SLEEP() DTRACE_PROBE(mimeo, sleep)
#define PROBE_WAKE() DTRACE_PROBE(mimeo, wake)
#define PROBE_CAPTURE(ns) DTRACE_PROBE1(mimeo, capture, ns)
#else
#define PROBE_STEP_LAUNCH(step, rows, tokens) ((void)0)
#define PROBE_STEP_END(step, device_ns) ((void)0)
#define PROBE_REQUEST_START(request, session) ((void)0)
#define PROBE_REQUEST_TOKEN(request, tokens) ((void)0)
#define PROBE_REQUEST_END(request, session, status, tokens) ((void)0)
#define PROBE_SLEEP() ((void)0)
#define PROBE_WAKE() ((void)0)
#define PROBE_CAPTURE(ns) ((void)0)
#endif

#endif
