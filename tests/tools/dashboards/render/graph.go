// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// shown is the maximum number of series of a graph, the largest ones, and named the maximum in its legend.
const shown, named = 10, 6

// curve is a series as it is drawn.
type curve struct {
	name, color  string
	unit         string
	points       []dashboards.Point // negated if drawn below zero
	dashed       bool
	below        bool
	last, extent float64
}

// curves are the series of all queries, the largest first.
func (f frame) curves() (all []curve, more int) {
	for _, q := range f.panel.Targets {
		below := string(f.property("byFrameRefID", q.Ref, "custom.transform")) == `"negative-Y"`
		for _, s := range f.answers[q.Ref].Series {
			c := curve{
				name: legend(q, s.Labels), unit: f.unit("byFrameRefID", q.Ref), below: below,
				dashed: f.property("byFrameRefID", q.Ref, "custom.lineStyle") != nil,
			}
			for _, p := range s.Points() {
				if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
					continue
				}
				c.last, c.extent = p.Value, max(c.extent, math.Abs(p.Value))
				if below {
					p.Value = -p.Value
				}
				c.points = append(c.points, p)
			}
			if len(c.points) > 0 {
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b curve) int { return cmp.Compare(b.extent, a.extent) })
	if len(all) > shown {
		all, more = all[:shown], len(all)-shown
	}
	for i := range all {
		all[i].color = colors[i%len(colors)]
	}
	return all, more
}

// stack stacks the series in the given order.
func stack(all []curve) (tops [][]dashboards.Point) {
	sums := map[float64]float64{}
	for _, c := range all {
		var top []dashboards.Point
		for _, p := range c.points {
			sums[p.Time] += p.Value
			top = append(top, dashboards.Point{Time: p.Time, Value: sums[p.Time]})
		}
		tops = append(tops, top)
	}
	return tops
}

// axes are the area and the scales of a graph.
type axes struct{ left, right, top, bottom, low, high, begin, end float64 }

func (a axes) x(t float64) float64 { return a.left + (t-a.begin)/(a.end-a.begin)*(a.right-a.left) }
func (a axes) y(v float64) float64 { return a.bottom - (v-a.low)/(a.high-a.low)*(a.bottom-a.top) }

// graph draws lines, or a stack of areas, above a legend with the last and the largest value of each.
func (f frame) graph() {
	all, more := f.curves()
	stacked := f.panel.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"
	lines := make([][]dashboards.Point, len(all))
	for i, c := range all {
		lines[i] = c.points
	}
	if stacked {
		lines = stack(all)
	}
	a := axes{begin: f.begin, end: f.end}
	for _, points := range lines {
		for _, p := range points {
			a.low, a.high = min(a.low, p.Value), max(a.high, p.Value)
		}
	}
	if m := f.panel.FieldConfig.Defaults.Max; m != nil {
		a.high = *m
	} else if a.high == a.low {
		a.high = a.low + 1
	} else {
		a.high += (a.high - a.low) * 0.06
	}
	rows := min(len(all), named)
	a.left, a.right, a.top, a.bottom = f.x+62, f.x+f.w-12, f.y+26, f.y+f.h-32-float64(rows)*13
	f.scale(a, f.panel.FieldConfig.Defaults.Unit)
	for i, points := range slices.Backward(lines) {
		path := trace(a, points)
		c := all[i]
		if stacked && len(points) > 1 {
			first, last := points[0].Time, points[len(points)-1].Time
			f.add(`<path d="%sL%s %sL%s %sZ" fill="%s" fill-opacity=".75"/>`, path, px(a.x(last)), px(a.y(0)),
				px(a.x(first)), px(a.y(0)), c.color)
			continue
		}
		dash := ""
		if c.dashed {
			dash = ` stroke-dasharray="6 4"`
		}
		f.add(`<path d="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>`, path, c.color, dash)
	}
	f.legend(a.bottom+27, all[:rows], more+len(all)-rows)
}

// trace returns the path of a line, without points that do not change it.
func trace(a axes, points []dashboards.Point) string {
	var b strings.Builder
	var kept [][2]string
	for _, p := range points {
		at := [2]string{px(a.x(p.Time)), px(a.y(min(p.Value, a.high)))}
		if n := len(kept); n >= 2 && kept[n-1][1] == at[1] && kept[n-2][1] == at[1] {
			kept[n-1] = at
			continue
		}
		kept = append(kept, at)
	}
	for i, at := range kept {
		b.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + at[0] + " " + at[1])
	}
	return b.String()
}

// scale draws the grid.
func (f frame) scale(a axes, unit string) {
	for _, v := range ticks(a.low, a.high, max(2, int((a.bottom-a.top)/26)), unit) {
		color := "#e6e9ec"
		if v == 0 {
			color = "#aab1b8"
		}
		f.add(`<path d="M%s %sH%s" stroke="%s"/>`, px(a.left), px(a.y(v)), px(a.right), color)
		f.text(a.left-5, a.y(v)+3, 9, "end", "#5a626b", "", format(math.Abs(v), unit))
	}
	f.times(a)
}

// times writes the time below a graph.
func (f frame) times(a axes) {
	for i := range 4 {
		t := a.begin + (a.end-a.begin)*float64(i)/3
		anchor := []string{"start", "middle", "middle", "end"}[i]
		f.text(a.x(t), a.bottom+12, 9, anchor, "#5a626b", "", time.Unix(int64(t), 0).UTC().Format("15:04:05"))
	}
}

// legend names the series, with their last and largest values.
func (f frame) legend(y float64, all []curve, more int) {
	if more > 0 && len(all) > 1 {
		all, more = all[:len(all)-1], more+1
	}
	last, largest := f.x+f.w-90, f.x+f.w-10
	f.text(last, y-1, 8, "end", "#8a929b", "", "last")
	f.text(largest, y-1, 8, "end", "#8a929b", "", "max")
	for i, c := range all {
		at := y + float64(i+1)*13 - 3
		f.rect(f.x+10, at-6, 10, 4, c.color, "")
		f.text(f.x+25, at, 10, "start", "#2b3138", "", shorten(c.name, int((f.w-230)/5.6)))
		f.text(last, at, 10, "end", "#2b3138", "", format(c.last, c.unit))
		f.text(largest, at, 10, "end", "#2b3138", "", format(c.extent, c.unit))
	}
	if more > 0 {
		f.text(f.x+25, y+float64(len(all)+1)*13-3, 10, "start", "#8a929b", "", fmt.Sprintf("and %d more", more))
	}
}

// shorten keeps the beginning and the end of a text.
func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most || most < 8 {
		return s
	}
	return string(r[:most*2/3]) + "…" + string(r[len(r)-most/3+1:])
}

// heatmap draws the buckets of a classic histogram.
func (f frame) heatmap() {
	type bucket struct {
		le     float64
		points []dashboards.Point
	}
	var all []bucket
	for _, q := range f.panel.Targets {
		for _, s := range f.answers[q.Ref].Series {
			if le, err := strconv.ParseFloat(s.Labels["le"], 64); err == nil {
				all = append(all, bucket{le, s.Values})
			}
		}
	}
	slices.SortFunc(all, func(a, b bucket) int { return cmp.Compare(a.le, b.le) })
	counts, most := make([]map[float64]float64, len(all)), 0.0
	for i, b := range all {
		counts[i] = map[float64]float64{}
		below := map[float64]float64{}
		if i > 0 {
			for _, p := range all[i-1].points {
				below[p.Time] = p.Value
			}
		}
		for _, p := range b.points {
			counts[i][p.Time] = p.Value - below[p.Time]
			most = max(most, counts[i][p.Time])
		}
	}
	a := axes{
		left: f.x + 62, right: f.x + f.w - 12, top: f.y + 26, bottom: f.y + f.h - 20, begin: f.begin,
		end: f.end, high: float64(len(all)),
	}
	width := 0.0
	if len(all) > 0 && len(all[0].points) > 1 {
		width = a.x(all[0].points[1].Time) - a.x(all[0].points[0].Time)
	}
	for i, b := range all {
		bound := "more"
		if !math.IsInf(b.le, 0) {
			bound = format(b.le, f.panel.FieldConfig.Defaults.Unit)
		}
		if len(all) < 16 || i%2 == 0 {
			f.text(a.left-5, a.y(float64(i+1))+6, 9, "end", "#5a626b", "", bound)
		}
		for _, p := range b.points {
			if n := counts[i][p.Time]; n > most/1e4 && p.Time > a.begin {
				heat := math.Sqrt(n / most)
				color := fmt.Sprintf("#%02x%02x%02x", 255-int(70*heat), 235-int(170*heat), 210-int(205*heat))
				left := max(a.left, a.x(p.Time)-width)
				f.rect(left, a.y(float64(i+1)), a.x(p.Time)-left-0.5, a.y(float64(i))-a.y(float64(i+1))-0.5, color,
					"")
			}
		}
	}
	f.times(a)
}

// timeline draws a bar for each series, in the colors of its values.
func (f frame) timeline() {
	all, _ := f.curves()
	texts := map[string]string{}
	for _, m := range f.panel.FieldConfig.Defaults.Mappings {
		for value, o := range m.Options {
			texts[value] = o.Text
		}
	}
	a := axes{
		left: f.x + 170, right: f.x + f.w - 12, top: f.y + 26, bottom: f.y + f.h - 36, begin: f.begin,
		end: f.end, high: 1,
	}
	height := min((a.bottom-a.top)/float64(len(all)), 26)
	slices.SortFunc(all, func(a, b curve) int { return cmp.Compare(a.name, b.name) })
	for i, c := range all {
		y := a.top + float64(i)*height
		f.text(a.left-6, y+height/2+3, 10, "end", "#2b3138", "", shorten(c.name, 28))
		for j := 0; j < len(c.points); {
			k := j + 1
			for k < len(c.points) && c.points[k].Value == c.points[j].Value {
				k++
			}
			end := a.end
			if k < len(c.points) {
				end = c.points[k].Time
			}
			f.rect(a.x(c.points[j].Time), y+1, a.x(end)-a.x(c.points[j].Time), height-2, f.color(c.points[j].Value),
				` fill-opacity=".8"`)
			j = k
		}
	}
	f.times(axes{left: a.left, right: a.right, bottom: a.top + float64(len(all))*height, begin: a.begin, end: a.end})
	x := f.x + 10
	for _, value := range slices.Sorted(keys(texts)) {
		v, _ := strconv.ParseFloat(value, 64) // a value mapping of text has the first color
		f.rect(x, f.y+f.h-15, 10, 8, f.color(v), ` fill-opacity=".8"`)
		f.text(x+15, f.y+f.h-8, 10, "start", "#2b3138", "", texts[value])
		x += 40 + 6*float64(len(texts[value]))
	}
}
