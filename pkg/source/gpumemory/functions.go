// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

// The libraries that all CUDA and HIP programs load: libcuda of the driver, and the ROCm runtime.
const (
	libcuda = "libcuda.so"
	libhip  = "libamdhip64.so"
)

// function is an exported function that allocates GPU memory. It returns 2 if there is not enough.
type function struct {
	library string
	name    string
	api     model.AllocationKey
	// pitched: the size is the product of the third and the fourth argument, otherwise the second argument.
	pitched bool
}

// functions are from cuda.h and hip_runtime_api.h. One API has several functions: cuda.h replaces names by names with a
// version, and in programs with a default stream per thread by names with _ptsz.
var functions = []function{
	cuda("cuMemAlloc_v2", "cuMemAlloc"),
	cudaPitched("cuMemAllocPitch_v2", "cuMemAllocPitch"),
	cuda("cuMemAllocManaged", "cuMemAllocManaged"),
	cuda("cuMemAllocAsync", "cuMemAllocAsync"),
	cuda("cuMemAllocAsync_ptsz", "cuMemAllocAsync"),
	cuda("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync"),
	cuda("cuMemAllocFromPoolAsync_ptsz", "cuMemAllocFromPoolAsync"),
	cuda("cuMemCreate", "cuMemCreate"),
	hip("hipMalloc", false),
	hip("hipExtMallocWithFlags", false),
	hip("hipMallocManaged", false),
	hip("hipMallocPitch", true),
	hip("hipMemAllocPitch", true),
	hip("hipMallocAsync", false),
	hip("hipMallocFromPoolAsync", false),
	hip("hipMemCreate", false),
}

func cuda(name, api string) function {
	return function{library: libcuda, name: name, api: model.AllocationKey{Vendor: model.NVIDIA, API: api}}
}

func cudaPitched(name, api string) function {
	f := cuda(name, api)
	f.pitched = true
	return f
}

func hip(name string, pitched bool) function {
	return function{library: libhip, name: name, api: model.AllocationKey{Vendor: model.AMD, API: name}, pitched: pitched}
}

// apis are the APIs of functions, each once. The programs count by index in this list.
var apis = func() (list []model.AllocationKey) {
	for _, f := range functions {
		if !slices.Contains(list, f.api) {
			list = append(list, f.api)
		}
	}
	return list
}()

func libraryNames() []locate.LibraryName {
	names := []locate.LibraryName{{Name: libcuda}, {Name: libhip}}
	for i := range names {
		for _, f := range functions {
			if f.library == names[i].Name {
				names[i].Functions = append(names[i].Functions, f.name)
			}
		}
	}
	return names
}

// probed returns the functions for a Prober.
func probed() (all []library.Function) {
	for _, f := range functions {
		all = append(all, library.Function{Name: f.name, Library: f.library})
	}
	return all
}
