// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

// #include <stdlib.h>
// #include "bind.h"
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// libraryName is how the dynamic linker knows NVML.
const libraryName = "libnvidia-ml.so.1"

// libraryDirs are where NVML is below the root of a node that is not ours: those
// of the distributions, of NVIDIA's driver container and of Google's nodes.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
	"run/nvidia/driver/usr/lib/x86_64-linux-gnu", "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
	"run/nvidia/driver/usr/lib64", "home/kubernetes/bin/nvidia/lib64",
}

// library is NVML, opened. A function that an old library lacks may be called all
// the same (see bind.c), but has says so before.
type library struct {
	nvml.Interface
	lookup func(symbol string) bool
	shut   func() error

	mu    sync.Mutex
	known map[string]bool
}

// has says whether the library has a function, by the name that it has in C.
func (l *library) has(symbol string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	has, asked := l.known[symbol]
	if !asked {
		if l.known == nil {
			l.known = make(map[string]bool)
		}
		has = l.lookup(symbol)
		l.known[symbol] = has
	}
	return has
}

// close gives the library back. Nobody may be inside of it.
func (l *library) close() error { return l.shut() }

// openLibrary opens the first library that is there, and initializes it.
func openLibrary(o Options) (*library, error) {
	paths := []string{o.Library}
	if o.Library == "" {
		paths = []string{libraryName}
		for _, dir := range libraryDirs {
			paths = append(paths, filepath.Join(o.Root, dir, libraryName))
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

// errNotLoaded says that there is no library at a path, or none for us.
var errNotLoaded = errors.New("not loaded")

func openPath(path string) (*library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	handle := C.nvml_bind(name, &reason)
	if handle == nil {
		defer C.free(unsafe.Pointer(reason))
		return nil, fmt.Errorf("%w: %s", errNotLoaded, C.GoString(reason))
	}
	l := &library{
		Interface: nvml.New(nvml.WithLibraryPath(path)), // this opens it once more
		lookup: func(symbol string) bool {
			name := C.CString(symbol)
			defer C.free(unsafe.Pointer(name))
			return C.nvml_has(handle, name) != 0
		},
	}
	l.shut = func() error {
		if ret := l.Shutdown(); ret != nvml.SUCCESS {
			err := fmt.Errorf("nvmlShutdown: %w", ret)
			C.nvml_unbind(handle, 2) // go-nvml closes only what it could shut down
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

// initialize does not mind that there is no GPU (yet), and touches none.
func (l *library) initialize() nvml.Return {
	if l.has("nvmlInitWithFlags") {
		return l.InitWithFlags(nvml.INIT_FLAG_NO_GPUS)
	}
	return l.Init()
}

// openError says what helps.
func openError(path string, ret nvml.Return) error {
	cure := ""
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		cure = " (the driver was upgraded: load the new kernel module, or show us the library that belongs to it)"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		cure = " (modprobe nvidia; in a container, /dev/nvidiactl is needed)"
	case nvml.ERROR_NO_PERMISSION:
		cure = " (the device nodes /dev/nvidia* are not ours to open)"
	}
	return fmt.Errorf("%s: nvmlInit: %s%s", path, ret.Error(), cure)
}
