/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <errno.h>

static int driver_look_up(const char *symbol, unsigned int version, void *ret)
{
	enum cudaDriverEntryPointQueryResult found;
	void *function = NULL;
	cudaError_t error;

#if CUDART_VERSION >= 12050
	error = cudaGetDriverEntryPointByVersion(
		symbol, &function, version, cudaEnableDefault, &found);
#else
	error = cudaGetDriverEntryPoint(symbol, &function, cudaEnableDefault, &found);
#endif
	if (error != cudaSuccess)
		return CUDA_TRY(NULL, error);
	if (found != cudaDriverEntryPointSuccess || function == NULL)
		return -ENOTSUP;
	*(void **)ret = function;
	return 0;
}

int cuda_driver_load(struct driver *driver)
{
	const struct {
		const char *symbol;
		unsigned int version;
		void *to;
	} functions[] = {
		{"cuMemAddressReserve", 12000, &driver->address_reserve},
		{"cuMemAddressFree", 12000, &driver->address_free},
		{"cuMemGetAllocationGranularity", 12000, &driver->granularity},
		{"cuMemCreate", 12000, &driver->create},
		{"cuMemRelease", 12000, &driver->release},
		{"cuMemMap", 12000, &driver->map},
		{"cuMemUnmap", 12000, &driver->unmap},
		{"cuMemSetAccess", 12000, &driver->set_access},
		{"cuMemExportToShareableHandle", 12000, &driver->export_handle},
		{"cuMemImportFromShareableHandle", 12000, &driver->import_handle},
		{"cuMemGetAllocationPropertiesFromHandle", 12000, &driver->properties},
		{"cuMemGetAddressRange", 12000, &driver->address_range},
		{"cuFuncGetModule", 12000, &driver->function_module},
		{"cuTensorMapEncodeTiled", 12000, &driver->tensor_map_tiled},
#if CUDA_VERSION >= 12040
		{"cuModuleGetFunctionCount", 12040, &driver->module_count},
		{"cuModuleEnumerateFunctions", 12040, &driver->module_functions},
		{"cuFuncLoad", 12040, &driver->function_load},
#endif
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		int rc = driver_look_up(functions[i].symbol, functions[i].version, functions[i].to);

		if (rc)
			return rc;
	}
	return 0;
}
