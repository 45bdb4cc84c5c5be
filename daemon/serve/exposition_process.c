/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition_process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint32_t exposition_process_open_fds(void)
{
	DIR *directory = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!directory)
		return 0;
	for (struct dirent *entry; (entry = readdir(directory));)
		n += entry->d_name[0] != '.';
	closedir(directory);
	return n - 1; /* the directory's own */
}

uint64_t exposition_process_resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long pages = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%*u %llu", &pages) != 1)
		pages = 0;
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double exposition_process_read_start(void)
{
	FILE *file = fopen("/proc/self/stat", "re");
	char line[1024] = "";
	unsigned long long ticks;
	struct timespec now, boot;

	if (!file)
		return 0;
	(void)!fgets(line, sizeof(line), file);
	fclose(file);
	/* The name, in brackets, may have brackets and spaces of its own. */
	const char *rest = strrchr(line, ')');
	if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
			     &ticks) != 1)
		return 0;
	clock_gettime(CLOCK_REALTIME, &now);
	clock_gettime(CLOCK_BOOTTIME, &boot);
	return (double)(now.tv_sec - boot.tv_sec) + (double)(now.tv_nsec - boot.tv_nsec) * 1e-9 +
	       (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

/* Seconds since 1970 at which the process was made; 0: unknown. Read once: the clocks are not read at one moment, and
 * may be set. The loop thread's. */
static double exposition_process_start(void)
{
	static double start;

	if (start <= 0)
		start = exposition_process_read_start();
	return start;
}

static double exposition_process_cpu(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage) < 0)
		return 0;
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

void exposition_process(struct metrics *metrics)
{
	struct rlimit limit = {0};

	(void)!getrlimit(RLIMIT_NOFILE, &limit);
	metrics_add(metrics, METRIC_GAUGE, "process_start_time_seconds",
		"Start of the daemon's process, in seconds since 1970.", exposition_process_start());
	metrics_add(metrics, METRIC_SECONDS, "process_cpu_seconds_total",
		"Processor time of the daemon's process.", exposition_process_cpu());
	metrics_add(metrics, METRIC_GAUGE, "process_resident_memory_bytes",
		"Resident memory of the daemon's process.", (double)exposition_process_resident_bytes());
	metrics_add(metrics, METRIC_GAUGE, "process_open_fds", "Open file descriptors of the daemon.",
		exposition_process_open_fds());
	metrics_add(metrics, METRIC_GAUGE, "process_max_fds",
		"File descriptors that the daemon may have open.", (double)limit.rlim_cur);
}
