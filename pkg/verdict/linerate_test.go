// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// measuring gives the first port all counters of causes, with the value 0.
func (n *node) measuring() *node {
	l := n.link()
	l.Stalls = model.PCIeStalls{ReadSeconds: new(uint64), WriteSeconds: new(uint64)}
	for _, priority := range []string{"3", "4", model.GlobalPause} {
		for _, transmit := range []bool{false, true} {
			l.Pause = append(l.Pause, model.PauseCount{Transmit: transmit, Priority: priority, Micros: new(uint64)})
		}
	}
	for _, reason := range []string{"port_buffer", "host_buffer"} {
		l.Discards = append(l.Discards, model.LinkDiscards{Reason: reason})
	}
	return n
}

// pause adds time in which a priority was paused.
func (n *node) pause(transmit bool, priority string, d time.Duration) {
	for _, p := range n.link().Pause {
		if p.Transmit == transmit && p.Priority == priority {
			*p.Micros += uint64(d.Microseconds())
		}
	}
}

// TestLineRate: what keeps a port from its line rate, each cause alone and several at once, the most likely first.
func TestLineRate(t *testing.T) {
	stall := func(n *node) { *n.link().Stalls.WriteSeconds = 31 }
	narrow := func(n *node) { n.facts.PCI[0].Link.Width = 8 }
	lost := func(n *node) { n.grow("out_of_sequence", 3300) }
	slower := func(n *node) { n.facts.HCAs[0].Ports[0].RateBits = 200e9 }
	far := func(n *node) { n.place("pci0000:15", "pci0000:c1", "pci0000:c1") }
	const (
		stalled = "pcie_stalled: in 10% of the seconds the HCA waited to write memory over PCIe"
		link    = "pcie_link: 32 GT/s, 8 lanes; 32 GT/s, 16 lanes is possible; it carries at most 252.1 Gbit/s of the 400 Gbit/s of the ports"
		resent  = "RDMARetransmissions: 11.0/s lost packets"
		degrade = "RDMALinkDegraded: 200 Gbit/s (4x NDR); equal ports have 400 Gbit/s"
		slow    = "RDMALinkDegraded: 200 Gbit/s (4x NDR); it had 400 Gbit/s within 168h"
		peer    = "paused_by_peer: 10% of the time the other end stops the port, priority 3"
		placed  = "placement: GPU 0: all HCAs that the workload uses are on another NUMA node; nearer are mlx5_1"
	)
	paused := func(n *node) { n.pause(false, "3", 31*time.Second); n.pause(false, "4", 29*time.Second) }
	elsewhere := func(n *node) { // the workload has another GPU, whose place is unknown
		n.facts.GPUs = append(n.facts.GPUs, model.GPU{Vendor: model.NVIDIA, ID: "1", UUID: "GPU-elsewhere"})
		n.shares.GPUs = append(n.shares.GPUs, attribution.GPUShare{Owner: 1, GPU: &n.facts.GPUs[len(n.facts.GPUs)-1], Processes: 1})
	}
	for name, c := range map[string]struct {
		bad  []func(*node)
		want []string // evidence; nil: no such verdict
	}{
		"PCIe stalls on writes":         {[]func(*node){stall}, []string{stalled}},
		"PCIe stalls on reads":          {[]func(*node){func(n *node) { *n.link().Stalls.ReadSeconds = 150 }}, []string{"pcie_stalled: in 50% of the seconds the HCA waited to read memory over PCIe"}},
		"PCIe stalls at times":          {[]func(*node){func(n *node) { *n.link().Stalls.ReadSeconds, *n.link().Stalls.WriteSeconds = 30, 30 }}, nil},
		"the other end pauses the port": {[]func(*node){paused}, []string{peer}},
		"pauses without a priority": {
			[]func(*node){func(n *node) { n.pause(false, model.GlobalPause, time.Minute) }},
			[]string{"paused_by_peer: 20% of the time the other end stops the port"},
		},
		"the port pauses the other end": {
			[]func(*node){func(n *node) { n.pause(true, "4", time.Minute) }},
			[]string{"pauses_peer: 20% of the time the port stops the other end, priority 4"},
		},
		"several priorities are paused a little": {[]func(*node){func(n *node) {
			n.pause(false, "3", 29*time.Second)
			n.pause(false, "4", 29*time.Second)
			n.pause(true, "3", 29*time.Second)
		}}, nil},
		"discards": {[]func(*node){func(n *node) { n.link().Discards[1].Count = 3300 }}, []string{"discards: 11.0/s received packets found no room (host_buffer)"}},
		"discards of two kinds": {
			[]func(*node){func(n *node) { n.link().Discards[0].Count, n.link().Discards[1].Count = 3000, 300 }},
			[]string{"discards: 11.0/s received packets found no room (port_buffer, host_buffer)"},
		},
		"discards at times":                 {[]func(*node){func(n *node) { n.link().Discards[1].Count = 3000 }}, nil},
		"a single cause with a name":        {[]func(*node){lost}, nil},
		"a narrow PCIe link and stalls":     {[]func(*node){stall, narrow}, []string{link, stalled}},
		"a narrow link that is wide enough": {[]func(*node){stall, slower, narrow}, []string{degrade, stalled}},
		"stalls far from the GPU":           {[]func(*node){stall, far}, []string{placed, stalled}},
		"a slot that is too narrow, and stalls": {
			[]func(*node){stall, func(n *node) { n.facts.PCI[0].Link.Width, n.facts.PCI[0].Link.MaxWidth = 8, 8 }},
			[]string{"pcie_link: 32 GT/s, 8 lanes; it carries at most 252.1 Gbit/s of the 400 Gbit/s of the ports", stalled},
		},
		"a slot that is too narrow": {[]func(*node){lost, func(n *node) { n.facts.PCI[0].Link.Width, n.facts.PCI[0].Link.MaxWidth = 8, 8 }}, nil},
		"two functions of a card on one PCIe link": {[]func(*node){stall, narrow, func(n *node) {
			n.facts.HCAs[1].PCIAddress = "0000:18:00.1"
			n.facts.HCAs[0].Ports[0].RateBits, n.facts.HCAs[1].Ports[0].RateBits = 200e9, 200e9
		}}, []string{link, slow, stalled}},
		"ports of representors": {[]func(*node){narrow, func(n *node) {
			h := &n.facts.HCAs[0]
			h.Ports[0].RateBits = 200e9
			for number := range 4 {
				port := h.Ports[0]
				port.Number, port.Counters, port.HWCounters = number+2, nil, nil
				h.Ports = append(h.Ports, port)
			}
			n.facts.HCAs[1].Ports[0].RateBits = 200e9
			n.link().Discards[1].Count = 3300
		}}, []string{slow, "discards: 11.0/s received packets found no room (host_buffer)"}},
		"far from one GPU, another unknown":   {[]func(*node){stall, far, elsewhere}, []string{stalled}},
		"lost packets and pauses":             {[]func(*node){lost, paused}, []string{peer, resent}},
		"a slower link and lost packets":      {[]func(*node){lost, slower}, []string{degrade, resent}},
		"a narrow PCIe link and lost packets": {[]func(*node){lost, narrow}, []string{link, resent}},
		"a port that is down":                 {[]func(*node){stall, lost, func(n *node) { n.port().State = "DOWN" }}, nil},
		"a VF":                                {[]func(*node){stall, func(n *node) { n.facts.HCAs[0].VF, n.facts.HCAs[0].PF = true, "mlx5_1" }}, nil},
		"the plane of an HCA":                 {[]func(*node){stall, func(n *node) { n.facts.HCAs[0].Parent = "mlx5_1" }}, nil},
		"a NIC for management":                {[]func(*node){stall, func(n *node) { n.facts.HCAs[0].Ports[0].RateBits, n.facts.HCAs[0].Board = 25e9, "other" }}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, j := newNode().measuring(), &Judge{}
			n.judge(j, start)
			for _, bad := range c.bad {
				bad(n)
			}
			var got []string
			for _, v := range n.judge(j, start.Add(15*time.Second)).Verdicts {
				if v.Name == belowLineRate.Name && v.Subject.String() == "mlx5_0/1" {
					got = v.Evidence.Texts()
				}
			}
			if len(c.want) > 0 {
				c.want[0] = "most likely " + c.want[0]
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestLineRateOfLegs: each leg of a bond is measured and named.
func TestLineRateOfLegs(t *testing.T) {
	n, j := newNode().withBond(), &Judge{}
	for i := range n.facts.Links {
		n.facts.Links[i].Discards = []model.LinkDiscards{{Reason: "port_buffer"}}
	}
	n.judge(j, start)
	n.facts.Links[1].Discards[0].Count, n.facts.Links[2].Discards[0].Count = 2000, 4000
	v := n.judge(j, start.Add(15*time.Second)).Verdicts[0]
	if got := v.Name + " " + v.Subject.String() + " " + strings.Join(v.Evidence.Texts(), "; "); got !=
		"RDMABelowLineRate mlx5_bond_0/1 most likely discards: 13.3/s received packets found no room (port_buffer), interface eth3" {
		t.Error(got)
	}
}

// TestLineRateLater: a cause with a longer window that did not grow lately is not the most likely.
func TestLineRateLater(t *testing.T) {
	n, j := newNode().measuring(), &Judge{}
	n.judge(j, start)
	n.link().FEC.Uncorrectable = new(uint64(10))
	first := func(at time.Time) (causes []string) {
		for _, v := range n.judge(j, at).Verdicts {
			if v.Name == belowLineRate.Name {
				for _, e := range v.Evidence.Texts() {
					name, _, _ := strings.Cut(strings.TrimPrefix(e, "most likely "), ":")
					causes = append(causes, name)
				}
			}
		}
		return causes
	}
	if got := first(start.Add(15 * time.Second)); got != nil {
		t.Errorf("%q for one cause", got)
	}
	*n.link().Stalls.WriteSeconds = 100
	if got := first(start.Add(30 * time.Second)); !slices.Equal(got, []string{"RDMAUncorrectableBlocks", "pcie_stalled"}) {
		t.Errorf("at once: %q", got)
	}
	n.judge(j, start.Add(30*time.Minute))
	*n.link().Stalls.WriteSeconds = 200
	if got := first(start.Add(31 * time.Minute)); !slices.Equal(got, []string{"pcie_stalled", "RDMAUncorrectableBlocks"}) {
		t.Errorf("half an hour later: %q", got)
	}
	*n.link().FEC.Uncorrectable = 15
	if got := first(start.Add(32 * time.Minute)); !slices.Equal(got, []string{"RDMAUncorrectableBlocks", "pcie_stalled"}) {
		t.Errorf("after more blocks: %q", got)
	}
}

// TestLineRateOfBoth: the same cause on both legs of a bond is one cause, and a physical function without an HCA has
// its own verdict.
func TestLineRateOfBoth(t *testing.T) {
	n, j := newNode().withBond(), &Judge{}
	bare := n.facts.Links[0]
	bare.Device, bare.Port, bare.Netdev, bare.Discards = "", 0, "eth9", []model.LinkDiscards{{Reason: "port_buffer"}}
	n.facts.Links = append(n.facts.Links, bare)
	n.judge(j, start)
	for i := 1; i < 3; i++ {
		n.facts.Links[i].FEC = &model.FEC{Uncorrectable: new(uint64(10)), CorrectedBits: new(uint64(5))}
	}
	n.facts.Links[3].Discards = []model.LinkDiscards{{Reason: "port_buffer", Count: 6000}}
	var got []string
	for _, name := range found(n.judge(j, start.Add(15*time.Second))) {
		if strings.HasPrefix(name, belowLineRate.Name) {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, []string{"RDMABelowLineRate eth9"}) {
		t.Errorf("%q", got)
	}
}

// TestLineRateOrder: a cause has one place in the order, and is a condition or a measured cause.
func TestLineRateOrder(t *testing.T) {
	known := map[string]bool{
		causePCIeStalled: true, causeDiscards: true, causePausesPeer: true, causePausedByPeer: true, causePCIeLink: true, causePlacement: true,
	}
	for _, c := range Conditions {
		known[c.Name] = true
	}
	for i, name := range lineRateOrder {
		if !known[name] || slices.Index(lineRateOrder, name) != i {
			t.Errorf("%s is no cause, or twice in the list", name)
		}
		delete(known, name)
	}
	for name := range known {
		if name == strings.ToLower(name) {
			t.Errorf("%s has no place", name)
		}
	}
}
