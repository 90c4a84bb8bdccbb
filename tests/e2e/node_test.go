// SPDX-License-Identifier: Apache-2.0

//go:build vm

// Package e2e shows the main job on a live RDMA stack: a guest with Soft-RoCE, real containers and real traffic, and
// the sensor's figures against a ground truth that is obtained another way.
package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/child"
	"github.com/accelscope/accelscope/tests/vm"
	"github.com/accelscope/accelscope/tests/vm/guest"
)

// What the host tells the guest.
const (
	nodesVar     = "ACCELSCOPE_NODES"    // kernel[/tier[/cgroup layout]], separated by commas
	binaryVar    = "ACCELSCOPE_BINARY"   // the program under test
	rdmaTestVar  = "ACCELSCOPE_RDMATEST" // the tests of source/rdma
	workloadsVar = "ACCELSCOPE_WORKLOAD" // directory of the C programs
)

// node is one guest to test in.
type node struct {
	kernel, tier, cgroup string
}

func nodes() (names []string, parsed []node) {
	list := os.Getenv(nodesVar)
	if list == "" {
		list = "6.1"
	}
	for name := range strings.SplitSeq(list, ",") {
		parts := append(strings.Split(name, "/"), "", "")
		names = append(names, strings.ReplaceAll(name, "/", "_"))
		parsed = append(parsed, node{parts[0], parts[1], parts[2]})
	}
	return names, parsed
}

// wantTier is the tier that the kernel is new enough for: less is a failure.
func (n node) wantTier() string {
	switch {
	case n.tier != "":
		return n.tier
	case n.kernel == "5.10":
		return "kprobe"
	}
	return "fentry"
}

// counts tells whether the tier counts objects in the kernel.
func (n node) counts() bool { return n.wantTier() != "tracepoint" }

// patience is how long objects may take to show: at once when they are counted in the kernel, else until the next dump.
func (n node) patience() time.Duration {
	if n.counts() {
		return 10 * time.Second
	}
	return 30 * time.Second
}

func (n node) args(more ...string) []string {
	if n.tier != "" {
		more = append(more, "--probe.tier="+n.tier)
	}
	return more
}

// beside lets other guests run beside this test's, as many as -parallel says.
func beside(t *testing.T) {
	if os.Getenv(binaryVar) == "" {
		t.Parallel()
	}
}

func TestNode(t *testing.T) {
	beside(t)
	names, parsed := nodes()
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			n := parsed[i]
			if !guest.Enter(t, n.options(t)) {
				return
			}
			t.Run("doctor", n.doctor)
			t.Run("truth", n.truth)
			t.Run("verbs", n.verbs)
			t.Run("failures", n.failures)
			t.Run("threads", n.threads)
			t.Run("peers", n.peers)
			t.Run("dri", n.dri)
			t.Run("devices", n.devices)
			t.Run("restart", n.restart)
			t.Run("churn", n.churn)
			t.Run("permissions", n.permissions)
			t.Run("reload", n.reload)
			t.Run("netlink", n.netlink)
		})
	}
}

// options builds, outside the guest, what the tests need in it.
func (n node) options(t *testing.T) vm.Options {
	t.Helper()
	if beside(t); os.Getenv(binaryVar) != "" {
		return vm.Options{} // in the guest
	}
	workloads, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/accelscope/accelscope/"
	dir := t.TempDir()
	binary, rdmaTest, accessTest := filepath.Join(dir, "accelscope"), filepath.Join(dir, "rdma.test"), filepath.Join(dir, "access.test")
	for _, args := range [][]string{
		{"build", "-o", binary, module + "cmd/accelscope"},
		{"test", "-c", "-o", rdmaTest, module + "pkg/source/rdma"},
		{"test", "-c", "-o", accessTest, module + "pkg/source/access"},
	} {
		build := child.Command(t.Context(), "go", args...)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
	}
	return vm.Options{
		Kernel: n.kernel, Cgroup: n.cgroup, Devices: 2, Timeout: 30 * time.Minute, // it takes 3 to 9
		Env: []string{
			nodesVar + "=" + os.Getenv(nodesVar), binaryVar + "=" + binary, workloadsVar + "=" + workloads,
			rdmaTestVar + "=" + rdmaTest, accessTestVar + "=" + accessTest, movableVar + "=" + os.Getenv(movableVar),
			"PATH=" + workloads + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		},
	}
}
