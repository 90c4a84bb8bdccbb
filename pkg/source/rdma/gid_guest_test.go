// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestGuestPorts compares the GIDs of live Soft-RoCE devices with the GIDs that ibv_devinfo queries through libibverbs,
// while addresses come and go, and the counters of congestion with sysfs. It runs in the guest of tests/machines/vm, like
// TestGuest.
func TestGuestPorts(t *testing.T) {
	if os.Getenv("ACCELSCOPE_GUEST") == "" {
		t.Skip("needs a live RDMA stack: runs in the guest of tests/machines/vm")
	}
	read := func() *model.HCA {
		t.Helper()
		s, err := New(Options{}) // the source's table would be minutes old
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range snap.HCAs {
			if snap.HCAs[i].Name == "rxe0" {
				return &snap.HCAs[i]
			}
		}
		t.Fatal("no rxe0")
		return nil
	}
	compare := func(state string, entries int, missing bool) {
		t.Helper()
		h := read()
		p := &h.Ports[0]
		got := []string{}
		for _, g := range p.GIDs {
			got = append(got, fmt.Sprint(g.Index, " ", g.Address, " ", g.Type))
			if g.Netdev != p.Netdev || g.Netdev == "" {
				t.Errorf("%s: GID %d is of %q, the port of %q", state, g.Index, g.Netdev, p.Netdev)
			}
		}
		if diff := cmp.Diff(devinfo(t), got); diff != "" {
			t.Errorf("%s, against ibv_devinfo:\n%s", state, diff)
		}
		if lacks, known := h.LacksRoCEv2(p); !known || lacks != missing || len(got) != entries {
			t.Errorf("%s: missing %v, known %v, want %v; %d entries, want %d: %v", state, lacks, known, missing, len(got), entries, got)
		}
	}
	netdev := read().Ports[0].Netdev
	before := len(devinfo(t))
	compare("as it is", before, false)
	ip := func(args ...string) string {
		t.Helper()
		out, err := command(t.Context(), "ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	fields := strings.Fields(ip("-oneline", "-4", "address", "show", "dev", netdev, "scope", "global")) // "2: v0 inet 10.70.0.1/24 …"
	if len(fields) < 4 {
		t.Fatalf("%s has no address", netdev)
	}
	ip("address", "add", "192.0.2.7/24", "dev", netdev)
	ip("address", "add", "2001:db8::7/64", "dev", netdev, "nodad")
	awaitGIDs(t, before+2)
	compare("with two more addresses", before+2, false)
	ip("address", "flush", "dev", netdev, "scope", "global")
	awaitGIDs(t, before-1)
	compare("without an address", before-1, true)
	ip("address", "add", fields[3], "dev", netdev) // other tests need it
	awaitGIDs(t, before)
	compare("with an address again", before, false)

	want := []model.Counter{}
	for _, c := range []struct{ counter, file string }{
		{model.OutOfSequence, "out_of_seq_request"},
		{model.Retransmitted, "completer_retry_err"},
		{model.RNR, "rcvd_rnr_err"},
		{model.OutOfBuffer, "send_rnr_err"},
	} {
		b, err := os.ReadFile(filepath.Join("/sys/class/infiniband/rxe0/ports/1/hw_counters", c.file))
		if err != nil {
			t.Fatal(err)
		}
		value, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, model.Counter{Name: c.counter, Value: value})
	}
	got, h := []model.Counter{}, read()
	for _, c := range h.PortCounters(nil, &h.Ports[0]) {
		if slices.ContainsFunc(want, func(w model.Counter) bool { return w.Name == c.Name }) {
			got = append(got, c.Counter)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("congestion:\n%s", diff)
	}
}

var devinfoGID = regexp.MustCompile(`GID\[ *(\d+)\]:\s+(\S+?)(?:, (.*))?\n`)

// devinfo returns the GIDs of rxe0 as "INDEX ADDRESS TYPE".
func devinfo(t *testing.T) []string {
	t.Helper()
	out, err := command(t.Context(), "ibv_devinfo", "-v", "-d", "rxe0").Output()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]model.GIDType{"RoCE v1": model.GIDRoCEv1, "RoCE v2": model.GIDRoCEv2}
	gids := []string{}
	for _, m := range devinfoGID.FindAllStringSubmatch(string(out), -1) {
		address, err := netip.ParseAddr(m[2])
		if err != nil {
			t.Fatalf("ibv_devinfo: %q: %v", m[0], err)
		}
		gids = append(gids, fmt.Sprint(m[1], " ", address, " ", types[m[3]]))
	}
	if len(gids) == 0 {
		t.Fatalf("ibv_devinfo lists no GID:\n%s", out)
	}
	return gids
}

// awaitGIDs waits until the kernel has this number of GIDs. The kernel follows addresses in the background.
func awaitGIDs(t *testing.T, n int) {
	t.Helper()
	for range 100 {
		if len(devinfo(t)) == n {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%v, want %d GIDs", devinfo(t), n)
}
