// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestKeepImages: files of images are kept without a home until they change. When the limit is reached, one that no process maps
// makes room. A file that is probed through a container is kept with the container only.
func TestKeepImages(t *testing.T) {
	s := newTestSource(Options{Procfs: "/proc"}, func() {})
	dir := t.TempDir()
	keep := func(i int) *file {
		t.Helper()
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := locate.Keep("/proc", path)
		if err != nil {
			t.Fatal(err)
		}
		id := locate.FileID{Inode: uint64(i)}
		if s.prober.files[id] == nil {
			s.prober.files[id] = newFile(id, 0, false)
		}
		found := &searchResult{Found: locate.Found{Paths: map[locate.FileID]string{id: path}}, lower: map[locate.FileID]*locate.Kept{id: k}}
		s.prober.keep(found)
		found.closeKept()
		return s.prober.files[id]
	}
	kept := func() (n int) {
		for _, f := range s.prober.files {
			if (f.kept != nil) != s.prober.kept.ids[f.id] {
				t.Errorf("%v: kept %v, for searches %v", f.id, f.kept != nil, s.prober.kept.ids[f.id])
			}
			if f.kept != nil {
				n++
			}
		}
		return n
	}

	probed := newFile(locate.FileID{Inode: maxKept + 10}, 0, false)
	s.prober.files[probed.id] = probed
	probed.Links[half{}] = nil
	if keep(maxKept + 10); probed.kept != nil {
		t.Error("a file that is probed through a container is kept")
	}

	used := keep(0)
	used.Paths[1] = "mapped"
	for i := 1; i < maxKept; i++ {
		keep(i)
	}
	s.prober.checkKept()
	if n := kept(); n != maxKept {
		t.Fatalf("%d files are kept", n)
	}
	if f := keep(maxKept); f.kept == nil || used.kept == nil || kept() != maxKept {
		t.Errorf("%d files are kept, the last one %v, one that is used %v", kept(), f.kept != nil, used.kept != nil)
	}
	for _, f := range s.prober.files {
		f.Paths[1] = "mapped"
	}
	if f := keep(maxKept + 1); f.kept != nil || kept() != maxKept {
		t.Errorf("%d files are kept, and processes map all of them", kept())
	}
	for _, f := range s.prober.files {
		delete(f.Paths, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if s.prober.checkKept(); kept() != 0 {
		t.Errorf("%d files are kept that were removed with their image", kept())
	}
}

// TestKeepOfHome: for one process, maxKeptOfHome files are kept.
func TestKeepOfHome(t *testing.T) {
	s, dir := newTestSource(Options{Procfs: "/proc"}, func() {}), t.TempDir()
	home, err := locate.OpenProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	found := &searchResult{Found: locate.Found{Paths: map[locate.FileID]string{}}, home: home}
	for i := range uint64(maxKeptOfHome + 2) {
		id, path := locate.FileID{Inode: i}, filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.prober.files[id], found.Paths[id] = newFile(id, 1, false), path
	}
	s.prober.keep(found)
	if n := len(s.prober.kept.ids); n != maxKeptOfHome {
		t.Errorf("%d files are kept, want %d", n, maxKeptOfHome)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if s.prober.checkKept(); len(s.prober.kept.ids) > 0 {
		t.Errorf("%d files are kept", len(s.prober.kept.ids))
	}
}
