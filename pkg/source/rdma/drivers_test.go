// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// drivers have the files about traffic and errors that each driver makes for a port, and their values under the names
// that all drivers share. The table driverCounters of pkg/model names the kernel's files.
var drivers = map[string]struct {
	board, counters, hw string
	want                map[string]string // names of files, with the unit if the unit is not 1
	without             string            // reason for missing bytes
}{
	"mlx5": {
		counters: strings.Join(hca.PMACounters, "|"), hw: "rx_write_requests|out_of_buffer|rdma_tx_bytes",
		want: with(pma(4), map[string]string{"out_of_buffer": "out_of_buffer"}),
	},
	"mlx4": {
		counters: strings.Join(hca.PMACounters, "|"), hw: "rq_num_oos",
		want: with(pma(4), map[string]string{"out_of_sequence": "rq_num_oos"}),
	},
	"qib":   {counters: strings.Join(hca.PMACounters, "|"), want: pma(4)},
	"mthca": {counters: "port_xmit_data|port_rcv_data|port_xmit_packets|port_rcv_packets|symbol_error", want: pma(4)},
	"ocrdma": {
		counters: "port_xmit_data|port_rcv_data|port_xmit_packets|port_rcv_packets|symbol_error", want: pma(4),
	},
	"hfi1": {
		board: "Intel Omni-Path Host Fabric Interface Adapter 100 Series", counters: strings.Join(hca.PMACounters, "|"), hw: "RcResend|RnrNak",
		want: with(pma(8), map[string]string{"retransmitted": "RcResend", "rnr": "RnrNak"}),
	},
	"efa": {
		hw: "tx_bytes|tx_pkts|rx_bytes|rx_pkts|rx_drops|send_bytes|send_wrs|recv_bytes|rdma_read_bytes|retrans_bytes|retrans_pkts",
		want: with(plain("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts"), map[string]string{
			"receive_discards": "rx_drops", "retransmitted": "retrans_pkts",
		}),
	},
	"bnxt_re 6.1": {
		hw: "active_qps|rx_pkts|rx_bytes|tx_pkts|tx_bytes|recoverable_errors|rx_roce_errors|rx_roce_discards|rx_roce_good_bytes",
		want: with(plain("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts"), map[string]string{
			"receive_errors": "rx_roce_errors", "receive_discards": "rx_roce_discards",
		}),
	},
	"bnxt_re 6.12": {
		hw: "rx_pkts|rx_bytes|tx_pkts|tx_bytes|tx_roce_errors|tx_roce_discards|rx_roce_errors|rx_roce_discards|" +
			"tx_roce_only_bytes|rx_ecn_marked_pkts",
		want: with(plain("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts"), map[string]string{
			"receive_errors": "rx_roce_errors", "receive_discards": "rx_roce_discards", "ecn_marked": "rx_ecn_marked_pkts",
			"transmit_errors": "tx_roce_errors", "transmit_discards": "tx_roce_discards",
		}),
	},
	"bnxt_re 7.2": {
		counters: strings.Join(hca.PMACounters, "|"), hw: "rx_pkts|rx_bytes|tx_pkts|tx_bytes|np_ecn_marked_roce_packets",
		want: with(pma(4), map[string]string{"ecn_marked": "np_ecn_marked_roce_packets"}),
	},
	"irdma": {
		hw: "ip4InDiscards|ip6InDiscards|ip4InOctets|ip4InPkts|ip4InMcastPkts|ip4InMcastOctets|ip4OutOctets|ip4OutPkts|" +
			"ip6InOctets|ip6InPkts|ip6OutOctets|ip6OutPkts|RxUDP|TxUDP|RxECNMrkd",
		want: with(plain("ip4OutOctets + ip6OutOctets", "ip4InOctets + ip6InOctets", "ip4OutPkts + ip6OutPkts", "ip4InPkts + ip6InPkts"),
			map[string]string{"receive_discards": "ip4InDiscards + ip6InDiscards", "ecn_marked": "RxECNMrkd"}),
	},
	"erdma": {
		hw: "tx_reqs_cnt|tx_packets_cnt|tx_bytes_cnt|tx_disable_drop_cnt|tx_bps_limit_drop_cnt|tx_pps_limit_drop_cnt|" +
			"rx_packets_cnt|rx_bytes_cnt|rx_disable_drop_cnt|rx_bps_limit_drop_cnt|rx_pps_limit_drop_cnt",
		want: with(plain("tx_bytes_cnt", "rx_bytes_cnt", "tx_packets_cnt", "rx_packets_cnt"), map[string]string{
			"transmit_discards": "tx_disable_drop_cnt + tx_bps_limit_drop_cnt + tx_pps_limit_drop_cnt",
			"receive_discards":  "rx_disable_drop_cnt + rx_bps_limit_drop_cnt + rx_pps_limit_drop_cnt",
		}),
	},
	"erdma of Alibaba": {
		hw: "listen_create_cnt|hw_tx_reqs_cnt|hw_tx_packets_cnt|hw_tx_bytes_cnt|hw_disable_drop_cnt|" +
			"hw_bps_limit_drop_cnt|hw_pps_limit_drop_cnt|" +
			"hw_rx_packets_cnt|hw_rx_bytes_cnt|hw_rx_disable_drop_cnt|hw_rx_bps_limit_drop_cnt|hw_rx_pps_limit_drop_cnt",
		want: with(plain("hw_tx_bytes_cnt", "hw_rx_bytes_cnt", "hw_tx_packets_cnt", "hw_rx_packets_cnt"), map[string]string{
			"transmit_discards": "hw_disable_drop_cnt + hw_bps_limit_drop_cnt + hw_pps_limit_drop_cnt",
			"receive_discards":  "hw_rx_disable_drop_cnt + hw_rx_bps_limit_drop_cnt + hw_rx_pps_limit_drop_cnt",
		}),
	},
	"ionic": {
		hw: "tx_rdma_ucast_bytes|tx_rdma_ucast_pkts|tx_rdma_mcast_bytes|tx_rdma_mcast_pkts|tx_rdma_cnp_pkts|" +
			"rx_rdma_ucast_bytes|rx_rdma_ucast_pkts|" +
			"rx_rdma_mcast_bytes|rx_rdma_mcast_pkts|rx_rdma_cnp_pkts|rx_rdma_ecn_pkts|rx_rdma_mtu_discard_pkts|tx_rdma_retx_bytes|" +
			"tx_rdma_retx_pkts|tx_rdma_ack_timeout|resp_rx_outof_buf|resp_rx_outouf_seq|req_rx_pkt_seq_err",
		want: with(plain("tx_rdma_ucast_bytes + tx_rdma_mcast_bytes", "rx_rdma_ucast_bytes + rx_rdma_mcast_bytes",
			"tx_rdma_ucast_pkts + tx_rdma_mcast_pkts", "rx_rdma_ucast_pkts + rx_rdma_mcast_pkts"), map[string]string{
			"receive_discards": "rx_rdma_mtu_discard_pkts", "ecn_marked": "rx_rdma_ecn_pkts", "cnp_sent": "tx_rdma_cnp_pkts",
			"cnp_handled": "rx_rdma_cnp_pkts", "retransmitted": "tx_rdma_retx_pkts", "timeouts": "tx_rdma_ack_timeout",
			"out_of_buffer": "resp_rx_outof_buf", "out_of_sequence": "resp_rx_outouf_seq",
		}),
	},
	"mana": {
		hw: "requester_timeout|current_rate|tx_bytes|rx_bytes|tx_packets|rx_packets",
		want: with(plain("tx_bytes", "rx_bytes", "tx_packets", "rx_packets"), map[string]string{
			"timeouts": "requester_timeout",
		}),
	},
	"hns": {
		hw: "rx_rc_pkt|rx_pkt|rx_err_pkt|tx_rc_pkt|tx_pkt|tx_err_pkt|cq_cqe",
		want: map[string]string{
			"transmit_packets": "tx_pkt", "receive_packets": "rx_pkt", "transmit_errors": "tx_err_pkt", "receive_errors": "rx_err_pkt",
		},
		without: "the driver counts packets, and no bytes",
	},
	"rxe 6.12": {
		hw:      "sent_pkts|rcvd_pkts|send_err|link_downed|rdma_sends",
		want:    map[string]string{"transmit_packets": "sent_pkts", "receive_packets": "rcvd_pkts", "transmit_errors": "send_err"},
		without: "the driver counts packets, and no bytes",
	},
	"rxe 7": {
		hw: "sent_pkts|rcvd_pkts|sent_bytes|rcvd_bytes", want: plain("sent_bytes", "rcvd_bytes", "sent_pkts", "rcvd_pkts"),
	},
	"cxgb4":      {hw: "ip4InSegs|ip4OutSegs|ip6InSegs|ip6OutSegs", without: "the driver counts neither bytes nor packets"},
	"siw":        {without: "the port has no counters"},
	"usnic":      {without: "the port has no counters"},
	"vmw_pvrdma": {without: "the port has no counters"},
	"qedr":       {counters: "N/A port_xmit_data|N/A port_rcv_data", without: "the port has no counters"},
}

func pma(unit int) map[string]string {
	return plain(fmt.Sprint(unit, " port_xmit_data"), fmt.Sprint(unit, " port_rcv_data"), "port_xmit_packets", "port_rcv_packets")
}

func plain(txBytes, rxBytes, txPackets, rxPackets string) map[string]string {
	return map[string]string{"transmit_bytes": txBytes, "receive_bytes": rxBytes, "transmit_packets": txPackets, "receive_packets": rxPackets}
}

func with(all, more map[string]string) map[string]string {
	maps.Copy(all, more)
	return all
}

// TestDrivers reads a tree of each driver.
func TestDrivers(t *testing.T) {
	for name, d := range drivers {
		t.Run(name, func(t *testing.T) {
			tr := hca.NewTree(t)
			dev := tr.HCA(0, 1)
			tr.Remove(dev + "/ports/1/counters")
			tr.Remove(dev + "/ports/1/hw_counters")
			tr.Put(dev+"/board_id", d.board+"\n")
			values, next := map[string]uint64{}, uint64(1)
			put := func(dir, names string) {
				for file := range strings.SplitSeq(names, "|") {
					content := fmt.Sprintln(next)
					if absent, ok := strings.CutPrefix(file, "N/A "); ok {
						file, content = absent, "N/A (no PMA)\n"
					}
					if file != "" {
						tr.Put(dev+"/ports/1/"+dir+"/"+file, content)
						values[file], next = next, next*3
					}
				}
			}
			put("counters", d.counters)
			put("hw_counters", d.hw)

			want := map[string]uint64{}
			for counter, from := range d.want {
				unit := uint64(1)
				if n, rest, ok := strings.Cut(from, " "); ok && (n == "4" || n == "8") {
					from, unit = rest, uint64(n[0]-'0')
				}
				for file := range strings.SplitSeq(from, " + ") {
					want[counter] += unit * values[file]
				}
			}
			snap, err := newSource(t, tr).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h := &snap.HCAs[0]
			got, shared := map[string]uint64{}, h.PortCounters(nil, &h.Ports[0])
			for _, c := range shared {
				got[c.Name] = c.Value
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if reason := h.WithoutBytes(&h.Ports[0], shared); reason != d.without {
				t.Errorf("without bytes because %q, want %q", reason, d.without)
			}
		})
	}
}
