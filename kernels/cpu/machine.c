/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <stdio.h>
#include <string.h>

/* The number in a file that holds one; UINT64_MAX if there is none ("max", no such file). */
static uint64_t machine_read_number(const char *path)
{
	unsigned long long value;
	FILE *file = fopen(path, "re");
	uint64_t result = UINT64_MAX;

	if (file == NULL)
		return result;
	if (fscanf(file, "%llu", &value) == 1)
		result = value;
	fclose(file);
	return result;
}

/* Lower both to what the cgroup at `path` allows. */
static void machine_apply_cgroup(const char *path, uint64_t *total, uint64_t *available)
{
	char file[4352];
	uint64_t limit, used;

	snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.max", path);
	limit = machine_read_number(file);
	snprintf(file, sizeof(file), "/sys/fs/cgroup%s/memory.current", path);
	used = machine_read_number(file);
	if (limit < *total)
		*total = limit;
	if (limit == UINT64_MAX || used == UINT64_MAX)
		return;
	if (limit <= used)
		*available = 0;
	else if (limit - used < *available)
		*available = limit - used;
}

/* This process's cgroup and those around it, each of which may have a limit. */
static void machine_apply_cgroups(uint64_t *total, uint64_t *available)
{
	char line[4200], *path, *slash;
	FILE *file = fopen("/proc/self/cgroup", "re");
	bool found = false;

	if (file == NULL)
		return;
	while (!found && fgets(line, sizeof(line), file) != NULL)
		found = strncmp(line, "0::/", 4) == 0;
	fclose(file);
	if (!found)
		return;
	path = line + 3;
	path[strcspn(path, "\n")] = '\0';
	while ((slash = strrchr(path, '/')) != NULL) {
		machine_apply_cgroup(path, total, available);
		*slash = '\0';
	}
	machine_apply_cgroup("", total, available);
}

void machine_memory(uint64_t *ret_total, uint64_t *ret_available)
{
	unsigned long long kib;
	uint64_t total = 0, available = 0;
	char line[256];
	FILE *file = fopen("/proc/meminfo", "re");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "MemTotal: %llu", &kib) == 1)
			total = kib * 1024;
		else if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			available = kib * 1024;
	}
	if (file != NULL)
		fclose(file);
	machine_apply_cgroups(&total, &available);
	*ret_total = total;
	*ret_available = available < total ? available : total;
}
