// SPDX-License-Identifier: Apache-2.0

// Package hook attaches BPF programs to kernel functions. It detects the features of the kernel, relocates programs
// against its types, and tries the tiers of each hook in order. Existing functions and types decide, never the kernel
// version.
package hook

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Usable returns an error with the cure if BPF is not allowed.
func Usable() error {
	// 5.10 charges maps to RLIMIT_MEMLOCK; newer kernels do not.
	if err := rlimit.RemoveMemlock(); err != nil {
		// Without CAP_BPF a newer kernel appears to charge them.
		return fmt.Errorf("BPF is not allowed (run as root, or with CAP_BPF and CAP_PERFMON, "+
			"before Linux 5.11 with CAP_SYS_RESOURCE too): %w", err)
	}
	if err := features.HaveMapType(ebpf.Hash); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("BPF is not allowed (run as root, or with CAP_BPF and CAP_PERFMON): %w", err)
		}
		return fmt.Errorf("%w: BPF: %w", model.ErrUnsupported, err)
	}
	return nil
}

// Kernel is what programs are chosen and relocated by: the BTF of the kernel and the RDMA modules, and the functions.
type Kernel struct {
	Cache   *btf.Cache
	Types   *btf.Spec   // of the kernel image
	Modules []*btf.Spec // of ib_core and ib_uverbs
	// Functions are the existing functions of the hooks.
	Functions map[string]bool

	files   bool  // types of modules are from files
	refused error // why structures of the RDMA modules must not be read
}

// ReadKernel reads the types of the running kernel, of ib_core and of ib_uverbs, and the functions. dir has files with
// the types of modules that have no BTF in the kernel; it may be empty.
func ReadKernel(dir string) (*Kernel, error) {
	get := func() (*Kernel, bool) { k := kept.kernels[dir]; return k, k != nil }
	put := func(k *Kernel) {
		if kept.kernels == nil {
			kept.kernels = map[string]*Kernel{}
		}
		kept.kernels[dir] = k
	}
	return keep(get, put, func() (*Kernel, error) { return readKernel(dir) })
}

func readKernel(dir string) (*Kernel, error) {
	k := &Kernel{Cache: btf.NewCache()}
	// Reading /proc/kallsyms takes longer than everything else.
	var functions safely.Group
	var functionsErr, err error
	functions.Go(func() { k.Functions, functionsErr = Symbols() })
	if k.Types, err = k.Cache.Kernel(); err != nil {
		err = fmt.Errorf("%w: type information of the kernel (CONFIG_DEBUG_INFO_BTF): %w", model.ErrUnsupported, err)
	} else {
		k.loadModules("/sys", dir)
	}
	functions.Wait()
	if err = cmp.Or(err, functionsErr); err != nil {
		return nil, err
	}
	return k, nil
}

// Has reports whether the kernel or a module describes a structure.
func (k *Kernel) Has(name string) bool {
	return slices.ContainsFunc(append([]*btf.Spec{k.Types}, k.Modules...), func(spec *btf.Spec) bool {
		var found *btf.Struct
		return spec.TypeByName(name, &found) == nil
	})
}

// GrowingMaps reports whether a program at any kernel function can add elements to a hash map without preallocation.
// This needs the lists per CPU (bpf_htab.ma, Linux 6.1), which the kernel fills outside of programs. Older kernels
// would call the kernel's allocator, which may have called the program.
func (k *Kernel) GrowingMaps() bool {
	var table *btf.Struct
	return k.Types.TypeByName("bpf_htab", &table) == nil &&
		slices.ContainsFunc(table.Members, func(m btf.Member) bool { return m.Name == "ma" })
}

// CPUs returns the number of possible CPUs, at least 1.
func CPUs() int {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 1
	}
	return cpus
}

// Subsystem returns the value of a cgroup v1 controller in the kernel's enum cgroup_subsys_id, which depends on its
// configuration, or -1 for cgroup v2.
func (k *Kernel) Subsystem(name string) (int32, error) {
	if name == "" {
		return -1, nil
	}
	var enum *btf.Enum
	if err := k.Types.TypeByName("cgroup_subsys_id", &enum); err != nil {
		return 0, fmt.Errorf("cgroup v1 controllers of this kernel: %w", err)
	}
	for _, v := range enum.Values {
		if v.Name == name+"_cgrp_id" {
			return int32(v.Value), nil
		}
	}
	return 0, fmt.Errorf("%w: this kernel has no cgroup v1 controller %s", model.ErrUnsupported, name)
}

// Prefixes of all hooked functions, and of few others. __x64_sys_uretprobe shows how the kernel ends return probes.
var symbolPrefixes = [][]byte{
	[]byte("ib_uverbs_"), []byte("ib_umem_"), []byte("rdma_"), []byte("uverbs_"), []byte("ib_modify_qp"),
	[]byte("ib_destroy_qp"), []byte("ib_create_qp"), []byte("ib_register_peer_memory_client"), []byte("ib_peer_umem_get"),
	[]byte("__x64_sys_uretprobe"), []byte("bpf_task_storage_get_recur"),
	[]byte("chrdev_open"), []byte("devcgroup_check_permission"), []byte(kprobes),
	[]byte("drm_ioctl"), []byte("amdgpu_drm_ioctl"), []byte("kfd_ioctl"), []byte("xe_drm_ioctl"), []byte("nouveau_drm_ioctl"),
	[]byte("percpu_down_write"), []byte("percpu_up_write"),
	[]byte("nvidia_unlocked_ioctl"), []byte("nvidia_frontend_unlocked_ioctl"), []byte("uvm_unlocked_ioctl_entry"),
}

// symbolsBy are the prefixes by their first byte: a kernel has more than 100,000 symbols.
var symbolsBy = func() (by [256][][]byte) {
	for _, p := range symbolPrefixes {
		by[p[0]] = append(by[p[0]], p)
	}
	return by
}()

// kprobes is a function of all kernels with kprobes.
const kprobes = "register_kprobe"

// Symbols returns the existing functions of the hooks, from /proc/kallsyms, which lists names even if addresses are
// hidden.
func Symbols() (map[string]bool, error) {
	get := func() (map[string]bool, bool) { return kept.functions, kept.functions != nil }
	return keep(get, func(found map[string]bool) { kept.functions = found }, readSymbols)
}

func readSymbols() (map[string]bool, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("functions of this kernel: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	found := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// "ffffffffc0a1b2c3 t ib_uverbs_write	[ib_uverbs]"
		line := lines.Bytes()
		if len(line) < 20 {
			continue
		}
		for _, prefix := range symbolsBy[line[19]] {
			if name := line[19:]; bytes.HasPrefix(name, prefix) {
				name, _, _ = bytes.Cut(name, []byte{'\t'})
				found[string(name)] = true
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("functions of this kernel: %w", err)
	}
	return found, nil
}
