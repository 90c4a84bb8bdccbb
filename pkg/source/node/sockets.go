// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// socketStates are the states in sockstat that node_exporter exports.
var socketStates = map[string]bool{"inuse": true, "orphan": true, "tw": true, "alloc": true, "mem": true, "memory": true}

// readSockets reads sockstat and sockstat6 in /proc/1/net. A kernel without IPv6 lacks sockstat6.
func (p *procReader) readSockets(_ time.Time, n *reading) error {
	for _, name := range []string{"sockstat", "sockstat6"} {
		b, err := p.netFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		before, skipped := len(n.Sockets), n.skipped.In("net/"+name)
		n.Sockets = appendSockets(n.Sockets, b, skipped)
		if err := unparsed("net/"+name, len(n.Sockets)-before, skipped); err != nil {
			return err
		}
	}
	return nil
}

// appendSockets parses lines PROTOCOL: STATE NUMBER STATE NUMBER…. Memory is in pages and, as in node_exporter, also in
// bytes.
func appendSockets(figures []model.Figure, b []byte, skipped *boundedfile.Skipped) []model.Figure {
	for len(b) > 0 && len(figures) < maxFigures {
		var line []byte
		line, b = cutLine(b)
		protocol, rest := cutField(line)
		protocol, ok := bytes.CutSuffix(protocol, []byte(":"))
		more := figures
		for ok {
			var state, number []byte
			state, rest = cutField(rest)
			number, rest = cutField(rest)
			if len(state) == 0 {
				break
			}
			v, err := strconv.ParseInt(string(number), 10, 64)
			ok = err == nil
			name := string(protocol) + "_" + string(state)
			switch {
			case socketStates[string(state)], name == "sockets_used":
				more = append(more, model.Figure{Name: name, Value: float64(v)})
			}
			if string(state) == "mem" {
				more = append(more, model.Figure{Name: name + "_bytes", Value: float64(v) * float64(os.Getpagesize())})
			}
		}
		if !ok || len(protocol) == 0 {
			skipped.Add(line)
			continue
		}
		figures = more
	}
	return figures
}
