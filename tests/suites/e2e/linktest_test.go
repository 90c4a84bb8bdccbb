// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// linktestVar names the kernel module of tests/machines/vm/driver/linktest.c.
const linktestVar = "ACCELSCOPE_LINKTEST"

// links reports whether the harness builds the kernel module linktest: in make test for 6.1, which builds modules
// anyway.
func (n node) links() bool { return n.stub() }

// linktest is a port of the kernel module linktest, whose values a test sets.
type linktest struct {
	t    *testing.T
	name string
}

// loadLinktest loads the module with two ports that are up, and returns the first. Nothing else has loaded it.
func loadLinktest(t *testing.T, parameters ...string) linktest {
	t.Helper()
	module := os.Getenv(linktestVar)
	if module == "" {
		t.Fatalf("%s names no kernel module", linktestVar)
	}
	sh(t, "insmod", append([]string{module}, parameters...)...)
	t.Cleanup(func() {
		if out, err := child.Command(context.Background(), "rmmod", "linktest").CombinedOutput(); err != nil {
			t.Errorf("rmmod: %v: %s", err, out)
		}
	})
	for _, name := range []string{"linktest0", "linktest1"} {
		sh(t, "ip", "link", "set", name, "up")
	}
	return linktest{t, "linktest0"}
}

func (l linktest) path(file string) string {
	return filepath.Join("/sys/kernel/debug/linktest", l.name, file)
}

func (l linktest) set(file string, value any) {
	l.t.Helper()
	if err := os.WriteFile(l.path(file), fmt.Append(nil, value), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l linktest) get(file string) uint64 {
	l.t.Helper()
	return number(l.t, l.path(file))
}

func number(t *testing.T, path string) uint64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// shows fails the test unless the output of a command matches all patterns, in their order.
func (l linktest) shows(command []string, patterns ...string) {
	l.t.Helper()
	out := sh(l.t, command[0], command[1:]...)
	if !regexp.MustCompile(`(?s)` + strings.Join(patterns, ".*")).MatchString(out) {
		l.t.Errorf("%s prints:\n%s\nwant %q", strings.Join(command, " "), out, patterns)
	}
}

// linkValues sets values of the port and compares them with the output of ethtool and dcb: the module is a ground truth
// for the sensor.
func (n node) linkValues(t *testing.T) {
	l := loadLinktest(t)
	l.set("pause/rx_frames", 1001)
	l.set("pause/tx_frames", 1002)
	l.set("pause/tx", 0)
	l.shows([]string{"ethtool", "--include-statistics", "-a", l.name}, `RX:\s+on\nTX:\s+off`, `tx_pause_frames: 1002`, `rx_pause_frames: 1001`)

	l.set("fec/corrected_blocks/total", 2001)
	for i := range 4 {
		l.set(fmt.Sprintf("fec/uncorrectable_blocks/lane%d", i), 100+i)
	}
	l.shows([]string{"ethtool", "-I", "--show-fec", l.name},
		`Active FEC encoding: RS`, `corrected_blocks: 2001`, `uncorrectable_blocks: 406`, `Lane 3: 103\n`)
	if out := sh(t, "ethtool", "-I", "--show-fec", l.name); strings.Contains(out, "corrected_bits") {
		t.Errorf("a statistic that is not set is shown: %s", out)
	}

	l.set("statistics", "rx_prio3_pause 11\nrx_prio3_pause_duration 12\ntx_pause_storm_warning_events 13\n")
	l.shows([]string{"ethtool", "-S", l.name}, `rx_prio3_pause: 11\n`, `rx_prio3_pause_duration: 12\n`, `tx_pause_storm_warning_events: 13\n`)

	l.set("dcb/pfc_enabled", 1<<3|1<<5)
	l.set("dcb/requests/3", 31)
	l.set("dcb/indications/5", 52)
	l.set("dcb/tc/3", 2)
	l.set("dcb/bandwidth/2", 70)
	l.set("dcb/algorithm/2", 2)
	l.shows([]string{"dcb", "-s", "pfc", "show", "dev", l.name},
		`2:off 3:on 4:off 5:on 6:off`, `requests .*3:31 4:0`, `indications .*5:52 6:0`)
	l.shows([]string{"dcb", "ets", "show", "dev", l.name}, `tc-bw .*2:70 3:0`, `tc-tsa .*1:strict 2:ets 3:strict`, `prio-tc .*3:2 4:0`)
	sh(t, "dcb", "app", "add", "dev", l.name, "dscp-prio", "26:3")
	l.shows([]string{"dcb", "-N", "app", "show", "dev", l.name}, `dscp-prio 26:3`)

	l.shows([]string{"ethtool", l.name}, `Speed: 100000Mb/s`, `Link detected: yes`)
	down := func() uint64 { return number(t, "/sys/class/net/"+l.name+"/carrier_down_count") }
	before := down()
	l.set("link/ext_state", 1)
	l.set("link/ext_substate", 4)
	l.set("carrier", 0)
	eventually(t, 10*time.Second, func() error {
		if got := down(); got != before+1 {
			return fmt.Errorf("carrier_down_count %d after %d", got, before)
		}
		return nil
	})
	l.shows([]string{"ethtool", l.name}, `Link detected: no \(Link training failure, Remote side is not ready yet\)`)
	l.set("link/ext_state", 4)
	l.set("link/ext_substate", 0)
	l.shows([]string{"ethtool", l.name}, `Link detected: no \(No cable\)`)
	l.set("carrier", 1)
	l.shows([]string{"ethtool", l.name}, `Link detected: yes`)
	n.laterLinkValues(l)
}

// laterLinkValues reads values of kernels after 6.1 that Debian 12's ethtool does not print.
func (n node) laterLinkValues(l linktest) {
	l.t.Helper()
	if n.kernel == "6.1" {
		return
	}
	l.set("link/down_events", 77)
	state, err := askEthtool(l.t, l.name, linkStateGet, flagStatistics)
	if err != nil {
		l.t.Fatal(err)
	}
	if got := state[attrLinkDownCount]; len(got) != 4 || binary.NativeEndian.Uint32(got) != 77 {
		l.t.Errorf("down count %v, want 77", got)
	}
	l.set("pause/storm_events", 88)
	pause, err := askEthtool(l.t, l.name, pauseGet, flagStatistics)
	if err != nil {
		l.t.Fatal(err)
	}
	stats, err := linkAttributes(pause[attrPauseStats])
	if err != nil {
		l.t.Fatal(err)
	}
	if got := stats[4]; n.kernel == "7" && (len(got) != 8 || binary.NativeEndian.Uint64(got) != 88) {
		l.t.Errorf("storm events %v, want 88", got)
	}
}

// linkDevice adds a Soft-RoCE device to the port, sends frames to its peer, and freezes the driver.
func (n node) linkDevice(t *testing.T) {
	l := loadLinktest(t)
	sh(t, "ip", "address", "add", "10.72.0.1/24", "dev", l.name)
	sh(t, "rdma", "link", "add", "rxe8", "type", "rxe", "netdev", l.name)
	l.shows([]string{"rdma", "link", "show", "rxe8/1"}, `state ACTIVE .*netdev linktest0`)

	sh(t, "ip", "netns", "add", "peer")
	t.Cleanup(func() { _ = child.Command(context.Background(), "ip", "netns", "del", "peer").Run() })
	sh(t, "ip", "link", "set", "linktest1", "netns", "peer")
	sh(t, "ip", "-n", "peer", "address", "add", "10.72.0.2/24", "dev", "linktest1")
	sh(t, "ip", "-n", "peer", "link", "set", "linktest1", "up")
	sh(t, "busybox", "ping", "-c", "3", "-w", "60", "10.72.0.2")

	const long = 3600_000 // ms
	l.set("delay_ms/pause", long)
	l.set("error/module", 5)
	answered, calls := make(chan error, 2), l.get("calls/pause")
	// The second command needs RTNL, too.
	for _, command := range [][]string{{"ethtool", "-a", l.name}, {"ip", "link", "set", "v0", "alias", "frozen"}} {
		go func() { answered <- child.Command(t.Context(), command[0], command[1:]...).Run() }()
		eventually(t, time.Minute, func() error {
			if l.get("calls/pause") == calls {
				return fmt.Errorf("the operation was not called")
			}
			return nil
		})
	}
	select {
	case err := <-answered:
		t.Errorf("a command ended while the driver was frozen: %v", err)
	case <-time.After(2 * time.Second):
	}
	l.set("delay_ms/pause", 0)
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	out, err := child.Command(t.Context(), "ethtool", "-m", l.name).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Input/output error") {
		t.Errorf("ethtool -m: %v: %s", err, out)
	}
}
