// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

// #include <stdlib.h>
// #include "bind.h"
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const libraryName = "libnvidia-ml.so.1"

// libraryDirs are the directories of NVML below the root of the node: of distributions, of NVIDIA's driver container
// and of Google's nodes.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
	"run/nvidia/driver/usr/lib/x86_64-linux-gnu", "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
	"run/nvidia/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64",
}

// Library is the opened NVML. Functions that an old library lacks return
// NVML_ERROR_FUNCTION_NOT_FOUND (see bind.c).
type Library struct {
	nvml.Interface
	Has   func(symbol string) bool // whether the library has a function, by its C name
	Close func() error             // no call into the library may be in progress
}

// OpenLibrary opens and initializes the first existing library.
func OpenLibrary(o wire.Options) (*Library, error) {
	paths := []string{o.Library}
	if o.Library == "" {
		paths = []string{libraryName}
		for _, dir := range libraryDirs {
			paths = append(paths, wire.Below(o.Root, filepath.Join(dir, libraryName)))
		}
	}
	var reasons []string
	for _, path := range paths {
		l, err := openPath(path)
		if !errors.Is(err, errNotLoaded) {
			return l, err
		}
		reasons = append(reasons, err.Error())
	}
	return nil, fmt.Errorf("%s (--gpu.nvml-library says where it is)", strings.Join(reasons, "; "))
}

var errNotLoaded = errors.New("not loaded")

func openPath(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	handle := C.nvml_bind(name, &reason)
	if handle == nil {
		defer C.free(unsafe.Pointer(reason))
		return nil, fmt.Errorf("%w: %s", errNotLoaded, C.GoString(reason))
	}
	l := &Library{
		Interface: nvml.New(nvml.WithLibraryPath(path)), // opens the library a second time
		Has: func(symbol string) bool {
			name := C.CString(symbol)
			defer C.free(unsafe.Pointer(name))
			return C.nvml_has(handle, name) != 0
		},
	}
	l.Close = func() error {
		if ret := l.Shutdown(); ret != nvml.SUCCESS {
			err := fmt.Errorf("nvmlShutdown: %w", ret)
			C.nvml_unbind(handle, 2) // go-nvml closes a library only if its shutdown succeeded
			return err
		}
		C.nvml_unbind(handle, 1)
		return nil
	}
	if ret := l.initialize(); ret != nvml.SUCCESS {
		err := openError(path, ret)
		C.nvml_unbind(handle, 2)
		return nil, err
	}
	return l, nil
}

// initialize initializes NVML without touching GPUs. The node may have no GPU yet.
func (l *Library) initialize() nvml.Return {
	if l.Has("nvmlInitWithFlags") {
		return l.InitWithFlags(nvml.INIT_FLAG_NO_GPUS)
	}
	return l.Init()
}

// openError returns the error of opening a library with its cause.
func openError(path string, ret nvml.Return) error {
	cure := ""
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		cure = " (the driver was upgraded: load the new kernel module, or mount the library of this driver)"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		cure = " (modprobe nvidia; in a container, /dev/nvidiactl is needed)"
	case nvml.ERROR_NO_PERMISSION:
		cure = " (the device nodes /dev/nvidia* cannot be opened)"
	}
	return model.WithReason(fmt.Errorf("%s: nvmlInit failed with %d: %s%s", path, int(ret), ret.Error(), cure), model.ErrLibraryInit)
}
