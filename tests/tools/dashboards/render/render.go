// SPDX-License-Identifier: Apache-2.0

// Package render draws dashboards as SVG, one file for each, from the answers of Prometheus, on a machine without
// Grafana. The pictures are for the README. It supports the kinds of panels and the options that the dashboards here
// use.
package render

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// Sizes in pixels: of a column and of a row of Grafana's grid, and of margins.
const (
	column, line = 50, 27
	margin       = 12
	gap          = 3 // half of the space between two panels
	heading      = 46
)

// colors are the colors of series, used in turn.
var colors = []string{
	"#3b78c3", "#e0892f", "#4c9a52", "#c9423f", "#8a63b8", "#8b6250", "#d873b4", "#6f7780", "#b3a52f", "#35a5b5",
	"#1f4e8c", "#a35c12", "#2d6a33", "#8c2524", "#5b3c85",
}

// canvas is the SVG document.
type canvas struct{ strings.Builder }

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// text writes text at a position. The anchor is start, middle or end.
func (c *canvas) text(x, y float64, size int, anchor, color, more, s string) {
	c.add(`<text x="%s" y="%s" font-size="%d" text-anchor="%s" fill="%s"%s>%s</text>`, px(x), px(y), size, anchor,
		color, more, escape(s))
}

func (c *canvas) rect(x, y, w, h float64, color, more string) {
	c.add(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s/>`, px(x), px(y), px(w), px(h), color, more)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}

// px formats a coordinate in the shortest form.
func px(v float64) string {
	return strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf("%.1f", v), "0"), ".")
}

// Files draws the dashboards of a directory that have answers in a file, each as NAME.svg in out.
func Files(dir, answers, out string) error {
	all, err := dashboards.Load(dir)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(answers)
	if err != nil {
		return err
	}
	var a dashboards.Answers
	if err := json.Unmarshal(text, &a); err != nil {
		return fmt.Errorf("%s: %w", answers, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, d := range all {
		if a.Panels[d.File] == nil {
			continue
		}
		file := filepath.Join(out, strings.TrimSuffix(d.File, ".json")+".svg")
		if err := os.WriteFile(file, []byte(Dashboard(d, a)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Dashboard draws one dashboard.
func Dashboard(d dashboards.Dashboard, a dashboards.Answers) string {
	lowest := 0
	for _, p := range d.Panels {
		lowest = max(lowest, p.Place.Y+p.Place.H)
	}
	c := &canvas{}
	width, height := 24*column+2*margin, lowest*line+heading+margin
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Inter,Helvetica,Arial,sans-serif">`, width, height)
	c.rect(0, 0, float64(width), float64(height), "#eef0f2", "")
	c.text(margin+4, 24, 17, "start", "#1b1f24", ` font-weight="bold"`, d.Title)
	c.text(margin+4, 40, 11, "start", "#5a626b", "", d.Description)
	for _, p := range d.Panels {
		f := frame{
			canvas: c, panel: p, answers: a.Panels[d.File][p.ID], begin: a.Begin, end: a.End,
			x: float64(margin + p.Place.X*column + gap), y: float64(heading + p.Place.Y*line + gap),
			w: float64(p.Place.W*column - 2*gap), h: float64(p.Place.H*line - 2*gap),
		}
		f.draw()
	}
	c.add("</svg>")
	return c.String()
}

// frame is a panel at its position.
type frame struct {
	*canvas
	panel      dashboards.Panel
	answers    map[string]dashboards.Answer
	begin, end float64
	x, y, w, h float64
}

func (f frame) draw() {
	if f.panel.Type == "row" {
		f.text(f.x+2, f.y+f.h-4, 13, "start", "#1b1f24", ` font-weight="bold"`, "▾ "+f.panel.Title)
		return
	}
	f.rect(f.x, f.y, f.w, f.h, "#fff", ` stroke="#d5d9de" rx="2"`)
	f.text(f.x+8, f.y+15, 11, "start", "#1b1f24", ` font-weight="bold"`, f.panel.Title)
	hasData := false
	for _, a := range f.answers {
		hasData = hasData || a.HasData()
	}
	if !hasData {
		f.text(f.x+f.w/2, f.y+f.h/2+8, 11, "middle", "#8a929b", "", "No data here")
		return
	}
	switch f.panel.Type {
	case "stat":
		f.stat()
	case "table":
		f.table()
	case "heatmap":
		f.heatmap()
	case "state-timeline":
		f.timeline()
	default:
		f.graph()
	}
}

// stat draws a number in the color that its thresholds select.
func (f frame) stat() {
	for _, q := range f.panel.Targets {
		for _, s := range f.answers[q.Ref].Series {
			if points := s.Points(); len(points) > 0 {
				v := points[len(points)-1].Value
				f.text(f.x+f.w/2, f.y+f.h/2+20, 28, "middle", f.color(v), "",
					format(v, f.panel.FieldConfig.Defaults.Unit))
				return
			}
		}
	}
}

// color returns the color of a value by the thresholds.
func (f frame) color(v float64) string {
	names := map[string]string{"green": "#3f8f46", "yellow": "#c7920d", "red": "#c4302b", "blue": "#3b78c3"}
	color := ""
	for _, s := range f.panel.FieldConfig.Defaults.Thresholds.Steps {
		if s.Value == nil || v >= *s.Value {
			color = names[s.Color]
		}
	}
	return color
}

// property returns the value that an override sets for a query or a column, or nil.
func (f frame) property(matcher, of, id string) json.RawMessage {
	for _, o := range f.panel.FieldConfig.Overrides {
		for _, p := range o.Properties {
			if o.Matcher.ID == matcher && o.Matcher.Options == of && p.ID == id {
				return p.Value
			}
		}
	}
	return nil
}

// unit returns the unit of a query or a column.
func (f frame) unit(matcher, of string) string {
	var unit string
	if json.Unmarshal(f.property(matcher, of, "unit"), &unit) == nil {
		return unit
	}
	return f.panel.FieldConfig.Defaults.Unit
}

var placeholder = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

// legend returns the name of a series.
func legend(q dashboards.Target, labels map[string]string) string {
	return placeholder.ReplaceAllStringFunc(q.Legend, func(s string) string {
		return labels[placeholder.FindStringSubmatch(s)[1]]
	})
}
