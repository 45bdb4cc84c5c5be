/* SPDX-License-Identifier: MIT */
/* The kernel, limits, memory and processors. */
#include "daemon/ctl/doctor.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <linux/io_uring.h>

#define HOST_DESCRIPTORS 4096
#define HOST_MEMLOCK (UINT64_C(1) << 20)

/* ---- io_uring ---- */

static int host_try_uring(void)
{
	struct io_uring_params params = {0};

	int fd = (int)syscall(__NR_io_uring_setup, 4, &params);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

void doctor_judge_uring(struct doctor *doctor, int rc)
{
	char disabled[16], filter[16];

	if (rc == 0) {
		findings_ok(doctor, "io_uring", "available");
		return;
	}
	if (!findings_read(doctor, "/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled)))
		strcpy(disabled, "0");
	if (!findings_read_key(doctor, "/proc/self/status", "Seccomp", filter, sizeof(filter)))
		strcpy(filter, "0");
	findings_add(doctor, FINDING_WARN, "io_uring", "io_uring_setup: %s%s%s%s", strerror(-rc),
		disabled[0] != '0' ? "; kernel.io_uring_disabled is " : "", disabled[0] != '0' ? disabled : "",
		disabled[0] == '0' && filter[0] == '2' ? "; a seccomp filter is in force" : "");
	findings_explain(doctor,
		"the daemon uses epoll: a system call more for each wake-up, and models are read without overlap",
		disabled[0] != '0' ? "sysctl kernel.io_uring_disabled=0, or 1 with the daemon's group in "
			"kernel.io_uring_group"
		: filter[0] == '2' ? "allow io_uring_setup, io_uring_enter and io_uring_register in the container's "
			"seccomp profile, or in SystemCallFilter= of the unit"
		: rc == -ENOSYS ? "use a kernel with CONFIG_IO_URING, 5.11 or later" : "see io_uring_setup(2)");
}

/* ---- limits of the daemon's process, or of this one ---- */

/* The soft limit in that line of limits; UINT64_MAX: unlimited. */
static bool host_limit(const struct doctor *doctor, const char *name, uint64_t *ret)
{
	char path[64] = "/proc/self/limits", value[96];

	if (doctor->daemon)
		snprintf(path, sizeof(path), "/proc/%d/limits", (int)doctor->daemon);
	if (!findings_read_key(doctor, path, name, value, sizeof(value)))
		return false;
	*ret = strncmp(value, "unlimited", 9) == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
	return true;
}

static const char *host_whose(const struct doctor *doctor)
{
	return doctor->daemon ? "of the daemon" : "of this shell";
}

/* From 5.12 on the kernel charges io_uring's memory to the control group. */
static bool host_charges_memlock(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	return uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
		(major < 5 || (major == 5 && minor < 12));
}

static void host_look_memlock(struct doctor *doctor)
{
	char bytes[TABLE_FORMAT_MAX];
	uint64_t limit;

	if (!host_limit(doctor, "Max locked memory", &limit))
		return;
	const char *text = limit == UINT64_MAX ? "unlimited" : table_format_bytes(bytes, (double)limit);
	if (limit >= HOST_MEMLOCK || !host_charges_memlock()) {
		findings_ok(doctor, "memlock", "%s %s", text, host_whose(doctor));
		return;
	}
	findings_add(doctor, FINDING_WARN, "memlock", "%s %s, and this kernel is older than 5.12", text,
		host_whose(doctor));
	findings_explain(doctor, "io_uring may be refused, and the daemon uses epoll then",
		"LimitMEMLOCK=8M in the unit, or ulimit -l 8192 before mimeod");
}

static void host_look_descriptors(struct doctor *doctor)
{
	uint64_t limit;

	if (!host_limit(doctor, "Max open files", &limit))
		return;
	if (limit >= HOST_DESCRIPTORS || !doctor->daemon) {
		findings_ok(doctor, "descriptors", "%llu %s", (unsigned long long)limit, host_whose(doctor));
		return;
	}
	findings_add(doctor, FINDING_WARN, "descriptors", "%llu %s", (unsigned long long)limit, host_whose(doctor));
	findings_explain(doctor,
		"fewer sessions than max_sessions: each takes five, and all may have half of the limit",
		"LimitNOFILE=65536 in the unit");
}

/* ---- memory ---- */

/* "always [madvise] never": what is in brackets. */
static bool host_chosen(const struct doctor *doctor, const char *path, char *ret, size_t size)
{
	char line[96];

	if (!findings_read(doctor, path, line, sizeof(line)))
		return false;
	const char *at = strchr(line, '[');
	if (!at)
		return false;
	snprintf(ret, size, "%.*s", (int)strcspn(at + 1, "]"), at + 1);
	return true;
}

static void host_look_huge_pages(struct doctor *doctor)
{
	char chosen[32];

	if (!host_chosen(doctor, "/sys/kernel/mm/transparent_hugepage/enabled", chosen, sizeof(chosen)))
		return;
	if (strcmp(chosen, "always") == 0 || doctor->gpu) {
		findings_ok(doctor, "huge pages", "transparent huge pages: %s", chosen);
		return;
	}
	findings_add(doctor, FINDING_NOTE, "huge pages", "transparent huge pages: %s", chosen);
	findings_explain(doctor, "models on the cpu device are read through pages of 4 KiB, with more TLB misses",
		"echo always > /sys/kernel/mm/transparent_hugepage/enabled, where models run on the cpu device");
}

/* ---- processors ---- */

static void host_look_governor(struct doctor *doctor)
{
	char pattern[512], governor[32], other[32] = "";
	unsigned n = 0, n_slow = 0;
	glob_t paths;

	snprintf(pattern, sizeof(pattern), "%.400s/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor",
		doctor->root);
	if (glob(pattern, 0, NULL, &paths) != 0) {
		findings_ok(doctor, "cpu clocks", "the kernel does not set them (no cpufreq)");
		return;
	}
	for (size_t i = 0; i < paths.gl_pathc; i++) {
		const char *below = paths.gl_pathv[i] + strlen(doctor->root);

		if (!findings_read(doctor, below, governor, sizeof(governor)))
			continue;
		n++;
		if (strcmp(governor, "performance") == 0)
			continue;
		n_slow++;
		strcpy(other, governor);
	}
	globfree(&paths);
	if (!n_slow) {
		findings_ok(doctor, "cpu clocks", "governor performance on %u processors", n);
		return;
	}
	findings_add(doctor, FINDING_WARN, "cpu clocks", "governor %s on %u of %u processors", other, n_slow, n);
	findings_explain(doctor, "the engine and clients that wake up begin at a low clock: later steps, later tokens",
		"cpupower frequency-set -g performance");
}

static void host_look_processors(struct doctor *doctor)
{
	const long n = sysconf(_SC_NPROCESSORS_ONLN);

	if (n >= 4) {
		findings_ok(doctor, "processors", "%ld", n);
		return;
	}
	findings_add(doctor, FINDING_NOTE, "processors", "%ld", n);
	findings_explain(doctor, "the engine's thread competes with clients, unless these are few",
		"give the machine or container four processors or more");
}

void doctor_look_host(struct doctor *doctor)
{
	doctor_judge_uring(doctor, host_try_uring());
	host_look_memlock(doctor);
	host_look_descriptors(doctor);
	host_look_huge_pages(doctor);
	host_look_governor(doctor);
	host_look_processors(doctor);
}
