// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// simulate starts a fabric of at least 64 hosts in ibsim, with a real opensm, until the end of the test. The tools run
// on its host0.
func simulate(t *testing.T, net *ibsim.Net) *ibsim.Fabric {
	t.Helper()
	f, err := ibsim.Start(t.Context(), ibsim.Options{Net: net.String(), Host: net.Nodes[net.Find("host0 mlx5_0")].ID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func source(t *testing.T, o Options) *Source {
	t.Helper()
	o.Logger = zaptest.NewLogger(t)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, s *Source) *model.Fabric {
	t.Helper()
	got, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got.Fabric
}

// readBut reads until each node answers except those that cannot: on a busy machine the tools give up too early, and
// the next round repeats their requests. It returns the last result and the number of rounds.
func readBut(t *testing.T, s *Source, silent ...ibsim.Node) (got *model.Fabric, rounds uint64) {
	t.Helper()
	lost := func(n model.FabricNode) bool {
		return n.Error != "" && !slices.ContainsFunc(silent, func(m ibsim.Node) bool { return guidOf(m) == n.GUID })
	}
	for end := time.Now().Add(2 * time.Minute); ; {
		got = read(t, s)
		if rounds++; !slices.ContainsFunc(got.Nodes, lost) || time.Now().After(end) {
			return got, rounds
		}
	}
}

func console(t *testing.T, f *ibsim.Fabric, format string, args ...any) {
	t.Helper()
	if _, err := f.Console(fmt.Sprintf(format, args...)); err != nil {
		t.Fatal(err)
	}
}

func guidOf(n ibsim.Node) string { return fmt.Sprintf("0x%016x", n.GUID) }

func find(t *testing.T, f *model.Fabric, n ibsim.Node) model.FabricNode {
	t.Helper()
	i := slices.IndexFunc(f.Nodes, func(m model.FabricNode) bool { return m.GUID == guidOf(n) })
	if i < 0 {
		t.Fatalf("%s is missing", n.Name)
	}
	return f.Nodes[i]
}

func counter(p model.FabricPort, name string) (uint64, bool) {
	for _, c := range p.Counters {
		if c.Name == name {
			return c.Value, true
		}
	}
	return 0, false
}

// TestTopology compares the topology with the net file of ibsim, node by node and port by port: with names that
// resemble the tools' separators, two nodes with the same name, a link with fewer lanes and a link with less speed.
func TestTopology(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(8, 8, 4)
	net.Nodes[1].Name = `leaf' - 'x ( 'y' ) - SW 1 1 0x0 (`
	net.Nodes[2].Name = `MF0;leaf2:MQM8700/U1`
	net.Nodes[net.Find("host9 mlx5_0")].Name = net.Nodes[1].Name
	net.Nodes[net.Find("host10 mlx5_0")].Name = `  5    1[  ] ==( 4X) x (Could be 12X)`
	net.Links[3].Width, net.Links[4].Speed = 4, "EDR"
	f := simulate(t, net)
	got, _ := readBut(t, source(t, Options{Tools: f.Tools, Port: "ibsim0/1"}))

	want := map[string]map[int]model.FabricPort{}
	for _, n := range net.Nodes {
		ports := map[int]model.FabricPort{}
		for number := range n.Ports {
			ports[number+1] = model.FabricPort{Number: number + 1}
		}
		want[guidOf(n)] = ports
	}
	for i, l := range net.Links {
		narrow, slow := i == 3, i == 4
		for _, ends := range [][2]ibsim.End{{l.A, l.B}, {l.B, l.A}} {
			want[guidOf(net.Nodes[ends[0].Node])][ends[0].Port] = model.FabricPort{
				Number: ends[0].Port, Width: l.Width, Speed: l.Speed, Narrow: &narrow, Slow: &slow,
				Peer: &model.FabricPeer{GUID: guidOf(net.Nodes[ends[1].Node]), Port: ends[1].Port},
			}
		}
	}
	if len(got.Nodes) != len(net.Nodes) || len(got.Nodes) < 64 {
		t.Fatalf("%d nodes, want %d", len(got.Nodes), len(net.Nodes))
	}
	if !slices.IsSortedFunc(got.Nodes, func(a, b model.FabricNode) int { return cmp.Compare(a.GUID, b.GUID) }) {
		t.Error("nodes are not sorted")
	}
	lids := map[uint32]string{}
	show := func(p model.FabricPort) string {
		s := fmt.Sprintf("%d: %dx%s", p.Number, p.Width, p.Speed)
		if p.Peer != nil {
			s += fmt.Sprintf(" to %s:%d", p.Peer.GUID, p.Peer.Port)
		}
		if p.Narrow != nil && p.Slow != nil {
			s += fmt.Sprintf(" narrow %v slow %v", *p.Narrow, *p.Slow)
		}
		return s
	}
	for _, n := range net.Nodes {
		g := find(t, got, n)
		kind := model.FabricCA
		if n.Switch {
			kind = model.FabricSwitch
		}
		if g.Kind != kind || g.Name != strings.TrimSpace(n.Name) || g.Error != "" || g.Queried.IsZero() {
			t.Errorf("%s: %s %q, error %q, queried %v", n.Name, g.Kind, g.Name, g.Error, g.Queried)
		}
		if other := lids[g.LID]; other != "" || g.LID == 0 {
			t.Errorf("%s: LID %d belongs to %q, too", n.Name, g.LID, other)
		}
		lids[g.LID] = n.Name
		if len(g.Ports) != n.Ports {
			t.Errorf("%s: %d ports, want %d", n.Name, len(g.Ports), n.Ports)
		}
		for _, p := range g.Ports {
			if got, want := show(p), show(want[g.GUID][p.Number]); got != want {
				t.Errorf("%s: %s, want %s", n.Name, got, want)
			}
			if (p.Peer != nil) != (p.State == "Active") {
				t.Errorf("%s: port %d is %q", n.Name, p.Number, p.State)
			}
			if n.Switch && len(p.Counters) != 21 { // all except QP1Dropped, which ibsim's switches lack
				t.Errorf("%s: port %d has %d counters", n.Name, p.Number, len(p.Counters))
			}
		}
	}
	if m := got.Master; m == nil || lids[m.LID] == "" || got.MasterChanges != 0 {
		t.Errorf("master %+v, %d changes", m, got.MasterChanges)
	}
	// Compare with iblinkinfo in another format.
	out, err := child.Command(context.Background(), filepath.Join(f.Tools, iblinkinfo), "-t", "10000").Output()
	if links := strings.Count(string(out), "Active/  LinkUp"); err != nil || links != 2*len(net.Links) {
		t.Errorf("iblinkinfo shows %d ends of links, want %d: %v", links, 2*len(net.Links), err)
	}
}

// injected lists counters that need 64 bits, are full, or are small, at the switch's end of three
// links.
var injected = []struct {
	port      int
	attribute string
	name      string
	value     uint64
}{
	{1, "PortCounters", "SymbolErrorCounter", 5},
	{1, "PortCounters", "LinkDownedCounter", 255}, // 8 bits: full
	{1, "PortCounters", "LinkErrorRecoveryCounter", 3},
	{2, "PortCounters", "PortRcvErrors", 65535}, // 16 bits: full
	{2, "PortCounters", "PortRcvRemotePhysicalErrors", 6},
	{2, "PortCounters", "PortRcvSwitchRelayErrors", 7},
	{2, "PortCounters", "PortXmitDiscards", 8},
	{2, "PortCounters", "PortXmitConstraintErrors", 9},
	{2, "PortCounters", "PortRcvConstraintErrors", 10},
	{3, "PortCounters", "LocalLinkIntegrityErrors", 15}, // 4 bits: full
	{3, "PortCounters", "ExcessiveBufferOverrunErrors", 11},
	{3, "PortCounters", "VL15Dropped", 12},
	{3, "PortCounters", "PortXmitWait", 4294967295},
	// Port 20 has no link: nothing else changes its counters.
	{20, "PortCountersExtended", "PortXmitData", 18446744073709551615},
	{20, "PortCountersExtended", "PortRcvData", 1234567890123},
	{20, "PortCountersExtended", "PortXmitPkts", 9876543210},
	{20, "PortCountersExtended", "PortRcvPkts", 4294967296},
	{20, "PortCountersExtended", "PortUnicastXmitPkts", 21},
	{20, "PortCountersExtended", "PortUnicastRcvPkts", 22},
	{20, "PortCountersExtended", "PortMulticastXmitPkts", 23},
	// ibsim's answer ends before PortMulticastRcvPkts.
}

func perf(t *testing.T, f *ibsim.Fabric, lid uint32, port int) string {
	t.Helper()
	var text string
	for _, args := range [][]string{{"-x", "-t", "10000"}, {"-t", "10000"}} {
		out, err := child.Command(context.Background(), filepath.Join(f.Tools, perfquery), append(args, fmt.Sprint(lid), fmt.Sprint(port))...).Output()
		if err != nil {
			t.Fatalf("perfquery %v: %v", args, err)
		}
		text += string(out)
	}
	return text
}

// TestCounters compares the counters with the injected counters, and reads them with the tools before and after to
// check that reading changes nothing.
func TestCounters(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(8, 8, 4)
	f := simulate(t, net)
	s := source(t, Options{Tools: f.Tools})
	leaf := net.Find("leaf5")
	for _, c := range injected {
		console(t, f, "PerformanceSet %s %s.%s=%d", net.Port(ibsim.End{Node: leaf, Port: c.port}), c.attribute, c.name, c.value)
	}
	host := net.Find("host41 mlx5_0")
	console(t, f, "PerformanceSet %s PortCounters.PortRcvErrors=77", net.Port(ibsim.End{Node: host, Port: 1}))
	lid := find(t, read(t, s), net.Nodes[leaf]).LID
	var before, after []string
	for _, port := range []int{1, 2, 3, 20} {
		before = append(before, perf(t, f, lid, port))
	}
	got, _ := readBut(t, s)
	for i, port := range []int{1, 2, 3, 20} {
		after = append(after, perf(t, f, lid, port))
		was, _ := parsePerfquery([]byte(before[i]))
		is, _ := parsePerfquery([]byte(after[i]))
		if len(was[port]) < 12 {
			t.Fatalf("perfquery prints %d counters", len(was[port]))
		}
		for name, v := range was[port] {
			if is[port][name] < v {
				t.Errorf("port %d: %s was %d before and is %d after Read: reset", port, name, v, is[port][name])
			}
		}
	}
	if before[3] != after[3] {
		t.Errorf("a port without a link was\n%s\nand is\n%s", before[3], after[3])
	}
	node := find(t, got, net.Nodes[leaf])
	for _, c := range injected {
		if v, ok := counter(node.Ports[c.port-1], c.name); !ok || v != c.value {
			t.Errorf("port %d: %s is %d (%v), want %d", c.port, c.name, v, ok, c.value)
		}
	}
	if v, ok := counter(find(t, got, net.Nodes[host]).Ports[0], "PortRcvErrors"); !ok || v != 77 {
		t.Errorf("at the host's end: %d (%v), want 77", v, ok)
	}
	other := find(t, got, net.Nodes[net.Find("host40 mlx5_0")]).Ports[0].Counters
	if other == nil || len(other) > 0 {
		t.Errorf("a host without errors has %v, want an empty list", other)
	}
}

// TestFaults cuts links and injects errors between and within rounds: counters never fall, and the round after them
// returns the true state.
func TestFaults(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(8, 8, 4)
	f := simulate(t, net)
	s := source(t, Options{Tools: f.Tools, Parallel: 3})
	first := read(t, s)
	cut := []int{7, 13, 50} // indexes of Links: two spines' and a host's
	last := map[string]uint64{}
	for i, link := range cut {
		done := make(chan *model.Fabric, 1)
		go func() {
			got, err := s.Read(t.Context())
			if err != nil {
				t.Error(err)
			}
			done <- got.Fabric
		}()
		time.Sleep(time.Duration(i) * 50 * time.Millisecond) // within the sweep, and after it
		console(t, f, "Unlink %s", net.Port(net.Links[link].A))
		console(t, f, "PerformanceSet %s PortCounters.LinkDownedCounter=%d", net.Port(net.Links[link].A), i+1)
		got := <-done
		for _, n := range got.Nodes {
			for _, p := range n.Ports {
				for _, c := range p.Counters {
					key := fmt.Sprint(n.GUID, p.Number, c.Name)
					if c.Value < last[key] {
						t.Errorf("round %d: %s port %d: %s was %d and is %d", i, n.Name, p.Number, c.Name, last[key], c.Value)
					}
					last[key] = c.Value
				}
			}
		}
	}
	// The path to a switch may have been cut: the subnet manager finds another.
	got, _ := readBut(t, s)
	if i := slices.IndexFunc(got.Nodes, func(n model.FabricNode) bool { return n.Error != "" }); i >= 0 {
		t.Fatalf("%s: %s", got.Nodes[i].Name, got.Nodes[i].Error)
	}
	if links := len(got.Links()); len(first.Links()) != len(net.Links) || links != len(net.Links)-len(cut) {
		t.Errorf("%d links, then %d; want %d and %d", len(first.Links()), links, len(net.Links), len(net.Links)-len(cut))
	}
	for i, link := range cut {
		l := net.Links[link]
		p := find(t, got, net.Nodes[l.A.Node]).Ports[l.A.Port-1]
		if p.Peer != nil || p.Width != 0 || p.Speed != "" || p.Narrow != nil {
			t.Errorf("%s has a link: %+v", net.Port(l.A), p)
		}
		if v, _ := counter(p, "LinkDownedCounter"); v != uint64(i+1) {
			t.Errorf("%s: LinkDownedCounter %d, want %d", net.Port(l.A), v, i+1)
		}
		if !net.Nodes[l.B.Node].Switch && slices.ContainsFunc(got.Nodes, func(n model.FabricNode) bool {
			return n.GUID == guidOf(net.Nodes[l.B.Node])
		}) {
			t.Errorf("%s is still listed", net.Nodes[l.B.Node].Name)
		}
	}
}

// TestSwitchStopsAnswering stops the performance manager of a switch: the switch keeps its counters, the others are
// read, and it recovers. Then the switch is removed with its hosts, and at last the link of the reading port.
func TestSwitchStopsAnswering(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(8, 8, 4)
	f := simulate(t, net)
	s := source(t, Options{Tools: f.Tools})
	silent, other := net.Nodes[net.Find("leaf2")], net.Nodes[net.Find("leaf3")]
	well, _ := readBut(t, s)
	was := find(t, well, silent)
	set := func(n ibsim.Node, value int) {
		console(t, f, "PerformanceSet %q[30] PortCounters.SymbolErrorCounter=%d", n.ID(), value)
	}
	symbols := func(n model.FabricNode) uint64 {
		v, ok := counter(n.Ports[29], "SymbolErrorCounter")
		if !ok {
			t.Errorf("%s has no counters: %s", n.Name, n.Error)
		}
		return v
	}
	const classPortInfo = 1 // attribute of perfquery's first request
	console(t, f, "Error %q[0] 100 %d", silent.ID(), classPortInfo)
	set(silent, 5)
	set(other, 6)
	got, _ := readBut(t, s, silent)
	is := find(t, got, silent)
	if symbols(is) != 0 || !is.Queried.Equal(was.Queried) || !strings.Contains(is.Error, perfquery) {
		t.Errorf("%d symbol errors of %v: error %q", symbols(is), is.Queried, is.Error)
	}
	if is.Ports[0].Peer == nil {
		t.Error("its links are gone")
	}
	if n := find(t, got, other); symbols(n) != 6 || n.Error != "" {
		t.Errorf("%s: %d symbol errors: %s", n.Name, symbols(n), n.Error)
	}
	console(t, f, "Error %q[0] 0", silent.ID())
	well, _ = readBut(t, s)
	is = find(t, well, silent)
	if symbols(is) != 5 || !is.Queried.After(was.Queried) || is.Error != "" {
		t.Errorf("%d symbol errors of %v: %q", symbols(is), is.Queried, is.Error)
	}
	console(t, f, "Unlink %q", silent.ID())
	if got, want := len(read(t, s).Nodes), len(net.Nodes)-1-8; got != want {
		t.Errorf("%d nodes without a leaf, want %d", got, want)
	}
	if got, want := len(s.known), len(net.Nodes)-1-8; got != want {
		t.Errorf("%d nodes are kept, want %d", got, want)
	}
	// The known state stays, with the reason.
	console(t, f, "Unlink %s", net.Port(ibsim.End{Node: net.Find("host0 mlx5_0"), Port: 1}))
	alone, err := s.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), "has no link") || len(alone.Fabric.Nodes) != len(net.Nodes)-1-8 {
		t.Errorf("without a link of its own: %d nodes, %v", len(alone.Fabric.Nodes), err)
	}
	if n := find(t, alone.Fabric, other); symbols(n) != 6 || n.Error == "" {
		t.Errorf("%s: %d symbol errors, error %q", n.Name, symbols(n), n.Error)
	}
}

// TestHang has the request to a switch hang, which ibsim cannot do: a script stands for perfquery at that LID, and
// starts another program. The other switches are complete, Read returns in time, and no process is left.
func TestHang(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(8, 8, 4)
	f := simulate(t, net)
	sweep, err := child.Command(context.Background(), filepath.Join(f.Tools, ibnetdiscover), "-t", "10000", "-p").Output()
	if err != nil {
		t.Fatal(err)
	}
	lid := parseTopology(sweep, nil, nil).nodes[guidOf(net.Nodes[0])].lid
	tools, pids := t.TempDir(), filepath.Join(t.TempDir(), "pids")
	for tool := range options {
		script := "#!/bin/sh\n"
		if tool == perfquery {
			script += fmt.Sprintf("for a; do if [ \"$a\" = %d ]; then sleep 1000 & echo $$ $! >> %s; wait; fi; done\n", lid, pids)
		}
		script += "exec " + filepath.Join(f.Tools, tool) + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(tools, tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := source(t, Options{Tools: tools, Parallel: 1}) // the hanging switch precedes all others
	got, rounds := readBut(t, s, net.Nodes[0])         // without its deadline, the others would not be read
	for _, n := range net.Nodes {
		g := find(t, got, n)
		hangs := n.Name == "leaf0"
		if (g.Error != "") != hangs || g.Queried.IsZero() != hangs {
			t.Errorf("%s: %q, queried %v", n.Name, g.Error, g.Queried)
		}
	}
	if !slices.Contains(got.Queries, model.FabricQueries{Tool: perfquery, Result: "timeout", Count: rounds}) {
		t.Errorf("queries: %v", got.Queries)
	}
	// A round that ends before the switch's turn does not read it, and returns.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s.deadline = time.Minute
	if _, err := s.Read(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("a round of 20 seconds: %v, %v", err, ctx.Err())
	}
	text, err := os.ReadFile(pids)
	if err != nil || len(strings.Fields(string(text))) < 2 {
		t.Fatalf("it hung %q: %v", text, err)
	}
	for pid := range strings.FieldsSeq(string(text)) {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a killed process takes a moment to end
			state, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil || strings.Contains(string(state), ") Z ") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("process %s still runs: %s", pid, state)
			}
		}
	}
}

// TestNodeNameMap: names come from the current content of the file.
func TestNodeNameMap(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(1, 2, 1)
	f := simulate(t, net)
	file := filepath.Join(t.TempDir(), "names")
	s := Options{Tools: f.Tools, NodeNameMap: file}
	if _, err := New(s); err == nil {
		t.Error("no error for a missing file")
	}
	name := func(text string) {
		if err := os.WriteFile(file, []byte(guidOf(net.Nodes[0])+" \""+text+"\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	name("row 1 rack\xff 2")
	src := source(t, s)
	for text, want := range map[string]string{"row 1 rack\xff 2": "row 1 rack\uFFFD 2", "moved": "moved"} {
		name(text)
		got := read(t, src)
		n := find(t, got, net.Nodes[0])
		if n.Name != want || n.Ports[0].Narrow == nil {
			t.Errorf("the name is %q, want %q: %+v", n.Name, want, n.Ports[0])
		}
		if host := find(t, got, net.Nodes[net.Find("host1 mlx5_0")]); host.Name != "host1 mlx5_0" {
			t.Errorf("the name of a host is %q", host.Name)
		}
	}
}
