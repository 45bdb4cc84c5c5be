/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_NVML_H
#define MIMEO_DAEMON_CTL_NVML_H

/*
 * The NVIDIA driver's management library, libnvidia-ml.so.1, which comes with the driver: loaded when it is there, so
 * that mimeoctl is built and runs without it. After the library's reference (NVML API Reference Manual); a function
 * that this driver lacks is a fact that is not known.
 */

#include <stdbool.h>
#include <stdint.h>

struct nvml;

enum nvml_mode { NVML_MODE_DEFAULT, NVML_MODE_EXCLUSIVE_THREAD, NVML_MODE_PROHIBITED, NVML_MODE_EXCLUSIVE_PROCESS };

/* Reasons for which clocks are lowered, in nvml_device.slow. */
#define NVML_SLOW_POWER 0x4u
#define NVML_SLOW_HARDWARE 0x8u
#define NVML_SLOW_HEAT (0x20u | 0x40u)
#define NVML_SLOW_BRAKE 0x80u

struct nvml_device {
	char name[96];
	int major, minor; /* compute capability; 0.0: not known */
	uint64_t total_bytes, free_bytes;
	int mode;            /* enum nvml_mode; -1: not known */
	bool persists;       /* or not known */
	bool mig;            /* multi-instance mode is on */
	unsigned clock_mhz, max_clock_mhz; /* of the multiprocessors; 0: not known */
	uint64_t slow;       /* NVML_SLOW_... */
};

/* 0; -ENOENT: there is no library; -EIO: it does not work, and why[size] says how. */
int nvml_new(struct nvml **ret, char *why, unsigned size);
void nvml_free(struct nvml *nvml);
/* Versions: the driver's, "" if not known; of CUDA, 12040 for 12.4, 0 if not known. */
void nvml_versions(const struct nvml *nvml, char *ret_driver, unsigned size, int *ret_cuda);
unsigned nvml_n_devices(const struct nvml *nvml);
/* False: the device does not answer. */
bool nvml_device(const struct nvml *nvml, unsigned index, struct nvml_device *ret);

#endif
