// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// The tests of this file use the kernel of this machine, with a pair of veth in a network namespace. veth has
// statistics and a carrier, but no pause, FEC or DCB.

// inNetwork runs the current test in its own network namespace, with the interfaces v0 and v1 and their sysfs. It
// returns true there.
func inNetwork(t *testing.T) bool {
	t.Helper()
	const inside = "ACCELSCOPE_LINK_NETWORK"
	if os.Getenv(inside) == t.Name() {
		sh(t, "mount", "-t", "sysfs", "sysfs", "/sys")
		sh(t, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
		sh(t, "ip", "link", "set", "v0", "up")
		sh(t, "ip", "link", "set", "v1", "up")
		return true
	}
	cmd := child.Command(t.Context(), "unshare", "--net", "--mount", "--fork", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in another network namespace: %v\n%s", err, out)
	}
	return false
}

func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := child.Command(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func statisticsOf(t *testing.T, name string) map[string]uint64 {
	t.Helper()
	values := map[string]uint64{}
	for line := range strings.Lines(sh(t, "ethtool", "-S", name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			values[key] = n
		}
	}
	return values
}

// TestKernelRequests compares each request with ip and ethtool.
func TestKernelRequests(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	k := &hostKernel{}
	defer k.close()
	var links []struct {
		Ifindex int
		Address string
	}
	if err := json.Unmarshal([]byte(sh(t, "ip", "-json", "link", "show", "v0")), &links); err != nil {
		t.Fatal(err)
	}
	index, address, err := k.identify("v0")
	if err != nil || index != links[0].Ifindex || net.HardwareAddr(address[:6]).String() != links[0].Address {
		t.Errorf("identify: %d %x %v, want %+v", index, address, err, links[0])
	}
	for _, name := range []string{"none", "a-name-that-is-longer"} {
		if _, _, err := k.identify(name); !errors.Is(err, unix.ENODEV) {
			t.Errorf("identify %s: %v", name, err)
		}
	}
	state, err := k.ethtool(cmdLinkState, index, true)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := parseLinkState(state); err != nil || *p != (model.Phy{}) {
		t.Errorf("link state: %+v, %v", p, err)
	}
	up := false
	if err := walk(state, func(a *netlink.Attrs) { up = up || a.Type == 2 && a.U8() == 1 }); err != nil || !up {
		t.Errorf("ETHTOOL_A_LINKSTATE_LINK: %v, %v", up, err)
	}
	for what, err := range map[string]error{
		"pause": second(k.ethtool(cmdPause, index, true)), "FEC": second(k.ethtool(cmdFEC, index, true)), "DCB": second(k.dcb("v0")),
	} {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"link state": second(k.ethtool(cmdLinkState, 4711, false)), "DCB": second(k.dcb("none")), "statistics": second(k.statistics("none")),
	} {
		if !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s without an interface: %v", what, err)
		}
	}

	// A flag that the kernel does not know, like the flag of statistics in older kernels.
	unknown := netlink.AppendU32(netlink.AppendU32(nil, headerIndex, uint32(index)), headerFlags, 1<<20)
	_, err = ask(k.generic, k.family, genericRequest(cmdLinkState, netlink.Append(nil, attrHeader|unix.NLA_F_NESTED, unknown...)))
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("an unknown flag: %v", err)
	}
	if _, err := ask(k.generic, k.family, genericRequest(200, nil)); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("an unknown request: %v", err)
	}

	names, err := k.statisticNames("v0")
	if err != nil {
		t.Fatal(err)
	}
	names = append([]byte(nil), names...) // valid until the next request
	values, err := k.statistics("v0")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for i := range len(values) / 8 {
		got[string(text(names[32*i:32*i+32]))] = native.Uint64(values[8*i:])
	}
	if diff := cmp.Diff(statisticsOf(t, "v0"), got); diff != "" || len(got) < 2 {
		t.Errorf("statistics (-ethtool +got):\n%s", diff)
	}
	if _, err := k.statistics("lo"); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("statistics of lo: %v", err)
	}
}

func second(_ []byte, err error) error { return err }

// TestStatisticsBuffer: the kernel cannot write behind the buffer.
func TestStatisticsBuffer(t *testing.T) {
	s, err := openIoctl()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	page := unix.Getpagesize()
	if len(s.mapped) != len(s.buf)+page || len(s.buf) < namesAt+maxStatistics*sizeName {
		t.Fatalf("%d bytes, %d mapped", len(s.buf), len(s.mapped))
	}
	pipe := make([]int, 2)
	if err := unix.Pipe(pipe); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0]) //nolint:errcheck // a test
	defer unix.Close(pipe[1]) //nolint:errcheck // a test
	if _, err := unix.Write(pipe[1], make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Read(pipe[0], s.mapped[len(s.buf):len(s.buf)+16]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("a read to the page behind the buffer: %v, want EFAULT", err)
	}
}

// TestAnnouncements: the source knows a flap and a new interface soon after the kernel announces them, long before it would
// read files without an announcement.
func TestAnnouncements(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	f := newTree(t)
	f.hca("mlx5_0", "v0")
	f.link("class/net", "/sys/class/net")
	f.link("proc/1/ns/net", "/proc/self/ns/net")
	watcher, err := hotplug.Open("/sys", f.root+"/proc", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	s, err := New(Options{Sysfs: f.root, Hotplug: watcher, isSysfs: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	link := func() model.Link {
		got, err := s.Read(t.Context())
		if err != nil || len(got.Links) != 1 {
			t.Fatalf("%+v, %v", got.Links, err)
		}
		return got.Links[0]
	}
	waitFor := func(what string, done func(model.Link) bool) model.Link {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if l := link(); done(l) {
				t.Logf("%s after %v", what, time.Since(begin))
				return l
			} else if time.Since(begin) > interval-poll {
				t.Fatalf("%s: %+v, carrier %+v", what, l, l.Carrier)
			}
		}
	}
	before := waitFor("up", func(l model.Link) bool { return l.Carrier.Up }).Carrier
	sh(t, "ip", "link", "set", "v1", "down")
	waitFor("down", func(l model.Link) bool { return !l.Carrier.Up })
	sh(t, "ip", "link", "set", "v1", "up")
	after := waitFor("up again", func(l model.Link) bool { return l.Carrier.Up }).Carrier
	if after.Downs != before.Downs+1 || after.Changes != before.Changes+2 || after.Flaps != 1 {
		t.Errorf("%+v, before %+v", after, before)
	}
	sh(t, "ip", "link", "set", "v0", "down")
	waitFor("set down", func(l model.Link) bool { return !l.Carrier.Admin })
	sh(t, "ip", "link", "set", "v0", "up")
	waitFor("set up", func(l model.Link) bool { return l.Carrier.Admin && l.Carrier.Up })
	if got := link().Carrier; got.Flaps != 1 {
		t.Errorf("setting the interface down is a flap: %+v", got)
	}
	for range 3 { // within the interval of announcements
		sh(t, "ip", "link", "set", "v1", "down")
		sh(t, "ip", "link", "set", "v1", "up")
	}
	waitFor("all flaps", func(l model.Link) bool {
		return l.Carrier.Up && l.Carrier.Downs == after.Downs+4 && l.Carrier.Flaps == 4
	})
	if n := watcher.Lost(); n != 0 {
		t.Errorf("%d losses", n)
	}
}

// TestKernelSource runs the source on the kernel: a port of a fake HCA has the interface v0. v1 goes down and up, queues are added, and v0
// is replaced.
func TestKernelSource(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	// The table lacks veth. peer_ifindex stands in for a counter.
	privateNames["veth-test"] = []privateName{{"peer_ifindex", physicalDowns, ""}}
	f := newTree(t)
	f.hca("mlx5_0", "v0")
	f.link("class/net", "/sys/class/net")
	s := newSource(Options{Sysfs: f.root, isSysfs: func(string) bool { return true }})
	defer s.Close() //nolint:errcheck // nothing to lose
	round := func() model.Link {
		t.Helper()
		for s.step() {
		}
		s.watchCarriers(time.Now())
		s.publish(time.Now())
		if s.err != nil || len(s.facts.Links) != 1 || len(s.facts.DeviceStates) > 0 {
			t.Fatalf("%+v, %v", s.facts, s.err)
		}
		return s.facts.Links[0]
	}
	again := func() {
		for _, n := range s.netdevs {
			n.driver = "veth-test"
			n.absent, n.next, n.due = [stepCount]bool{}, [stepCount]time.Time{}, time.Now()
		}
	}
	first := round()
	if first.Device != "mlx5_0" || first.Port != 1 || first.Netdev != "v0" || first.Read.IsZero() {
		t.Errorf("%+v", first)
	}
	if n := s.netdevs["v0"]; n.absent != [stepCount]bool{true, true, true, true, false, true} {
		t.Errorf("what veth lacks: %v", n.absent)
	}
	again()
	peer, err := net.InterfaceByName("v1")
	if err != nil {
		t.Fatal(err)
	}
	if l := round(); l.Phy == nil || *l.Phy.Downs != uint64(peer.Index) {
		t.Errorf("statistics: %+v, want %d", l.Phy, peer.Index)
	}
	count := s.netdevs["v0"].names.count
	sh(t, "ethtool", "-L", "v0", "rx", "2")
	s.netdevs["v0"].due, s.netdevs["v0"].next = time.Now(), [stepCount]time.Time{}
	if l := round(); l.Phy == nil || *l.Phy.Downs != uint64(peer.Index) || s.netdevs["v0"].names.count <= count {
		t.Errorf("with another queue: %+v, %d statistics, before %d", l.Phy, s.netdevs["v0"].names.count, count)
	}

	before := *round().Carrier
	waitFor := func(what string, done func(model.Carrier) bool) model.Carrier {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			if c := *round().Carrier; done(c) {
				return c
			} else if time.Now().After(end) {
				t.Fatalf("%s: %+v", what, c)
			}
		}
	}
	if !before.Up {
		before = waitFor("up", func(c model.Carrier) bool { return c.Up })
	}
	sh(t, "ip", "link", "set", "v1", "down")
	c := waitFor("down", func(c model.Carrier) bool { return !c.Up })
	if c.Downs != before.Downs+1 || c.Changes != before.Changes+1 || c.Flaps != before.Flaps || c.Changed.IsZero() {
		t.Errorf("down: %+v, before %+v", c, before)
	}
	sh(t, "ip", "link", "set", "v1", "up")
	c = waitFor("up", func(c model.Carrier) bool { return c.Up })
	if c.Downs != before.Downs+1 || c.Changes != before.Changes+2 || c.Flaps != before.Flaps+1 {
		t.Errorf("up: %+v, before %+v", c, before)
	}
	if n := len(s.facts.LinkFlaps); n == 0 || s.facts.LinkFlaps[n-1].Device != "mlx5_0" || s.facts.LinkFlaps[n-1].Losses != 1 {
		t.Errorf("%+v", s.facts.LinkFlaps)
	}
	// Set down and up by an administrator: the kernel counts this, but it is not a flap.
	sh(t, "ip", "link", "set", "v0", "down")
	waitFor("set down", func(c model.Carrier) bool { return !c.Up })
	sh(t, "ip", "link", "set", "v0", "up")
	if c = waitFor("set up", func(c model.Carrier) bool { return c.Up }); c.Flaps != before.Flaps+1 || c.Downs != before.Downs+2 {
		t.Errorf("set down and up: %+v, before %+v", c, before)
	}

	// Another interface with the name.
	sh(t, "ip", "link", "delete", "v0")
	sh(t, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	again()
	for s.step() {
	}
	s.publish(time.Now())
	if d := s.facts.DeviceStates; len(d) != 1 || d[0].State != model.StateUnsupported {
		t.Errorf("before the next search: %+v", d)
	}
	s.searched = time.Time{}
	if l := round(); l.Carrier.Flaps != 0 {
		t.Errorf("%+v", l.Carrier)
	}
}

// BenchmarkCarrier is the cost of the reads per interface every 5 s.
func BenchmarkCarrier(b *testing.B) {
	buf := make([]byte, 64)
	var last carrierReading
	for b.Loop() {
		var ok bool
		if last, ok = readCarrier("/sys/class/net/lo", buf, last); !ok {
			b.Fatal(fmt.Errorf("lo has no carrier"))
		}
	}
}
