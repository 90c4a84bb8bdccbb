// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// table is a table of accelscope top: cells by the row's first cell and the column's heading.
type table map[string]map[string]string

var gap = regexp.MustCompile(` {2,}`)

// tables returns the totals and tables that accelscope top prints, by the heading of their first column, and the order
// of nodes.
func tables(text string) (totals string, all map[string]table, order []string) {
	all = map[string]table{}
	var heads []string
	for i, l := range strings.Split(text, "\n") {
		cells := gap.Split(strings.TrimSpace(l), -1)
		switch {
		case i == 0:
			totals = l
		case l == "":
			heads = nil
		case heads == nil && (cells[0] == "JOB" || cells[0] == "NODE" || cells[0] == "HCA"):
			heads = cells
			all[heads[0]] = table{}
		case len(heads) == len(cells):
			row := map[string]string{}
			for i, head := range heads {
				row[head] = cells[i]
			}
			all[heads[0]][cells[0]] = row
			if heads[0] == "NODE" {
				order = append(order, cells[0])
			}
		}
	}
	return totals, all, order
}

// top compares the tables of accelscope top with what the generator writes.
func (f *fleet) top(t *testing.T, binary string) {
	totals, all, order := tables(f.once(t, binary))
	want := f.truth(time.Now())
	for _, text := range []string{
		fmt.Sprintf("%d nodes (%d do not answer)", len(f.nodes), want.down), "GPUs " + want.gpus + " ", "ports " + want.ports + " ",
	} {
		if !strings.Contains(totals, text) {
			t.Errorf("the totals lack %q: %s", text, totals)
		}
	}
	alerts := map[string]int{}
	for s := range f.symptoms() {
		alerts[s.node]++
	}
	if len(all["NODE"]) != len(f.nodes) || len(all["JOB"]) != len(want.jobs) {
		t.Errorf("%d nodes and %d jobs, the generator writes %d and %d", len(all["NODE"]), len(all["JOB"]), len(f.nodes), len(want.jobs))
	}
	for i, name := range order {
		if i > 0 && alerts[name] > 0 && alerts[order[i-1]] == 0 {
			t.Errorf("%s, which is sick, is behind %s, which is not", name, order[i-1])
		}
	}
	check := func(name string, row map[string]string, exact map[string]any, near map[string]float64) {
		t.Helper()
		for head, v := range exact {
			if row[head] != fmt.Sprint(v) {
				t.Errorf("%s: %s is %q, the generator writes %v", name, head, row[head], v)
			}
		}
		for head, v := range near {
			// Half of the last digit, and the time since the rules were evaluated.
			if got, unit, ok := number(row[head]); !ok || math.Abs(got-v) > f.lag*v+unit/2 {
				t.Errorf("%s: %s is %q, the generator writes %g", name, head, row[head], v)
			}
		}
	}
	_, rails, _ := tables(f.once(t, binary, "--devices"))
	for _, n := range f.nodes {
		one, answers := want.of[n.name()]
		if !answers {
			check(n.name(), all["NODE"][n.name()], map[string]any{"ALERTS": "1 down", "GPUS": "-", "UP": "-", "TX/S": "-"}, nil)
			continue
		}
		use, errors, paused := 0.0, 0.0, 0.0
		for hca, v := range one.use {
			use, errors, paused = max(use, v), errors+one.errors[hca], max(paused, one.paused[hca])
			state := "up"
			if !one.active[hca] {
				state = "not up"
			}
			check(n.name()+" "+hca, rails["HCA"][n.name()+" "+hca], map[string]any{"STATE": state},
				map[string]float64{"BUSY": v, "ERRORS/S": one.errors[hca], "PAUSE": one.paused[hca]})
		}
		check(n.name(), all["NODE"][n.name()], map[string]any{
			"ALERTS": alerts[n.name()], "GPUS": len(one.gpus), "GIVEN": len(one.given), "USED": len(one.used),
			"IDLE": len(one.given) - len(one.used), "SICK": one.sick, "PORTS": len(one.ports), "UP": one.up,
		}, map[string]float64{"TX/S": one.transmit, "RX/S": one.receive, "BUSY": use, "PAUSE": paused, "ERRORS/S": errors})
	}
	for j, members := range want.jobs {
		on := map[string]bool{}
		for m := range members {
			node, _, _ := strings.Cut(m, " ")
			on[node] = true
		}
		row := all["JOB"][j.String()]
		check(j.String(), row, map[string]any{
			"MEMBERS": len(members), "NODES": len(on), "GPUS": want.jobGPUs[j], "IDLE": want.idle[j],
		}, nil)
		past := f.wasted(j)
		most := past + float64(want.idle[j])*math.Ceil(time.Since(f.begin).Minutes()-float64(f.minutes))*f.eachMinute()/60
		if got, unit, ok := number(row["WASTED"]); !ok || got < past-unit/2 || got > most+unit/2 {
			t.Errorf("%v: wasted is %q, the generator writes %.3f to %.3f h", j, row["WASTED"], past, most)
		}
	}
}

// number parses a cell of accelscope top (a size, a percentage, hours or a plain number), and returns the value of its
// last digit, too.
func number(text string) (v, unit float64, ok bool) {
	digits, suffix, _ := strings.Cut(text, " ")
	digits, percent := strings.CutSuffix(digits, "%")
	v, err := strconv.ParseFloat(digits, 64)
	unit = 1
	if _, decimals, found := strings.Cut(digits, "."); found {
		unit = math.Pow10(-len(decimals))
	}
	scale := 1.0
	switch {
	case percent:
		scale = 0.01
	case strings.HasSuffix(suffix, "iB"):
		scale = math.Exp2(float64(10 * (1 + strings.Index("KMGTP", suffix[:1]))))
	}
	return v * scale, unit * scale, err == nil
}
