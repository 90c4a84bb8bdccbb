// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// aFabric returns a fabric with two switches and two links, one of them degraded, an adapter,
// a router without a link, and a link to an unknown node.
func aFabric() *model.Fabric {
	yes, no := true, false
	to := func(guid string, port int) *model.FabricPeer { return &model.FabricPeer{GUID: guid, Port: port} }
	at := time.Date(2026, 11, 21, 12, 0, 0, 250e6, time.FixedZone("", 3600))
	return &model.Fabric{Discovered: at, Nodes: []model.FabricNode{
		{GUID: "0x0000000000000001", Kind: model.FabricSwitch, Name: "leaf1", LID: 2, Queried: at, Ports: []model.FabricPort{
			{Number: 1, Width: 4, Speed: "HDR", Peer: to("0x0000000000000011", 1), Counters: []model.Counter{
				{Name: "SymbolErrorCounter", Value: 1<<64 - 1}, {Name: "PortXmitData"},
			}},
			{Number: 2, Width: 2, Speed: "HDR", Peer: to("0x0000000000000002", 1), Narrow: &yes, Slow: &no},
			{Number: 3, Width: 4, Speed: "HDR", Peer: to("0x0000000000000002", 2), Narrow: &no, Slow: &no, Counters: []model.Counter{}},
			{Number: 4},
		}},
		{GUID: "0x0000000000000002", Kind: model.FabricSwitch, Name: "spine", LID: 3, Error: "timed out", Ports: []model.FabricPort{
			{Number: 1, Width: 2, Speed: "HDR", Peer: to("0x0000000000000001", 2)},
			{Number: 2, Width: 4, Speed: "HDR", Peer: to("0x0000000000000001", 3)},
			{Number: 3, Peer: to("0x00000000000000ff", 9), Slow: &yes},
		}},
		{GUID: "0x0000000000000011", Kind: model.FabricCA, Name: "node1 mlx5_0", LID: 9},
		{GUID: "0x0000000000000021", Kind: model.FabricRouter},
	}}
}

// fabricState returns the facts of a sensor with f, which may be nil, and a source state.
func fabricState(f *model.Fabric, state model.State, reason string) Facts {
	return func() Known {
		return Known{Facts: model.Snapshot{Fabric: f}, States: []model.SourceState{{Source: "fabric", State: state, Reason: reason}}}
	}
}

func TestFabric(t *testing.T) {
	const (
		end   = `{"guid":"0x00000000000000`
		state = `"narrow":null,"slow":null`
		data  = `{"discovered":"2026-11-21T11:00:00.25Z","nodes":[` +
			`{"guid":"0x0000000000000001","kind":"switch","name":"leaf1","lid":2,"queried":"2026-11-21T11:00:00.25Z","error":"","ports":[` +
			`{"port":1,"width":4,"speed":"HDR",` + state + `,"counters":{"PortXmitData":0,"SymbolErrorCounter":18446744073709551615}},` +
			`{"port":2,"width":2,"speed":"HDR","narrow":true,"slow":false,"counters":null},` +
			`{"port":3,"width":4,"speed":"HDR","narrow":false,"slow":false,"counters":{}},` +
			`{"port":4,"width":0,"speed":"",` + state + `,"counters":null}]},` +
			`{"guid":"0x0000000000000002","kind":"switch","name":"spine","lid":3,"queried":null,"error":"timed out","ports":[` +
			`{"port":1,"width":2,"speed":"HDR",` + state + `,"counters":null},` +
			`{"port":2,"width":4,"speed":"HDR",` + state + `,"counters":null},` +
			`{"port":3,"width":0,"speed":"","narrow":null,"slow":true,"counters":null}]},` +
			`{"guid":"0x0000000000000011","kind":"ca","name":"node1 mlx5_0","lid":9,"queried":null,"error":"","ports":[]},` +
			`{"guid":"0x0000000000000021","kind":"router","name":"","lid":0,"queried":null,"error":"","ports":[]}],"links":[` +
			`{"a":` + end + `01","port":1},"b":` + end + `11","port":1},"width":4,"speed":"HDR",` + state + `},` +
			`{"a":` + end + `01","port":2},"b":` + end + `02","port":1},"width":2,"speed":"HDR","narrow":true,"slow":false},` +
			`{"a":` + end + `01","port":3},"b":` + end + `02","port":2},"width":4,"speed":"HDR","narrow":false,"slow":false},` +
			`{"a":` + end + `02","port":3},"b":` + end + `ff","port":9},"width":0,"speed":"","narrow":null,"slow":true}]}`
	)
	const empty = `{"discovered":null,"nodes":[],"links":[]}`
	for what, c := range map[string]struct {
		facts   Facts
		status  int
		data    string
		message string
	}{
		"well":              {fabricState(aFabric(), model.StateOK, ""), 200, data, "success"},
		"known from before": {fabricState(aFabric(), model.StateFailed, "no reply"), 200, data, "partial: fabric is failed: no reply"},
		"empty":             {fabricState(&model.Fabric{}, model.StateOK, ""), 200, empty, "success"},
		"no port":           {fabricState(nil, model.StateAbsent, "no port"), 404, "null", "there is no InfiniBand fabric"},
		"no tools":          {fabricState(nil, model.StateFailed, "no perfquery"), 503, "null", "fabric is failed: no perfquery"},
		"too early":         {fabricState(nil, model.StateOK, ""), 503, "null", "fabric has not told it yet"},
		"switched off":      {func() Known { return Known{} }, 503, "null", "not read: fabric is switched off"},
	} {
		code := c.status
		if code == http.StatusOK {
			code = 0
		}
		want := fmt.Sprintf(`{"code":%d,"data":%s,"message":%q}`, code, c.data, c.message)
		status, body := request(t, c.facts, nil, http.MethodGet, "/api/v1/fabric")
		if d := cmp.Diff(want, body); d != "" || status != c.status {
			t.Errorf("%s: %d (-want +got):\n%s", what, status, d)
		}
		graph, dot := request(t, c.facts, nil, http.MethodGet, "/api/v1/fabric.dot")
		if graph != status || status != http.StatusOK && dot != body {
			t.Errorf("%s, for Graphviz: %d %s", what, graph, dot)
		}
		if partial, is := strings.CutPrefix(c.message, "partial: "); is && !strings.HasPrefix(dot, "// partial: "+partial+"\n") {
			t.Errorf("%s: %s", what, dot)
		}
	}
}

// TestFabricGraph: the graph has exactly the nodes and links of the fabric.
func TestFabricGraph(t *testing.T) {
	_, body := request(t, fabricState(aFabric(), model.StateOK, ""), nil, http.MethodGet, "/api/v1/fabric.dot")
	got := readDOT(t, body)
	want := graph{
		nodes: map[string]map[string]string{
			"0x0000000000000001": {"label": "leaf1", "shape": "box"},
			"0x0000000000000002": {"label": "spine", "shape": "box", "color": "red"},
			"0x0000000000000011": {"label": "node1 mlx5_0"},
			"0x0000000000000021": {"label": "0x0000000000000021", "shape": "diamond"},
		},
		edges: []edge{
			{"0x0000000000000001", "0x0000000000000011", map[string]string{"label": "4x HDR", "taillabel": "1", "headlabel": "1"}},
			{"0x0000000000000001", "0x0000000000000002", map[string]string{
				"label": "2x HDR", "taillabel": "2", "headlabel": "1", "color": "red", "fontcolor": "red", "penwidth": "2",
			}},
			{"0x0000000000000001", "0x0000000000000002", map[string]string{"label": "4x HDR", "taillabel": "3", "headlabel": "2"}},
			{"0x0000000000000002", "0x00000000000000ff", map[string]string{
				"label": "", "taillabel": "3", "headlabel": "9", "color": "red", "fontcolor": "red", "penwidth": "2",
			}},
		},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(graph{}, edge{})); d != "" {
		t.Errorf("(-want +got):\n%s\n%s", d, body)
	}
}

// hostile lists node names with special characters.
var hostile = []string{
	`"]; x -- y [label="`, `\`, `\\`, `\"`, `a\`, `\N\G\n`, "a\nb", "a\x00b", "a\xffb", "<b>x</b>", "&lt;&amp;quot;", "// x", "/* x", "# x",
	"#\n# x", "}", "graph", "名前", "\u202egnp", "\u2028", strings.Repeat(`\"`, 1<<10),
}

// FuzzQuoted checks that a quoted text is one token and shows the same text.
func FuzzQuoted(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q := quoted(s)
		got, rest, err := readQuoted(q)
		if err != nil || rest != "" || shown(got) != oneLine(s) {
			t.Errorf("%q is written %s and shown as %q, %q is left, %v", s, q, shown(got), rest, err)
		}
	})
}

// TestFabricHostile: node names change neither the structure of the graph nor the structure of the JSON answer.
func TestFabricHostile(t *testing.T) {
	f := aFabric()
	for i, name := range hostile {
		f.Nodes = append(f.Nodes, model.FabricNode{GUID: fmt.Sprintf("0x%016x", 0x100+i), Kind: model.FabricSwitch, Name: name, Error: name})
	}
	facts := fabricState(f, model.StateFailed, strings.Join(hostile, " "))
	_, body := request(t, facts, nil, http.MethodGet, "/api/v1/fabric.dot")
	g := readDOT(t, body)
	if len(g.edges) != 4 || len(g.nodes) != len(f.Nodes) {
		t.Errorf("%d nodes, %d links", len(g.nodes), len(g.edges))
	}
	for _, n := range f.Nodes[4:] {
		if got := g.nodes[n.GUID]["label"]; got != oneLine(n.Name) {
			t.Errorf("%q is shown as %q", n.Name, got)
		}
	}
	status, body := request(t, facts, nil, http.MethodGet, "/api/v1/fabric")
	var got struct{ Data fabricEntry }
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK || len(got.Data.Nodes) != len(f.Nodes) {
		t.Errorf("%d %v, %d nodes", status, err, len(got.Data.Nodes))
	}
	for i, n := range f.Nodes {
		if want := strings.ToValidUTF8(n.Name, "\uFFFD"); got.Data.Nodes[i].Name != want {
			t.Errorf("%q, want %q", got.Data.Nodes[i].Name, want)
		}
	}
}

// graph is a parsed DOT graph.
type graph struct {
	nodes map[string]map[string]string
	edges []edge
}

type edge struct {
	a, b       string
	attributes map[string]string
}

// readDOT parses the part of the DOT language that a fabric needs: statements of nodes and
// edges with quoted names and attributes. Everything else is an error.
func readDOT(t *testing.T, text string) graph {
	t.Helper()
	g := graph{nodes: map[string]map[string]string{}}
	for strings.HasPrefix(text, "//") {
		_, text, _ = strings.Cut(text, "\n")
	}
	text, opened := strings.CutPrefix(text, "graph fabric {\n  node [shape=ellipse];\n")
	text, closed := strings.CutSuffix(text, "}\n")
	if !opened || !closed {
		t.Fatalf("no graph: %s", text)
	}
	for text != "" {
		rest, _ := strings.CutPrefix(text, "  ")
		a, rest, err := readQuoted(rest)
		var b string
		after, isEdge := strings.CutPrefix(rest, " -- ")
		if isEdge && err == nil {
			b, rest, err = readQuoted(after)
		}
		rest, ok := strings.CutPrefix(rest, " [")
		attributes := map[string]string{}
		for err == nil && ok {
			name, value, found := strings.Cut(rest, "=")
			if !found || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") != "" {
				t.Fatalf("no attribute: %s", rest)
			}
			if strings.HasPrefix(value, `"`) {
				value, rest, err = readQuoted(value)
				value = shown(value)
			} else {
				i := strings.IndexAny(value, ",]")
				value, rest = value[:i], value[i:]
			}
			attributes[name] = value
			rest, ok = strings.CutPrefix(rest, ", ")
		}
		if text, ok = strings.CutPrefix(rest, "];\n"); err != nil || !ok {
			t.Fatalf("%v: no statement: %s", err, rest)
		}
		switch {
		case isEdge:
			g.edges = append(g.edges, edge{a, b, attributes})
		case g.nodes[a] != nil:
			t.Errorf("%s twice", a)
		default:
			g.nodes[a] = attributes
		}
	}
	return g
}

// readQuoted reads a quoted text as Graphviz's lexer does: a backslash escapes a quote or a
// backslash, and only the backslash before a quote is removed.
func readQuoted(text string) (s, rest string, err error) {
	text, ok := strings.CutPrefix(text, `"`)
	if !ok {
		return "", text, fmt.Errorf("no quote: %s", text)
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return out.String(), text[i+1:], nil
		case text[i] == '\\' && i+1 < len(text) && slices.Contains([]byte(`\"`), text[i+1]):
			if i++; text[i] == '\\' {
				out.WriteByte('\\')
			}
		}
		out.WriteByte(text[i])
	}
	return "", "", fmt.Errorf("no end of %s", text)
}

// shown returns the text that Graphviz shows for a label. It handles only the escapes and
// entities that quoted writes.
func shown(label string) string {
	return strings.NewReplacer(`\\`, `\`, `\`, "an escape", "&amp;", "&", "&", "an entity").Replace(label)
}
