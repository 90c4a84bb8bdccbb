// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table of docs/support-matrix.md")

const matrixPage = "../../../docs/support-matrix.md"

// feature is a row of the table in docs/support-matrix.md: what scenarios show. A note stands in the cell of a kernel
// on which no scenario shows it.
type feature struct {
	name      string
	scenarios []string
	notes     map[string]string
}

var (
	uncounted   = map[string]string{"5.10": "unsupported", "6.1": "rxe does not count bytes", "6.12": "rxe does not count bytes"}
	unsupported = map[string]string{"5.10": "unsupported"}
)

var features = []feature{
	{"doctor, fewest capabilities", []string{"doctor", "permissions"}, nil},
	{"verbs, errors, durations", []string{"verbs", "failures", "threads"}, nil},
	{"live objects, registered bytes", []string{"truth", "churn"}, nil},
	{"objects from before the start (netlink), virtual functions", []string{"restart", "netlink"}, nil},
	{"ids of the connection manager", []string{"cm ids"}, nil},
	{"peers", []string{"peers"}, nil},
	{"kernel users: NVMe-oF, NFS", []string{"kernel users"}, nil},
	{"device nodes, `/driMapping`, device programs like Slurm's", []string{"devices", "dri", "slurm devices"}, nil},
	{"reload of the driver", []string{"reload"}, nil},
	{"removal and return of an HCA", []string{"hca changes"}, nil},
	{"objects after skipped programs", []string{"skipped", "missed"}, nil},
	{"objects while the kernel preempts system calls", []string{"preempted"}, nil},
	{"each BPF program, map and helper refused", []string{"refusals"}, nil},
	{"bytes, method `port`", []string{"datapath port"}, uncounted},
	{"bytes, method `survey`; their cost", []string{"datapath survey", "datapath alone", "datapath survey cost"}, unsupported},
	{"bytes, method `uprobe`: exact, short processes", []string{"datapath exact", "datapath short", "datapath hooks"}, unsupported},
	{"the same: extended CQs, latency, errors", []string{"datapath extended", "datapath latency", "datapath errors"}, unsupported},
	{"the same: containers of an image, first use, seccomp", []string{
		"datapath images", "datapath first", "datapath containers",
	}, unsupported},
	{"the same: an HCA that is removed in use", []string{"datapath replugged", "datapath reset"}, unsupported},
	{"the same: two sensors, an aborted connection, other network namespaces", []string{
		"datapath two sensors", "datapath aborted connection", "datapath exclusive",
	}, unsupported},
	{"stalled queue pairs", []string{"datapath stalled"}, unsupported},
	{"waits for receives", []string{"receive waits"}, unsupported},
	{"[coverage](rdma-bytes.md#coverage) and its reasons", []string{
		"datapath unsupported", "datapath coverage", "datapath coverage of tools", "datapath coverage by ports", "datapath coverage of DEVX",
	}, nil},
	{"probes that are in nobody's way", []string{"uprobes", "datapath harmless", "datapath held", "datapath many mappings"}, nil},
	{"GPU memory: failed allocations (fake libraries)", []string{"gpu memory"}, nil},
	{"jobs: a slow rank or path is named (fake library)", []string{"ring", "ring survey"}, unsupported},
	{"collectives: launches by communicator and rank (fake libraries)", []string{"collectives"}, nil},
	{"NVIDIA: release, unloading, signals (stub)", []string{"nvidia driver", "nvidia release", "nvidia signals"}, nil},
	{"GPU drivers: ioctls, durations (vgem, virtio_gpu)", []string{"gpu driver ioctls"}, nil},
	{"GPU drivers: stuck tasks (stub)", []string{"gpu driver stuck"}, nil},
	{"GPU drivers of vendors are hooked and unloaded", []string{"gpu driver vendors"}, nil},
	{"links: values, devices, modules, a driver that hangs (test driver)", []string{
		"link values", "link device", "link module", "link source",
	}, nil},
	{"links: one fails under a workload; alerts, runbooks", []string{"link story"}, nil},
	{"names and usage of containers, opt-out", []string{"names", "usage", "opt-out"}, nil},
	{"lives of containers, restarts of runtimes, events", []string{"lives", "restarts", "events"}, nil},
}

// placed is a scenario without its type.
type placed struct {
	name  string
	test  string // the test that has it
	nodes string
	can   func(node) bool
}

func placements() (all []placed) {
	for _, s := range nodeScenarios {
		all = append(all, placed{s.name, "TestNode", s.nodes, s.can})
	}
	for _, s := range namesScenarios {
		all = append(all, placed{s.name, "TestNames", s.nodes, s.can})
	}
	return all
}

// wholeRun is a command of make test-kernels.
type wholeRun struct {
	nodes []node
	run   *regexp.Regexp
}

// wholeRuns reads the commands of make test-kernels from the Makefile.
func wholeRuns(t *testing.T) (runs []wholeRun) {
	t.Helper()
	text, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, _ := strings.Cut(string(text), "\ntest-kernels: ")
	recipe, _, _ = strings.Cut(recipe, "\n\n")
	for _, m := range regexp.MustCompile(nodesVar+`=(\S+) (?:\\\s+)?go test .* -run '?([^' ]+)'? `).FindAllStringSubmatch(recipe, -1) {
		runs = append(runs, wholeRun{parse(strings.Split(m[1], ",")), regexp.MustCompile("^(" + m[2] + ")$")})
	}
	if len(runs) < 2 {
		t.Fatalf("test-kernels in the Makefile has %d runs of guests", len(runs))
	}
	return runs
}

// targets returns the targets that run the scenario on a kernel: guest is test-guest, kernels is test-kernels.
func (p placed) targets(t *testing.T, kernel string, runs []wholeRun) (targets []string) {
	t.Helper()
	t.Setenv(nodesVar, "")
	s := scenario[node]{nodes: p.nodes, can: p.can}
	if slices.ContainsFunc(nodes([]scenario[node]{s}), func(n node) bool { return n.kernel == kernel }) {
		targets = append(targets, "guest")
	}
	t.Setenv(nodesVar, kernel)
	for _, r := range runs {
		if r.run.MatchString(p.test) && slices.ContainsFunc(r.nodes, func(n node) bool { return n.kernel == kernel && s.on(n) }) {
			return append(targets, "kernels")
		}
	}
	return targets
}

// cell says which targets show the feature on a kernel: guest if it shows all of it that a target shows; scenarios that
// only test-kernels runs are named.
func (f feature) cell(t *testing.T, kernel string, runs []wholeRun) string {
	t.Helper()
	var all, late []string
	for _, p := range placements() {
		if !slices.Contains(f.scenarios, p.name) {
			continue
		}
		targets := p.targets(t, kernel, runs)
		if len(targets) > 0 {
			all = append(all, p.name)
		}
		if slices.Equal(targets, []string{"kernels"}) {
			late = append(late, p.name)
		}
	}
	switch {
	case len(all) == 0:
		return f.notes[kernel]
	case len(late) == 0:
		return "guest"
	case len(late) == len(all):
		return "kernels"
	}
	return "guest; kernels: " + strings.Join(late, ", ")
}

// TestMatrix: the table of docs/support-matrix.md names the target of each cell, and has each scenario in one row.
func TestMatrix(t *testing.T) {
	rows := map[string]int{}
	for _, f := range features {
		for _, s := range f.scenarios {
			rows[s]++
		}
	}
	for _, p := range placements() {
		if rows[p.name] != 1 {
			t.Errorf("scenario %q is in %d rows of the table", p.name, rows[p.name])
		}
		delete(rows, p.name)
	}
	for name := range rows {
		t.Errorf("the table has an unknown scenario: %q", name)
	}
	runs := wholeRuns(t)
	var table strings.Builder
	table.WriteString("| feature | 5.10 | 6.1 | 6.12 | 7 |\n|---|---|---|---|---|\n")
	for _, f := range features {
		fmt.Fprintf(&table, "| %s |", f.name)
		for _, kernel := range []string{"5.10", "6.1", "6.12", "7"} {
			fmt.Fprint(&table, " "+strings.TrimLeft(f.cell(t, kernel, runs)+" |", " "))
		}
		table.WriteString("\n")
	}
	text, err := os.ReadFile(matrixPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- scenarios -->\n", "<!-- end -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", matrixPage)
	}
	want := before + begin + "\n" + table.String() + "\n" + end + after
	if *update {
		if err := os.WriteFile(matrixPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Errorf("go test -tags vm ./tests/suites/e2e -run TestMatrix -update:\n%s", d)
	}
}

// TestParts: each scenario is in one of the parts.
func TestParts(t *testing.T) {
	const parts = 8
	for i := range 60 {
		in := 0
		for k := range parts {
			t.Setenv(partVar, fmt.Sprintf("%d/%d", k, parts))
			if inPart(i) {
				in++
			}
		}
		if in != 1 {
			t.Errorf("scenario %d is in %d parts", i, in)
		}
	}
	t.Setenv(partVar, "")
	if !inPart(1) {
		t.Error("without parts a scenario is left out")
	}
}
