// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestWithoutCounters: if all counters of a function fail with EINVAL and never had a value, the function has no
// counters. If they had values, or fail with another error, the function is unreadable. Each directory counts for
// itself.
func TestWithoutCounters(t *testing.T) {
	const einval, eio = "/proc/self/attr/current", "/proc/self/mem"
	both := []string{"counters", "hw_counters"}
	for name, c := range map[string]struct {
		before        bool // the counters had values
		dirs          []string
		as            string
		state, reason string
		counters      int // number of counters that are left
	}{
		"never":                {false, both, einval, "unsupported", "without counters: ", 0},
		"not any more":         {true, both, einval, "failed", "counters unreadable", 0},
		"another error":        {false, both, eio, "failed", "counters unreadable", 0},
		"one directory":        {false, both[:1], einval, "ok", "are in ports/1/counters", len(hca.HWCounters)},
		"the other one":        {false, both[1:], einval, "ok", "are in ports/1/hw_counters", len(hca.PMACounters)},
		"one directory, after": {true, both[:1], einval, "ok", "counters unreadable", len(hca.HWCounters)},
	} {
		t.Run(name, func(t *testing.T) {
			tr, now := hca.NewTree(t), time.Unix(1000, 0)
			dev := tr.HCA(0, 1)
			s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
			s.kept.Store(0) // files are opened for each read
			if c.before {
				mustRead(t, s)
			}
			for _, dir := range c.dirs {
				names := map[string][]string{"counters": hca.PMACounters, "hw_counters": hca.HWCounters}[dir]
				for _, file := range names {
					tr.Link(dev+"/ports/1/"+dir+"/"+file, c.as)
				}
			}
			for range 2 {
				snap := mustRead(t, s)
				d, p := snap.DeviceStates[0], snap.HCAs[0].Ports[0]
				if string(d.State) != c.state || !strings.Contains(d.Reason, c.reason) || p.State != "ACTIVE" {
					t.Errorf("%v, port %s", d, p.State)
				}
				if n := len(p.Counters) + len(p.HWCounters); n != c.counters {
					t.Errorf("%d counters, want %d", n, c.counters)
				}
				now = now.Add(time.Hour)
			}
		})
	}
}
