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
	static const struct {
		int condition;
		const char *words;
	} conditions[] = {
		{0, "done"},
		{DEVICE_E_INVALID, "cudaErrorInvalidValue"},
		{DEVICE_E_MEMORY, "cudaErrorMemoryAllocation"},
		{DEVICE_E_ILLEGAL_STATE, "cudaErrorIllegalState"},
		{DEVICE_E_UNSUPPORTED, "cudaErrorNotSupported"},
		{DEVICE_E_NOT_READY, "cudaErrorNotReady"},
		{DEVICE_E_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress"},
		{DEVICE_E_LAUNCH_FAILURE, "cudaErrorLaunchFailure"},
		{DEVICE_E_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported"},
		{DEVICE_E_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated"},
		{DEVICE_E_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched"},
		{DEVICE_E_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation"},
		{DEVICE_E_CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit"},
		{DEVICE_E_CAPTURED_EVENT, "cudaErrorCapturedEvent"},
		{DEVICE_E_CAPTURE_WRONG_THREAD, "cudaErrorStreamCaptureWrongThread"},
		{DEVICE_E_LOCKED, "allocation, growth or first use after the device was locked"},
		{DEVICE_E_LOST, "the device is lost"},
	};
	const char *words = rc < 0 ? strerrordesc_np(-rc) : NULL;

	for (size_t i = 0; i < sizeof(conditions) / sizeof(conditions[0]); i++)
		if (conditions[i].condition == rc)
			return conditions[i].words;
#ifdef MIMEO_HAVE_CUDA
	if (rc > 0)
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
