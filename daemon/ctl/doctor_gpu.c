/* SPDX-License-Identifier: MIT */
/* The driver, CUDA, devices, and what decides whether processes can share a device's memory. */
#include "daemon/ctl/doctor.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/ctl/nvml.h"

#define GPU_CUDA_MIN 12000             /* of the driver: 12.0 runs what any 12.x toolkit built */
#define GPU_INITIAL_PID_NS 4026531836ul /* the inode of the initial PID namespace */

DEFINE_CLEANUP(nvml, struct nvml, nvml_free)

/* ---- devices ---- */

static void gpu_look_device(struct doctor *doctor, unsigned index, const struct nvml_device *device)
{
	char total[TABLE_FORMAT_MAX], free_bytes[TABLE_FORMAT_MAX], todo[FINDINGS_TEXT_MAX];
	const bool known = device->major > 0;

	table_format_bytes(total, (double)device->total_bytes);
	table_format_bytes(free_bytes, (double)device->free_bytes);
	if (known && device->major < 8) {
		findings_add(doctor, FINDING_WARN, "gpu", "%u: %s, compute capability %d.%d", index, device->name,
			device->major, device->minor);
		findings_explain(doctor, "Mimeo has no kernels for it", "use a GPU of compute capability 8.0 or later");
	} else if (known && (device->major != 9 || device->minor != 0)) {
		findings_add(doctor, FINDING_NOTE, "gpu", "%u: %s, compute capability %d.%d, %s, %s free", index,
			device->name, device->major, device->minor, total, free_bytes);
		findings_explain(doctor,
			"quantised weights are widened to bf16, and decodes of one kernel, fp8 heads and the fastest "
			"products are for 9.0 alone", "");
	} else {
		findings_ok(doctor, "gpu", "%u: %s, compute capability %d.%d, %s, %s free", index, device->name,
			device->major, device->minor, total, free_bytes);
	}
	if (!device->persists) {
		findings_add(doctor, FINDING_WARN, "persistence", "%u: off", index);
		snprintf(todo, sizeof(todo), "nvidia-smi -i %u -pm 1, or start nvidia-persistenced", index);
		findings_explain(doctor,
			"the driver initialises the device each time a first process opens it: mimeod takes longer to start",
			todo);
	}
	if (device->mig) {
		findings_add(doctor, FINDING_NOTE, "mig", "%u: multi-instance mode is on", index);
		findings_explain(doctor, "the daemon has one instance's part of the device",
			"name an instance in CUDA_VISIBLE_DEVICES, or turn the mode off for all of the device");
	}
}

static void gpu_look_compute_mode(struct doctor *doctor, unsigned index, const struct nvml_device *device)
{
	char todo[FINDINGS_TEXT_MAX];

	if (device->mode <= NVML_MODE_DEFAULT)
		return;
	findings_add(doctor, FINDING_WARN, "compute mode", "%u: %s", index,
		device->mode == NVML_MODE_PROHIBITED ? "prohibited" : "exclusive");
	snprintf(todo, sizeof(todo), "nvidia-smi -i %u -c DEFAULT", index);
	findings_explain(doctor, device->mode == NVML_MODE_PROHIBITED ? "no program can use the device"
		: "beside the daemon no client can use the device: no device buffers, no fences", todo);
}

static void gpu_look_clocks(struct doctor *doctor, unsigned index, const struct nvml_device *device)
{
	const bool heat = device->slow & (NVML_SLOW_HEAT | NVML_SLOW_BRAKE | NVML_SLOW_HARDWARE);

	if (!device->clock_mhz || !device->max_clock_mhz)
		return;
	if (!heat && !(device->slow & NVML_SLOW_POWER)) {
		findings_ok(doctor, "gpu clocks", "%u: %u of %u MHz, not held back", index, device->clock_mhz,
			device->max_clock_mhz);
		return;
	}
	findings_add(doctor, FINDING_WARN, "gpu clocks", "%u: %u of %u MHz, lowered by %s", index, device->clock_mhz,
		device->max_clock_mhz, heat ? "temperature or the power supply" : "the power limit");
	findings_explain(doctor, "steps take longer in proportion, above all those with long prompts",
		heat ? "cool the device: nvidia-smi -q -d TEMPERATURE,PERFORMANCE"
		     : "raise the limit if it is below the device's own: nvidia-smi -q -d POWER");
}

static void gpu_look_driver(struct doctor *doctor, const struct nvml *nvml)
{
	char driver[80];
	int cuda;

	nvml_versions(nvml, driver, sizeof(driver), &cuda);
	if (cuda && cuda < GPU_CUDA_MIN) {
		findings_add(doctor, FINDING_WARN, "driver", "%s, up to CUDA %d.%d", driver, cuda / 1000,
			cuda % 1000 / 10);
		findings_explain(doctor, "the daemon cannot use the device", "install a driver for CUDA 12 or later");
		return;
	}
	findings_ok(doctor, "driver", "%s, up to CUDA %d.%d", driver, cuda / 1000, cuda % 1000 / 10);
}

static void gpu_look_devices(struct doctor *doctor, const struct nvml *nvml)
{
	const unsigned n = nvml_n_devices(nvml), most = 8;

	doctor->gpu = n > 0;
	gpu_look_driver(doctor, nvml);
	for (unsigned i = 0; i < n && i < most; i++) {
		struct nvml_device device;

		if (!nvml_device(nvml, i, &device)) {
			findings_add(doctor, FINDING_WARN, "gpu", "%u: it does not answer", i);
			findings_explain(doctor, "the daemon cannot use it", "look for Xid in the kernel's log");
			continue;
		}
		gpu_look_device(doctor, i, &device);
		gpu_look_compute_mode(doctor, i, &device);
		gpu_look_clocks(doctor, i, &device);
	}
}

/* ---- sharing ---- */

/* A process whose name begins so. */
static bool gpu_runs(const struct doctor *doctor, const char *name)
{
	char pattern[512], comm[32];
	bool found = false;
	glob_t paths;

	snprintf(pattern, sizeof(pattern), "%.400s/proc/[0-9]*/comm", doctor->root);
	if (glob(pattern, GLOB_NOSORT, NULL, &paths) != 0)
		return false;
	for (size_t i = 0; i < paths.gl_pathc && !found; i++)
		found = findings_read(doctor, paths.gl_pathv[i] + strlen(doctor->root), comm, sizeof(comm)) &&
			strncmp(comm, name, strlen(name)) == 0;
	globfree(&paths);
	return found;
}

static void gpu_look_mps(struct doctor *doctor)
{
	if (!gpu_runs(doctor, "nvidia-cuda-mps")) {
		findings_ok(doctor, "mps", "not running");
		return;
	}
	findings_add(doctor, FINDING_NOTE, "mps", "running");
	findings_explain(doctor,
		"kernels of other programs run beside the daemon's and take multiprocessors from them; a kernel that waits "
		"for the daemon can block the daemon without end",
		"run only clients that share the device with mimeod under MPS, or none: mimeo_buffer(3)");
}

static bool gpu_namespace(const struct doctor *doctor, const char *process, char ret[static 64])
{
	char path[512];

	snprintf(path, sizeof(path), "%.400s/proc/%s/ns/pid", doctor->root, process);
	ssize_t n = readlink(path, ret, 63);
	if (n < 0)
		return false;
	ret[n] = '\0';
	return true;
}

/* A driver finds the owner of a CUDA IPC handle by its pid. */
static void gpu_look_namespace(struct doctor *doctor)
{
	static const char costs[] = "the driver refuses CUDA IPC between PID namespaces: no fences, and no memory of "
				    "cudaMalloc";
	char own[64], daemons[64], pid[16], initial[32];

	if (!gpu_namespace(doctor, "self", own))
		return;
	snprintf(pid, sizeof(pid), "%d", (int)doctor->daemon);
	snprintf(initial, sizeof(initial), "pid:[%lu]", GPU_INITIAL_PID_NS);
	const bool foreign = doctor->answers && (!doctor->daemon ||
		(gpu_namespace(doctor, pid, daemons) && strcmp(own, daemons) != 0));
	if (foreign) {
		findings_add(doctor, FINDING_WARN, "pid namespace", "the daemon's is another one than this shell's");
		findings_explain(doctor, costs, "run both in one: docker run --pid=host, hostPID: true in a pod");
	} else if (doctor->answers || strcmp(own, initial) == 0) {
		findings_ok(doctor, "pid namespace", doctor->answers ? "the daemon's, too" : "the host's");
	} else {
		findings_add(doctor, FINDING_NOTE, "pid namespace", "a container's own");
		findings_explain(doctor, costs, "run the daemon and its clients in one: docker run --pid=host, or in one "
			"pod with shareProcessNamespace: true");
	}
}

void doctor_look_gpu(struct doctor *doctor)
{
	CLEANUP(cleanup_nvml) struct nvml *nvml = NULL;
	char why[96], driver[160];

	int rc = nvml_new(&nvml, why, sizeof(why));
	if (rc == 0) {
		gpu_look_devices(doctor, nvml);
	} else if (rc == -ENOENT && !findings_read(doctor, "/proc/driver/nvidia/version", driver, sizeof(driver))) {
		findings_add(doctor, FINDING_NOTE, "gpu", "no NVIDIA driver");
		findings_explain(doctor, "models run on the cpu device", "");
	} else {
		findings_add(doctor, FINDING_WARN, "driver", "%s",
			rc == -ENOENT ? "loaded, and libnvidia-ml.so.1 is not found" : why);
		findings_explain(doctor, "the daemon cannot use the device, if libcuda.so.1 is missing or wrong, too",
			"install the driver's libraries of the same version as its module; in a container: "
			"the NVIDIA container toolkit, --gpus all");
	}
	if (!doctor->gpu)
		return;
	gpu_look_mps(doctor);
	gpu_look_namespace(doctor);
}
