// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
)

// Sizes of a plot in pixels.
const (
	plotWidth, plotHeight = 360.0, 220.0 // of one of two plots in a row
	plotLeft, plotRight   = 52.0, 24.0
	plotTop, plotBottom   = 34.0, 36.0
	legendHeight          = 24.0
)

// plotColors are the colors of exporters in all plots.
var plotColors = map[string]string{accelscope: "#3b78c3", floor: "#4c9a52", nodeExporter: "#e0892f", cadvisor: "#8a63b8"}

// plot draws CPU time and memory over the number of things, as SVG. All axes begin at 0: a proportional load is a
// straight line.
func plot(things string, curves []curve) string {
	b := &strings.Builder{}
	width, height := 2*plotWidth, plotHeight+legendHeight
	const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%[1]g" height="%[2]g" font-family="sans-serif">`
	fmt.Fprintf(b, head+"\n", width, height)
	fmt.Fprintf(b, `<rect width="%g" height="%g" fill="#ffffff"/>`+"\n", width, height)
	panel(b, 0, "CPU per scrape, ms", things, curves, func(l load) float64 { return l.CPU })
	panel(b, plotWidth, "private memory, MB", things, curves, func(l load) float64 { return l.Private })
	for i, c := range curves {
		x := plotLeft + 160*float64(i)
		fmt.Fprintf(b, `<rect x="%g" y="%g" width="14" height="4" fill="%s"/>`+"\n", x, plotHeight+6, plotColors[c.Name])
		label(b, x+20, plotHeight+12, "start", c.Name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, left float64, title, things string, curves []curve, value func(load) float64) {
	var most, highest float64
	for _, c := range curves {
		for i, l := range c.Loads {
			most, highest = max(most, float64(c.Points[i])), max(highest, value(l))
		}
	}
	x := func(n float64) float64 {
		return left + plotLeft + n/most*(plotWidth-plotLeft-plotRight)
	}
	y := func(v float64) float64 {
		return plotHeight - plotBottom - v/highest*(plotHeight-plotTop-plotBottom)
	}
	label(b, left+plotLeft, plotTop-14, "start", title)
	for v := 0.0; v <= highest; v += step(highest) {
		fmt.Fprintf(b, `<path d="M%.1f %.1fH%.1f" stroke="#d8dce0"/>`+"\n", x(0), y(v), x(most))
		label(b, x(0)-6, y(v)+4, "end", fmt.Sprintf("%.6g", v))
	}
	for n := 0.0; n <= most; n += step(most) {
		label(b, x(n), y(0)+16, "middle", fmt.Sprintf("%.6g", n))
	}
	label(b, x(most), y(0)+30, "end", things)
	for _, c := range curves {
		var path strings.Builder
		for j, l := range c.Loads {
			at := fmt.Sprintf("%.1f %.1f", x(float64(c.Points[j])), y(value(l)))
			path.WriteString(map[bool]string{true: "M", false: "L"}[j == 0] + at)
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", x(float64(c.Points[j])), y(value(l)), plotColors[c.Name])
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", path.String(), plotColors[c.Name])
	}
}

func label(b *strings.Builder, x, y float64, anchor, text string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="11" text-anchor="%s" fill="#3a4149">%s</text>`+"\n", x, y, anchor, text)
}

// step returns the distance of about five round values up to highest.
func step(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	size := math.Pow(10, math.Floor(math.Log10(highest/4)))
	for _, s := range []float64{1, 2, 5} {
		if highest/(s*size) <= 5 {
			return s * size
		}
	}
	return 10 * size
}
