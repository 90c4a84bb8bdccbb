// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
)

// A sheet is a table before it is drawn: its cells have values by which rows are sorted.
type sheet struct {
	kind    overview.Kind // of the devices in the rows; empty for nodes and jobs
	columns []column
	rows    []row
}

// A column is a figure.
type column struct {
	name string // heading
	key  string // of --sort and of JSON
	text bool   // has words, which are sorted from A to Z, and not the largest number first
}

// A row is a workload on a device, or a device.
type row struct {
	workload, containerID, device string
	cells                         map[string]cell // by key of the column
}

// A cell is a figure as text and as number. The zero cell is of an unknown figure; known is false, too, for a text in place of one.
type cell struct {
	text  string
	value float64
	known bool
}

func figure(value float64, render func(float64) string) cell { return cell{render(value), value, true} }

func words(text string) cell { return cell{text: text, known: text != "" && text != format.None} }

// known returns the cell of a figure that may be unknown.
func known[N int | uint64 | float64](v *N, render func(float64) string) cell {
	if v == nil {
		return cell{}
	}
	return figure(float64(*v), render)
}

// sortBy sorts the rows by a column: the largest number first, words from A to Z, rows without a figure last. Equal rows keep
// their order.
func (s *sheet) sortBy(key string) {
	at := slices.IndexFunc(s.columns, func(c column) bool { return c.key == key })
	if at < 0 || key == defaultSort {
		return
	}
	c := s.columns[at]
	slices.SortStableFunc(s.rows, func(a, b row) int {
		x, y := a.cells[key], b.cells[key]
		switch {
		case x.known != y.known && x.known:
			return -1
		case x.known != y.known:
			return 1
		case c.text:
			return strings.Compare(x.text, y.text)
		}
		return cmp.Compare(y.value, x.value)
	})
}

// defaultSort is the order of the rows in which they are made: by name.
const defaultSort = "name"

// checkSort reports whether a view has a column to sort by.
func checkSort(columns []column, key string) error {
	keys := make([]string, 0, len(columns))
	for _, c := range columns {
		if c.key == key {
			return nil
		}
		keys = append(keys, c.key)
	}
	return fmt.Errorf("sort: %q is none of %s", key, strings.Join(keys, ", "))
}

// filter keeps the rows with a text in a name, in upper or lower case.
func (s *sheet) filter(text string) {
	if text == "" {
		return
	}
	text = strings.ToLower(text)
	s.rows = slices.DeleteFunc(s.rows, func(r row) bool {
		return !strings.Contains(strings.ToLower(format.Owner(r.workload)), text) && !strings.Contains(strings.ToLower(r.device), text)
	})
}

// grid returns the table as text.
func (s *sheet) grid() grid {
	var g grid
	for _, c := range s.columns {
		g.header = append(g.header, c.name)
	}
	for _, r := range s.rows {
		line := make([]string, len(s.columns))
		for i, c := range s.columns {
			line[i] = cmp.Or(r.cells[c.key].text, format.None)
		}
		g.rows = append(g.rows, line)
	}
	return g
}

func grids(sheets []*sheet) []grid {
	out := make([]grid, len(sheets))
	for i, s := range sheets {
		out[i] = s.grid()
	}
	return out
}

// A grid is a table as text.
type grid struct {
	header []string
	rows   [][]string
}
