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

// withVFs adds two virtual functions of the first HCA; the first one has an owner.
func (n *node) withVFs() *node {
	for _, name := range []string{"mlx5_2", "mlx5_3"} {
		vf := n.facts.HCAs[0]
		vf.Name, vf.VF, vf.PF, vf.Board, vf.PCIAddress = name, true, "mlx5_0", "", "0000:18:00.2"
		vf.Ports = slices.Clone(vf.Ports)
		n.facts.HCAs = append(n.facts.HCAs, vf)
	}
	n.shares.Assigned = []attribution.DeviceShare{{Owner: 1, HCA: &n.facts.HCAs[2], Allocated: attribution.EvidenceKubelet}}
	return n
}

// set sets the state of the first port of HCAs.
func (n *node) set(state string, hcas ...int) {
	for _, i := range hcas {
		n.facts.HCAs[i].Ports[0].State = state
	}
}

// TestPortsWithoutFault: ports that are not active, and do not raise RDMAPortDown.
func TestPortsWithoutFault(t *testing.T) {
	for name, c := range map[string]struct {
		bad  func(*node)
		want []string
	}{
		"a VF with an owner": {func(n *node) { n.set("DOWN", 2) }, []string{"RDMAPortDown mlx5_2/1"}},
		"a VF with queue pairs": {func(n *node) {
			n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: "mlx5_3", Type: model.QP, Current: 1}}
			n.set("DOWN", 3)
		}, []string{"RDMAPortDown mlx5_3/1"}},
		"a VF that nobody has": {func(n *node) { n.set("DOWN", 3) }, nil},
		"a VF that a container returned": {func(n *node) {
			n.shares.Assigned = nil
			n.set("DOWN", 2)
		}, nil},
		"a VF that is a network interface of a pod only": {func(n *node) {
			n.shares.Assigned[0].Allocated = ""
			n.set("DOWN", 2)
		}, nil},
		"a PF and its VFs":          {func(n *node) { n.set("DOWN", 0, 2, 3) }, []string{"RDMAPortDown mlx5_0/1"}},
		"a PF and its VFs, slower":  {func(n *node) { n.slow(0, 2, 3) }, []string{"RDMALinkDegraded mlx5_0/1"}},
		"a PF and its VFs, flapped": {func(n *node) { n.lose(0, 2, 3) }, []string{"RDMALinkUnstable mlx5_0/1"}},
		"a VF whose PF is not read": {func(n *node) {
			n.facts.HCAs[2].PF = "mlx5_9"
			n.set("DOWN", 2)
		}, []string{"RDMAPortDown mlx5_2/1"}},
		"a VF without a GUID": {func(n *node) {
			n.facts.HCAs[3].Ports[0].LinkLayer = "InfiniBand"
			n.set("INIT", 3)
		}, nil},
		"the planes of a port": {func(n *node) {
			planes := n.facts.HCAs[0]
			planes.Name, planes.Parent, planes.Ports = "smi1", "mlx5_0", slices.Clone(planes.Ports)
			planes.Ports[0].RateBits, planes.Ports[0].LinkLayer = 100e9, "InfiniBand"
			n.facts.HCAs = append(n.facts.HCAs, planes)
			planes.Ports = slices.Clone(planes.Ports)
			planes.Name, planes.Ports[0].State = "smi2", "INIT"
			n.facts.HCAs = append(n.facts.HCAs, planes)
		}, nil},
		"an interface that is set down": {func(n *node) {
			n.link().Carrier = &model.Carrier{}
			n.set("DOWN", 0)
		}, nil},
		"a bond that is set down": {func(n *node) {
			n.withBond().set("DOWN", 4)
			for i := range n.facts.Links {
				if l := &n.facts.Links[i]; l.Bond != "" {
					l.Carrier = &model.Carrier{Up: true, SetDown: "bond0"}
				}
			}
		}, nil},
		"an interface without a carrier": {func(n *node) {
			n.link().Carrier = &model.Carrier{Admin: true}
			n.set("DOWN", 0)
		}, []string{"RDMAPortDown mlx5_0/1"}},
		"an interface of which nothing is known": {func(n *node) {
			n.link().Carrier = nil
			n.set("DOWN", 0)
		}, []string{"RDMAPortDown mlx5_0/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, j := newNode().withVFs(), &Judge{}
			n.judge(j, start)
			c.bad(n)
			if got := found(n.judge(j, start.Add(15*time.Second))); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func (n *node) slow(hcas ...int) {
	for _, i := range hcas {
		n.facts.HCAs[i].Ports[0].RateBits = 200e9
	}
}

// lose counts losses of the link.
func (n *node) lose(hcas ...int) {
	for _, i := range hcas {
		p := &n.facts.HCAs[i].Ports[0]
		p.Counters = slices.Clone(p.Counters)
		p.Counters[2].Value += 2
	}
}

// found lists the verdicts except NothingWrong, with their subjects.
func found(r Result) (all []string) {
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Name != nothingWrong.Name {
			all = append(all, v.Name+" "+v.Subject.String())
		}
	}
	return all
}

// withBond adds an HCA whose port is on a bond of two legs.
func (n *node) withBond() *node {
	h := n.facts.HCAs[1]
	h.Name, h.Ports = "mlx5_bond_0", slices.Clone(h.Ports)
	n.facts.HCAs = append(n.facts.HCAs, h)
	for _, name := range []string{"eth2", "eth3"} {
		n.facts.Links = append(n.facts.Links, model.Link{
			Device: "mlx5_bond_0", Port: 1, Netdev: name, Bond: "bond0", SpeedBits: 200e9, Carrier: &model.Carrier{Up: true, Admin: true},
			Storms: []model.PauseStorm{{Type: "error"}}, FEC: &model.FEC{Uncorrectable: new(uint64(5)), CorrectedBits: new(uint64(5))},
		})
	}
	return n
}

// TestBondDisabled: a bond that is set down has one verdict about the port, not one for each leg.
func TestBondDisabled(t *testing.T) {
	n, j := newNode().withBond(), &Judge{}
	n.judge(j, start)
	n.set("DOWN", len(n.facts.HCAs)-1)
	for i := range n.facts.Links {
		if l := &n.facts.Links[i]; l.Bond != "" {
			l.Carrier = &model.Carrier{Up: true, SetDown: "bond0"}
		}
	}
	var got []string
	for at := start.Add(time.Minute); at.Before(start.Add(15 * time.Minute)); at = at.Add(time.Minute) {
		got = nil
		for _, v := range n.judge(j, at).Verdicts {
			got = append(got, v.Name+" "+v.Subject.String()+" "+strings.Join(v.Evidence.Texts(), "; "))
		}
	}
	if want := []string{"RDMAPortDisabled mlx5_bond_0/1 interface bond0 is administratively down"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLegs: each leg of a bond is judged, and so is the interface of a physical function without an HCA.
func TestLegs(t *testing.T) {
	for name, c := range map[string]struct {
		bad           func(*model.Link)
		verdict, says string
		ofBare        bool
	}{
		"flaps":    {bad: func(l *model.Link) { l.Carrier.Flaps = 2 }, verdict: "RDMALinkUnstable", says: "losses of the carrier +2 in 1h", ofBare: true},
		"storm":    {bad: func(l *model.Link) { l.Storms[0].Count = 1 }, verdict: "RDMAPauseStorm", says: "pause storms +1 in 15m", ofBare: true},
		"blocks":   {bad: func(l *model.Link) { *l.FEC.Uncorrectable = 9 }, verdict: "RDMAUncorrectableBlocks", says: "+4 in 2h5m", ofBare: true},
		"bits":     {bad: func(l *model.Link) { *l.FEC.CorrectedBits = 3e10 }, verdict: "RDMABitErrors", says: "5.0e-04 of the bits", ofBare: true},
		"module":   {bad: func(l *model.Link) { l.Module = &model.LinkModule{Fault: new(true)} }, verdict: "RDMAModuleAlarm", says: "has failed", ofBare: true},
		"down":     {bad: func(l *model.Link) { l.Carrier.Up = false }, verdict: "RDMABondDegraded", says: "has no carrier; 1 of 2 legs have one"},
		"set down": {bad: func(l *model.Link) { l.Carrier.Up, l.Carrier.Admin = false, false }},
	} {
		for i, leg := range []string{"eth2", "eth3", ""} {
			if leg == "" && !c.ofBare {
				continue
			}
			t.Run(name+" "+leg, func(t *testing.T) {
				n, j := newNode().withBond(), &Judge{}
				l, subject := &n.facts.Links[1+min(i, 1)], "mlx5_bond_0/1 ("+leg+")"
				if leg == "" { // the other leg has gone
					l.Device, l.Port, l.Netdev, subject = "", 0, "eth9", "eth9"
				}
				n.judge(j, start)
				c.bad(l)
				r := n.judge(j, start.Add(15*time.Second))
				if c.verdict == "" {
					if got := found(r); got != nil {
						t.Errorf("%q", got)
					}
					return
				}
				if got := found(r); !slices.Equal(got, []string{c.verdict + " " + subject}) {
					t.Fatalf("%q", got)
				}
				evidence := strings.Join(r.Verdicts[0].Evidence.Texts(), "; ")
				if !strings.Contains(evidence, c.says) || leg != "" && !strings.Contains(evidence, "interface "+leg) {
					t.Errorf("%q", evidence)
				}
			})
		}
	}
}

// TestLegNeverUp: a leg that never had a carrier is not missed. If no leg has a carrier, only the port is down.
func TestLegNeverUp(t *testing.T) {
	n, j := newNode().withBond(), &Judge{}
	n.facts.Links[1].Carrier = &model.Carrier{Admin: true}
	if got := found(n.judge(j, start)); got != nil {
		t.Errorf("%q", got)
	}
	n.facts.Links[2].Carrier = &model.Carrier{Admin: true}
	n.set("DOWN", 2)
	if got := found(n.judge(j, start.Add(15*time.Second))); !slices.Equal(got, []string{"RDMAPortDown mlx5_bond_0/1"}) {
		t.Errorf("%q", got)
	}
}
