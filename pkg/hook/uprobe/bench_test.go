// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// BenchmarkFork repeatedly attaches and detaches a probe of a file that processes map, while another process forks. It
// reports the longest and the mean fork, and the durations of a look and the two calls. With "none", the process forks
// without probes.
func BenchmarkFork(b *testing.B) {
	for _, n := range []struct{ processes, mappings int }{{0, 0}, {1, 1}, {100, 1}, {1000, 1}, {1, 10_000}} {
		name := "none"
		if n.processes > 0 {
			name = fmt.Sprintf("processes=%d/mappings=%d", n.processes, n.mappings)
		}
		b.Run(name, func(b *testing.B) { benchmarkFork(b, n.processes, n.mappings) })
	}
}

func benchmarkFork(b *testing.B, processes, mappings int) {
	g, path := newGate(b), code(b)
	if processes > 0 {
		start(b, program(b, "manymaps"), path, strconv.Itoa(mappings), strconv.Itoa(processes))
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var looks, attach, detach time.Duration
	forks := start(b, program(b, "forklat"), "600")
	for b.Loop() {
		if processes == 0 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		begin := time.Now()
		if v, err := g.eyes.look(f, []uint64{site}, 1<<20); err != nil || v.mappings != processes*mappings {
			b.Fatalf("%+v, %v", v, err)
		}
		looked := time.Now()
		o := Operation{Probes: g.probes(site)}
		if o.Probes[0].Link, err = o.Probes[0].Attach(path); err != nil {
			b.Fatal(err)
		}
		attached := time.Now()
		if err := o.Probes[0].Link.Close(); err != nil {
			b.Fatal(err)
		}
		looks, attach, detach = looks+looked.Sub(begin), attach+attached.Sub(looked), detach+time.Since(attached)
	}
	longest, mean := forks.longestFork(b)
	report := func(unit string, d time.Duration, n int) { b.ReportMetric(float64(d.Microseconds())/float64(n), unit) }
	report("us-longest-fork", longest, 1)
	report("us-mean-fork", mean, 1)
	report("us/look", looks, b.N)
	report("us/attach", attach, b.N)
	report("us/detach", detach, b.N)
}
