// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

func second(n float64) time.Time { return time.Unix(0, int64(n*1e9)) }

// covered adds what the data path reports about the calls of a cgroup on the device d. Without gaps all calls are
// counted.
func (n *node) covered(cgroup uint64, gaps ...model.Gap) *node {
	if n.Surveys == nil {
		n.Surveys = []model.Survey{}
	}
	if len(gaps) == 0 {
		gaps = []model.Gap{""}
	}
	for _, g := range gaps {
		n.Coverage = append(n.Coverage, model.Coverage{Cgroup: model.CgroupID(cgroup), Device: "d", Gap: g})
	}
	return n
}

func (n *node) surveyed(cgroup uint64, begun, ended float64, sent uint64) *node {
	n.covered(cgroup, model.GapSurvey)
	n.Surveys = append(n.Surveys, model.Survey{
		Cgroup: model.CgroupID(cgroup), Device: "d", Begun: second(begun), Ended: second(ended), TransmitBytes: sent,
	})
	return n
}

// TestSurveys: containers c1 and c2 send 100 and 900 bytes per second, which the device counts, and are surveyed from
// 10 s to 20 s. An interval takes 10 s. The first interval, up to 10 s, has no survey. Each case changes what is
// reported.
func TestSurveys(t *testing.T) {
	const end = 60
	// owners are c1 and c2 with their queue pairs and, once it has ended, the survey.
	owners := func(n *node, at float64) *node {
		n.two()
		if at < 20 {
			return n.covered(1, model.GapSurvey).covered(2, model.GapSurvey)
		}
		return n.surveyed(1, 10, 20, 1000).surveyed(2, 10, 20, 9000)
	}
	split := func(intervals uint64) want {
		return want{" port": 10_000 * (6 - intervals), "c1 survey": 1000 * intervals, "c2 survey": 9000 * intervals}
	}
	none := want{" port": 60_000}
	for name, tt := range map[string]struct {
		perSecond uint64 // what the device moves; 0 stands for 1000
		interval  float64
		report    func(n *node, at float64) *node
		want      want
	}{
		"all of it": {report: owners, want: split(5)},
		"intervals of a second": {interval: 1, report: owners, want: want{
			" port": 19_000, "c1 survey": 4100, "c2 survey": 36_900, // from the interval that ends at 20 s on
		}},
		"the mode without surveys": {report: func(n *node, at float64) *node {
			owners(n, at).Surveys = nil
			return n
		}, want: none},
		"an interval with bytes from before": {report: func(n *node, at float64) *node {
			if owners(n, at); at >= 40 { // another port
				n.HCAs[0].Ports = append(n.HCAs[0].Ports, model.Port{
					Number: 2, LinkLayer: "Ethernet", Counters: []model.Counter{{Name: "port_xmit_data", Value: 1e6}},
				})
				n.kernel("d", 2)
			}
			return n
		}, want: want{" port": 10_000 + 10_000 + 4e6, "c1 survey": 4000, "c2 survey": 36_000}},
		"a consumer in the kernel at one refresh": {report: func(n *node, at float64) *node {
			if owners(n, at); at == 40 {
				n.domains("rpcrdma", 1, 1)
			}
			return n
		}, want: split(2)}, // it held the HCA in two intervals, and counters are read before objects
		"another owner, which is not counted": {report: func(n *node, at float64) *node {
			if owners(n, at); at >= 40 {
				n.holds(3, "d", 1, 1).covered(3, model.GapProviderUnsupported)
			}
			return n
		}, want: split(2)},
		"another owner, of which nothing is known, in one interval": {report: func(n *node, at float64) *node {
			if owners(n, at); at >= 40 {
				n.holds(3, "d", 0, 1)
			}
			return n
		}, want: split(3)},
		"another owner without a survey": {report: func(n *node, at float64) *node {
			if owners(n, at); at >= 40 {
				n.holds(3, "d", 1, 1).covered(3, model.GapSurvey)
			}
			return n
		}, want: split(2)},
		"another owner, whose count rests": {report: func(n *node, at float64) *node {
			return owners(n, at).holds(3, "d", 1, 1).covered(3, model.GapSurvey).reports(3, "d", up, 8, rests)
		}, want: want{" port": 59_992, "c3 uprobe": 8}},
		"another owner, one of whose cgroups is counted and the other one has no survey": {report: func(n *node, at float64) *node {
			n.Entities[13] = n.Entities[3]
			n.holds(3, "d", 1, 1).covered(3).reports(3, "d", up, uint64(at))
			return owners(n, at).holds(13, "d", 1, 1).covered(13, model.GapSurvey)
		}, want: want{" port": 59_940, "c3 uprobe": 60}},
		"another owner, which is counted": {report: func(n *node, at float64) *node {
			return owners(n, at).holds(3, "d", 1, 1).covered(3, model.GapDirectWQE).reports(3, "d", up, 400*uint64(at))
		}, perSecond: 1400, want: want{" port": 10_000, "c1 survey": 5000, "c2 survey": 45_000, "c3 uprobe": 24_000}},
		"another owner, which is counted and moves nothing": {report: func(n *node, at float64) *node {
			return owners(n, at).holds(3, "d", 1, 1).covered(3)
		}, want: split(5)},
		"another owner, which cannot move bytes": {report: func(n *node, at float64) *node {
			return owners(n, at).object(3, model.Context, 1, 1).covered(3, model.GapLate)
		}, want: split(5)},
		"one has counters of queue pairs": {report: func(n *node, at float64) *node {
			return owners(n, at).reports(2, "d", qc, 900*uint64(at))
		}, want: want{" port": 1000, "c1 survey": 5000, "c2 qp_counter": 54_000}},
		"a fifth is not the owners'": {perSecond: 1200, report: owners, want: want{" port": 12_000, "c1 survey": 6000, "c2 survey": 54_000}},
		"half is not the owners'":    {perSecond: 2000, report: owners, want: want{" port": 70_000, "c1 survey": 5000, "c2 survey": 45_000}},
		"half is not the owners', and one ends": {perSecond: 2000, report: func(n *node, at float64) *node {
			if n.holds(3, "d", 1, 1).covered(3); at < 40 {
				return owners(n, at)
			}
			return n.holds(1, "d", 1, 1).holds(2, "d", 0, 1).surveyed(1, 10, 20, 1000)
		}, want: want{ // c2 may have moved bytes until 50 s; then 1000 of 11,000
			" port": 20_000 + 20_000 + 40_000 + 18_182, "c1 survey": 2000 + 1818, "c2 survey": 18_000,
		}},
		"the device counts less than half":  {perSecond: 400, report: owners, want: want{" port": 4000, "c1 survey": 2000, "c2 survey": 18_000}},
		"the device counts less than third": {perSecond: 320, report: owners, want: want{" port": 19_200}},
		"loopback until the next survey": {perSecond: 320, report: func(n *node, at float64) *node {
			if at < 50 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 40, 50, 320).surveyed(2, 40, 50, 2880)
		}, want: want{" port": 12_800, "c1 survey": 640, "c2 survey": 5760}},
		"nothing was surveyed": {report: func(n *node, at float64) *node {
			if at < 20 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 10, 20, 0).surveyed(2, 10, 20, 0)
		}, want: none},
		"the device moved nothing in the survey": {report: func(n *node, at float64) *node {
			if at < 20 {
				owners(n, at)
			} else {
				n.two().surveyed(1, 10, 20, 0).surveyed(2, 10, 20, 0)
			}
			if at <= 20 {
				n.HCAs[0].Ports[0].Counters[0].Value = 0
			}
			return n
		}, want: none},
		"one moves nothing": {report: func(n *node, at float64) *node {
			if at < 20 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 10, 20, 0).surveyed(2, 10, 20, 10_000)
		}, want: want{" port": 10_000, "c2 survey": 50_000}},
		"a survey from before the start of the sensor": {report: func(n *node, at float64) *node {
			if at < 50 {
				return n.two().surveyed(1, -5, 5, 1000).surveyed(2, -5, 5, 9000)
			}
			return n.two().surveyed(1, 40, 50, 1000).surveyed(2, 40, 50, 9000)
		}, want: split(2)},
		"a survey that ends before it begins": {report: func(n *node, at float64) *node {
			if at < 20 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 20, 10, 1000).surveyed(2, 10, 20, 9000)
		}, want: none},
		"bytes from before in the survey": {report: func(n *node, at float64) *node {
			if owners(n, at); at >= 20 { // another port
				n.HCAs[0].Ports = append(n.HCAs[0].Ports, model.Port{
					Number: 2, LinkLayer: "Ethernet", Counters: []model.Counter{{Name: "port_xmit_data", Value: 1000}},
				})
				n.kernel("d", 2)
			}
			return n
		}, want: want{" port": 64_000}},
		"the survey of an exclusive owner": {perSecond: 100, report: func(n *node, at float64) *node {
			if n.holds(1, "d", 1, 1).covered(1, model.GapSurvey); at < 20 {
				return n
			}
			if n.surveyed(1, 10, 20, 1000); at > 30 {
				n.holds(2, "d", 1, 1).covered(2)
			}
			return n
		}, want: want{" port": 0, "c1 port": 3000, "c1 survey": 3000}},
		"counters of queue pairs that do not answer once": {report: func(n *node, at float64) *node {
			if owners(n, at); at != 40 {
				n.reports(2, "d", qc, 900*uint64(at))
			}
			return n
		}, want: want{" port": 1000, "c1 survey": 5000, "c2 survey": 18_000, "c2 qp_counter": 36_000}},
		"a survey that lasts": {report: func(n *node, _ float64) *node {
			return n.two().surveyed(1, 10, 100, 9000).surveyed(2, 10, 100, 81_000)
		}, want: none},
		"the load changes with a later survey": {report: func(n *node, at float64) *node {
			if at < 40 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 30, 40, 5000).surveyed(2, 30, 40, 5000)
		}, want: want{" port": 10_000, "c1 survey": 17_000, "c2 survey": 33_000}},
		"two provider files of one owner, surveyed at different times": {report: func(n *node, at float64) *node {
			if n = n.two().covered(1, model.GapSurvey).covered(2, model.GapSurvey); at >= 40 {
				n.surveyed(1, 10, 20, 500).surveyed(1, 38, 40, 100).surveyed(2, 10, 20, 9000)
			}
			return n
		}, want: split(3)},
		"an owner that has only a context left": {report: func(n *node, at float64) *node {
			if at < 40 {
				return owners(n, at)
			}
			n.holds(3, "d", 1, 1).covered(3)
			return n.holds(1, "d", 1, 1).holds(2, "d", 0, 1).surveyed(1, 10, 20, 1000).surveyed(2, 10, 20, 9000)
		}, want: want{" port": 10_000, "c1 survey": 4000 + 10_000, "c2 survey": 36_000}},
		"one ends, and its last bytes are not counted": {report: func(n *node, at float64) *node {
			if n.holds(3, "d", 1, 1).covered(3); at < 40 {
				return owners(n, at)
			}
			return n.holds(1, "d", 1, 1).surveyed(1, 10, 20, 1000).holds(2, "d", 0, 1).covered(2).reports(2, "d", up, 0)
		}, want: want{" port": 20_000, "c1 survey": 2000 + 20_000, "c2 survey": 18_000, "c2 uprobe": 0}},
		"the calls of one are all counted again": {report: func(n *node, at float64) *node {
			if at < 40 {
				return owners(n, at)
			}
			return n.two().surveyed(1, 10, 20, 1000).covered(2).reports(2, "d", up, 900*uint64(at-40))
		}, want: want{" port": 20_000, "c1 survey": 4000, "c2 survey": 18_000, "c2 uprobe": 18_000}},
		"the data path does not answer once": {report: func(n *node, at float64) *node {
			if owners(n, at); at == 40 {
				n.Surveys, n.Coverage = nil, nil
			}
			return n
		}, want: split(3)}, // an owner may have been counted in surveys only for a while
		"the surveys are too old": {report: func(n *node, at float64) *node {
			if at < 40 {
				return owners(n, at)
			}
			return n.two().covered(1, model.GapSurvey).covered(2, model.GapSurvey)
		}, want: split(2)},
	} {
		t.Run(name, func(t *testing.T) {
			var l testLedger
			var got want
			if tt.perSecond == 0 {
				tt.perSecond = 1000
			}
			if tt.interval == 0 {
				tt.interval = 10
			}
			for at := 0.0; at <= end; at += tt.interval {
				l.clock = second(at)
				n := newNode().device("d", tt.perSecond*uint64(at)/4*4, 0).without(func(n *node) {
					n.DataPath = &model.DataPathStats{}
				})
				got = sent(t, &l, tt.report(n, at))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestSurveysReceived: each direction is split in proportion to its own survey.
func TestSurveysReceived(t *testing.T) {
	var l testLedger
	for at := 0.0; at <= 60; at += 10 {
		l.clock = second(at)
		n := newNode().device("d", uint64(at)*1000, uint64(at)*400).two().covered(1, model.GapSurvey).covered(2, model.GapSurvey)
		for i, bytes := range []uint64{1000, 3000} {
			if at < 20 {
				break
			}
			n.Surveys = append(n.Surveys, model.Survey{
				Cgroup: model.CgroupID(i + 1), Device: "d", Begun: second(10), Ended: second(20), ReceiveBytes: bytes,
			})
		}
		got := map[int]uint64{}
		a := l.attribute(n)
		for _, s := range a.Traffic {
			switch {
			case s.Direction == model.Receive:
				got[s.Owner] += s.Bytes
			case s.Owner != 0:
				t.Fatalf("%+v: none of them sends", s)
			}
		}
		if at == 60 && (got[1] != 5000 || got[2] != 15_000 || got[0] != 4000) {
			t.Error(got)
		}
	}
}

// TestPast: the past is bounded, and returns what the device moved per second, or that this is unknown.
func TestPast(t *testing.T) {
	d := &device{covers: map[identity.OwnerID]cover{1: allCounted}}
	w := &d.directions[transmit]
	w.device = d
	for i := range 1000 {
		d.endedAt = second(float64(i))
		w.remember(nil, second(float64(i+1)), uint64(i))
	}
	if len(w.past) > maxPeriods {
		t.Errorf("%d periods", len(w.past))
	}
	other := &device{}
	other.directions[transmit].device = other
	if other.directions[transmit].remember(nil, second(1), 1); other.directions[transmit].past != nil {
		t.Error("the past of a device without probes is kept")
	}
	for _, tt := range []struct {
		begun, ended float64
		want         float64 // negative if unknown
	}{
		{960, 970, 964.5}, {963, 967, 964.5}, {995, 1000, 997}, {900.5, 999.5, 949.5}, {990, 1001, -1}, {700, 710, -1}, {1000, 1001, -1},
	} {
		got, known := w.during(second(tt.begun), second(tt.ended))
		if known != (tt.want >= 0) || known && math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("from %v to %v s: %v, %v, want %v", tt.begun, tt.ended, got, known, tt.want)
		}
	}
}
