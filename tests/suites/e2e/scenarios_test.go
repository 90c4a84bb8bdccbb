// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// node is one guest to test in.
type node struct {
	kernel, tier, cgroup string
	padded               string // out-of-tree RDMA modules: "plain" or "typed" (vm.PaddedModules); empty: the kernel's
	types                string // --probe.btf-dir
	preempt              bool   // the kernel preempts itself anywhere (preempt=full), as real-time kernels do
	debug                bool   // the kernel checks its locks and memory (vm.DebugKernel)
}

// String returns the name that nodesVar uses, as one level of a test's name.
func (n node) String() string {
	if n.preempt {
		return n.kernel + "_" + preempt
	}
	if n.debug {
		return n.kernel + "_" + debug
	}
	return strings.TrimRight(strings.Join([]string{n.kernel, n.tier, n.cgroup}, "_"), "_")
}

// preempts reports whether the kernel may preempt itself in system calls: Debian's 7 does, lazily.
func (n node) preempts() bool { return n.preempt || n.kernel == "7" }

// preempt and debug replace the tier in nodesVar and stand for a node's preempt and debug.
const (
	preempt = "preempt"
	debug   = "debug"
)

// A scenario is a part of a test in a guest. `make test` spreads them over the kernels, so that each runs once or
// twice; `make test-kernels` runs all of them, at full length, on each node. Only it has a node with preempt=full, and
// only `make test-debug` has the node 6.1/debug.
type scenario[T any] struct {
	name  string
	run   func(T, *testing.T)
	nodes string // nodes of `make test`: kernel[/tier[/cgroup layout]]; empty: only in `make test-kernels`
	can   func(node) bool
}

func (s scenario[T]) on(n node) bool {
	if s.can != nil && !s.can(n) {
		return false
	}
	// With preempt=full and with checks of the kernel only scenarios that these can affect.
	return whole() && !n.preempt && !n.debug || slices.Contains(parse(strings.Fields(s.nodes)), n)
}

// whole reports whether the nodes were set explicitly, as make test-kernels does: then everything runs at full length.
func whole() bool { return os.Getenv(nodesVar) != "" }

// size returns the number of repetitions of a scenario: all, or few in make test, and on a kernel that checks itself, which is several
// times slower.
func size(all, few int) int {
	if whole() && !strings.HasSuffix(os.Getenv(nodesVar), "/"+debug) {
		return all
	}
	return few
}

func parse(names []string) (nodes []node) {
	for _, name := range names {
		parts := append(strings.Split(name, "/"), "", "")
		n := node{kernel: parts[0], tier: parts[1], cgroup: parts[2]}
		switch n.tier {
		case preempt:
			n.tier, n.preempt = "", true
		case debug:
			n.tier, n.debug = "", true
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// nodes returns the nodes that were set, or the scenarios' nodes, nodes with most scenarios first.
func nodes[T any](scenarios []scenario[T]) []node {
	if whole() {
		return parse(strings.Split(os.Getenv(nodesVar), ","))
	}
	var all []node
	count := map[node]int{}
	for _, s := range scenarios {
		for _, n := range parse(strings.Fields(s.nodes)) {
			if !s.on(n) || n.preempt || n.debug {
				continue
			}
			if count[n]++; count[n] == 1 {
				all = append(all, n)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b node) int { return count[b] - count[a] })
	return all
}

// boots groups nodes that differ only by the forced tier: in make test they share a guest.
func boots(all []node) (groups [][]node) {
	at := map[node]int{}
	for _, n := range all {
		boot := n
		if !whole() {
			boot.tier = ""
		}
		i, ok := at[boot]
		if !ok {
			i, groups = len(groups), append(groups, nil)
			at[boot] = i
		}
		groups[i] = append(groups[i], n)
	}
	return groups
}

// inPart reports whether scenario i is in the part that partVar chooses: k/n is every nth scenario, from k on.
func inPart(i int) bool {
	var k, n int
	_, err := fmt.Sscanf(os.Getenv(partVar), "%d/%d", &k, &n)
	return err != nil || n < 1 || i%n == k
}

// play runs the scenarios of a node in the guest, and prints their names for the summary of the stage.
func play[T any](t *testing.T, n node, scenarios []scenario[T], where T) {
	var ran []string
	on := slices.DeleteFunc(slices.Clone(scenarios), func(s scenario[T]) bool { return !s.on(n) })
	if len(on) == 0 {
		t.Fatalf("no scenario runs on %s", n)
	}
	for i, s := range on {
		if !inPart(i) {
			continue
		}
		begin, chosen := time.Now(), false // chosen: selected by -run; scenarios that -run excludes pass, too
		if t.Run(strings.ReplaceAll(s.name, " ", "_"), func(t *testing.T) { chosen = true; s.run(where, t) }) && chosen {
			ran = append(ran, fmt.Sprintf("%s %.0f s", s.name, time.Since(begin).Seconds()))
		}
	}
	touched(t, n, ran...)
}

// touched prints the kernel, cgroup layout and tier of a test, and the parts that ran.
func touched(t *testing.T, n node, what ...string) {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	kernel := strings.TrimSpace(string(release))
	if n.preempt {
		kernel += " preempt=full"
	}
	if n.debug {
		kernel += " debug"
	}
	fmt.Printf("stage: %s, cgroup %s, probes %s: %s\n", kernel, cmp.Or(n.cgroup, "v2"),
		cmp.Or(n.tier, "by the kernel"), strings.Join(what, ", "))
}
