/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/panel.h"
#include "kernels/unchecked.h"

int cpu_refuse_capture(struct cpu_device *device, int condition)
{
	return captures_spoil_own(&device->captures) ? condition : 0;
}

int cpu_enter(struct cpu_device *device)
{
	int rc = cpu_status(device);

	return rc ? rc : cpu_refuse_capture(device, DEVICE_E_CAPTURE_UNSUPPORTED);
}

int cpu_enter_growth(struct cpu_device *device)
{
	int rc = cpu_enter(device);

	if (rc)
		return rc;
	return lock_refuses(&device->locked) ? DEVICE_E_LOCKED : 0;
}

/* ---- faults on demand ---- */

/* Counts the run. True, once, for the run that loses the device. */
static bool device_fault_due(struct cpu_device *device, const struct cpu_op *op)
{
	if (!forced_due(&device->forced, op->name))
		return false;
	snprintf(device->fault_call, sizeof(device->fault_call), "%s launch", op->name);
	atomic_store_explicit(&device->lost, DEVICE_E_LOST, memory_order_release);
	return true;
}

void cpu_node_run(struct cpu_device *device, const struct cpu_node *node)
{
	assert(node->kind == CPU_NODE_OP);
	if (forced_holds(&device->forced, node->op->name))
		forced_wait(device->forced.hold_path);
	if (cpu_status(device) == 0 && !device_fault_due(device, node->op))
		node->op->run(node->args, node->workspace);
}

static int cpu_device_status(struct device *base)
{
	return cpu_status(cpu_device(base));
}

static void device_last_fault(struct device *base, struct device_fault *ret)
{
	struct cpu_device *device = cpu_device(base);
	int condition = cpu_status(device);

	*ret = (struct device_fault){
		.condition = condition,
		.call = condition != 0 ? device->fault_call : NULL,
	};
}

/* ---- the device ---- */

static int cpu_device_info(struct device *base, struct device_info *ret)
{
	struct device_info info = {
		.name = "cpu",
		.kind = "cpu",
		.uuid = {'m', 'i', 'm', 'e', 'o', ' ', 'c', 'p', 'u', ' ', 'd', 'e', 'v', 'i', 'c',
			'e'},
		.activation_dtype = DTYPE_F32,
		.kv_dtype = DTYPE_F32,
		.export_granularity = (uint64_t)sysconf(_SC_PAGESIZE),
		.invariant = true,
		.advice = panel_blas_advice(),
	};
	int rc = cpu_device_status(base);

	if (rc)
		return rc;
	machine_memory(&info.total_bytes, &info.free_bytes);
	*ret = info;
	return 0;
}

static int cpu_device_lock(struct device *base)
{
	struct cpu_device *device = cpu_device(base);

	lock_set(&device->locked);
	return cpu_status(device);
}

static void cpu_device_lift_lock(struct device *base, bool lifted)
{
	lock_lift(&cpu_device(base)->locked, lifted);
}

static void cpu_device_free(struct device *base)
{
	struct cpu_device *device;

	if (base == NULL)
		return;
	device = cpu_device(base);
	assert(atomic_load(&device->n_objects) == 0 && device->allocations == NULL);
	captures_deinit(&device->captures);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

#define CPU_ENTRY(name) .name = cpu_##name,
static const struct device_ops cpu_device_ops = {
	.free = cpu_device_free,
	.info = cpu_device_info,
	.lock = cpu_device_lock,
	.lift_lock = cpu_device_lift_lock,
	.status = cpu_device_status,
	.last_fault = device_last_fault,
	DEVICE_OPS(CPU_ENTRY)
};

int cpu_device_new(const struct device_options *options, struct device **ret)
{
	const char *poison = getenv("MIMEO_CPU_POISON");
	struct cpu_device *device;
	struct forced forced = {0};
	int rc = forced_parse(&forced, getenv("MIMEO_CPU_FAULT"), getenv("MIMEO_CPU_HOLD"));

	if (rc)
		return rc;
	device = aligned_alloc(alignof(struct cpu_device), sizeof(*device));
	if (device == NULL)
		return -ENOMEM;
	memset(device, 0, sizeof(*device));
	device->base.ops = &cpu_device_ops;
	device->base.kernels = &cpu_kernel_ops;
	device->spin_us = options != NULL ? options->spin_us : 0;
	device->poison_mapped = ADDRESS_SANITIZER || (poison != NULL && strcmp(poison, "1") == 0);
	device->forced = forced;
	cpu_load_own(device);
	pthread_mutex_init(&device->lock, NULL);
	captures_init(&device->captures, 0);
	*ret = &device->base;
	return 0;
}
