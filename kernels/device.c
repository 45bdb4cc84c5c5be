/* SPDX-License-Identifier: MIT */
#include "kernels/device.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#ifdef MIMEO_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

const char *device_strerror(int rc)
{
	const char *words;

	switch (rc) {
	case 0:
		return "done";
	case DEVICE_E_INVALID:
		return "cudaErrorInvalidValue";
	case DEVICE_E_MEMORY:
		return "cudaErrorMemoryAllocation";
	case DEVICE_E_ILLEGAL_STATE:
		return "cudaErrorIllegalState";
	case DEVICE_E_UNSUPPORTED:
		return "cudaErrorNotSupported";
	case DEVICE_E_NOT_READY:
		return "cudaErrorNotReady";
	case DEVICE_E_ILLEGAL_ADDRESS:
		return "cudaErrorIllegalAddress";
	case DEVICE_E_LAUNCH_FAILURE:
		return "cudaErrorLaunchFailure";
	case DEVICE_E_CAPTURE_UNSUPPORTED:
		return "cudaErrorStreamCaptureUnsupported";
	case DEVICE_E_CAPTURE_INVALIDATED:
		return "cudaErrorStreamCaptureInvalidated";
	case DEVICE_E_CAPTURE_UNMATCHED:
		return "cudaErrorStreamCaptureUnmatched";
	case DEVICE_E_CAPTURE_ISOLATION:
		return "cudaErrorStreamCaptureIsolation";
	case DEVICE_E_CAPTURE_IMPLICIT:
		return "cudaErrorStreamCaptureImplicit";
	case DEVICE_E_CAPTURED_EVENT:
		return "cudaErrorCapturedEvent";
	case DEVICE_E_CAPTURE_WRONG_THREAD:
		return "cudaErrorStreamCaptureWrongThread";
	case DEVICE_E_LOCKED:
		return "allocation, growth or first use after the device was locked";
	case DEVICE_E_LOST:
		return "the device is lost";
	}
	words = rc < 0 ? strerrordesc_np(-rc) : NULL;
#ifdef MIMEO_HAVE_CUDA
	if (rc > 0 && rc < DEVICE_E_LOCKED)
		words = cuda_error_name(rc);
#endif
	return words != NULL ? words : "unknown device condition";
}

/* "cuda" or "cuda:N" */
static bool device_names_cuda(const char *name)
{
	const char *digits = name + 5;

	if (strcmp(name, "cuda") == 0)
		return true;
	return strncmp(name, "cuda:", 5) == 0 && *digits != '\0' &&
	       digits[strspn(digits, "0123456789")] == '\0';
}

static int device_open_cuda(
	const char *name, const struct device_options *options, struct device **ret)
{
#ifdef MIMEO_HAVE_CUDA
	return cuda_device_new(name, options, ret);
#else
	return -ENOTSUP;
#endif
}

int device_open(const char *name, const struct device_options *options, struct device **ret)
{
	int rc;

	if (strcmp(name, "cpu") == 0)
		return cpu_device_new(options, ret);
	if (device_names_cuda(name))
		return device_open_cuda(name, options, ret);
	if (strcmp(name, "auto") != 0)
		return -ENODEV;
	rc = device_open_cuda("cuda", options, ret);
	return rc == -ENODEV || rc == -ENOTSUP ? cpu_device_new(options, ret) : rc;
}
