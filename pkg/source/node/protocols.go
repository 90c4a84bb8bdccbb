// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"regexp"
	"slices"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// The default fields of node_exporter for vmstat and for the protocols.
var (
	vmFields      = regexp.MustCompile(`^(oom_kill|pgpg|pswp|pg.*fault).*`)
	netstatFields = regexp.MustCompile(`^(.*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|` +
		`Icmp6?_(InMsgs|OutMsgs)|TcpExt_(Listen.*|Syncookies.*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)|` +
		`Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab)|` +
		`Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))$`)
)

// names caches whether each field is exported: matching the expression takes longer than reading the files.
type names struct {
	vm, netstat map[string]string // name by field, or "" if it is not exported
	key         []byte
}

func newNames() *names { return &names{vm: map[string]string{}, netstat: map[string]string{}} }

func exported(known map[string]string, re *regexp.Regexp, key []byte) string {
	name, ok := known[string(key)]
	if !ok {
		if re.Match(key) {
			name = string(key)
		}
		if len(known) < 4*maxFigures {
			known[string(key)] = name
		}
	}
	return name
}

// readVM reads /proc/vmstat.
func (p *procReader) readVM(k *names, n *reading) error {
	b, err := p.file(p.dir + "/vmstat")
	if err != nil {
		return err
	}
	skipped := n.skipped.In("vmstat")
	figures := parseVM(k, b, skipped)
	if err := unparsed("vmstat", len(figures), skipped); err != nil {
		return err
	}
	n.VM = figures
	return nil
}

func parseVM(k *names, b []byte, skipped *boundedfile.Skipped) []model.Figure {
	figures := make([]model.Figure, 0, 16)
	for len(b) > 0 && len(figures) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		key, value := cutField(line)
		if name := exported(k.vm, vmFields, key); name != "" {
			v, ok := parseFloat(bytes.TrimSpace(value))
			if !ok {
				skipped.Add(line)
				continue
			}
			figures = append(figures, model.Figure{Name: name, Value: v})
		}
	}
	return figures
}

// netFile reads a file of the node's network namespace.
func (p *procReader) netFile(name string) ([]byte, error) {
	b, err := p.file(p.dir + "/1/net/" + name)
	if err != nil {
		b, err = p.file(p.dir + "/net/" + name)
	}
	return b, err
}

// readNetstat reads netstat, snmp and snmp6 in /proc/1/net. A kernel without IPv6 lacks snmp6.
func (p *procReader) readNetstat(k *names, n *reading) error {
	n.Netstat = make([]model.Figure, 0, 64)
	for _, name := range []string{"netstat", "snmp"} {
		b, err := p.netFile(name)
		if err != nil {
			n.Netstat = nil
			return err
		}
		before, skipped := len(n.Netstat), n.skipped.In("net/"+name)
		n.Netstat = k.appendTable(n.Netstat, b, skipped)
		if err := unparsed("net/"+name, len(n.Netstat)-before, skipped); err != nil {
			return err
		}
	}
	b, err := p.netFile("snmp6")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	n.Netstat = k.appendList(n.Netstat, b, n.skipped.In("net/snmp6"))
	return nil
}

func (k *names) appendList(figures []model.Figure, b []byte, skipped *boundedfile.Skipped) []model.Figure {
	for len(b) > 0 && len(figures) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		key, value := cutField(line)
		six := bytes.IndexByte(key, '6')
		if six < 0 {
			continue
		}
		var ok bool
		if figures, ok = k.appendField(figures, key[:six+1], key[six+1:], bytes.TrimSpace(value)); !ok {
			skipped.Add(line)
		}
	}
	return figures
}

// appendTable parses pairs of lines: PROTOCOL: NAMES and PROTOCOL: VALUES. Other lines may be between the two.
func (k *names) appendTable(figures []model.Figure, b []byte, skipped *boundedfile.Skipped) []model.Figure {
	waiting := map[string][]byte{} // names by protocol
	for len(b) > 0 {
		var line []byte
		line, b = cutLine(b)
		protocol, rest := cutField(line)
		first, _ := cutField(rest)
		_, isValue := parseFloat(first)
		names, ok := waiting[string(protocol)]
		switch {
		case !bytes.HasSuffix(protocol, []byte(":")) || isValue && !ok || !isValue && ok:
			skipped.Add(line)
		case !isValue:
			waiting[string(protocol)] = rest
		default:
			delete(waiting, string(protocol))
			if figures, ok = k.appendValues(figures, protocol[:len(protocol)-1], names, rest); !ok {
				skipped.Add(line)
			}
		}
	}
	for _, protocol := range slices.Sorted(maps.Keys(waiting)) {
		skipped.Add([]byte(protocol))
	}
	return figures
}

// appendValues adds the values of a protocol. It reports whether all values were valid.
func (k *names) appendValues(figures []model.Figure, protocol, names, values []byte) ([]model.Figure, bool) {
	all := true
	for len(figures) < maxFigures {
		var name, value []byte
		name, names = cutField(names)
		value, values = cutField(values)
		if len(name) == 0 || len(value) == 0 {
			return figures, all && len(name) == len(value) // a value without a name, or the reverse
		}
		var ok bool
		figures, ok = k.appendField(figures, protocol, name, value)
		all = all && ok
	}
	return figures, all
}

// appendField adds a value, if it is exported. It reports whether the value was valid.
func (k *names) appendField(figures []model.Figure, protocol, name, value []byte) ([]model.Figure, bool) {
	k.key = append(append(append(k.key[:0], protocol...), '_'), name...)
	key := exported(k.netstat, netstatFields, k.key)
	if key == "" {
		return figures, true
	}
	v, ok := parseFloat(value)
	if ok {
		figures = append(figures, model.Figure{Name: key, Value: v})
	}
	return figures, ok
}
