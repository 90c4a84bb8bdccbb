// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// smallFabric returns two switches with two links between them (one degraded), an adapter, a router, a switch that
// stopped answering, and a link to an unknown node.
func smallFabric() *model.Fabric {
	yes, no := true, false
	to := func(guid string, port int) *model.FabricPeer { return &model.FabricPeer{GUID: guid, Port: port} }
	at := time.UnixMilli(1700000000250)
	var all []model.Counter
	for i, c := range slices.Concat(fabricTraffic, fabricErrors) {
		all = append(all, model.Counter{Name: c.counter, Value: uint64(i + 1)})
	}
	return &model.Fabric{
		Discovered: at, Master: &model.FabricMaster{GUID: "0xb8cef60300000101", LID: 3, Priority: 14}, MasterChanges: 2,
		Queries: []model.FabricQueries{
			{Tool: "ibnetdiscover", Result: "ok", Count: 3}, {Tool: "perfquery", Result: "timeout", Count: 1},
		},
		Nodes: []model.FabricNode{
			{GUID: "0x0000000000000001", Kind: model.FabricSwitch, Name: "leaf1", LID: 2, Queried: at.Add(time.Second), Ports: []model.FabricPort{
				{Number: 0, Counters: []model.Counter{{Name: "PortXmitData", Value: 5}}},
				{Number: 1, Width: 4, Speed: "HDR", Peer: to("0x0000000000000011", 1), Narrow: &no, Slow: &no, Counters: append(
					all, model.Counter{Name: "PortOddNew", Value: 1})},
				{Number: 2, Width: 2, Speed: "EDR", Peer: to("0x0000000000000002", 1), Narrow: &yes, Slow: &yes},
				{Number: 3, Width: 4, Speed: "XDR", Peer: to("0x0000000000000002", 2), Narrow: &no, Counters: []model.Counter{
					{Name: "SymbolErrorCounter", Value: 1<<32 - 1}, {Name: "PortRcvData", Value: 1 << 62},
				}},
				{Number: 4},
				{Number: 5, Width: 4, Speed: "WDR", Peer: to("0x00000000000000ff", 7)}, // an unknown speed
			}},
			{GUID: "0x0000000000000002", Kind: model.FabricSwitch, Name: "spine1", LID: 3, Queried: at, Error: "timed out", Ports: []model.FabricPort{
				{Number: 1, Width: 2, Speed: "EDR", Peer: to("0x0000000000000001", 2), Counters: []model.Counter{{Name: "PortRcvErrors", Value: 9}}},
				{Number: 2, Width: 4, Speed: "XDR", Peer: to("0x0000000000000001", 3)},
			}},
			{GUID: "0x0000000000000003", Kind: model.FabricSwitch, Name: "spine2", Error: "never answered"},
			{GUID: "0x0000000000000004", Kind: model.FabricSwitch, Name: "spine3", LID: 5}, // not queried yet
			{GUID: "0x0000000000000011", Kind: model.FabricCA, Name: "node1 mlx5_0", LID: 9, Ports: []model.FabricPort{
				{Number: 1, Width: 4, Speed: "HDR", Peer: to("0x0000000000000001", 1), Counters: []model.Counter{{Name: "SymbolErrorCounter", Value: 4}}},
				{Number: 2, Counters: []model.Counter{}}, // no errors
				{Number: 3},                              // unknown
			}},
			{GUID: "0x0000000000000021", Kind: model.FabricRouter, Name: "router", Ports: []model.FabricPort{{Number: 1}}},
		},
	}
}

func fabricFamilies(t *testing.T, f *model.Fabric) (out []*dto.MetricFamily) {
	t.Helper()
	sources := []engine.Registration{{Source: &fake{name: "fabric", facts: model.Snapshot{Fabric: f}}}}
	synctest.Test(t, func(t *testing.T) {
		for _, family := range gather(t, sources) {
			for _, prefix := range []string{"infiniband_fabric_", "infiniband_switch_", "infiniband_hca_"} {
				if strings.HasPrefix(family.GetName(), prefix) {
					out = append(out, family)
				}
			}
		}
	})
	return out
}

func TestFabric(t *testing.T) {
	compare(t, filepath.Join("testdata", "fabric.prom"), library.Encode(t, fabricFamilies(t, smallFabric()), expfmt.TypeTextPlain))
}

// Without a fabric source there are no series of the fabric. An empty fabric has zeros.
func TestNoFabric(t *testing.T) {
	if f := fabricFamilies(t, nil); len(f) > 0 {
		t.Errorf("%v", f)
	}
	families := fabricFamilies(t, &model.Fabric{})
	for _, typ := range []string{"switch", "ca", "router"} {
		if n, ok := value(families, "infiniband_fabric_nodes", "type="+typ); !ok || n != 0 {
			t.Errorf("%s: %v %v", typ, n, ok)
		}
	}
	if n, ok := value(families, "infiniband_fabric_links"); !ok || n != 0 || len(families) != 3 {
		t.Errorf("%d families, links %v %v", len(families), n, ok)
	}
}

// TestUnhealthyPorts: ports with a link count unless they are active. Without a known state there is no series.
func TestUnhealthyPorts(t *testing.T) {
	for _, c := range []struct {
		states []string
		want   float64
		known  bool
	}{
		{nil, 0, false}, {[]string{"", ""}, 0, false}, {[]string{"", "Active"}, 0, true}, {[]string{"Armed", "", "Active", "Initialize"}, 2, true},
	} {
		n := model.FabricNode{GUID: "0x0000000000000001", Kind: model.FabricSwitch}
		for i, state := range c.states {
			n.Ports = append(n.Ports, model.FabricPort{Number: i + 1, State: state})
		}
		got, ok := value(fabricFamilies(t, &model.Fabric{Nodes: []model.FabricNode{n}}), "infiniband_fabric_unhealthy_ports")
		if ok != c.known || got != c.want {
			t.Errorf("%v: %v, %v", c.states, got, ok)
		}
	}
}

// infiniband_exporter's dashboards find its names and labels of version 0.10.0.
func TestInfinibandExporterNames(t *testing.T) {
	uplink := "port uplink uplink_guid uplink_lid uplink_port uplink_type"
	want := map[string]string{
		"switch_info": "guid lid switch", "hca_info": "guid hca lid",
		"switch_uplink_info": "guid " + strings.Replace(uplink, "port ", "port switch ", 1), "hca_uplink_info": "guid hca " + uplink,
		"switch_port_rate_bytes_per_second": "guid port", "switch_port_raw_rate_bytes_per_second": "guid port",
	}
	for c := range strings.FieldsSeq(`transmit_data_bytes receive_data_bytes transmit_packets receive_packets unicast_transmit_packets
		unicast_receive_packets multicast_transmit_packets multicast_receive_packets symbol_error link_error_recovery link_downed
		receive_errors receive_remote_physical_errors receive_switch_relay_errors transmit_discards transmit_constraint_errors
		receive_constraint_errors local_link_integrity_errors excessive_buffer_overrun_errors vl15_dropped transmit_wait qp1_dropped`) {
		want["switch_port_"+c+"_total"] = "guid port"
		if !strings.Contains(c, "cast_") && !strings.HasSuffix(c, "_bytes") && !strings.HasSuffix(c, "_packets") && c != "transmit_wait" {
			want["hca_port_"+c+"_total"] = "guid port"
		}
	}
	got := map[string]string{}
	for _, m := range fabricMetrics() {
		name := strings.TrimPrefix(m.name, "infiniband_")
		if _, ok := want[name]; ok {
			got[name] = strings.Join(slices.Sorted(slices.Values(m.labels)), " ")
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Hostile names of nodes do not break the exposition, and nodes of the same name stay separate.
func TestFabricHostileNames(t *testing.T) {
	names := []string{"", "\"} 1\nx{", `\`, "a\xffb", "\x00", "名前", strings.Repeat("x", 1<<12), "<b>&amp;"}
	f := &model.Fabric{}
	for i, name := range names {
		f.Nodes = append(f.Nodes, model.FabricNode{GUID: fmt.Sprintf("0x%016x", i), Kind: model.FabricSwitch, Name: name, Ports: []model.FabricPort{
			{Number: 1, Peer: &model.FabricPeer{GUID: fmt.Sprintf("0x%016x", (i+1)%len(names)), Port: 2}},
		}})
	}
	families := fabricFamilies(t, f)
	parser := expfmt.NewTextParser(promodel.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(library.Encode(t, families, expfmt.TypeTextPlain)))
	if err != nil {
		t.Fatal(err)
	}
	for name, label := range map[string]string{"infiniband_switch_info": "switch", "infiniband_switch_uplink_info": "uplink"} {
		var got []string
		for _, m := range parsed[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					got = append(got, l.GetValue())
				}
				if !utf8.ValidString(l.GetValue()) {
					t.Errorf("%s: %q", name, l.GetValue())
				}
			}
		}
		want := slices.Clone(names)
		want[3] = "a\uFFFDb"
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// fatTree returns a fat tree of two levels with all counters on every switch port.
func fatTree(leaves, spines, hostsOfLeaf int) *model.Fabric {
	no := false
	f := &model.Fabric{Discovered: time.UnixMilli(1700000000000)}
	leaf := func(i int) string { return fmt.Sprintf("0x%016x", 0x1000+i) }
	spine := func(i int) string { return fmt.Sprintf("0x%016x", 0x2000+i) }
	host := func(i int) string { return fmt.Sprintf("0x%016x", 0x8000+i) }
	port := func(n int, guid string, peer int) model.FabricPort {
		p := model.FabricPort{Number: n, Width: 4, Speed: "NDR", Peer: &model.FabricPeer{GUID: guid, Port: peer}, Narrow: &no, Slow: &no}
		for i, c := range slices.Concat(fabricTraffic, fabricErrors) {
			p.Counters = append(p.Counters, model.Counter{Name: c.counter, Value: uint64(i)})
		}
		return p
	}
	for i := range leaves {
		n := model.FabricNode{GUID: leaf(i), Kind: model.FabricSwitch, Name: fmt.Sprint("leaf", i), LID: uint32(i + 1), Queried: f.Discovered}
		for j := range hostsOfLeaf {
			h := i*hostsOfLeaf + j
			n.Ports = append(n.Ports, port(j+1, host(h), 1))
			p := port(1, n.GUID, j+1)
			p.Counters = nil
			f.Nodes = append(f.Nodes, model.FabricNode{
				GUID: host(h), Kind: model.FabricCA, Name: fmt.Sprint("node", h, " mlx5_0"), LID: uint32(h + 100), Ports: []model.FabricPort{p},
			})
		}
		for j := range spines {
			n.Ports = append(n.Ports, port(hostsOfLeaf+j+1, spine(j), i+1))
		}
		f.Nodes = append(f.Nodes, n)
	}
	for i := range spines {
		n := model.FabricNode{GUID: spine(i), Kind: model.FabricSwitch, Name: fmt.Sprint("spine", i), LID: uint32(i + 50), Queried: f.Discovered}
		for j := range leaves {
			n.Ports = append(n.Ports, port(j+1, leaf(j), hostsOfLeaf+i+1))
		}
		f.Nodes = append(f.Nodes, n)
	}
	return f
}

// TestFatTree checks that every link of a fat tree of 64 hosts is exported from both ends, and every counter of every
// port.
func TestFatTree(t *testing.T) {
	const leaves, spines, hosts = 8, 8, 64
	const links = hosts + leaves*spines
	const switchPorts = hosts + 2*leaves*spines
	families := fabricFamilies(t, fatTree(leaves, spines, hosts/leaves))
	series := map[string]int{}
	counters := 0
	for _, f := range families {
		series[strings.TrimPrefix(f.GetName(), "infiniband_")] = len(f.Metric)
		if f.GetType() == counter && len(f.Metric) == switchPorts {
			counters++
		}
	}
	want := map[string]int{
		"fabric_nodes": 3, "fabric_links": 1, "fabric_discovered_timestamp_seconds": 1, "fabric_sm_changes_total": 1,
		"switch_info": leaves + spines, "hca_info": hosts, "switch_uplink_info": switchPorts, "hca_uplink_info": hosts,
		"switch_up": leaves + spines, "switch_queried_timestamp_seconds": leaves + spines, "switch_port_up": switchPorts,
		"switch_port_link_width_lanes": switchPorts, "switch_port_rate_bytes_per_second": switchPorts,
		"switch_port_raw_rate_bytes_per_second": switchPorts, "switch_port_degraded": 2 * switchPorts,
	}
	for name, n := range want {
		if series[name] != n {
			t.Errorf("%s: %d series, want %d", name, series[name], n)
		}
	}
	if counters != 22 || len(families) != len(want)+counters {
		t.Errorf("%d counters of all ports, %d families", counters, len(families))
	}
	if n, _ := value(families, "infiniband_fabric_links"); n != links {
		t.Errorf("%v links, want %d", n, links)
	}
	if r, _ := value(families, "infiniband_switch_port_rate_bytes_per_second"); r != 50e9 {
		t.Errorf("NDR over 4 lanes has %v bytes per second, want 400 Gb/s", r)
	}
	// The uplink of each end of a link is the other end.
	ends := map[string]string{}
	for _, f := range families {
		if !strings.HasSuffix(f.GetName(), "_uplink_info") {
			continue
		}
		for _, m := range f.Metric {
			label := map[string]string{}
			for _, l := range m.Label {
				label[l.GetName()] = l.GetValue()
			}
			here := fmt.Sprint(label["guid"], "/", label["port"], " ", label["switch"], label["hca"])
			ends[here] = fmt.Sprint(label["uplink_guid"], "/", label["uplink_port"], " ", label["uplink"])
		}
	}
	for here, there := range ends {
		if ends[there] != here {
			t.Errorf("%s leads to %s, and that to %s", here, there, ends[there])
		}
	}
	if len(ends) != 2*links {
		t.Errorf("%d ends", len(ends))
	}
}
