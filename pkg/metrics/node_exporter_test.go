// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// TestNodeExporter runs node_exporter on a fake sysfs with the same facts, and compares name, help, type, labels and
// value of all infiniband series.
func TestNodeExporter(t *testing.T) {
	binary, err := exec.LookPath("prometheus-node-exporter")
	if err != nil {
		t.Fatalf("node_exporter is missing: install the package prometheus-node-exporter: %v", err)
	}
	hcas := append(oldHCAs(), comparableHCAs()...)
	sysfs := t.TempDir()
	for _, h := range hcas {
		writeHCA(t, filepath.Join(sysfs, "class/infiniband", h.Name), h)
	}

	want := alike(infiniband(runNodeExporter(t, binary, sysfs)))
	got := alike(nodeExporterLines(t, hcas))
	if len(want) < 50 {
		t.Errorf("node_exporter shows %d lines only", len(want))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("- node_exporter, + ours:\n%s", d)
	}
}

// TestUnknownState: a port with an unknown state lacks state and rate, in all compatibility sets, and keeps its other
// series.
func TestUnknownState(t *testing.T) {
	hcas := []model.HCA{{Name: "rxe0", Ports: []model.Port{{
		Number: 1, LinkLayer: "Ethernet", Netdev: "eth0", HWCounters: []model.Counter{{Name: "sent_pkts", Value: 7}},
	}}}}
	text := library.Encode(t, gather(t, []engine.Registration{{Source: &fake{name: "rdma", facts: model.Snapshot{HCAs: hcas}}}}, CompatSets()...),
		expfmt.TypeTextPlain)
	got := []string{}
	for line := range strings.Lines(text) {
		if strings.Contains(line, `port="1"`) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	slices.Sort(got)
	want := []string{
		`infiniband_port_info{device="rxe0",lid="",link_layer="Ethernet",netdev="eth0",port="1",port_guid="",sm_lid="",speed=""} 1`,
		`rdma_port_info{device="rxe0",link_layer="Ethernet",link_speed="",link_width="",netdev="eth0",pci_addr="",phys_state="",port="1",state=""} 1`,
		`rdma_port_transmit_packets_total{device="rxe0",port="1"} 7`,
		`rdma_sent_pkts_total{device="rxe0",port="1"} 7`,
		`rdma_stat_sent_pkts{device="rxe0",port="1"} 7`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func nodeExporterLines(t *testing.T, hcas []model.HCA) []string {
	t.Helper()
	return infiniband(library.Encode(t, gather(t, []engine.Registration{
		{Source: &fake{name: "rdma", facts: model.Snapshot{HCAs: hcas}}},
	}, CompatNodeExporter), expfmt.TypeTextPlain))
}

// alike returns the sorted lines without the help of the legacy families, which is ours.
func alike(lines []string) []string {
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "# HELP node_infiniband_legacy_") })
	slices.Sort(lines)
	return lines
}

// TestNodeExporterFixture checks the HCAs of node_exporter's own fixture: the number of series, and name, labels and
// value of counters_ext/.
func TestNodeExporterFixture(t *testing.T) {
	var want, got []string
	for name, value := range map[string]string{
		"data_received_bytes_total": "1.8527668e+07", "data_transmitted_bytes_total": "1.493376e+07",
		"multicast_packets_received_total": "93", "multicast_packets_transmitted_total": "16",
		"packets_received_total": "0", "packets_transmitted_total": "0",
		"unicast_packets_received_total": "61148", "unicast_packets_transmitted_total": "61239",
	} {
		for port := 1; port <= 2; port++ {
			want = append(want, fmt.Sprintf("node_infiniband_legacy_%s{device=\"mlx4_0\",port=\"%d\"} %s", name, port, value))
		}
	}
	series := 0
	for _, line := range nodeExporterLines(t, oldHCAs()) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
		if strings.HasPrefix(line, "node_infiniband_legacy_") {
			got = append(got, line)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if series != 51 {
		t.Errorf("%d series, want 51", series)
	}
}

// oldHCAs returns the HCAs of node_exporter's fixture: a ConnectX-3 with counters_ext/, and an HCA without counters.
func oldHCAs() []model.HCA {
	counters := func(all map[string]uint64) []model.Counter {
		var out []model.Counter
		for _, name := range slices.Sorted(maps.Keys(all)) {
			out = append(out, model.Counter{Name: name, Value: all[name]})
		}
		return out
	}
	ext := counters(map[string]uint64{
		"port_multicast_rcv_packets": 93, "port_multicast_xmit_packets": 16, "port_rcv_data_64": 4631917, "port_rcv_packets_64": 0,
		"port_unicast_rcv_packets": 61148, "port_unicast_xmit_packets": 61239, "port_xmit_data_64": 3733440, "port_xmit_packets_64": 0,
	})
	port := func(number int, all map[string]uint64) model.Port {
		return model.Port{
			Number: number, State: "ACTIVE", PhysState: "LinkUp", RateBits: 40e9, Width: 4, Speed: "QDR",
			Counters: counters(all), ExtCounters: ext,
		}
	}
	return []model.HCA{
		{Name: "i40iw0", Board: "I40IW Board ID", Firmware: "0.2", Type: "I40IW", Ports: []model.Port{
			{Number: 1, State: "ACTIVE", PhysState: "LinkUp", RateBits: 10e9, Width: 4},
		}},
		{Name: "mlx4_0", Board: "SM_1141000001000", Firmware: "2.31.5050", Type: "MT4099", Ports: []model.Port{
			port(1, map[string]uint64{
				"link_downed": 0, "link_error_recovery": 0, "multicast_rcv_packets": 93, "multicast_xmit_packets": 16,
				"port_rcv_constraint_errors": 0, "port_rcv_data": 4631917, "port_rcv_discards": 0, "port_rcv_errors": 0,
				"port_rcv_packets": 6825908347, "port_xmit_constraint_errors": 0, "port_xmit_data": 3733440,
				"port_xmit_discards": 5, "port_xmit_packets": 6235865, "port_xmit_wait": 4294967295,
				"unicast_rcv_packets": 61148, "unicast_xmit_packets": 61239,
			}),
			port(2, map[string]uint64{
				"link_downed": 0, "link_error_recovery": 0, "multicast_rcv_packets": 0, "multicast_xmit_packets": 0,
				"port_rcv_data": 0, "port_xmit_data": 0, "unicast_rcv_packets": 0, "unicast_xmit_packets": 0,
			}),
		}},
	}
}

// comparableHCAs returns an HCA with a different value for every counter that node_exporter reads, and a second port in
// other states.
func comparableHCAs() []model.HCA {
	counters := []string{
		"VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
		"local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_constraint_errors",
		"port_rcv_data", "port_rcv_discards", "port_rcv_errors", "port_rcv_packets", "port_rcv_remote_physical_errors",
		"port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards",
		"port_xmit_packets", "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
	}
	active := model.Port{Number: 1, State: "ACTIVE", PhysState: "LinkUp", RateBits: 200e9, Width: 4, Speed: "HDR"}
	for i, name := range counters {
		active.Counters = append(active.Counters, model.Counter{Name: name, Value: uint64(1000 + i)})
	}
	down := model.Port{Number: 2, State: "DOWN", PhysState: "Polling", RateBits: 10e9, Width: 4, Speed: "SDR"}
	down.Counters = []model.Counter{{Name: "link_downed", Value: 0}}
	return []model.HCA{
		{Name: "mlx5_0", Board: "MT_0000000838", Firmware: "20.35.1012", Type: "MT4123", Ports: []model.Port{active, down}},
	}
}

func writeHCA(t *testing.T, dir string, h model.HCA) {
	t.Helper()
	files := map[string]string{"board_id": h.Board, "fw_ver": h.Firmware, "hca_type": h.Type}
	for _, p := range h.Ports {
		port := fmt.Sprintf("ports/%d/", p.Number)
		files[port+"state"] = map[string]string{"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN"}[p.State]
		files[port+"phys_state"] = map[string]string{"LinkUp": "5: LinkUp", "Polling": "2: Polling"}[p.PhysState]
		files[port+"rate"] = fmt.Sprintf("%g Gb/sec (%dX %s)", p.RateBits/1e9, p.Width, p.Speed)
		files[port+"counters/port_rcv_data"] = "N/A (no PMA)"
		for _, c := range p.Counters {
			files[port+"counters/"+c.Name] = fmt.Sprint(c.Value)
		}
		for _, c := range p.ExtCounters {
			files[port+"counters_ext/"+c.Name] = fmt.Sprint(c.Value)
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// runNodeExporter returns the exposition of node_exporter, whose log has the port.
func runNodeExporter(t *testing.T, binary, sysfs string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := child.Command(ctx, binary, "--collector.disable-defaults", "--collector.infiniband",
		"--path.sysfs="+sysfs, "--web.listen-address=127.0.0.1:0", "--web.disable-exporter-metrics")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it is killed
	defer cancel()
	address := ""
	for lines := bufio.NewScanner(stderr); address == "" && lines.Scan(); {
		if _, rest, ok := strings.Cut(lines.Text(), "address=127.0.0.1:"); ok {
			address = "127.0.0.1:" + strings.Fields(rest)[0]
		}
	}
	if address == "" {
		t.Fatal("node_exporter does not say where it listens")
	}
	go io.Copy(io.Discard, stderr) //nolint:errcheck // so that it never blocks
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer rsp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(rsp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func infiniband(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "node_infiniband_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
