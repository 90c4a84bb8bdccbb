// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

// linkSource starts the sensor on a Soft-RoCE device whose port the test controls, with the names of mlx5, and then
// freezes the driver.
func (n node) linkSource(t *testing.T) {
	l := loadLinktest(t, "driver=mlx5_core")
	sh(t, "ip", "address", "add", "10.72.0.1/24", "dev", l.name)
	sh(t, "rdma", "link", "add", "rxe8", "type", "rxe", "netdev", l.name)
	l.set("dcb/pfc_enabled", 1<<3)
	l.set("statistics", "rx_prio3_pause 1100\nrx_prio3_pause_duration 2500000\ntx_pause_storm_error_events 3\n"+
		"outbound_pci_stalled_wr_events 7\nrx_prio3_buf_discard 9\n")
	l.set("pause/storm_events", 3) // which replaces the statistic of mlx5 since Linux 7
	l.set("fec/corrected_blocks/total", 4000)
	l.set("fec/uncorrectable_blocks/total", 5)
	l.set("module/eeprom", string(eeprom.SR8()))
	l.configure()
	s := start(t, "--link.module-lanes", "--link.module-thresholds", "--no-collector.probe", "--no-collector.node", "--no-collector.container",
		"--no-collector.runtime", "--no-collector.kubelet", "--no-collector.access", "--no-collector.gpu", "--no-collector.kernellog")
	l.exports(s, map[string]float64{
		"rdma_port_pause_frames_total direction=receive priority=3":                                                          1100,
		"rdma_port_pause_seconds_total direction=receive priority=3":                                                         2.5,
		"rdma_port_pause_storm_events_total type=error":                                                                      3,
		"rdma_port_pause_frames_total direction=receive priority=global":                                                     77,
		"rdma_port_pause_frames_total direction=transmit priority=global":                                                    55,
		"rdma_port_pcie_stalled_seconds_total direction=write":                                                               7,
		"rdma_port_link_discards_total reason=host_buffer":                                                                   9,
		"rdma_port_fec_info mode=baser":                                                                                      1,
		"rdma_port_dcb_info pfc=3 traffic_classes=0,0,0,1,0,0,0,0 bandwidth=40,60,strict,strict,strict,strict,strict,strict": 1,
		"rdma_port_fec_corrected_blocks_total":                                                                               4000,
		"rdma_port_fec_uncorrectable_blocks_total":                                                                           5,
		"rdma_port_module_info type=QSFP-DD serial=CMIS-4711 length_meters=":                                                 1,
		"rdma_port_module_temperature_celsius":                                                                               58.25,
		"rdma_port_module_supply_volts":                                                                                      3.31,
		"rdma_port_module_fault":                                                                                             0,
		"rdma_port_module_alarm value=receive_power":                                                                         -1,
		"rdma_port_module_alarm value=temperature":                                                                           0,
		"rdma_port_module_margin_ratio value=temperature":                                                                    (80 - 58.25) / 90,
		"rdma_port_module_margin_ratio value=receive_power":                                                                  math.Log(0.14/0.0912) / math.Log(5.0119/0.0912),
		"rdma_port_module_bias_amperes lane=1":                                                                               7e-3,
		"rdma_port_module_receive_power_watts lane=8":                                                                        0.14e-3,
		"rdma_port_module_transmit_power_watts lane=8":                                                                       1.07e-3,
		"rdma_port_module_temperature_threshold_celsius threshold=high_alarm":                                                80,
		"rdma_port_module_receive_power_threshold_watts threshold=low_alarm":                                                 0.0912e-3,
	})
	if !l.memory().FlagsSet("CMIS") || l.get("module/flag_bytes_read") != 0 {
		t.Error("the sensor has read flags of the module")
	}
	if got := s.scrape().all("rdma_port_module_problem"); len(got) > 0 {
		t.Errorf("problems: %v", got)
	}

	// PCIe stalls, and received packets find no room: one verdict, with the cause first.
	l.set("statistics", "rx_prio3_pause 1100\nrx_prio3_pause_duration 2500000\ntx_pause_storm_error_events 3\n"+
		"outbound_pci_stalled_wr_events 67\nrx_prio3_buf_discard 6009\n")
	eventually(t, 2*time.Minute, func() error { return s.slow("rxe8", "pcie_stalled", "discards") })

	// The carrier is lost, and the driver knows why.
	l.set("link/ext_state", 4)
	l.set("carrier", 0)
	l.exports(s, map[string]float64{"rdma_port_link_down_reason reason=no_cable": 1, "rdma_port_carrier_down_total": 1})
	l.set("carrier", 1)
	l.exports(s, map[string]float64{"rdma_port_link_flaps_total": 1})

	// The driver hangs: the sensor answers, and shows which interface is stuck. The request holds RTNL, which Soft-RoCE
	// needs for the state of each port: the ports have no state for any reader. The traffic of the port continues, and
	// is counted.
	enter(t, "link serves", "rping", "-s", "-a", "10.72.0.1", "-p", "7176")
	enter(t, "link connects", "sh", "-c", "sleep 2; exec rping -c -a 10.72.0.1 -p 7176 -C 100000000")
	sent := func() float64 { return s.fresh().sum("rdma_stat_sent_pkts", "device", "rxe8", "port", "1") }
	grows := func() {
		t.Helper()
		begin := sent()
		eventually(t, time.Minute, func() error {
			if n := sent(); n <= begin || begin == 0 {
				return fmt.Errorf("%v packets after %v", n, begin)
			}
			return nil
		})
	}
	eventually(t, time.Minute, func() error {
		if sent() == 0 {
			return errors.New("no packet")
		}
		return nil
	})
	grows()
	l.set("delay_ms/fec", 3600_000)
	l.set("fec/corrected_blocks/total", 4001)
	eventually(t, 2*time.Minute, func() error {
		if got := s.scrape().by("accelscope_device_state", "state", "source", "link", "device", l.name); got["stuck"] != 1 {
			return fmt.Errorf("states %v", got)
		}
		return nil
	})
	l.exports(s, map[string]float64{"rdma_port_module_temperature_celsius": 58.25})
	eventually(t, time.Minute, func() error {
		m := s.scrape()
		stuck := m.by("accelscope_device_state", "device", "source", "rdma", "state", "stuck")
		for _, device := range []string{"rxe0", "rxe8"} {
			shown := len(m.all("infiniband_port_state", "device", device)) + len(m.all("infiniband_port_rate_gbps", "device", device))
			if stuck[device] != 1 || shown > 0 {
				return fmt.Errorf("%s: stuck %v, %d series of its state", device, stuck, shown)
			}
		}
		return nil
	})
	grows()
	m := s.fresh()
	for _, device := range []string{"rxe0", "rxe8"} {
		for _, name := range []string{"rdma_stat_sent_pkts", "infiniband_port_info", "infiniband_device_info", "rdma_port_gids"} {
			if len(m.all(name, "device", device)) == 0 {
				t.Errorf("%s: no %s while the state is stuck", device, name)
			}
		}
	}
	l.set("delay_ms/fec", 0)
	l.exports(s, map[string]float64{"rdma_port_fec_corrected_blocks_total": 4001})
	eventually(t, time.Minute, func() error {
		m := s.scrape()
		ok := m.by("accelscope_device_state", "device", "source", "rdma", "state", "ok")
		active := m.by("infiniband_port_state", "device", "state", "active")
		for _, device := range []string{"rxe0", "rxe8"} {
			if ok[device] != 1 || active[device] != 1 {
				return fmt.Errorf("%s: ok %v, active %v", device, ok, active)
			}
		}
		return nil
	})
	grows()
}

// configure sets pause of the whole link, the mode of FEC, and traffic classes. The sensor reads the classes every five
// minutes.
func (l linktest) configure() {
	l.t.Helper()
	for file, value := range map[string]int{
		"pause/rx": 1, "pause/tx": 1, "pause/rx_frames": 77, "pause/tx_frames": 55, "fec/active": 1 << 4, // ETHTOOL_FEC_BASER
	} {
		l.set(file, value)
	}
	const strict, ets = 0, 2 // IEEE_8021QAZ_TSA_*
	for n := range 8 {
		l.set(fmt.Sprint("dcb/tc/", n), 0)
		l.set(fmt.Sprint("dcb/bandwidth/", n), []int{40, 60, 0, 0, 0, 0, 0, 0}[n])
		l.set(fmt.Sprint("dcb/algorithm/", n), []int{ets, ets, strict, strict, strict, strict, strict, strict}[n])
	}
	l.set("dcb/tc/3", 1)
}

// exports waits until the sensor exports these values for the port. A key is the name of a metric and labels.
func (l linktest) exports(s *sensor, want map[string]float64) {
	l.t.Helper()
	eventually(l.t, 2*time.Minute, func() error {
		m := s.scrape()
		for key, value := range want {
			name, rest, _ := strings.Cut(key, " ")
			labels := []string{"device", "rxe8", "port", "1", "netdev", l.name}
			for pair := range strings.FieldsSeq(rest) {
				label, value, _ := strings.Cut(pair, "=")
				labels = append(labels, label, value)
			}
			series := m.all(name, labels...)
			if len(series) != 1 {
				return fmt.Errorf("%s: %d series, want one", key, len(series))
			}
			if got := series[0].GetGauge().GetValue() + series[0].GetCounter().GetValue(); math.Abs(got-value) > 1e-9 {
				return fmt.Errorf("%s: %v, want %v", key, got, value)
			}
		}
		return nil
	})
}
