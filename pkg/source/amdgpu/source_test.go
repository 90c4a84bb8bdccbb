// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func start(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// whole waits for a full read of all cards, which may take longer than a Read on a busy
// machine.
func whole(t *testing.T, s *Source) *Source {
	t.Helper()
	for _, c := range s.found() {
		select {
		case <-c.ask(full):
		case <-time.After(time.Minute):
			t.Fatal("a card is not read")
		}
	}
	return s
}

// ready is whole, and then waits for a list of processes: the Interval must be short.
func ready(t *testing.T, s *Source) *Source {
	t.Helper()
	whole(t, s)
	now := time.Now()
	await(t, func() bool {
		l := s.listings.Last()
		return l != nil && l.At.After(now)
	})
	return s
}

// await waits until so returns true.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never was so")
		}
	}
}

func read(t *testing.T, s *Source) model.Snapshot {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func TestModel(t *testing.T) {
	for _, name := range []string{"mi300x", "mi250", "radeon", "apu"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newNode(t, name).options()
			o.Interval = 20 * time.Millisecond
			s := ready(t, start(t, o))
			snap := eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUProcesses != nil }) // else it is too old
			for i := range snap.GPUs {
				if listed := &snap.GPUs[i].Listed; time.Since(*listed) < time.Minute {
					*listed = time.Time{}
				}
				g := &snap.GPUs[i]
				uses := slices.ContainsFunc(snap.GPUUses, func(u model.GPUUse) bool { return u.GPU == g.UUID && u.Cgroup == 0 && u.Listed > 0 })
				if part := g.Parent != "" && g.Parent != g.UUID; uses == part || g.EnergyRead.IsZero() == g.Energy.Known {
					t.Errorf("GPU %s: uses %+v, energy %v read at %v", g.ID, snap.GPUUses, g.Energy, g.EnergyRead)
				}
				g.EnergyRead = time.Time{}
			}
			snap.GPUUses = nil
			got := render(t, snap)
			file := filepath.Join("testdata", name+".golden.json")
			if *update {
				if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("%s (go test -update rewrites it) is now:\n%s", file, got)
			}
		})
	}
}

// render formats the known values as JSON: an Optional is its number, or missing.
func render(t *testing.T, snap model.Snapshot) []byte {
	t.Helper()
	b, err := json.Marshal(snap)
	if err != nil {
		t.Fatal(err)
	}
	var all any
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	b, err = json.MarshalIndent(known(all), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func known(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if value, ok := v["Known"]; ok {
			if value != true {
				return nil
			}
			return v["Value"]
		}
		if value, ok := v["Value"]; ok && len(v) == 2 {
			return map[string]any{v["Name"].(string): value}
		}
		if value, ok := v["Active"]; ok {
			return map[string]any{v["Name"].(string): value}
		}
		for name, field := range v {
			if field = known(field); field == nil || field == "" || field == false || field == "0001-01-01T00:00:00Z" {
				delete(v, name)
			} else {
				v[name] = field
			}
		}
		if len(v) == 0 {
			return nil
		}
		return v
	case []any:
		for i := range v {
			v[i] = known(v[i])
		}
		return v
	}
	return v
}

// TestListing checks that a KFD process on a partition belongs to that partition, also in the
// second listing, and that the memory of the card belongs to the moment of the listing.
func TestListing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi300x")
	n.write("/class/kfd/kfd/proc/4711/vram_1002", "1048576\n")
	n.write("/class/kfd/kfd/proc/4711/vram_2000", "4096\n")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	o.CgroupOf = func(pid int) (model.CgroupID, error) { return model.CgroupID(uint64(pid) * 10), nil }
	o.Holders = func() ([]int, bool) { return nil, true }
	s := ready(t, start(t, o))
	for range 3 {
		// On a busy machine the listing may be too old to be returned.
		snap := eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUProcesses != nil })
		got := map[string]float64{}
		for _, p := range snap.GPUProcesses {
			if p.PID != 4711 || p.Cgroup != 47110 {
				t.Errorf("%+v", p)
			}
			got[p.GPU] = p.Memory.Value
		}
		want := map[string]float64{"b7c2a1d04e5f6a71:2": 1048576, "b7c2a1d04e5f6a72": 4096}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		time.Sleep(30 * time.Millisecond)
	}
	l := &listing{At: time.Now(), GPUs: measured{gpus: map[string]model.GPU{"b7c2a1d04e5f6a72": {Memory: model.VideoMemory{Used: model.Some(5)}}}}}
	for _, g := range s.snapshot(s.found(), make([]bool, 2), l).GPUs {
		if known := g.UUID == "b7c2a1d04e5f6a72"; known == g.Unlisted || known != (g.Memory.Used.Value == 5) {
			t.Errorf("a GPU that came after the listing has no processes that are known: %+v", g)
		}
	}
}

// TestConcurrentReads reads concurrently while a card comes and goes: for the race detector.
func TestConcurrentReads(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = time.Millisecond
	s := start(t, o)
	target, err := os.Readlink(n.path("/class/drm/card1"))
	n.check(err)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 50 {
				if snap, err := s.Read(t.Context()); err != nil || len(snap.GPUs) == 0 || len(snap.GPUs) > 2 {
					t.Errorf("%d GPUs, %v", len(snap.GPUs), err)
				}
			}
		})
	}
	for range 50 {
		n.check(os.Remove(n.path("/class/drm/card1")))
		n.check(os.Symlink(target, n.path("/class/drm/card1")))
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
}

// found returns the cards as a scrape finds them.
func (s *Source) found() []found {
	all, _ := s.all.List()
	return s.discover(all)
}
