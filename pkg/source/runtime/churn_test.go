// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestContainerdChurn has containers of a real containerd come and go, four at a
// time: each is told from create to delete, in order, once, with its code.
func TestContainerdChurn(t *testing.T) {
	t.Parallel()
	const workers, each = 4, 8
	d := startDaemon(t, withoutCRI)
	s := open(t, Options{Sockets: []Socket{{"containerd", d.socket()}}})
	s.Read(t.Context())
	r := record1(s)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := range each {
				id := fmt.Sprintf("c%d-%d", w, i)
				d.run("default", id, fmt.Sprintf("exit %d", w*each+i))
				d.end("default", id)
			}
		})
	}
	working.Wait()
	empty := func() bool {
		n := -1
		s.Snapshot(func(all []model.Container) { n = len(all) })
		return n == 0
	}
	for began := time.Now(); !empty(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 5*time.Second {
			s.Snapshot(func(all []model.Container) {
				for _, c := range all {
					t.Errorf("%s is left: %q", c.ID, r.of(c.ID))
				}
			})
			break
		}
	}
	for w := range workers {
		for i := range each {
			id := fmt.Sprintf("c%d-%d", w, i)
			events := r.of(id)
			if len(events) == 4 && events[2] == "exit "+id+" exited code=137 signal=9" {
				continue // d.end was faster than the container
			}
			if d := cmp.Diff([]string{
				"create " + id + " created", "start " + id + " running",
				fmt.Sprintf("exit %s exited code=%d", id, w*each+i), "delete " + id + " exited",
			}, events); d != "" {
				t.Error(d)
			}
		}
	}
	if left := replay(r.events); len(left) != 0 {
		t.Errorf("who replays the events knows of %v", left)
	}
}

// TestReconnectLeaksNothing has a runtime that fails at once, many times.
func TestReconnectLeaksNothing(t *testing.T) {
	f := &fakeCRI{name: "cri-o"}
	path := startCRI(t, f)
	drive := func() {
		ctx, cancel := context.WithCancel(t.Context())
		feed := newTestFeed()
		feed.onSync = cancel
		if err := cri(path, nil)(ctx, feed); err != nil {
			t.Fatal(err)
		}
	}
	drive()
	before := descriptors(t)
	for range 100 {
		drive()
	}
	if after := descriptors(t); after > before+20 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
