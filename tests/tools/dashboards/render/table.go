// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

func keys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// table draws the answers of all queries as one table: a row for each combination of labels, a column for each query.
func (f frame) table() {
	labels, titles := f.columns()
	type row struct {
		cells  []string
		values map[string]float64 // by query
	}
	rows := map[string]*row{}
	for _, q := range f.panel.Targets {
		for _, s := range f.answers[q.Ref].Series {
			var cells []string
			for _, l := range labels {
				cells = append(cells, s.Labels[l])
			}
			key := strings.Join(cells, "\xff")
			if rows[key] == nil {
				rows[key] = &row{cells, map[string]float64{}}
			}
			if points := s.Points(); len(points) > 0 {
				rows[key].values[q.Ref] = points[len(points)-1].Value
			}
		}
	}
	sorted := slices.Collect(maps.Values(rows))
	slices.SortFunc(sorted, func(a, b *row) int {
		for _, q := range f.panel.Targets {
			if c := cmp.Compare(b.values[q.Ref], a.values[q.Ref]); c != 0 {
				return c
			}
		}
		return slices.Compare(a.cells, b.cells)
	})
	const high = 17.0
	room := int((f.h - 48) / high)
	more := 0
	if len(sorted) > room {
		sorted, more = sorted[:room-1], len(sorted)-room+1
	}

	texts := [][]string{append(slices.Clone(labels), titles...)}
	for _, r := range sorted {
		cells := slices.Clone(r.cells)
		for i, q := range f.panel.Targets {
			text := ""
			if v, ok := r.values[q.Ref]; ok {
				text = format(v, f.unit("byName", titles[i]))
			}
			cells = append(cells, text)
		}
		texts = append(texts, cells)
	}
	// Each column is as wide as its widest text; together they fill the panel.
	widths, sum := make([]float64, len(texts[0])), 0.0
	for i := range widths {
		for _, cells := range texts {
			widths[i] = max(widths[i], float64(len([]rune(cells[i])))+2)
		}
		sum += widths[i]
	}
	for n, cells := range texts {
		x, y := f.x+10, f.y+34+float64(n)*high
		color, more := "#2b3138", ""
		if n == 0 {
			color, more = "#5a626b", ` font-weight="bold"`
		} else if n%2 == 1 {
			f.rect(f.x+4, y-12, f.w-8, high, "#f5f6f8", "")
		}
		for i, cell := range cells {
			w := widths[i] / sum * (f.w - 20)
			f.text(x, y, 10, "start", color, more, shorten(cell, int(w/5.7)))
			x += w
		}
	}
	if more > 0 {
		f.text(f.x+10, f.y+34+float64(len(texts))*high, 10, "start", "#8a929b", "", fmt.Sprintf("and %d more", more))
	}
}

// columns returns the labels that a table shows, in their order, and the titles of its queries.
func (f frame) columns() (labels, titles []string) {
	for _, t := range f.panel.Transformations {
		for name := range t.Options.Index {
			if !strings.HasPrefix(name, "Value") {
				labels = append(labels, name)
			}
		}
		slices.SortFunc(labels, func(a, b string) int { return t.Options.Index[a] - t.Options.Index[b] })
	}
	for _, q := range f.panel.Targets {
		titles = append(titles, q.Legend)
	}
	return labels, titles
}
