// SPDX-License-Identifier: Apache-2.0

package model

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCongestionNames checks that no name counts for two counters, and that the names of a counter stand together.
func TestCongestionNames(t *testing.T) {
	names, last, ended := map[string]bool{}, "", map[string]bool{}
	for _, n := range congestionNames {
		if names[n.name] {
			t.Errorf("%s is there twice", n.name)
		}
		if n.counter != last && ended[n.counter] {
			t.Errorf("%s: its names do not stand together", n.counter)
		}
		names[n.name], ended[last], last = true, true, n.counter
	}
}

func TestCongestion(t *testing.T) {
	for name, c := range map[string]struct{ have, want []Counter }{
		"none":          {nil, nil},
		"nothing of it": {[]Counter{{"lifespan", 10}, {"rx_write_requests", 5}}, nil},
		"zero is a value": {
			[]Counter{{"out_of_buffer", 0}}, []Counter{{OutOfBuffer, 0}},
		},
		"the first name of the table counts, in any order": {
			[]Counter{{"rx_out_of_buffer", 9}, {"out_of_buffer", 7}, {"send_rnr_err", 2}}, []Counter{{OutOfBuffer, 7}},
		},
		"details are not added": {
			[]Counter{
				{"roce_slow_restart_trans", 1},
				{"roce_slow_restart_cnps", 2},
				{"roce_slow_restart", 4},
				{"roce_adp_retrans_to", 8},
				{"roce_adp_retrans", 16},
			},
			[]Counter{{AdaptiveRetransmissions, 16}, {SlowRestart, 4}},
		},
	} {
		if diff := cmp.Diff(c.want, Congestion(nil, c.have)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestDeviceCongestion has an mlx4 of two ports: its device counts what its ports count.
func TestDeviceCongestion(t *testing.T) {
	device := []Counter{{"rq_num_oos", 12}, {"sq_num_to", 3}}
	h := HCA{HWCounters: device, Ports: []Port{{Number: 1, HWCounters: []Counter{{"rq_num_oos", 5}}}, {Number: 2}}}
	if diff := cmp.Diff([]Counter{{Timeouts, 3}}, h.DeviceCongestion()); diff != "" {
		t.Errorf("with a port that counts:\n%s", diff)
	}
	h.Ports[0].HWCounters = nil
	if diff := cmp.Diff([]Counter{{OutOfSequence, 12}, {Timeouts, 3}}, h.DeviceCongestion()); diff != "" {
		t.Errorf("with ports that do not:\n%s", diff)
	}
}

// TestCongestionPage compares docs/congestion.md with the table.
func TestCongestionPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/congestion.md")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, n := range congestionNames {
		metric := "rdma_port_" + n.counter + "_total"
		if want[metric] == nil {
			want[metric] = map[string]bool{}
		}
		want[metric][n.name] = true
	}
	for line := range strings.Lines(string(page)) {
		row, ok := strings.CutPrefix(line, "| `rdma_port_")
		metric, row, found := strings.Cut(row, "`")
		if !ok || !found {
			continue
		}
		names := map[string]bool{}
		for i, word := range strings.Split(row, "`") {
			if i%2 == 1 {
				names[word] = true
			}
		}
		got["rdma_port_"+metric] = names
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
