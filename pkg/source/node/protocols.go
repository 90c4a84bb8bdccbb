// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"time"

	"github.com/prometheus/procfs"

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

// names caches for each field whether it is exported: matching the expression takes longer than
// reading the files.
type names struct {
	vm, netstat map[string]string // name by field, empty if it is not exported
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
func (p *procReader) readVM(k *names, n *model.Node) error {
	b, err := p.file(p.dir + "/vmstat")
	if err != nil {
		return err
	}
	n.VM = make([]model.Figure, 0, 16)
	for len(b) > 0 && len(n.VM) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		key, value := cutField(line)
		if name := exported(k.vm, vmFields, key); name != "" {
			v, ok := parseFloat(bytes.TrimSpace(value))
			if !ok {
				return fmt.Errorf("vmstat: %w: %.80q", errMalformed, line)
			}
			n.VM = append(n.VM, model.Figure{Name: name, Value: v})
		}
	}
	return nil
}

// netFile reads a file of the node's network namespace.
func (p *procReader) netFile(name string) ([]byte, error) {
	b, err := p.file(p.dir + "/1/net/" + name)
	if err != nil {
		b, err = p.file(p.dir + "/net/" + name)
	}
	return b, err
}

// readNetstat reads netstat, snmp and snmp6 in /proc/1/net. A kernel without
// IPv6 lacks the last.
func (p *procReader) readNetstat(k *names, n *model.Node) error {
	n.Netstat = make([]model.Figure, 0, 64)
	for _, name := range []string{"netstat", "snmp"} {
		b, err := p.netFile(name)
		if err == nil {
			n.Netstat, err = k.appendTable(n.Netstat, b)
		}
		if err != nil {
			n.Netstat = nil
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	b, err := p.netFile("snmp6")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for len(b) > 0 && len(n.Netstat) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		key, value := cutField(line)
		six := bytes.IndexByte(key, '6')
		if six < 0 {
			continue
		}
		n.Netstat = k.appendField(n.Netstat, key[:six+1], key[six+1:], bytes.TrimSpace(value))
	}
	return nil
}

// appendTable parses pairs of lines: PROTOCOL: NAMES and PROTOCOL: VALUES.
func (k *names) appendTable(figures []model.Figure, b []byte) ([]model.Figure, error) {
	for len(b) > 0 {
		var heads, values []byte
		heads, b = cutLine(b)
		values, b = cutLine(b)
		protocol, heads := cutField(heads)
		same, values := cutField(values)
		if !bytes.Equal(protocol, same) || !bytes.HasSuffix(protocol, []byte(":")) {
			return nil, fmt.Errorf("%w: %.40q above %.40q", errMalformed, protocol, same)
		}
		protocol = protocol[:len(protocol)-1]
		for len(figures) < maxFigures {
			var name, value []byte
			name, heads = cutField(heads)
			value, values = cutField(values)
			if len(name) == 0 || len(value) == 0 {
				break
			}
			figures = k.appendField(figures, protocol, name, value)
		}
	}
	return figures, nil
}

func (k *names) appendField(figures []model.Figure, protocol, name, value []byte) []model.Figure {
	k.key = append(append(append(k.key[:0], protocol...), '_'), name...)
	if key := exported(k.netstat, netstatFields, k.key); key != "" {
		if v, ok := parseFloat(value); ok {
			figures = append(figures, model.Figure{Name: key, Value: v})
		}
	}
	return figures
}

// readSockets reads sockstat and sockstat6 in /proc/1/net. Memory is in pages and, as in
// node_exporter, also in bytes.
func (p *procReader) readSockets(_ time.Time, n *model.Node) error {
	from := p.lib
	if own, err := procfs.NewFS(p.dir + "/1"); err == nil {
		if _, err := os.Stat(p.dir + "/1/net/sockstat"); err == nil {
			from = own
		}
	}
	for i, read := range []func() (*procfs.NetSockstat, error){from.NetSockstat, from.NetSockstat6} {
		stat, err := read()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sockstat: %w", err)
		}
		add := func(name string, v int) {
			n.Sockets = append(n.Sockets, model.Figure{Name: name, Value: float64(v)})
		}
		if i == 0 && stat.Used != nil {
			add("sockets_used", *stat.Used)
		}
		for _, s := range stat.Protocols {
			add(s.Protocol+"_inuse", s.InUse)
			for _, optional := range []struct {
				name string
				v    *int
			}{{"orphan", s.Orphan}, {"tw", s.TW}, {"alloc", s.Alloc}, {"mem", s.Mem}, {"memory", s.Memory}} {
				if optional.v != nil {
					add(s.Protocol+"_"+optional.name, *optional.v)
				}
			}
			if s.Mem != nil {
				add(s.Protocol+"_mem_bytes", *s.Mem*os.Getpagesize())
			}
		}
	}
	return nil
}
