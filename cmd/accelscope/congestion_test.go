// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// congestionFiles are the file of hw_counters/ that each counter must have the value of, by device of the fixture, as read in the
// sources of the drivers. A file of the device itself begins with "device ". Every other counter of the device must be absent.
var congestionFiles = map[string]map[string]string{
	"mlx5_0": {
		"ecn_marked": "np_ecn_marked_roce_packets", "cnp_sent": "np_cnp_sent", "cnp_handled": "rp_cnp_handled",
		"out_of_sequence": "out_of_sequence", "timeouts": "local_ack_timeout_err", "rnr": "rnr_nak_retry_err",
		"out_of_buffer": "out_of_buffer", "adaptive_retransmissions": "roce_adp_retrans", "slow_restart": "roce_slow_restart",
	},
	"mlx4_0": {"out_of_sequence": "rq_num_oos", "timeouts": "sq_num_to", "rnr": "sq_num_rnr", "out_of_buffer": "rq_num_rnr"},
	"hfi1_0": {"out_of_sequence": "RcSeqNak", "retransmitted": "RcResend", "timeouts": "RcTimeOut", "rnr": "RnrNak"},
	"irdma0": {"ecn_marked": "RxECNMrkd", "cnp_sent": "cnpSent", "cnp_handled": "cnpHandled", "retransmitted": "tcpRetransSegs"},
	"irdma1": {
		"ecn_marked": "RxECNMrkd", "cnp_sent": "cnpSent", "cnp_handled": "cnpHandled", "retransmitted": "RetransSegs", "timeouts": "RTO",
		"out_of_sequence": "Rcvd Out of order packets", "rnr": "RNR received", "out_of_buffer": "RNR sent",
	},
	"bnxt_re0": {
		"out_of_sequence": "oos_drop_count", "timeouts": "to_retransmits", "rnr": "rnr_naks_rcvd", "out_of_buffer": "rx_out_of_buffer",
	},
	"bnxt_re1": {
		"ecn_marked": "np_ecn_marked_roce_packets", "cnp_sent": "np_cnp_pkts", "cnp_handled": "rp_cnp_handled",
		"out_of_sequence": "out_of_sequence", "timeouts": "local_ack_timeout_err", "rnr": "rnr_nak_retry_err",
		"out_of_buffer": "out_of_buffer",
	},
	"rdmap0s6": {},
	"rdmap0s7": {"retransmitted": "retrans_pkts", "timeouts": "retrans_timeout_events"},
	"mana_0": {
		"ecn_marked": "device received_ecns", "cnp_sent": "device sent_cnps", "cnp_handled": "received_cnps",
		"out_of_sequence": "responder_oos", "timeouts": "requester_timeout", "rnr": "requester_rnr_nak",
		"out_of_buffer": "responder_rnr_nak",
	},
}

// TestCongestion compares the counters of congestion of every driver with the files of a fake sysfs, which has the drivers' names, and
// with the same counters under these names. The values of the files differ.
func TestCongestion(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{ComputeHCAs: 1, Drivers: true, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS()}
	for _, name := range []string{"probe", "runtime", "kubelet", "node", "container", "gpu", "access", "kernellog"} {
		args = append(args, "--no-collector."+name)
	}
	url, stop := start(t, build(t), args...)
	defer ends(t, stop)
	ready(t, url)
	e := scrape(t, url)

	want, raw, got := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, h := range m.HCAs {
		files, ok := congestionFiles[h.Name]
		if !ok {
			t.Errorf("no expectation for %s", h.Name)
		}
		for counter, file := range files {
			port, values := "1", h.HWCounters
			if name, ok := strings.CutPrefix(file, "device "); ok {
				file, port, values = name, "", h.DeviceCounters
			}
			value, ok := values[file]
			if !ok {
				t.Fatalf("%s has no file %s", h.Name, file)
			}
			key := h.Name + "/" + port + " " + counter
			want[key] = float64(value)
			for _, s := range e.families["rdma_stat_"+strings.ReplaceAll(file, " ", "_")].GetMetric() {
				if label(s, "device") == h.Name && label(s, "port") == port {
					raw[key] = s.GetUntyped().GetValue()
				}
			}
		}
	}
	for _, counter := range []string{
		"ecn_marked", "cnp_sent", "cnp_handled", "out_of_sequence", "retransmitted", "timeouts", "rnr", "out_of_buffer",
		"adaptive_retransmissions", "slow_restart",
	} {
		for _, s := range e.families["rdma_port_"+counter+"_total"].GetMetric() {
			got[label(s, "device")+"/"+label(s, "port")+" "+counter] = s.GetCounter().GetValue()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("against the files:\n%s", diff)
	}
	if diff := cmp.Diff(raw, got); diff != "" {
		t.Errorf("against rdma_stat_*:\n%s", diff)
	}
}
