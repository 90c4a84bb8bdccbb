// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
)

// The size of the picture: a node has a column, and an HCA a row. Nodes that do not fit into the width continue below.
const (
	heatWidth  = 1200
	heatLeft   = 110
	cellWidth  = 8 // at least
	cellHeight = 12
	maxCells   = 12000 // more are shown as one cell for each node, which has the highest value
	maxHot     = 60    // cells that are links
)

// choice is an option of a list.
type choice struct {
	Value, Text string
	Chosen      bool
}

// heat is a picture of all HCAs by node.
type heat struct {
	Metric  string
	Metrics []choice
	Width   int
	Height  int
	Bands   []band
	Rails   int
	Legend  []level
	Hot     []hotCell
	About   string
	Omitted int // nodes
}

// band is a row of nodes.
type band struct {
	Y, Top, X, Scale int
	Label            string
	Names            []railName
	Levels           []level
}

type railName struct {
	Name string
	Y    int
}

// level is the cells with a value in a range, as a path of lines.
type level struct {
	Class, Name, Path string
}

// hotCell is a cell with a problem, which is a link.
type hotCell struct {
	X, Y, W           int
	Link, Name, Class string
}

// heatMetric is a figure of HCAs, and the limits of its levels.
type heatMetric struct {
	key, name, class string
	of               func(fleet.Rail) *float64
	limits           []float64
	names            []string
}

var heatMetrics = []heatMetric{
	{
		"use", "use of the link", "u", func(r fleet.Rail) *float64 { return r.Use },
		[]float64{.1, .25, .5, .75},
		[]string{"up to 10%", "25%", "50%", "75%", "more"},
	},
	{
		"errors", "errors and lost packets", "e", func(r fleet.Rail) *float64 { return r.Errors },
		[]float64{0, 1, 10, 100},
		[]string{"none", "up to 1/s", "10/s", "100/s", "more"},
	},
	{
		"pause", "pause", "e", func(r fleet.Rail) *float64 { return r.Pause },
		[]float64{0, .01, .1, .5},
		[]string{"none", "up to 1% of the time", "10%", "50%", "more"},
	},
}

// level returns the number of the level of a value.
func (m *heatMetric) level(v float64) int {
	for i, limit := range m.limits {
		if v <= limit {
			return i
		}
	}
	return len(m.limits)
}

func heatOf(s *fleet.State, metric string) heat {
	m := &heatMetrics[0]
	for i := range heatMetrics {
		if heatMetrics[i].key == metric {
			m = &heatMetrics[i]
		}
	}
	h := heat{Metric: m.name}
	for i := range heatMetrics {
		h.Metrics = append(h.Metrics, choice{heatMetrics[i].key, heatMetrics[i].name, m == &heatMetrics[i]})
	}
	for i, name := range m.names {
		h.Legend = append(h.Legend, level{Class: fmt.Sprint(m.class, i), Name: name})
	}
	h.Legend = append(h.Legend, level{Class: "down", Name: "not up, or the node does not answer"})
	nodes, rails := s.Nodes, s.Rails
	if len(nodes)*len(rails) > maxCells {
		rails = []string{""}
	}
	if len(nodes) > maxCells {
		nodes, h.Omitted = nodes[:maxCells], len(nodes)-maxCells
	}
	if len(rails) == 0 || len(nodes) == 0 {
		return h
	}
	h.Rails = len(rails)
	scale := min(max(heatWidth/len(nodes), cellWidth), 3*cellWidth)
	columns := heatWidth / scale
	h.Width = heatLeft + min(len(nodes), columns)*scale
	for begin := 0; begin < len(nodes); begin += columns {
		part := nodes[begin:min(begin+columns, len(nodes))]
		b := band{Y: h.Height + 14, Top: h.Height + 20, X: heatLeft, Scale: scale, Label: format.Escape(part[0].Name)}
		if len(part) > 1 {
			b.Label += " to " + format.Escape(part[len(part)-1].Name)
		}
		b.cells(&h, m, part, rails)
		h.Bands = append(h.Bands, b)
		h.Height = b.Top + len(rails)*cellHeight + 10
	}
	down, bad := 0, 0
	for i := range s.Nodes {
		for _, r := range s.Nodes[i].Rails {
			if !r.Up {
				down++
			}
			if v := m.of(r); v != nil && m.level(*v) > 0 {
				bad++
			}
		}
	}
	h.About = fmt.Sprintf("%s of HCAs by node: %d nodes, %d HCAs are not up, %d above %q; the table of nodes has the figures",
		m.name, len(s.Nodes), down, bad, m.names[0])
	return h
}

// cells draws the cells of a band: neighbors of one level are one line.
func (b *band) cells(h *heat, m *heatMetric, nodes []fleet.Node, rails []string) {
	levels := len(m.names)
	paths := make([]strings.Builder, levels+1)
	for y, rail := range rails {
		name := format.Escape(rail)
		if rail == "" {
			name = "highest of all"
		}
		b.Names = append(b.Names, railName{name, b.Top + y*cellHeight + 10})
		begin, current := 0, -1
		flush := func(end int) {
			if current >= 0 && end > begin {
				fmt.Fprintf(&paths[current], "M%d %dh%d", begin, y, end-begin)
			}
		}
		for x := range nodes {
			l := levelOf(m, &nodes[x], rail)
			if l != current {
				flush(x)
				begin, current = x, l
			}
			if (l == levels || m.class == "e" && l == levels-1) && len(h.Hot) < maxHot {
				what := m.names[min(l, levels-1)]
				switch {
				case nodes[x].Down:
					what = "no answer"
				case l == levels:
					what = "not up"
				}
				h.Hot = append(h.Hot, hotCell{
					X: b.X + x*b.Scale, Y: b.Top + y*cellHeight, W: b.Scale, Link: nodeLink(nodes[x].Name),
					Name: format.Escape(nodes[x].Name + " " + name + ": " + what),
				})
			}
		}
		flush(len(nodes))
	}
	for l := range paths {
		class := fmt.Sprint(m.class, l)
		if l == levels {
			class = "down"
		}
		if paths[l].Len() > 0 {
			b.Levels = append(b.Levels, level{Class: class, Path: paths[l].String()})
		}
	}
}

// levelOf returns the level of an HCA of a node, or of all; -1 if it is not known, and the number of levels if it is not up, or the
// node does not answer.
func levelOf(m *heatMetric, n *fleet.Node, rail string) int {
	if n.Down {
		return len(m.names)
	}
	one := func(r fleet.Rail) int {
		v := m.of(r)
		switch {
		case !r.Up:
			return len(m.names)
		case v == nil || math.IsNaN(*v):
			return -1
		}
		return m.level(*v)
	}
	if rail != "" {
		if r, ok := n.Rails[rail]; ok {
			return one(r)
		}
		return -1
	}
	most := -1
	for _, r := range n.Rails {
		most = max(most, one(r))
	}
	return most
}
