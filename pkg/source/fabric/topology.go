// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxPort = 254 // 255 is the sum of all ports
	maxName = 256
)

type topology struct {
	nodes  map[string]*node  // by node GUID
	owner  map[string]string // node GUID by port GUID
	raw    map[string]string // names by node GUID, as the tools print them
	unread int               // number of unparsable lines
}

type node struct {
	kind, name string
	lid        uint32
	ports      map[int]*portState
}

type portState struct {
	lid          uint32
	width        int
	speed        string
	peer         *model.FabricPeer
	narrow, slow *bool
	state        string // Active, Initialize, Armed, or "" if unknown
}

// end is a port in the output of the tools.
type end struct {
	guid string // of the port
	port int
}

// Lines of ibnetdiscover without options. Names follow a #.
var (
	switchLine = lazily(`^switchguid=0x([0-9a-f]{1,16})\(([0-9a-f]{1,16})\)`)
	nodeLine   = lazily(`^(?:ca|rt)guid=0x([0-9a-f]{1,16})`)
	portLine   = lazily(`^\[[0-9]+\]\(([0-9a-f]{1,16})\)`)
	originLine = lazily(`^# Initiated from node ([0-9a-f]{16}) port ([0-9a-f]{16})$`)
)

// listLine matches a line of ibnetdiscover --list: the kind, the node GUID, and the name up to the last quote.
var listLine = lazily(`^(Switch|Ca|Router)\t : 0x([0-9a-f]{1,16}) ports [0-9]+ devid 0x[0-9a-f]+ vendid 0x[0-9a-f]+ "(.*)"$`)

var kinds = map[string]string{"Switch": model.FabricSwitch, "Ca": model.FabricCA, "Router": model.FabricRouter}

// parseTopology joins the output of ibnetdiscover with --ports (ports by port GUID), with --list (nodes and their
// names) and without options (the node of each port). The names in the first output are not parsed: a name may contain
// its separators.
func parseTopology(ports, list, owners []byte) *topology {
	t := &topology{nodes: map[string]*node{}, owner: map[string]string{}, raw: map[string]string{}}
	t.parseOwners(owners)
	for line := range lines(list) {
		m := listLine().FindSubmatch(line)
		if m == nil {
			t.unread++
			continue
		}
		guid := parseGUID(string(m[2]))
		t.raw[guid] = string(m[3])
		t.nodes[guid] = &node{kind: kinds[string(m[1])], name: clean(string(m[3])), ports: map[int]*portState{}}
	}
	for line := range lines(ports) {
		if !t.parsePort(string(line)) {
			t.unread++
		}
	}
	return t
}

func lines(text []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(text) {
			if line = bytes.TrimRight(line, "\n"); len(line) > 0 && !yield(line) {
				return
			}
		}
	}
}

func (t *topology) parseOwners(text []byte) {
	var at string // node of the lines that follow
	for line := range lines(text) {
		if m := originLine().FindSubmatch(line); m != nil {
			t.owner[parseGUID(string(m[2]))] = parseGUID(string(m[1]))
		} else if m := switchLine().FindSubmatch(line); m != nil {
			at = parseGUID(string(m[1]))
			t.owner[parseGUID(string(m[2]))] = at
		} else if m := nodeLine().FindSubmatch(line); m != nil {
			at = parseGUID(string(m[1]))
		} else if m := portLine().FindSubmatch(line); m != nil && at != "" {
			t.owner[parseGUID(string(m[1]))] = at
		}
	}
}

// nodeOf returns the node of a port, or the port's GUID if the node is unknown.
func (t *topology) nodeOf(guid string) string { return cmp.Or(t.owner[guid], guid) }

// parsePort parses a line of ibnetdiscover --ports: the port's kind, LID, number, GUID, width and speed, and kind, LID,
// number and GUID of the remote end if there is one; then names.
//
//	SW     2  1 0xb8cef60300000010 4x HDR - CA     1  1 0xb8cef60300000101 ( 'leaf1' - 'node1' )
//	SW     2  3 0xb8cef60300000010 4x SDR                                    'leaf1'
func (t *topology) parsePort(line string) bool {
	f := strings.Fields(line)
	if len(f) < 7 {
		return false
	}
	here, lid, ok := parseEnd(f[:4])
	if !ok || !slices.Contains([]string{model.FabricSwitch, model.FabricCA, model.FabricRouter}, f[0]) {
		return false
	}
	p := &portState{lid: lid}
	switch {
	case f[6] == "-" && len(f) > 11 && f[11] == "(":
		there, _, ok := parseEnd(f[7:11])
		if !ok {
			return false
		}
		p.peer = &model.FabricPeer{GUID: t.nodeOf(there.guid), Port: there.port}
		p.width, p.speed = parseWidth(f[4]), parseSpeed(f[5])
	case !strings.HasPrefix(f[6], "'"):
		return false
	}
	guid := t.nodeOf(here.guid)
	n := t.nodes[guid]
	if n == nil { // not in the list
		n = &node{kind: f[0], ports: map[int]*portState{}}
		t.nodes[guid] = n
	}
	if lid != 0 { // the last line belongs to the first port
		n.lid = lid
	}
	if n.ports[here.port] == nil { // the first of duplicates counts
		n.ports[here.port] = p
	}
	return true
}

// parseEnd parses kind, LID, number and GUID of a port.
func parseEnd(f []string) (end, uint32, bool) {
	lid, err := strconv.ParseUint(f[1], 10, 32)
	number, bad := strconv.Atoi(f[2])
	digits, isHex := strings.CutPrefix(f[3], "0x")
	guid, notHex := strconv.ParseUint(digits, 16, 64)
	if err != nil || bad != nil || !isHex || notHex != nil || number < 0 || number > maxPort {
		return end{}, 0, false
	}
	return end{model.FormatGUID(guid), number}, uint32(lid), true
}

// parseGUID parses 1 to 16 hexadecimal digits: some tools print a GUID without leading zeros.
func parseGUID(digits string) string {
	guid, _ := strconv.ParseUint(digits, 16, 64)
	return model.FormatGUID(guid)
}

// parseWidth parses 4x; ?? is 0.
func parseWidth(s string) int {
	lanes, err := strconv.Atoi(strings.TrimSuffix(s, "x"))
	if err != nil || lanes < 0 || lanes > 64 {
		return 0
	}
	return lanes
}

// parseSpeed parses HDR; ??? is empty.
func parseSpeed(s string) string {
	if len(s) > 8 || strings.ContainsFunc(s, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') }) {
		return ""
	}
	return s
}

// clean returns an untrusted name or message as valid UTF-8 in one line of limited length.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxName {
		s = strings.ToValidUTF8(s[:maxName], "")
	}
	return strings.TrimSpace(s)
}

func (t *topology) linked() bool {
	for _, n := range t.nodes {
		for _, p := range n.ports {
			if p.peer != nil {
				return true
			}
		}
	}
	return false
}

func (n *node) fact(guid string, known *answers) model.FabricNode {
	f := model.FabricNode{GUID: guid, Kind: n.kind, Name: n.name, LID: n.lid, Ports: make([]model.FabricPort, 0, len(n.ports))}
	if known != nil {
		f.Queried, f.Error = known.at, known.problem
	}
	for _, number := range slices.Sorted(maps.Keys(n.ports)) {
		p := n.ports[number]
		port := model.FabricPort{
			Number: number, Width: p.width, Speed: p.speed, Peer: p.peer, Narrow: p.narrow, Slow: p.slow, State: p.state,
		}
		if known != nil {
			port.Counters = known.ports[number]
		}
		f.Ports = append(f.Ports, port)
	}
	return f
}

// linkMiddle matches the part of iblinkinfo --line between the names: LID, number, the chassis's own number, the link,
// and GUID, LID and number of the remote end.
var linkMiddle = lazily(
	`^ +[0-9]+ +([0-9]+)\[ *[0-9]*\] ==\(([^"]*)\)==>  0x([0-9a-f]{16}) +[0-9]+ +[0-9]+\[ *[0-9]*\] "`)

// parseLinks parses iblinkinfo --line, which prints the better capabilities that both ends of a link share. The names
// on both sides are known, so a name cannot be mistaken for a link:
//
//	0x…10 "   leaf1"   2  1[  ] ==( 4X  53.125 Gbps Active/  LinkUp)==>  0x…101   1  1[  ] "node1" (Could be 12X )
func (t *topology) parseLinks(text []byte) {
	for line := range lines(text) {
		if len(line) < 20 || line[0] != '0' {
			continue
		}
		guid := t.nodeOf(string(line[:18]))
		name := t.raw[guid]
		name = strings.Repeat(" ", max(0, 30-len(name))) + name
		rest, ok := strings.CutPrefix(string(line[18:]), fmt.Sprintf(" \"%s\"", name))
		if !ok {
			continue
		}
		m := linkMiddle().FindStringSubmatch(rest)
		if m == nil {
			continue
		}
		could, ok := strings.CutPrefix(rest[len(m[0]):], t.raw[t.nodeOf("0x"+m[3])]+"\" (")
		number, _ := strconv.Atoi(m[1])
		n := t.nodes[guid]
		if !ok || n == nil || n.ports[number] == nil || n.ports[number].peer == nil || !strings.HasSuffix(could, ")") {
			continue
		}
		n.ports[number].narrow, n.ports[number].slow = parseCould(could)
		if state := linkState().FindStringSubmatch(m[2]); state != nil {
			n.ports[number].state = state[1]
		}
	}
}

// linkState matches the states of a port with a link: " 4X  53.125 Gbps Active/  LinkUp".
var linkState = lazily(`(Initialize|Armed|Active)/ *LinkUp$`)

// parseCould parses "Could be 12X Could be 53.125 Gbps)": wider, faster. It returns nil for a capability that the tool
// prints as "undefined (32)".
func parseCould(s string) (narrow, slow *bool) {
	narrow, slow = new(bool), new(bool)
	for part := range strings.SplitSeq(s, "Could be ") {
		part = strings.TrimSpace(strings.TrimSuffix(part, ")"))
		switch {
		case part == "":
		case widthText().MatchString(part):
			*narrow = true
		case strings.HasPrefix(part, "FDR10"), speedText().MatchString(part):
			*slow = true
		default:
			return nil, nil
		}
	}
	return narrow, slow
}

var (
	widthText = lazily(`^[0-9]+X$`)
	speedText = lazily(`^[0-9.]+ Gbps$`)
)
