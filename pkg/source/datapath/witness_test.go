// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// breakpoints returns how many functions in the memory of a fake do not begin as in its file.
func (f *fake) breakpoints(t *testing.T, path string, sites []locate.Site) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", f.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var base int64
	if _, err := fmt.Sscanf(string(maps), "%x-", &base); err != nil {
		t.Fatal(err)
	}
	read := func(path string, at int64) (code [instruction]byte) {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close() //nolint:errcheck // only read
		if _, err := file.ReadAt(code[:], at); err != nil {
			t.Fatal(err)
		}
		return code
	}
	for _, s := range sites {
		at := int64(s.Offset)
		if read(path, at) != read(fmt.Sprintf("/proc/%d/mem", f.Process.Pid), base+at) {
			n++
		}
	}
	return n
}

// TestWitness: probes are in place in a process as long as the sensor's own mapping shows them, which is shorter than
// closing them takes. FAKE provider.
func TestWitness(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernel(t)
	process := startFake(t, path)
	f := newFile(locate.FileID{}, false)
	f.paths[process.Process.Pid] = path
	var posts []locate.Site
	for _, s := range sites {
		f.sites[s] = true
		if groupOf(s.Function) == budget.Post {
			posts = append(posts, s)
		}
	}
	// A page fault is paid per page, not per function.
	if n := f.pages(budget.Post); n < 1 || n > 2 {
		t.Errorf("%d functions are in %d pages", len(posts), n)
	}
	probe := func(path string, at target) (io.Closer, error) {
		return k.probe(path, at.Site, at.pid, entryNS, returnNS)
	}
	var done sync.WaitGroup
	defer done.Wait()
	for range 3 {
		if err := f.attach(budget.Post, probe); err != nil {
			t.Fatal(err)
		}
		w := f.witnesses[budget.Post]
		if w == nil || w.unprobed() || process.breakpoints(t, path, posts) != len(posts) {
			t.Fatalf("%+v, %d breakpoints of %d", w, process.breakpoints(t, path, posts), len(posts))
		}
		f.prepare(budget.Post, k.touch, &done, func() {})
		eventually(t, "never ready", f.ready[budget.Post].Load)
		began := time.Now()
		f.detach(budget.Post, &done)
		eventually(t, "stays in place", func() bool { return !f.inPlace[budget.Post].Load() })
		gone := time.Since(began)
		if n := process.breakpoints(t, path, posts); n != 0 {
			t.Errorf("%d breakpoints are left", n)
		}
		eventually(t, "never closed", func() bool { return !f.closing[budget.Post].Load() })
		t.Logf("gone after %v, closed after %v", gone, time.Since(began))
	}
	// Without a witness, the probes count as in place until they are closed.
	if _, err := newWitness(path, []locate.Site{{Offset: 1 << 40}}); err == nil {
		t.Error("a witness behind the end of the file")
	}
	if err := f.attach(budget.Post, probe); err != nil {
		t.Fatal(err)
	}
	f.witnesses[budget.Post].close()
	f.witnesses[budget.Post] = nil
	f.detach(budget.Post, &done)
	done.Wait()
	if f.inPlace[budget.Post].Load() || f.closing[budget.Post].Load() {
		t.Error("in place after it was closed")
	}
}
