// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// BenchmarkSwitch measures what a switch of the probes of posting takes, in a file that some processes of a FAKE provider map: the
// median time to attach them, until they can be detached at once, until the breakpoints are gone and until the probes are closed;
// and how much longer the first call of a process takes then. With a PID filter, one of the processes is probed, and when its
// breakpoints are gone is not seen before the probes are closed.
func BenchmarkSwitch(b *testing.B) {
	path, sites := buildFake(b)
	k := startKernel(b)
	probe := func(path string, at target) (io.Closer, error) {
		return k.probe(path, at.Site, at.pid, entryNS, returnNS)
	}
	for _, c := range []struct {
		processes int
		filtered  bool
	}{{1, false}, {8, false}, {8, true}} {
		b.Run(fmt.Sprintf("processes=%d,filter=%t", c.processes, c.filtered), func(b *testing.B) {
			f := newFile(locate.FileID{}, c.filtered)
			var fakes []*fake
			for range c.processes {
				p := startFake(b, path)
				if len(fakes) == 0 || !c.filtered {
					f.paths[p.Process.Pid] = path
				}
				fakes = append(fakes, p)
			}
			for _, s := range sites {
				f.sites[s] = true
			}
			took := map[string][]float64{}
			since := func(what string, began time.Time) {
				took[what] = append(took[what], time.Since(began).Seconds()*1e3)
			}
			until := func(what string, began time.Time, done func() bool) {
				for !done() {
					time.Sleep(100 * time.Microsecond)
				}
				since(what, began)
			}
			var done sync.WaitGroup
			for range b.N {
				began := time.Now()
				if err := f.attach(budget.Post, probe); err != nil {
					b.Fatal(err)
				}
				since("attach-ms", began)
				for _, p := range fakes {
					p.do("posts", 100)
				}
				began = time.Now()
				f.prepare(budget.Post, k.touch, &done, func() {})
				until("ready-ms", began, f.ready[budget.Post].Load)
				began = time.Now()
				f.detach(budget.Post, &done)
				until("gone-ms", began, func() bool { return !f.inPlace[budget.Post].Load() })
				until("closed-ms", began, func() bool { return !f.closing[budget.Post].Load() })
				for _, p := range fakes {
					took["first-call-ns"] = append(took["first-call-ns"], p.callTime()-p.callTime())
				}
			}
			done.Wait()
			for what, all := range took {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], what)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// callTime returns the CPU time of one post, in ns.
func (f *fake) callTime() (ns float64) {
	f.t.Helper()
	if _, err := fmt.Sscan(f.do("posts", 1), &ns); err != nil {
		f.t.Fatal(err)
	}
	return ns
}
