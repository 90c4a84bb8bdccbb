// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

// kept is what was read of the kernel while there are holders, and the modules before that.
var kept struct {
	sync.Mutex
	holders   int
	modules   string
	functions map[string]bool
	kernels   map[string]*Kernel // by directory of ReadKernel
}

// Hold keeps what is read of the kernel, which takes megabytes, until release is called. Meanwhile it is read again only
// after a module was loaded or unloaded.
func Hold() (release func()) {
	kept.Lock()
	defer kept.Unlock()
	kept.holders++
	return func() {
		kept.Lock()
		kept.holders--
		last := kept.holders == 0
		if last {
			kept.functions, kept.kernels = nil, nil
		}
		kept.Unlock()
		if last {
			debug.FreeOSMemory()
		}
	}
}

// keep returns what get finds, or reads it and has put keep it. The lock is not held while reading.
func keep[T any](get func() (T, bool), put func(T), read func() (T, error)) (T, error) {
	modules := loadedModules()
	kept.Lock()
	if kept.modules != modules {
		kept.modules, kept.functions, kept.kernels = modules, nil, nil
	}
	value, found := get()
	kept.Unlock()
	if found {
		return value, nil
	}
	value, err := read()
	kept.Lock()
	defer kept.Unlock()
	if err == nil && kept.holders > 0 && kept.modules == modules {
		put(value)
	}
	return value, err
}

// loadedModules returns the modules of the kernel, or "" if it has none.
func loadedModules() string {
	list, _ := os.ReadFile("/proc/modules")
	return withoutUsers(string(list))
}

// withoutUsers returns the name, size, state and address of each module of /proc/modules: the users change often.
func withoutUsers(list string) string {
	var out strings.Builder
	for line := range strings.Lines(list) {
		// "ib_core 565248 5 rdma_cm,ib_uverbs, Live 0xffffffffc0a1b000 (OE)"
		if f := strings.Fields(line); len(f) > 5 {
			out.WriteString(f[0] + " " + f[1] + " " + f[4] + " " + f[5] + "\n")
		}
	}
	return out.String()
}
