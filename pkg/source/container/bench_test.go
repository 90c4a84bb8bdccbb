// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"
)

const containers = 330

// BenchmarkRead reads fake trees, which cost the opens and reads; the kernel needs more time to sum up its counters.
func BenchmarkRead(b *testing.B) {
	b.Run("v2", func(b *testing.B) { benchRead(b, true) })
	b.Run("v1", func(b *testing.B) { benchRead(b, false) })
}

// BenchmarkKernel reads real cgroups without processes, as this machine has them mounted.
func BenchmarkKernel(b *testing.B) {
	v2, v1 := mounts(b)
	mount := v2
	if v1["memory"] != "" {
		mount = v1["memory"]
	}
	roots := map[string]bool{mount: true}
	for _, c := range controllers {
		if dir := v1[c.v1]; dir != "" {
			roots[dir] = true
		}
	}
	top := fmt.Sprintf("/container-bench-%d", os.Getpid())
	var paths []string
	for i := range containers {
		paths = append(paths, fmt.Sprintf("%s/%d", top, i))
	}
	for root := range roots {
		b.Cleanup(func() {
			for _, path := range paths {
				_ = os.Remove(root + path)
			}
			_ = os.Remove(root + top)
		})
		if err := os.Mkdir(root+top, 0o755); err != nil {
			b.Fatal(err)
		}
		for c := range strings.FieldsSeq("cpu memory io pids") {
			_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+"+c), 0)
			_ = os.WriteFile(root+top+"/cgroup.subtree_control", []byte("+"+c), 0)
		}
		for _, path := range paths {
			if err := os.Mkdir(root+path, 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	measure(b, fake(b, mount, mount == v2, paths...), 0)
}

func benchRead(b *testing.B, v2 bool) {
	mount, paths := benchTree(b, v2)
	s := fake(b, mount, v2, paths...)
	files := map[string]string{}
	for pod := range containers / 3 {
		pid := fmt.Sprint(1000 + pod)
		files[pid+"/ns/net"] = ""
		files[pid+"/net/dev"] = netDev
	}
	write(b, s.opt.Procfs, files)
	for i, path := range paths {
		write(b, mount+path, map[string]string{"cgroup.procs": fmt.Sprintln(1000 + i/3)})
	}
	measure(b, s, containers/3)
}

func measure(b *testing.B, s *Source, namespaces int) {
	b.Helper()
	b.ReportAllocs()
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	for b.Loop() {
		got, err := s.Read(context.Background())
		if err != nil || len(got.Usages) != containers || len(got.Namespaces) != namespaces {
			b.Fatal(len(got.Usages), len(got.Namespaces), err)
		}
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N)/containers, "cpu-ns/container")
}

func benchTree(b *testing.B, v2 bool) (mount string, paths []string) {
	root := b.TempDir()
	for i := range containers {
		path := fmt.Sprintf("/kubepods/burstable/pod%d/%d", i/3, i)
		paths = append(paths, path)
		if v2 {
			write(b, root, below(path, fakeV2()))
		} else {
			write(b, root, fakeV1(path))
		}
	}
	if v2 {
		return root, paths
	}
	return filepath.Join(root, "memory"), paths
}

// BenchmarkLibrary reads the same trees with containerd/cgroups/v3, without limits, processes and networks.
func BenchmarkLibrary(b *testing.B) {
	b.Run("v2", func(b *testing.B) {
		mount, paths := benchTree(b, true)
		b.ReportAllocs()
		for b.Loop() {
			for _, path := range paths {
				m, err := cgroup2.Load(path, cgroup2.WithMountpoint(mount))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.StatFiltered(cgroup2.StatPids | cgroup2.StatCPU | cgroup2.StatMemory |
					cgroup2.StatMemoryEvents | cgroup2.StatIO); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("v1", func(b *testing.B) {
		mount, paths := benchTree(b, false)
		root := filepath.Dir(mount)
		write(b, root, map[string]string{"proc/partitions": partitions})
		for _, path := range paths { // files that it requires
			more := map[string]string{"cpuacct" + path + "/cpuacct.usage_percpu": "0 0 0 0\n"}
			for _, f := range []string{"kmem.max_usage_in_bytes", "kmem.failcnt", "kmem.limit_in_bytes"} {
				more["memory"+path+"/memory."+f] = "0\n"
			}
			write(b, root, more)
		}
		hierarchy := func() ([]cgroup1.Subsystem, error) {
			return []cgroup1.Subsystem{
				cgroup1.NewCpu(root), cgroup1.NewCpuacct(root), cgroup1.NewPids(root),
				cgroup1.NewMemory(root, cgroup1.IgnoreModules("memsw", "kmem.tcp")),
				cgroup1.NewBlkio(root, cgroup1.ProcRoot(root+"/proc")),
			}, nil
		}
		b.ReportAllocs()
		for b.Loop() {
			for _, path := range paths {
				c, err := cgroup1.Load(cgroup1.StaticPath(path), cgroup1.WithHierarchy(hierarchy))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = c.Stat() // the name of a blkio file differs
			}
		}
	})
}

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:    1001      11    2    3    0     0          0         0     2001      21    4    5    0     0       0          0
`
