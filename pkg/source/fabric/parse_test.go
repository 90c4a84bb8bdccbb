// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/accelscope/accelscope/pkg/model"
)

func sample(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const (
	leafGUID  = "0xb8cef60300000010"
	node1GUID = "0xb8cef60300000100"
	node2GUID = "0xb8cef60300000200"
)

func TestParseTopology(t *testing.T) {
	top := parseTopology(sample(t, "ports-hdr.out"), sample(t, "list-hdr.out"), sample(t, "owners-hdr.out"))
	top.parseLinks(sample(t, "links-hdr.out"))
	if len(top.nodes) != 3 || top.unread != 0 {
		t.Fatalf("%d nodes, %d lines not understood", len(top.nodes), top.unread)
	}
	leaf, node2 := top.nodes[leafGUID], top.nodes[node2GUID]
	if leaf.kind != model.FabricSwitch || leaf.name != "MF0;leaf1:MQM8700/U1" || leaf.lid != 2 || len(leaf.ports) != 40 {
		t.Errorf("leaf: %+v", leaf)
	}
	if node2.kind != model.FabricCA || node2.name != "node2 mlx5_0" || node2.lid != 3 || len(node2.ports) != 1 {
		t.Errorf("node2: %+v", node2)
	}
	narrow, slow := true, false // ibsim's ports are capable of 12X
	want := &portState{
		lid: 2, width: 4, speed: "HDR", peer: &model.FabricPeer{GUID: node2GUID, Port: 1}, narrow: &narrow, slow: &slow,
		state: "Initialize", // recorded before a subnet manager ran
	}
	if got := leaf.ports[2]; !reflect.DeepEqual(got, want) {
		t.Errorf("port 2: %+v, want %+v", got, want)
	}
	if got := leaf.ports[3]; !reflect.DeepEqual(got, &portState{lid: 2}) { // printed as 4x SDR, without a link
		t.Errorf("port 3: %+v", got)
	}
	if got := node2.ports[1].peer; *got != (model.FabricPeer{GUID: leafGUID, Port: 2}) {
		t.Errorf("the peer of node2: %+v", got)
	}
}

// TestHostileNames uses names that imitate the text around them. They change no link.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"", "'", `"`, `""`, "' - '", "( 'x' - 'y' )", "- SW 9 9 0x9 ( ", `x" enhanced port 0 lid 9 lmc 0`,
		`a" (Could be 12X Could be 100.0 Gbps)`, ` 2    3[  ] ==( 4X)==>  0xb8cef60300000101      1    1[  ] "node1 mlx5_0" (Could be 12X )`,
		"\xff\xfe", "r\u00e9seau", strings.Repeat("x", 300), "tab\there", "GUID 0x1 port 1: [SymbolErrorCounter == 9]", "a\rb",
	} {
		replace := func(file string) []byte {
			text := sample(t, file)
			text = bytes.ReplaceAll(text, []byte(fmt.Sprintf("%30s", "MF0;leaf1:MQM8700/U1")),
				[]byte(strings.Repeat(" ", max(0, 30-len(name)))+name))
			return bytes.ReplaceAll(text, []byte("MF0;leaf1:MQM8700/U1"), []byte(name))
		}
		top := parseTopology(replace("ports-hdr.out"), replace("list-hdr.out"), replace("owners-hdr.out"))
		top.parseLinks(replace("links-hdr.out"))
		leaf := top.nodes[leafGUID]
		if len(top.nodes) != 3 || len(leaf.ports) != 40 || top.unread != 0 {
			t.Errorf("%q: %d nodes, %d ports, %d lines", name, len(top.nodes), len(leaf.ports), top.unread)
			continue
		}
		links := 0
		for _, n := range top.nodes {
			for number, p := range n.ports {
				if p.peer == nil {
					continue
				}
				links++
				if p.narrow == nil || !*p.narrow || *p.slow {
					t.Errorf("%q: port %d of %s: narrow %v slow %v", name, number, n.name, p.narrow, p.slow)
				}
			}
		}
		if links != 4 {
			t.Errorf("%q: %d ends of links", name, links)
		}
		if !utf8.ValidString(leaf.name) || len(leaf.name) > maxName || strings.ContainsAny(leaf.name, "\n\t\r") {
			t.Errorf("%q: the name is %q", name, leaf.name)
		}
	}
}

// TestLines parses single lines of ibnetdiscover --ports, as in its source.
func TestLines(t *testing.T) {
	peer := &model.FabricPeer{GUID: "0x0000000000000002", Port: 1}
	for _, c := range []struct {
		line string
		want *portState // nil: unparsable
	}{
		{"SW     2  1 0x0000000000000001 ?? ??? - CA     1  1 0x0000000000000002 ( 'a' - 'b' )", &portState{peer: peer}},
		{"SW     2  1 0x0000000000000001 2x XDR - CA     1  1 0x0000000000000002 ( 'a' - 'b' )", &portState{width: 2, speed: "XDR", peer: peer}},
		{"SW     2  1 0x0000000000000001 2x \x01\x02 - CA     1  1 0x0000000000000002 ( 'a' - 'b' )", &portState{width: 2, peer: peer}},
		{"SW 65535 254 0x0000000000000001 4x SDR                                    ''", nil}, // port out of range
		{"SW     2  1 0x0000000000000001 4x SDR                                    'x'", &portState{}},
		{"SW     2  1 0x0000000000000001 4x HDR - CA     1  1 0x00000000000", nil},
		{"SW     2  1 0x0000000000000001 4x HDR -", nil},
		{"SW     2  1 0x0000000000000001", nil},
		{"SW     2 999 0x0000000000000001 4x SDR 'x'", nil},
		{"SW    -2  1 0x0000000000000001 4x SDR 'x'", nil},
		{"XX     2  1 0x0000000000000001 4x SDR 'x'", nil},
		{"SW     2  1 0x00000000000000010 4x SDR 'x'", nil},
		{"ibwarn: [1] something of the library", nil},
	} {
		top := &topology{nodes: map[string]*node{}}
		top.parsePort(c.line)
		var got *portState
		if n := top.nodes["0x0000000000000001"]; n != nil && n.ports[1] != nil {
			got = n.ports[1]
			got.lid = 0
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.line, got, c.want)
		}
	}
}

// TestCutShort cuts a text at every position: the result is a part of the full text's result.
func TestCutShort(t *testing.T) {
	ports, list, owners := sample(t, "ports-hdr.out"), sample(t, "list-hdr.out"), sample(t, "owners-hdr.out")
	whole := parseTopology(ports, list, owners)
	for i := range ports {
		for guid, n := range parseTopology(ports[:i], list, owners).nodes {
			for number, p := range n.ports {
				if !reflect.DeepEqual(p, whole.nodes[guid].ports[number]) {
					t.Fatalf("after %d bytes port %d of %s is %+v", i, number, guid, p)
				}
			}
		}
	}
}

func TestParseCould(t *testing.T) {
	yes, no := true, false
	for text, want := range map[string][2]*bool{
		" )":                              {&no, &no},
		"Could be 12X )":                  {&yes, &no},
		" Could be 106.25 Gbps)":          {&no, &yes},
		"Could be 4X Could be 10.0 Gbps)": {&yes, &yes},
		" Could be FDR10)":                {&no, &yes},
		" Could be FDR10 (Found link at QDR but expected speed is FDR10))": {&no, &yes},
		" Could be undefined (32))":                                        {nil, nil},
		"Could be undefined (0) )":                                         {nil, nil},
		" Could be No Extended Speed)":                                     {nil, nil},
	} {
		narrow, slow := parseCould(text)
		if !reflect.DeepEqual([2]*bool{narrow, slow}, want) {
			t.Errorf("%q: %v %v", text, narrow, slow)
		}
	}
}

func TestParsePerfquery(t *testing.T) {
	ports, mask := parsePerfquery(sample(t, "perfquery-extended.out"))
	want := counterValues{
		"PortXmitData": 17784, "PortRcvData": 17856, "PortXmitPkts": 247, "PortRcvPkts": 248,
		"PortUnicastXmitPkts": 0, "PortUnicastRcvPkts": 0, "PortMulticastXmitPkts": 0, "PortMulticastRcvPkts": 0,
	}
	if mask != 0x1300 || !reflect.DeepEqual(ports, map[int]counterValues{1: want}) {
		t.Errorf("%x: %v", mask, ports)
	}
	text := sample(t, "perfquery.out")
	ports, mask = parsePerfquery(text)
	if v, ok := ports[1]["PortXmitWait"]; mask != 0x1300 || len(ports[1]) != 17 || !ok || v != 0 {
		t.Errorf("%x: %v", mask, ports)
	}
	if _, ok := ports[1]["QP1Dropped"]; ok {
		t.Error("a counter that the switch does not have")
	}
	all := bytes.ReplaceAll(text, []byte("0x1300"), []byte("0x8200"))
	ports, _ = parsePerfquery(all)
	_, wait := ports[1]["PortXmitWait"]
	if _, dropped := ports[1]["QP1Dropped"]; wait || !dropped {
		t.Errorf("with another capability mask: %v", ports)
	}
	// Port 255 is the sum of all ports.
	ports, _ = parsePerfquery(bytes.ReplaceAll(text, []byte("port 1 "), []byte("port 255 ")))
	if len(ports) != 0 {
		t.Errorf("the sum is listed as a port: %v", ports)
	}
}

func TestParseErrors(t *testing.T) {
	ports, silent, unknown, complete := parseErrors(sample(t, "errors.out"))
	leaf := "0x0000000000200000"
	want := map[end]counterValues{
		{leaf, 1}: {"SymbolErrorCounter": 5, "LinkDownedCounter": 2, "PortXmitData": 52632, "PortRcvData": 52704, "PortXmitPkts": 731, "PortRcvPkts": 732},
		{leaf, 2}: {"PortRcvErrors": 7, "PortXmitDiscards": 9, "PortXmitData": 3456, "PortRcvData": 3456, "PortXmitPkts": 48, "PortRcvPkts": 48},
		{leaf, 7}: {"PortXmitWait": 123456, "PortXmitData": 1234567899195, "PortRcvData": 9876552930, "PortXmitPkts": 454, "PortRcvPkts": 463},
	}
	if unknown != 0 || len(silent) > 0 || !complete || !reflect.DeepEqual(ports, want) { // without port ALL
		t.Errorf("%d %v %v: %v", unknown, silent, complete, ports)
	}
	if ports, _, _, complete := parseErrors(sample(t, "errors-none.out")); len(ports) > 0 || !complete {
		t.Errorf("no errors: %v %v", complete, ports)
	}
	if _, _, _, complete := parseErrors(sample(t, "errors-no-sm.out")); complete {
		t.Error("no output is taken for no errors")
	}
	text := strings.Replace(string(sample(t, "errors.out")), "## Suppressed:", "##          12 PMA query failures\n## Suppressed:", 1)
	// The name of the silent host imitates another host.
	text += "ibwarn: [7] query_cap_mask: classportinfo query failed on me, Lid 8 port 1, Lid 9 port 1\n"
	if _, silent, unknown, _ := parseErrors([]byte(text)); unknown != 11 || !reflect.DeepEqual(silent, map[uint32]bool{9: true}) {
		t.Errorf("%d questions without an answer, want 11; %v", unknown, silent)
	}
}

// FuzzTopology uses the four texts as one input, with few lines, so that the fuzzer is faster.
func FuzzTopology(f *testing.F) {
	few := func(name string, from int) []byte {
		return bytes.Join(bytes.SplitAfter(sample(f, name), []byte("\n"))[from:from+3], nil)
	}
	f.Add(bytes.Join([][]byte{
		few("ports-hdr.out", 39), few("list-hdr.out", 0), few("owners-hdr.out", 9), few("links-hdr.out", 0),
	}, []byte{0}))
	f.Fuzz(func(t *testing.T, text []byte) {
		parts := append(bytes.SplitN(text, []byte{0}, 4), nil, nil, nil)
		top := parseTopology(parts[0], parts[1], parts[2])
		top.parseLinks(parts[3])
		for guid, n := range top.nodes {
			fact := n.fact(guid, nil)
			if !utf8.ValidString(fact.Name) || len(fact.Name) > maxName || len(fact.GUID) != 18 {
				t.Errorf("%q: %q", fact.GUID, fact.Name)
			}
			for _, p := range fact.Ports {
				if p.Number < 0 || p.Number > maxPort || p.Peer == nil && (p.Width != 0 || p.Speed != "" || p.Narrow != nil) {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}

func FuzzPerfquery(f *testing.F) {
	f.Add(sample(f, "perfquery.out"))
	f.Add(sample(f, "perfquery-extended.out"))
	f.Fuzz(func(t *testing.T, text []byte) {
		ports, _ := parsePerfquery(text)
		for number, f := range ports {
			if number < 0 || number > maxPort || len(f.list()) != len(f) {
				t.Errorf("port %d: %v", number, f)
			}
		}
	})
}

func FuzzErrors(f *testing.F) {
	f.Add(sample(f, "errors.out"))
	f.Add(sample(f, "errors-no-sm.out"))
	f.Fuzz(func(t *testing.T, text []byte) {
		ports, _, _, _ := parseErrors(text)
		for at, f := range ports {
			if at.port < 0 || at.port > maxPort || len(at.guid) != 18 || len(f.list()) != len(f) {
				t.Errorf("%v: %v", at, f)
			}
		}
	})
}
