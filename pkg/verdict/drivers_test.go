// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestDrivers: packets of drivers without counters/ are judged like packets of other drivers.
func TestDrivers(t *testing.T) {
	counters := func(names ...string) (list []model.Counter) {
		for _, n := range names {
			list = append(list, model.Counter{Name: n, Value: 1000})
		}
		return list
	}
	for name, tt := range map[string]struct {
		port, device []model.Counter
		grow         map[string]uint64
		want         string // verdict, subject and evidence, or empty
	}{
		"marked packets of bnxt_re": {
			port: counters("rx_pkts", "rx_ecn_marked_pkts"), grow: map[string]uint64{"rx_pkts": 500000, "rx_ecn_marked_pkts": 31000},
			want: "RDMACongestion mlx5_0/1 6% of the packets are marked (ECN); 103/s marked packets",
		},
		"few marked packets of bnxt_re": {
			port: counters("rx_pkts", "rx_ecn_marked_pkts"), grow: map[string]uint64{"rx_pkts": 5000000, "rx_ecn_marked_pkts": 31000},
		},
		"packets that mana marks on the device": {
			port: counters("rx_packets"), device: counters("received_ecns"), grow: map[string]uint64{"rx_packets": 500000, "received_ecns": 31000},
			want: "RDMACongestion mlx5_0 6% of the packets are marked (ECN); 103/s marked packets",
		},
		"packets of ionic, of which those of multicast are a part": {
			port: counters("rx_rdma_ucast_pkts", "rx_rdma_mcast_pkts", "rx_rdma_ecn_pkts"),
			grow: map[string]uint64{"rx_rdma_ucast_pkts": 300000, "rx_rdma_mcast_pkts": 200000, "rx_rdma_ecn_pkts": 31000},
			want: "RDMACongestion mlx5_0/1 6% of the packets are marked (ECN); 103/s marked packets",
		},
		"broken packets of bnxt_re": {
			port: counters("rx_pkts", "rx_roce_errors"), grow: map[string]uint64{"rx_pkts": 1000, "rx_roce_errors": 3},
			want: "RDMAPacketErrors mlx5_0/1 0.3% of the packets; packets with errors +3 in 5m",
		},
		"intact packets of hns": {
			port: counters("rx_pkt", "rx_err_pkt"), grow: map[string]uint64{"rx_pkt": 1000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, j := newNode(), &Judge{}
			h := &n.facts.HCAs[0]
			h.HWCounters, h.Ports[0].Counters, h.Ports[0].HWCounters = tt.device, nil, tt.port
			n.judge(j, start)
			for _, list := range [][]model.Counter{h.HWCounters, h.Ports[0].HWCounters} {
				for i := range list {
					list[i].Value += tt.grow[list[i].Name]
				}
			}
			found := n.judge(j, start.Add(15*time.Second))
			var got []string
			for _, v := range found.Verdicts {
				if v.Name != "NothingWrong" {
					got = append(got, v.Name+" "+v.Subject.String()+" "+strings.Join(v.Evidence.Texts(), "; "))
				}
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && !slices.Equal(got, []string{tt.want}) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
