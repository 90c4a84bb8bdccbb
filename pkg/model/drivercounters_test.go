// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDriverCounters checks that no name stands for two counters, and that the names of a counter stand together.
func TestDriverCounters(t *testing.T) {
	names, last, ended := map[string]bool{}, "", map[string]bool{}
	for _, n := range driverCounters {
		if names[n.name] {
			t.Errorf("%s is there twice", n.name)
		}
		if n.counter != last && ended[n.counter] {
			t.Errorf("%s: its names do not stand together", n.counter)
		}
		names[n.name], ended[last], last = true, true, n.counter
	}
	ended[last] = true
	if n := len(ended) - 1; n != SharedCounters { // without the empty name before the first
		t.Errorf("%d counters, want %d", n, SharedCounters)
	}
}

// plain returns the counters without their sources.
func plain(shared []SharedCounter) (list []Counter) {
	for _, c := range shared {
		list = append(list, c.Counter)
	}
	return list
}

func TestPortCounters(t *testing.T) {
	for name, c := range map[string]struct{ have, want []Counter }{
		"none":          {nil, nil},
		"nothing of it": {[]Counter{{"lifespan", 10}, {"rx_write_requests", 5}}, nil},
		"zero is a value": {
			[]Counter{{"out_of_buffer", 0}}, []Counter{{OutOfBuffer, 0}},
		},
		"the first name of the table counts, in any order": {
			[]Counter{{"rx_out_of_buffer", 9}, {"out_of_buffer", 7}, {"send_rnr_err", 2}}, []Counter{{OutOfBuffer, 7}},
		},
		"a sum needs all of its parts": {
			[]Counter{{"ip4OutOctets", 5}, {"ip4InOctets", 1}, {"ip6InOctets", 2}}, []Counter{{ReceiveBytes, 3}},
		},
		"firmware without multicast": {
			[]Counter{{"tx_rdma_ucast_bytes", 5}, {"rx_rdma_ucast_bytes", 7}, {"rx_rdma_mcast_bytes", 1}},
			[]Counter{{TransmitBytes, 5}, {ReceiveBytes, 8}},
		},
		"firmware that has no value": {
			[]Counter{{"tx_rdma_ucast_bytes", 5}, {"tx_rdma_mcast_bytes", math.MaxUint64}}, []Counter{{TransmitBytes, 5}},
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
		if diff := cmp.Diff(c.want, plain(new(HCA).PortCounters(nil, &Port{HWCounters: c.have}))); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestDeviceCounters has an mlx4 with two ports: the device counts the events of its ports.
func TestDeviceCounters(t *testing.T) {
	device := []Counter{{"rq_num_oos", 12}, {"sq_num_to", 3}}
	h := HCA{HWCounters: device, Ports: []Port{{Number: 1, HWCounters: []Counter{{"rq_num_oos", 5}}}, {Number: 2}}}
	if diff := cmp.Diff([]Counter{{Timeouts, 3}}, plain(h.DeviceCounters())); diff != "" {
		t.Errorf("with a port that counts:\n%s", diff)
	}
	h.Ports[0].HWCounters = nil
	if diff := cmp.Diff([]Counter{{OutOfSequence, 12}, {Timeouts, 3}}, plain(h.DeviceCounters())); diff != "" {
		t.Errorf("with ports that do not:\n%s", diff)
	}
}

// TestPortCountersOfPMA has ports with counters/: their bytes and packets count, in words, or in flits on Omni-Path.
func TestPortCountersOfPMA(t *testing.T) {
	words := []Counter{{"port_xmit_data", 10}, {"port_rcv_packets", 3}, {"unicast_rcv_packets", 3}}
	for name, c := range map[string]struct {
		hca  HCA
		port Port
		want []Counter
	}{
		"words": {HCA{}, Port{Counters: words}, []Counter{{TransmitBytes, 40}, {ReceivePackets, 3}}},
		"flits, by the board": {
			HCA{Board: "Intel Omni-Path HFI"}, Port{Counters: words}, []Counter{{TransmitBytes, 80}, {ReceivePackets, 3}},
		},
		"flits, by the counter": {
			HCA{HWCounters: []Counter{{"DcXmitFlits", 9}}}, Port{Counters: words}, []Counter{{TransmitBytes, 80}, {ReceivePackets, 3}},
		},
		"not the driver's, also of what is missing": {
			HCA{},
			Port{Counters: words, HWCounters: []Counter{{"tx_bytes", 41}, {"rx_bytes", 7}}},
			[]Counter{{TransmitBytes, 40}, {ReceivePackets, 3}},
		},
		"the driver's, without bytes and packets": {
			HCA{}, Port{Counters: []Counter{{"symbol_error", 1}}, HWCounters: []Counter{{"tx_bytes", 41}}}, []Counter{{TransmitBytes, 41}},
		},
		"32 bits at the highest value": {
			HCA{}, Port{Counters: []Counter{{"port_xmit_data", math.MaxUint32}, {"port_rcv_data", 5}}}, []Counter{{ReceiveBytes, 20}},
		},
		"64 bits that pass through it": {
			HCA{},
			Port{Counters: []Counter{{"port_xmit_data", math.MaxUint32}, {"unicast_xmit_packets", 5}}},
			[]Counter{{TransmitBytes, 4 * math.MaxUint32}},
		},
		"counters_ext of old drivers": {
			HCA{},
			Port{Counters: []Counter{{"port_xmit_data", 5}}, ExtCounters: []Counter{{"port_xmit_data_64", 1 << 40}}},
			[]Counter{{TransmitBytes, 1 << 42}},
		},
	} {
		if diff := cmp.Diff(c.want, plain(c.hca.PortCounters(nil, &c.port))); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestLinksPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/links.md")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, n := range driverCounters {
		metric := "rdma_port_" + n.counter + "_total"
		if want[metric] == nil {
			want[metric] = map[string]bool{}
		}
		for name := range strings.SplitSeq(n.name, " + ") {
			want[metric][name] = true
		}
	}
	for line := range strings.Lines(string(page)) {
		row, ok := strings.CutPrefix(line, "- `rdma_port_")
		metric, row, found := strings.Cut(row, "_total`: ")
		if !ok || !found {
			continue
		}
		names := map[string]bool{}
		for i, word := range strings.Split(row, "`") {
			if i%2 == 1 {
				names[word] = true
			}
		}
		got["rdma_port_"+metric+"_total"] = names
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
