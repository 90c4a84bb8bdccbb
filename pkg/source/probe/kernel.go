// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"

	"github.com/accelscope/accelscope/pkg/model"
)

// usable tells whether BPF is allowed at all, with the cure.
func usable() error {
	// 5.10 charges maps to RLIMIT_MEMLOCK; newer kernels need nothing raised.
	if err := rlimit.RemoveMemlock(); err != nil {
		// Without CAP_BPF a newer kernel is taken for one that charges them.
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

// kernelTypes is the BTF that the programs are relocated against: that of the
// kernel and of the two modules that they look into, and of no other.
type kernelTypes struct {
	cache   *btf.Cache
	kernel  *btf.Spec
	modules []*btf.Spec
}

func loadTypes() (*kernelTypes, error) {
	t := &kernelTypes{cache: btf.NewCache()}
	var err error
	if t.kernel, err = t.cache.Kernel(); err != nil {
		return nil, fmt.Errorf("%w: type information of the kernel (CONFIG_DEBUG_INFO_BTF): %w", model.ErrUnsupported, err)
	}
	for _, name := range []string{"ib_core", "ib_uverbs"} {
		// Kernels before 5.11 and drivers from outside the kernel have none.
		if spec, err := t.cache.Module(name); err == nil {
			t.modules = append(t.modules, spec)
		}
	}
	return t, nil
}

// subsystem is the value of a cgroup v1 controller in the kernel's enum
// cgroup_subsys_id, which depends on its configuration; -1 for cgroup v2.
func (t *kernelTypes) subsystem(name string) (int32, error) {
	if name == "" {
		return -1, nil
	}
	var enum *btf.Enum
	if err := t.kernel.TypeByName("cgroup_subsys_id", &enum); err != nil {
		return 0, fmt.Errorf("cgroup v1 controllers of this kernel: %w", err)
	}
	for _, v := range enum.Values {
		if v.Name == name+"_cgrp_id" {
			return int32(v.Value), nil
		}
	}
	return 0, fmt.Errorf("%w: this kernel has no cgroup v1 controller %s", model.ErrUnsupported, name)
}

var symbolPrefixes = [][]byte{[]byte("ib_uverbs_"), []byte("ib_umem_"), []byte("rdma_"), []byte("uverbs_")}

// kernelSymbols tells which of the functions that the hooks name exist, from
// /proc/kallsyms: names are there even when addresses are hidden.
func kernelSymbols() (map[string]bool, error) {
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
		name := line[19:]
		for i, c := range name {
			if c == '\t' || c == ' ' {
				name = name[:i]
				break
			}
		}
		// All functions that we hook, and few others, begin so.
		for _, prefix := range symbolPrefixes {
			if bytes.HasPrefix(name, prefix) {
				found[string(name)] = true
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("functions of this kernel: %w", err)
	}
	return found, nil
}
