/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * After these errors the context is unusable. Some of the runtime's numbers from 700 to 799 only mean that
 * one call was wrong; those must not be taken for a lost device.
 */
int cuda_condition(cudaError_t error)
{
	switch ((int)error) {
	case cudaErrorLaunchOutOfResources:
	case cudaErrorLaunchIncompatibleTexturing:
	case cudaErrorPeerAccessAlreadyEnabled:
	case cudaErrorPeerAccessNotEnabled:
	case cudaErrorSetOnActiveProcess:
	case cudaErrorTooManyPeers:
	case cudaErrorHostMemoryAlreadyRegistered:
	case cudaErrorHostMemoryNotRegistered:
	case cudaErrorCooperativeLaunchTooLarge:
		return DEVICE_E_INVALID;
	case cudaErrorCudartUnloading:
	case cudaErrorDeviceUninitialized:
	case cudaErrorECCUncorrectable:
	case cudaErrorNvlinkUncorrectable:
	case cudaErrorUnknown:
		return DEVICE_E_LOST;
	}
	return (int)error;
}

const char *cuda_error_name(int condition)
{
	const char *name = cudaGetErrorName((cudaError_t)condition);

	return strcmp(name, "unrecognized error code") != 0 ? name : NULL;
}

/* Only the first fault is recorded: later ones follow from it. */
void cuda_fault(
	struct cuda_device *device, int condition, const char *call, const char *file, int line)
{
	assert(device_is_lost(condition));
	pthread_mutex_lock(&device->lock);
	if (device->fault.condition == 0) {
		snprintf(device->fault_call, sizeof(device->fault_call), "%s", call);
		device->fault = (struct device_fault){
			.condition = condition,
			.call = device->fault_call,
			.file = file,
			.line = line,
		};
		atomic_store_explicit(&device->lost, condition, memory_order_release);
	}
	pthread_mutex_unlock(&device->lock);
}

/* An error stays the thread's "last error" until it is read, and would be taken for that of the next launch.
 * */
int cuda_check(
	struct device *device, cudaError_t error, const char *call, const char *file, int line)
{
	int condition = cuda_condition(error);

	if (condition == 0 || condition == DEVICE_E_NOT_READY)
		return condition;
	cudaGetLastError();
	if (device != NULL && device_is_lost(condition))
		cuda_fault(cuda_device(device), condition, call, file, line);
	return condition;
}

#ifdef MIMEO_TEST_FAULTS
cudaError_t cuda_forced_fault_launch(cudaStream_t stream, void *where);

int cuda_forced_fault_open(struct cuda_device *device)
{
	int rc = forced_parse(
		&device->forced, getenv("MIMEO_CUDA_FAULT"), getenv("MIMEO_CUDA_HOLD"));

	if (rc || device->forced.at == 0)
		return rc;
	/* Loading it later might wait for work in the lane. */
	rc = CUDA_TRY(&device->base, cuda_forced_fault_launch(device->utility, NULL));
	if (rc)
		return rc;
	return CUDA_TRY(&device->base, cudaStreamSynchronize(device->utility));
}

int cuda_forced_fault(struct stream *stream, const char *name)
{
	struct cuda_device *device = stream->device;
	void *nowhere = (void *)(uintptr_t)sizeof(int);
	int rc;

	if (capture_is_on(&stream->capture))
		return 0;
	if (forced_holds(&device->forced, name)) {
		rc = CUDA_TRY(&device->base, cudaLaunchHostFunc(stream->handle, forced_wait,
						     device->forced.hold_path));
		if (rc)
			return rc;
	}
	if (!forced_due(&device->forced, name))
		return 0;
	return CUDA_TRY(&device->base, cuda_forced_fault_launch(stream->handle, nowhere));
}

uint64_t cuda_forced_fault_count(struct device *device)
{
	return atomic_load(&cuda_device(device)->forced.n_runs);
}
#endif

void cuda_last_fault(struct device *base, struct device_fault *ret)
{
	struct cuda_device *device = cuda_device(base);

	pthread_mutex_lock(&device->lock);
	*ret = device->fault;
	pthread_mutex_unlock(&device->lock);
}
