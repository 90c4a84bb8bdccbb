// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/web"
)

// The size of a sparkline, in the units of its picture.
const (
	sparkWidth  = 180
	sparkHeight = 30
	maxSparks   = 64
)

// historyView is the last 15 minutes.
type historyView struct {
	Enabled    bool
	Begin, End time.Time
	Sparks     []spark
	More       int // that are not shown
	LeftOut    int
}

// spark is the sparkline of one figure.
type spark struct {
	Name, Link, Figure string
	Path               string // of the line
	Now, Most          string
	Kind               overview.Kind
	X, Y               string // of the last point
}

var figureNames = map[overview.Figure]string{
	overview.Transmit: "out", overview.Receive: "in", overview.Utilization: "utilization", overview.Memory: "memory",
}

// historyOf draws the series that are selected.
func historyOf(r *overview.Recorder, selected func(*overview.Series) bool) historyView {
	if !r.Enabled() {
		return historyView{}
	}
	h := r.History(selected)
	v := historyView{Enabled: true, Begin: h.Begin, End: h.Begin.Add(overview.Step * overview.Steps), LeftOut: h.LeftOut}
	for i := range h.Series {
		if len(v.Sparks) >= maxSparks {
			v.More++
			continue
		}
		v.Sparks = append(v.Sparks, sparkOf(&h.Series[i]))
	}
	return v
}

func sparkOf(s *overview.Series) spark {
	out := spark{
		Name: deviceName(s.Kind, s.Device, s.Vendor, s.GPU), Link: web.DeviceLink(s.Device), Figure: figureNames[s.Figure], Kind: s.Kind,
	}
	most, last := 0.0, 0.0
	for _, v := range s.Values {
		if v != nil {
			most, last = math.Max(most, *v), *v
		}
	}
	scale := most
	render := func(v float64) string { return format.Size(v) + "/s" }
	switch s.Figure {
	case overview.Utilization:
		scale, render = 1, format.Percent
	case overview.Memory:
		render = format.Size
	}
	out.Now, out.Most = render(last), render(most)
	var path strings.Builder
	command := "M"
	for i, v := range s.Values {
		if v == nil {
			continue
		}
		y := float64(sparkHeight - 2)
		if scale > 0 {
			y -= *v / scale * (sparkHeight - 4)
		}
		out.X, out.Y = fmt.Sprint(i*sparkWidth/(overview.Steps-1)), fmt.Sprintf("%.0f", y)
		path.WriteString(command + out.X + " " + out.Y)
		command = "L"
	}
	out.Path = path.String()
	return out
}
