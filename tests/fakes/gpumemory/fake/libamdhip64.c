// SPDX-License-Identifier: Apache-2.0
/*
 * FAKE of AMD's libamdhip64: functions with the signatures of hip_runtime_api.h that allocate nothing, up to a limit of bytes.
 * Some have symbol versions, as in the real library.
 */
#include "fake.h"

typedef int hipError_t;
typedef void *hipStream_t;
typedef void *hipMemPool_t;
typedef void *hipDeviceptr_t;

hipError_t hipMalloc(void **ptr, size_t size)
{
	return take(ptr, size);
}

hipError_t hipExtMallocWithFlags(void **ptr, size_t size, unsigned int flags)
{
	(void)flags;
	return take(ptr, size);
}

/* Ends in a jump. */
hipError_t hipMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	return hipExtMallocWithFlags(ptr, size, flags);
}

hipError_t hipMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
	*pitch = width;
	return take(ptr, width * height);
}

hipError_t hipMemAllocPitch(hipDeviceptr_t *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	(void)element;
	*pitch = width;
	return take(ptr, width * height);
}

hipError_t hipMallocAsync(void **ptr, size_t size, hipStream_t stream)
{
	volatile hipError_t result = hipMalloc(ptr, size);

	(void)stream;
	return result;
}

hipError_t hipMallocFromPoolAsync(void **ptr, size_t size, hipMemPool_t pool, hipStream_t stream)
{
	(void)pool, (void)stream;
	return take(ptr, size);
}

hipError_t hipMemCreate(void **handle, size_t size, const void *prop, unsigned long long flags)
{
	(void)prop, (void)flags;
	return take(handle, size);
}
