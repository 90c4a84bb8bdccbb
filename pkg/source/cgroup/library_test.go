// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestLibraryMode compares the mode of this machine with the mode of containerd/cgroups.
func TestLibraryMode(t *testing.T) {
	h, err := findHierarchy("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	want := map[cgroups.CGMode]Mode{cgroups.Legacy: V1, cgroups.Hybrid: Hybrid, cgroups.Unified: V2}[cgroups.Mode()]
	if h.Mode != want {
		t.Errorf("mode %q, containerd/cgroups detects %q", h.Mode, want)
	}
}

// TestLibraryProcCgroup compares the cgroups of each process of this machine with the result of containerd/cgroups.
func TestLibraryProcCgroup(t *testing.T) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for _, file := range files {
		before, _ := os.ReadFile(file)
		v1, v2, err := cgroups.ParseCgroupFileUnified(file)
		after, _ := os.ReadFile(file)
		if err != nil || string(before) != string(after) || len(after) == 0 {
			continue // it ended or moved meanwhile
		}
		for _, c := range append([]string{""}, controllers...) {
			want := v1[c]
			if c == "" {
				want = v2
			}
			if got, ok := procCgroup(after, c); got != want || ok != (want != "") {
				t.Errorf("%s, controller %q: %q, %t; containerd/cgroups parses %q", file, c, got, ok, want)
			}
		}
		same++
	}
	if same == 0 {
		t.Error("no process")
	}
}

const rdmaCurrent = "mlx5_0 hca_handle=2 hca_object=20 \nmlx5_1 hca_handle=0 hca_object=0 \n"

// TestLibraryRDMA compares rdma.current with containerd/cgroups, as today's kernels print it.
func TestLibraryRDMA(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"pod/rdma.current": rdmaCurrent})
	m, err := cgroup2.Load("/pod", cgroup2.WithMountpoint(root))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := m.StatFiltered(cgroup2.StatRdma)
	if err != nil {
		t.Fatal(err)
	}
	var want []model.RDMACgroup
	for _, e := range theirs.Rdma.Current {
		if e.HcaHandles == 0 && e.HcaObjects == 0 {
			continue
		}
		want = append(want, model.RDMACgroup{
			Cgroup: 1, Device: e.Device, Handles: uint64(e.HcaHandles), Objects: uint64(e.HcaObjects),
		})
	}
	got := readRDMA(context.Background(), map[model.CgroupID]string{1: filepath.Join(root, "pod")}, make([]byte, rdmaBuffer), &boundedfile.Skipped{})
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 1 {
		t.Errorf("(-containerd/cgroups +ours)\n%s", diff)
	}
}

// BenchmarkRDMA reads rdma.current of 100 cgroups, with readRDMA and with containerd/cgroups.
func BenchmarkRDMA(b *testing.B) {
	root, dirs := b.TempDir(), map[model.CgroupID]string{}
	for i := range 100 {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for file, text := range map[string]string{
			"rdma.current": rdmaCurrent, "rdma.max": "mlx5_0 hca_handle=max hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
		dirs[model.CgroupID(i)] = dir
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(readRDMA(context.Background(), dirs, make([]byte, rdmaBuffer), &boundedfile.Skipped{})); n != 100 {
				b.Fatal(n)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range 100 {
				m, err := cgroup2.Load("/"+fmt.Sprint(i), cgroup2.WithMountpoint(root))
				if err != nil {
					b.Fatal(err)
				}
				s, err := m.StatFiltered(cgroup2.StatRdma)
				if err != nil || len(s.Rdma.Current) != 2 {
					b.Fatal(s, err)
				}
			}
		}
	})
}
