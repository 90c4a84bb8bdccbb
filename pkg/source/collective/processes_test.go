// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestProcessState reads files in the format of the kernel: since when a process has its state, and whether it still is the same process.
func TestProcessState(t *testing.T) {
	procfs := t.TempDir()
	if err := os.Mkdir(filepath.Join(procfs, "7"), 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1e9, 0)
	p := &processState{}
	for i, step := range []struct {
		state                     string
		threads, ticks, startedAt int
		want                      string // the state and the second since which it holds; empty: ended
	}{
		{"R", 3, 10, 50, "R since 0"},
		{"D", 3, 10, 50, "D since 1"},
		{"D", 3, 10, 50, "D since 1"},
		{"T", 3, 20, 50, "T since 3"},
		{"Z", 3, 20, 50, " since 4"}, // its other threads live
		{"Z", 1, 20, 50, "Z since 5"},
		{"R", 1, 0, 60, ""},
	} {
		text := fmt.Sprintf("7 (a b) %s 1 2 3 4 5 6 7 8 9 10 %d 1 0 0 20 0 %d 0 %d 0 0", step.state, step.ticks, step.threads, step.startedAt)
		if err := os.WriteFile(filepath.Join(procfs, "7/stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		lives := p.read(procfs, 7, began.Add(time.Duration(i)*time.Second))
		if lives != (step.want != "") {
			t.Fatalf("%d: lives %v", i, lives)
		}
		got := fmt.Sprintf("%s since %.0f", p.State, p.StateSince.Sub(began).Seconds())
		if cpu := time.Duration(step.ticks+1) * 10 * time.Millisecond; lives && (got != step.want || p.CPU != cpu) {
			t.Errorf("%d: %s, %v of CPU time", i, got, p.CPU)
		}
	}
	if p.read(procfs, 8, began) {
		t.Error("a process without a file lives")
	}
}

// TestAwaited: a rank that ended stays listed for half an hour while another rank exists, and for a minute if none does.
func TestAwaited(t *testing.T) {
	for _, c := range []struct {
		others bool
		want   time.Duration
	}{{true, awaitedGrace}, {false, endedGrace}} {
		n := newNode()
		a, b := n.add(1, 1, 0), n.add(1, 1, 1)
		n.total[a], n.total[b] = 10, 11
		n.read(t)
		ended := n.now.wall
		n.made[a].Ended = n.now.monotonic
		if !c.others {
			n.made[b].Ended = n.now.monotonic
		}
		lasted := time.Duration(0)
		for range 2 * awaitedGrace / time.Second {
			for _, listed := range n.read(t) {
				if listed.Rank != "0" {
					continue
				}
				if lasted = n.now.wall.Sub(ended); !listed.Ended.Equal(ended) || listed.Process.Ended {
					t.Fatalf("%+v", listed)
				}
			}
		}
		if lasted < c.want-2*time.Second || lasted > c.want+2*time.Second {
			t.Errorf("others %v: listed for %v", c.others, lasted)
		}
	}
}

// TestLastLaunch: the last launch of a process is in any communicator, also in a late one, and stays right when the clock is set.
func TestLastLaunch(t *testing.T) {
	n := newNode()
	n.now.wall = time.Now()
	first, late := n.add(1, 1, 0), n.add(1, 2, 0)
	n.made[late].Flags = 0
	n.members.states = map[int]model.LaunchingProcess{1: {State: "D", CPU: time.Minute}}
	for number, c := range n.made {
		n.members.see(number, c, false, n.now)
	}
	n.members.count(launchKey{Communicator: first}, &launchCounts{Count: 1, Last: n.now.monotonic - 9e9})
	n.members.count(launchKey{Communicator: late}, &launchCounts{Count: 1, Last: n.now.monotonic - 2e9})
	n.members.settle(n.now)
	listed := n.members.listedMembers()
	if len(listed) != 1 {
		t.Fatal(listed)
	}
	want := model.LaunchingProcess{PID: 1, State: "D", CPU: time.Minute, LastLaunch: n.now.wall.Add(-2 * time.Second)}
	if d := cmp.Diff(want, listed[0].Process); d != "" {
		t.Error(d)
	}
	for _, at := range []time.Time{listed[0].LastLaunch, listed[0].Process.LastLaunch} {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("%v has no reading of the monotonic clock", at)
		}
	}
}

// TestGraphsOfProcess: the last graph is noted when the number of calls grew.
func TestGraphsOfProcess(t *testing.T) {
	p, calls := &processState{}, &gen.CollectiveCollectiveProcess{}
	p.countGraphs(calls)
	calls.Calls[0]++ // no graph
	if p.countGraphs(calls); !p.LastGraph.IsZero() {
		t.Errorf("without a graph: %v", p.LastGraph)
	}
	for i := range functions {
		if functions[i].kind == gen.CollectiveFunctionKindKIND_GRAPH {
			calls.Calls[i]++
		}
	}
	p.countGraphs(calls)
	first := p.LastGraph
	if p.countGraphs(calls); first.IsZero() || !p.LastGraph.Equal(first) {
		t.Errorf("%v, then %v", first, p.LastGraph)
	}
}
