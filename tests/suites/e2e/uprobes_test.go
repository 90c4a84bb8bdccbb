// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// uprobeTestVar names the compiled tests of hook/uprobe.
const uprobeTestVar = "ACCELSCOPE_UPROBETEST"

// gate runs the tests of the gate of uprobes on this kernel.
func (n node) gate(t *testing.T) {
	prepareHolders(t)
	names := []string{"TestLook", "TestAttach", "TestTooMany", "TestHeld", "TestForkWait", "TestBreaker", "TestFileSystem"}
	if n.kernel != "5.10" { // it cannot pin perf events
		names = append(names, "TestShutdown")
	}
	n.packageTests(t, uprobeTestVar, "../../../pkg/hook/uprobe", "^("+strings.Join(names, "|")+")$", names...)
}

// prepareHolders lets ordinary users use FUSE.
func prepareHolders(t *testing.T) {
	t.Helper()
	sh(t, "sh", "-c", "modprobe fuse; chmod 666 /dev/fuse; chmod 1777 /tmp")
}

// provider is the file of the verbs provider of Soft-RoCE.
func provider(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/usr/lib/*-linux-gnu/libibverbs/librxe-rdmav*.so")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

// asNobody is a command of an ordinary user.
func asNobody(argv ...string) []string {
	return append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, argv...)
}

// longestFork returns the longest fork of another process while f runs.
func longestFork(t *testing.T, name string, f func()) time.Duration {
	t.Helper()
	forks := enter(t, "forks "+name, "forklat", "60")
	forks.line(t, "ready")
	f()
	forks.stdin.Close()
	var n, mean, most int
	if _, err := fmt.Sscanf(forks.line(t, "forks"), "forks %d mean %d max %d", &n, &mean, &most); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	t.Logf("%s: %d forks, mean %d us, at most %d us", name, n, mean, most)
	return time.Duration(most) * time.Microsecond
}

// post starts a process that posts, and keeps its context.
func post(t *testing.T, name string) *container {
	t.Helper()
	c := enter(t, name, "posts", "-d", "rxe0", "-x", "-o", "send", "-n", "1", "-k")
	c.line(t, "done")
	return c
}

// release ends a program that waits for the end of its standard input.
func release(c *container) {
	c.stdin.Close()
	_ = c.cmd.Wait()
}

// forksIn reports longer forks than without the sensor.
func forksIn(t *testing.T, what string, took, without time.Duration) {
	t.Helper()
	if limit := max(2*without, 300*time.Millisecond); took > limit {
		t.Errorf("%s: a fork took %v, without the sensor %v", what, took, without)
	}
}

// held: a process of an ordinary user maps the provider and holds its own mmap_lock while the sensor would attach its
// probes, and while the sensor ends. Forks of other processes take no longer than without the sensor. When the lock is
// free, the provider is probed.
func (n node) held(t *testing.T) {
	prepareHolders(t)
	hold := func(name string) *container {
		c := enter(t, name, asNobody("holdmm", provider(t), "25")...)
		c.line(t, "ready")
		return c
	}
	h := hold("holder without")
	without := longestFork(t, "without the sensor", func() {
		release(post(t, "job without")) // the sensor must not find the provider before the process holds its lock
		time.Sleep(2 * time.Second)
	})
	release(h)
	s := start(t, n.args("--rdma.datapath=always")...)
	h = hold("holder at attach")
	forksIn(t, "attach", longestFork(t, "attach", func() { post(t, "job at attach"); time.Sleep(10 * time.Second) }), without)
	if probes := s.fresh().sum("accelscope_datapath_probes"); probes > 0 {
		t.Errorf("%v probes are attached: the process does not hold its lock", probes)
	}
	release(h)
	eventually(t, 90*time.Second, func() error {
		if probes := s.fresh().sum("accelscope_datapath_probes"); probes < 3 {
			return fmt.Errorf("%v probes", probes)
		}
		return nil
	})
	h = hold("holder at the end")
	forksIn(t, "end", longestFork(t, "end", func() { s.stop(); time.Sleep(3 * time.Second) }), without)
	release(h)
}

// manyMappings: two processes of an ordinary user map the provider 50,000 times each. The provider is not probed, and
// forks take no longer than without the sensor. 200 processes that map it once do not prevent a probe.
func (n node) manyMappings(t *testing.T) {
	prepareHolders(t)
	var many []*container
	for i := range 2 {
		c := enter(t, fmt.Sprint("many ", i), asNobody("manymaps", provider(t), "50000", "1")...)
		c.line(t, "ready")
		many = append(many, c)
	}
	without := longestFork(t, "without the sensor", func() {
		release(post(t, "job without")) // the sensor must not find the provider before the process holds its lock
		time.Sleep(2 * time.Second)
	})
	s := start(t, n.args("--rdma.datapath=always", fmt.Sprint("--probe.attach-limit=", longer(100*time.Millisecond)))...)
	forksIn(t, "attach", longestFork(t, "attach", func() { post(t, "job"); time.Sleep(10 * time.Second) }), without)
	if probes := s.fresh().sum("accelscope_datapath_probes"); probes > 0 {
		t.Errorf("%v probes are attached", probes)
	}
	for _, c := range many {
		release(c)
	}
	honest := enter(t, "honest", asNobody("manymaps", provider(t), "1", "200")...)
	honest.line(t, "ready")
	longestFork(t, "attach for 200 processes", func() { // what an honest node waits: logged
		eventually(t, 90*time.Second, func() error {
			if probes := s.fresh().sum("accelscope_datapath_probes"); probes < 3 {
				return fmt.Errorf("%v probes", probes)
			}
			return nil
		})
	})
}
