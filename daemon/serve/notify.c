/* SPDX-License-Identifier: MIT */
#include "build-config.h"
#include "daemon/serve/notify.h"

#if HAVE_SYSTEMD

#include <inttypes.h>
#include <systemd/sd-daemon.h>

#include "ipc/clock.h"

/* What sd_notify returns is left alone: a service manager that does not listen is no error. */

void notify_ready(const char *status)
{
	sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void notify_reloading(void)
{
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_ns() / 1000);
}

void notify_status(const char *status)
{
	sd_notifyf(0, "STATUS=%s", status);
}

void notify_stopping(void)
{
	sd_notify(0, "STOPPING=1");
}

uint64_t notify_watchdog_us(void)
{
	uint64_t us = 0;

	return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}

void notify_alive(void)
{
	sd_notify(0, "WATCHDOG=1");
}

#else

void notify_reloading(void)
{
}

void notify_ready(const char *status)
{
}

void notify_status(const char *status)
{
}

void notify_stopping(void)
{
}

uint64_t notify_watchdog_us(void)
{
	return 0;
}

void notify_alive(void)
{
}

#endif
