// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// fullLink returns the link of a port of mlx5 with PFC for one priority.
func fullLink(i int) model.Link {
	n := func(v uint64) *uint64 { return &v }
	return model.Link{
		Device: crowdHCA(i), Port: 1, Netdev: fmt.Sprint("eth", i), Driver: "mlx5_core", Read: time.Unix(1700000030, 0),
		DCB: &model.DCB{
			PFC: [8]bool{3: true}, Trust: "dscp",
			ETS: &model.ETS{Classes: [8]uint8{3: 1, 7: 6}, Bandwidth: [8]uint8{30, 70}, Algorithms: [8]uint8{2, 2, 0, 0, 1, 255}},
		},
		Pause: []model.PauseCount{
			{Priority: "3", Frames: n(100), Micros: n(2500000)}, {Transmit: true, Priority: "3", Frames: n(7), Micros: n(40)},
		},
		Storms: []model.PauseStorm{{Type: "error", Count: 1}, {Type: "warning", Count: 2}},
		Stalls: model.PCIeStalls{ReadSeconds: n(60), WriteSeconds: n(0)},
		Discards: []model.LinkDiscards{
			{Reason: "host_buffer", Count: 11}, {Reason: "host_congestion", Count: 0}, {Reason: "pcie_buffer", Count: 12}, {Reason: "port_buffer", Count: 13},
		},
		FEC:     &model.FEC{Mode: "rs", Corrected: n(1000), Uncorrectable: n(1), CorrectedBits: n(12345)},
		Phy:     &model.Phy{Downs: n(4)},
		Carrier: &model.Carrier{Up: true, Admin: true, Changes: 9, Downs: 4, Flaps: 2, Changed: time.Unix(1700000000, 0)},
	}
}

// linkFacts returns a link of mlx5, a link that is down with few values, and the link of a PF without an HCA.
func linkFacts() model.Snapshot {
	frames := uint64(5)
	return model.Snapshot{
		LinkFlaps: []model.LinkFlap{},
		Links: []model.Link{
			fullLink(0),
			{
				Device: "bnxt_re0", Port: 2, Netdev: "ens1", DCB: &model.DCB{},
				Pause:   []model.PauseCount{{Priority: model.GlobalPause, Frames: &frames}},
				FEC:     &model.FEC{},
				Phy:     &model.Phy{Reason: "link_training_failure", Detail: "remote_fault"},
				Carrier: &model.Carrier{Changes: 1},
			},
			{Netdev: "ens2"},
		},
		DeviceStates: []model.DeviceState{{Source: "link", Device: "ens2", State: model.StateStuck, Reason: "a request has not returned"}},
	}
}

func budgetLinks(n int) model.Snapshot {
	s := model.Snapshot{Links: []model.Link{}, LinkFlaps: []model.LinkFlap{}}
	for i := range n {
		l := fullLink(i)
		l.Module = fullModule()
		s.Links = append(s.Links, l)
	}
	return s
}

// linkSourceSeries is the number of series of 10 ports with PFC for one priority that have each changed once: 280, and
// 150 for their modules.
const linkSourceSeries = 430

// TestLinkBudget counts the series of 10 links. States are exported only for interfaces that are not ok: otherwise each
// interface had seven more series.
func TestLinkBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		series := func(ports int) int {
			c := newCollector(setup{Sources: []engine.Registration{{Source: &fake{name: "link", facts: budgetLinks(ports)}}}})
			defer c.Close() //nolint:errcheck // nothing to lose
			_, all, _ := seriesOf(t, c)
			return all
		}
		if n := series(10) - series(0); n > linkSourceSeries || n < linkSourceSeries/2 {
			t.Errorf("%d series for 10 ports, want at most %d", n, linkSourceSeries)
		} else {
			t.Logf("%d series for 10 ports", n)
		}
	})
}
