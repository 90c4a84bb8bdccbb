// SPDX-License-Identifier: Apache-2.0
/*
 * FAKE of NVIDIA's libcuda: functions with the signatures of cuda.h that allocate nothing, up to a limit of bytes. As in the
 * real library, some of them may call others.
 */
#include "fake.h"

enum { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY };

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void *CUstream;
typedef void *CUmemoryPool;

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	return take(dptr, bytesize);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	CUresult result = cuMemAlloc_v2(dptr, width * height);

	*pitch = width;
	return element ? result : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	volatile CUresult result = cuMemAlloc_v2(dptr, bytesize);

	(void)flags;
	if (result == CUDA_ERROR_OUT_OF_MEMORY) /* as a library that frees something and tries again */
		result = cuMemAlloc_v2(dptr, bytesize);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
	(void)stream;
	return take(dptr, bytesize);
}

/* Ends in a jump. */
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
	return cuMemAllocAsync(dptr, bytesize, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
	(void)pool, (void)stream;
	return take(dptr, bytesize);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
	(void)pool, (void)stream;
	return take(dptr, bytesize);
}

/* Calls itself. */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const void *prop, unsigned long long flags)
{
	CUresult (*volatile again)(CUmemGenericAllocationHandle *, size_t, const void *, unsigned long long) = cuMemCreate;
	volatile CUresult result;

	if (flags)
		return take(handle, size);
	result = again(handle, size, prop, 1);
	return result;
}
