// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// node is a node with two ports, a GPU, an HCA with an owner that uses it, and a source.
type node struct {
	facts  model.Snapshot
	shares attribution.Attribution
	states []model.SourceState
}

var worker = identity.Owner{Workload: "ml/a/x", Namespace: "ml", Pod: "a", Container: "x", ContainerID: "c1"}

func newNode() *node {
	counters := func() []model.Counter {
		return []model.Counter{
			{Name: "symbol_error", Value: 7},
			{Name: "link_error_recovery", Value: 7},
			{Name: "link_downed", Value: 7},
			{Name: "port_rcv_errors", Value: 7},
			{Name: "port_rcv_packets", Value: 1e6},
		}
	}
	hardware := func() []model.Counter {
		var all []model.Counter
		for _, name := range []string{
			"np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "local_ack_timeout_err", "rp_cnp_ignored",
		} {
			all = append(all, model.Counter{Name: name, Value: 1e6})
		}
		return all
	}
	n := &node{
		facts: model.Snapshot{
			GPUs: []model.GPU{{
				Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:c1:00.0",
				Memory: model.VideoMemory{Total: model.Some(80 << 30)}, Problems: []model.GPUCondition{
					{Name: model.ProblemThermal}, {Name: model.ProblemPowerBrake},
				},
			}},
			DataPath: &model.DataPathStats{LimitRatio: 0.01},
			Events:   &model.EventStats{Dropped: []model.Loss{{Reason: "overflow"}}},
			Hooks:    []model.Hook{{Name: "ib_uverbs_reg_mr", State: model.StateOK}, {Name: "rdma_restrack_add", State: model.StateOK}},
			Maps:     []model.Map{{Name: "verbs", Entries: 1, Capacity: 100}},
			Losses:   []model.Loss{{Reason: "verbs_full", Count: 0}},
		},
		shares: attribution.Attribution{Owners: []identity.Owner{{}, worker}},
		states: []model.SourceState{{Source: "rdma", State: model.StateOK}, {Source: "probe", State: model.StateAbsent}},
	}
	n.facts.Links = []model.Link{{
		Device: "mlx5_0", Port: 1, Netdev: "eth0", Storms: []model.PauseStorm{{Type: "error", Count: 5}}, Carrier: &model.Carrier{Admin: true, Up: true},
		FEC: &model.FEC{Uncorrectable: new(uint64(5)), CorrectedBits: new(uint64(5))}, Stalls: model.PCIeStalls{ReadSeconds: new(uint64)},
	}}
	full := model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}
	for _, address := range []string{"0000:18:00.0", "0000:c1:00.0"} {
		n.facts.PCI = append(n.facts.PCI, model.PCIFunction{Address: address, PCIEnd: model.PCIEnd{Link: full, AER: aer(7, 0)}})
	}
	for i := range 2 {
		n.facts.HCAs = append(n.facts.HCAs, model.HCA{
			Name: fmt.Sprintf("mlx5_%d", i), Type: "MT4129", Board: "MT_838", Ports: []model.Port{{
				Number: 1, State: stateActive, PhysState: "LinkUp", LinkLayer: "InfiniBand", RateBits: 400e9, Width: 4, Speed: "NDR",
				Counters: counters(), HWCounters: hardware(),
			}},
		})
	}
	n.facts.HCAs[0].PCIAddress, n.facts.HCAs[0].NodeType = "0000:18:00.0", "CA"
	for i := range n.facts.HCAs {
		n.facts.HCAs[i].Ports[0].LinkLayer, n.facts.HCAs[i].Ports[0].GIDs = "Ethernet", routable
	}
	return n
}

// routable are GIDs of a RoCE port; the second GID has a routable address.
var routable = []model.GID{
	{Index: 0, Type: model.GIDRoCEv1, Address: netip.MustParseAddr("fe80::1")},
	{Index: 3, Type: model.GIDRoCEv2, Address: netip.MustParseAddr("::ffff:10.0.0.1")},
}

func aer(correctable, fatal uint64) []model.AERErrors {
	return []model.AERErrors{{Severity: "correctable", Total: correctable}, {Severity: "fatal", Total: fatal}}
}

// place puts two HCAs and the GPU behind switches of host bridges. The owner uses the GPU with the first HCA.
func (n *node) place(hcas0, hcas1, gpu string) {
	n.facts.HCAs[1].PCIAddress = "0000:19:00.0"
	n.facts.PCI = n.facts.PCI[:2]
	n.facts.PCI = append(n.facts.PCI, model.PCIFunction{Address: "0000:19:00.0", PCIEnd: n.facts.PCI[0].PCIEnd})
	for i, bridge := range []string{hcas0, gpu, hcas1} {
		f := &n.facts.PCI[i]
		f.Path, f.NUMANode = []string{bridge, "0000:01:00.0", f.Address}, bridge[len(bridge)-2:]
	}
	n.shares.GPUs = []attribution.GPUShare{{Owner: 1, GPU: &n.facts.GPUs[0], Processes: 1}}
	n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: "mlx5_0", Type: model.QP, Current: 1}}
}

// placeGrace puts the GPU on a switch of Grace with the Data Direct function of the first HCA. control is the ACS
// Control at the function's port.
func (n *node) placeGrace(control model.ACSControl) {
	n.place("pci0000:00", "pci0000:00", "pci0009:00")
	bridge := func(address, id string) model.PCIBridge { return model.PCIBridge{Address: address, ID: id} }
	hcaPort := bridge("0009:02:00.0", "15b3:197c")
	hcaPort.ACS = model.ACS{State: model.ACSPresent, Control: control}
	shared := []model.PCIBridge{bridge("0009:00:00.0", "10de:22b1"), bridge("0009:01:00.0", "15b3:197c")}
	gpu := append(slices.Clone(shared), bridge("0009:02:01.0", "15b3:197c"), bridge("0009:04:00.0", "15b3:197c"), bridge("0009:05:00.0", "15b3:197c"))
	hca := append(slices.Clone(shared), hcaPort)
	path := func(bridges []model.PCIBridge, address string) []string {
		path := []string{"pci0009:00"}
		for _, b := range bridges {
			path = append(path, b.Address)
		}
		return append(path, address)
	}
	n.facts.PCI[0].VPD.UUID = "card"
	n.facts.PCI[1].Bridges, n.facts.PCI[1].Path = gpu, path(gpu, n.facts.PCI[1].Address)
	n.facts.PCI = append(n.facts.PCI, model.PCIFunction{
		Address: "0009:03:00.0", ID: "15b3:2100", Driver: model.DataDirectDriver, Bridges: hca, Path: path(hca, "0009:03:00.0"), VPD: model.VPD{UUID: "card"},
	})
}

func (n *node) link() *model.Link { return &n.facts.Links[0] }

func (n *node) port() *model.Port { return &n.facts.HCAs[0].Ports[0] }

// grow adds to a counter of the first port.
func (n *node) grow(name string, by uint64) {
	for _, list := range [][]model.Counter{n.port().Counters, n.port().HWCounters} {
		for i := range list {
			if list[i].Name == name {
				list[i].Value += by
			}
		}
	}
}

func (n *node) gpu() *model.GPU { return &n.facts.GPUs[0] }

// problem sets a problem of the GPU.
func (n *node) problem(name string, active bool) {
	g := n.gpu()
	g.Problems = append(slices.DeleteFunc(slices.Clone(g.Problems), func(p model.GPUCondition) bool { return p.Name == name }),
		model.GPUCondition{Name: name, Active: active})
}

func (n *node) fault(driver model.FaultDriver, code string, at time.Time) {
	key := model.FaultKey{Driver: driver, PCIAddress: "0000:c1:00.0", Code: code}
	device := attribution.FaultDevice{GPU: "0", UUID: "GPU-0"}
	if driver.OfHCA() {
		device = attribution.FaultDevice{HCA: "mlx5_0"}
	}
	n.shares.FaultTotals = []attribution.FaultTotal{{FaultDevice: device, FaultTotal: &model.FaultTotal{FaultKey: key, Count: 1, Last: at}}}
	n.facts.FaultHistory = []model.Fault{{FaultKey: key, Text: "as logged"}}
}

func (n *node) judge(j *Judge, at time.Time) Result {
	return j.Update(Input{At: at, Facts: &n.facts, Shares: &n.shares, States: n.states, Placement: placement.NewRefresh(&n.facts, &n.shares)})
}

// A judgment is a condition that a node gets and loses.
type judgment struct {
	bad     func(*node)
	after   time.Duration // after the first refresh, until the refresh that finds it
	good    func(*node)
	lasts   time.Duration // how long the verdict stays, in a window
	subject string
	says    string        // part of the evidence
	held    time.Duration // for how long it holds at the refresh that finds it
}

var judgments = map[string]judgment{
	"RDMAPortDown": {
		bad: func(n *node) {
			n.port().State, n.port().PhysState = "DOWN", "Polling"
			n.link().Phy = &model.Phy{Reason: "no_cable"}
		},
		good:    func(n *node) { n.port().State = stateActive },
		subject: "mlx5_0/1", says: "state DOWN, physical state Polling; the driver reports no_cable",
	},
	"RDMAPortDisabled": {
		bad: func(n *node) {
			n.port().State, n.port().PhysState = "DOWN", "Disabled"
			n.link().Carrier = &model.Carrier{}
		},
		good:    func(n *node) { n.port().State, n.link().Carrier = stateActive, &model.Carrier{Admin: true, Up: true} },
		subject: "mlx5_0/1", says: "interface eth0 is administratively down", held: 10 * time.Minute,
	},
	"RDMABondDegraded": {
		bad: func(n *node) {
			leg := *n.link()
			leg.Netdev = "eth1"
			n.facts.Links = append(n.facts.Links, leg)
			n.link().Carrier, n.link().Phy = &model.Carrier{Admin: true}, &model.Phy{Reason: "no_cable"}
		},
		good:    func(n *node) { n.link().Carrier = &model.Carrier{Up: true, Admin: true} },
		subject: "mlx5_0/1 (eth0)", says: "interface eth0 has no carrier; 1 of 2 legs have one; the driver reports no_cable",
	},
	"RDMALinkDegraded": {
		bad:     func(n *node) { n.port().RateBits, n.port().Speed = 200e9, "HDR" },
		good:    func(n *node) { n.port().RateBits = 400e9 },
		subject: "mlx5_0/1", says: "200 Gbit/s (4x HDR); equal ports have 400 Gbit/s",
	},
	"RDMALinkUnstable": {
		bad: func(n *node) { n.grow("link_downed", 2); n.grow("symbol_error", 500) }, lasts: hour,
		subject: "mlx5_0/1", says: "link_downed +2 in 1h; link_error_recovery +0 in 1h",
	},
	"RDMASubnetManagerLost": {
		bad:     func(n *node) { n.port().State, n.port().LinkLayer = "INIT", "InfiniBand" },
		good:    func(n *node) { n.port().State = stateActive },
		subject: "mlx5_0/1", says: "state INIT, physical state LinkUp",
	},
	"RDMAGIDMissing": {
		bad: func(n *node) {
			n.port().GIDs = n.port().GIDs[:1]
			n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: "mlx5_1", Type: model.QP, Current: 1}}
		},
		good:    func(n *node) { n.port().GIDs = routable },
		subject: "mlx5_0/1", says: "1 GIDs, none of them RoCE v2 and routable",
	},
	"RDMAPauseStorm": {
		bad: func(n *node) {
			n.link().Storms = []model.PauseStorm{{Type: "error", Count: 6}, {Type: "warning", Count: 9}}
		},
		lasts: 15 * time.Minute, subject: "mlx5_0/1", says: "pause storms +1 in 15m",
	},
	"RDMAUncorrectableBlocks": {
		bad: func(n *node) { n.link().FEC.Uncorrectable = new(uint64(9)) }, lasts: 125 * time.Minute,
		subject: "mlx5_0/1", says: "blocks that FEC could not correct +4 in 2h5m",
	},
	"RDMABitErrors": {
		bad: func(n *node) { n.link().FEC.CorrectedBits = new(uint64(3e10)) }, lasts: 5 * time.Minute,
		subject: "mlx5_0/1", says: "2.5e-04 of the bits, the limit of the link is 2.4e-04",
	},
	"RDMAModuleAlarm": {
		bad: func(n *node) {
			n.link().Module = &model.LinkModule{
				Vendor: "V", PartNumber: "P", Serial: "S", Checks: []model.ModuleCheck{
					{Value: model.ModuleTemperature, Alarm: 2}, {Value: model.ModuleReceivePower, Alarm: -2}, {Value: model.ModuleBias, Alarm: 1},
				},
			}
		},
		good:    func(n *node) { n.link().Module.Checks = nil },
		subject: "mlx5_0/1", says: "temperature is above the alarm threshold; receive_power is below the alarm threshold; V P, serial number S",
	},
	"RDMAPCIeDegraded": {
		bad:     func(n *node) { n.facts.PCI[0].Link.Width = 8 },
		good:    func(n *node) { n.facts.PCI[0].Link.Width = 16 },
		subject: "mlx5_0", says: "32 GT/s, 8 lanes; 32 GT/s, 16 lanes is possible",
	},
	"RDMABelowLineRate": {
		bad: func(n *node) { n.link().Stalls.ReadSeconds = new(uint64(60)) }, lasts: 5 * time.Minute,
		subject: "mlx5_0/1", says: "most likely pcie_stalled: in 20% of the seconds the HCA waited to read memory over PCIe",
	},
	"RDMAPCIeErrors": {
		bad: func(n *node) { n.facts.PCI[0].AER = aer(7, 1) }, lasts: 15 * time.Minute,
		subject: "mlx5_0", says: "nonfatal and fatal errors +1 in 15m; correctable errors +0 in 15m",
	},
	"GPUPCIeErrors": {
		bad: func(n *node) { n.facts.PCI[1].AER = aer(908, 0) }, lasts: 15 * time.Minute,
		subject: "GPU 0", says: "nonfatal and fatal errors +0 in 15m; correctable errors +901 in 15m",
	},
	"GPUPCIeSlow": {
		bad: func(n *node) {
			n.gpu().PCIe = model.GPUPCIe{Generation: model.Some(1), MaxGeneration: model.Some(5)}
			n.gpu().Utilization = model.Some(0.51)
		},
		good:    func(n *node) { n.gpu().Utilization = model.Some(0.5) },
		subject: "GPU 0", says: "generation 1 of 5, the GPU is 51% busy",
	},
	"RDMASymbolErrors": {
		bad: func(n *node) { n.grow("symbol_error", 121); n.grow("port_rcv_errors", 500) }, lasts: hour,
		subject: "mlx5_0/1", says: "symbol_error +121 in 1h",
	},
	"RDMAPacketErrors": {
		bad: func(n *node) { n.grow("port_rcv_errors", 3); n.grow("port_rcv_packets", 1000) }, lasts: 5 * time.Minute,
		subject: "mlx5_0/1", says: "0.3% of the packets; port_rcv_errors +3 in 5m",
	},
	"RDMAErrorCounterSaturated": {
		bad: func(n *node) { // a newly plugged HCA
			n.facts.HCAs = append(n.facts.HCAs, model.HCA{Name: "mlx5_2", Ports: []model.Port{{
				Number: 1, State: "DOWN", Counters: []model.Counter{{Name: "link_downed", Value: 255}, {Name: "symbol_error", Value: 65534}},
			}}})
		},
		good:    func(n *node) { n.facts.HCAs[2].Ports[0].Counters[0].Value = 0 },
		subject: "mlx5_2/1 (link_downed)", says: "link_downed is 255; RDMALinkUnstable cannot be seen", held: hour,
	},
	"RDMACongestion": {
		bad:   func(n *node) { n.grow("np_ecn_marked_roce_packets", 31000); n.grow("port_rcv_packets", 500000) },
		lasts: 5 * time.Minute, subject: "mlx5_0/1", says: "6% of the packets are marked (ECN); 103/s marked packets",
	},
	"RDMACongestionIgnored": {
		bad: func(n *node) { n.grow("rp_cnp_ignored", 1000) }, lasts: 15 * time.Minute,
		subject: "mlx5_0/1", says: "1.1/s congestion notifications (CNP) ignored",
	},
	"RDMAOutOfBuffer": {
		bad: func(n *node) { n.grow("out_of_buffer", 3300) }, lasts: 5 * time.Minute,
		subject: "mlx5_0/1", says: "11.0/s packets without a receive buffer",
	},
	"RDMARetransmissions": {
		bad:   func(n *node) { n.grow("out_of_sequence", 2000); n.grow("local_ack_timeout_err", 1300) },
		lasts: 5 * time.Minute, subject: "mlx5_0/1", says: "11.0/s lost packets",
	},
	"RDMAFault": {
		bad: func(n *node) { n.fault(model.DriverMLX5, "health_compromised", start) }, lasts: hour, after: time.Minute, held: time.Minute,
		subject: "mlx5_0 (health_compromised)", says: "mlx5_core logged health_compromised, 1 times since the start, last 1m ago; as logged",
	},
	"GPULost": {
		bad: func(n *node) {
			n.problem(model.ProblemUnreadable, true)
			n.facts.DeviceStates = []model.DeviceState{{Source: "nvidia", Device: "0", State: model.StateFailed, Reason: "Unknown Error"}}
		},
		good:    func(n *node) { n.problem(model.ProblemUnreadable, false); n.facts.DeviceStates = nil },
		subject: "GPU 0", says: "unreadable; Unknown Error",
	},
	"GPURecoveryAction": {
		bad:     func(n *node) { n.gpu().RecoveryAction = model.RecoveryReset; n.problem(model.ProblemRecovery, true) },
		good:    func(n *node) { n.gpu().RecoveryAction = model.RecoveryNone; n.problem(model.ProblemRecovery, false) },
		subject: "GPU 0", says: "the driver asks for reset",
	},
	"GPUXidCritical": {
		bad: func(n *node) {
			n.gpu().XIDs = []model.XID{{Code: 79, Count: 2, Last: start}}
			n.problem(model.ProblemXID, true)
		},
		good:  func(n *node) { n.problem(model.ProblemXID, false) },
		after: time.Minute, held: time.Minute, subject: "GPU 0", says: "XID 79, 2 times since the start, last 1m ago",
	},
	"GPUXidNoncritical": {
		bad: func(n *node) {
			n.gpu().XIDs = []model.XID{{Code: 31, Count: 1, Last: start}, {Code: 154, Count: 1, Last: start}}
		},
		lasts: 10 * time.Minute, after: time.Minute, held: time.Minute, subject: "GPU 0", says: "XID 31, 1 times since the start, last 1m ago",
	},
	"GPUFault": {
		bad: func(n *node) { n.fault(model.DriverAMDGPU, "ras_fatal", start) }, lasts: hour, after: time.Minute, held: time.Minute,
		subject: "GPU 0 (ras_fatal)", says: "amdgpu logged ras_fatal",
	},
	"GPUDriverStuck": {
		bad: func(n *node) {
			n.shares.DriverShares = []attribution.DriverShare{{Owner: 1, Driver: "nvidia", Oldest: 301 * time.Second, Stuck: 2}}
		},
		good: func(n *node) {
			n.shares.DriverShares = []attribution.DriverShare{{Owner: 1, Driver: "nvidia", Oldest: time.Second}}
		},
		subject: "ml/a/x (nvidia)", says: "oldest ioctl 5m1s; 2 tasks are stuck", held: 301 * time.Second,
	},
	"GPUFabricNotReady": {
		bad: func(n *node) {
			n.problem(model.ProblemFabricNotReady, true)
			n.facts.Lingering = []model.Lingering{{
				State: stateFabric, Value: "in_progress", UUID: "GPU-0", Since: start.Add(-5 * time.Minute), Held: 5 * time.Minute, Times: 1,
			}}
		},
		good:    func(n *node) { n.problem(model.ProblemFabricNotReady, false); n.facts.Lingering = nil },
		subject: "GPU 0", says: "in_progress for 5m",
	},
	"GPUFabricInProgress": {
		bad: func(n *node) {
			n.problem(model.ProblemFabricNotReady, true)
			n.gpu().Fabric, n.facts.FabricManager = "in_progress", &model.FabricManager{Running: true}
			n.facts.Lingering = []model.Lingering{{
				State: stateFabric, Value: "in_progress", UUID: "GPU-0", Since: start.Add(-5 * time.Minute), Held: 5 * time.Minute, Times: 1,
			}}
		},
		good:    func(n *node) { n.problem(model.ProblemFabricNotReady, false); n.facts.Lingering = nil },
		subject: "GPU 0", says: "in_progress for 5m",
	},
	"GPUFabricManagerLost": {
		bad: func(n *node) {
			n.facts.FabricManager = &model.FabricManager{}
			n.facts.Lingering = []model.Lingering{{
				State: stateManager, Value: "no process nv-fabricmanager", Since: start.Add(-2 * time.Minute), Held: 2 * time.Minute, Times: 1,
			}}
		},
		good:    func(n *node) { n.facts.FabricManager.Running = true; n.facts.Lingering = nil },
		subject: "node", says: "no process nv-fabricmanager for 2m", held: 135 * time.Second,
	},
	"RDMALinkTraining": {
		bad: func(n *node) {
			n.facts.Lingering = []model.Lingering{{
				State: stateTraining, Value: "LinkErrorRecovery", Device: "mlx5_0", Port: 1, Since: start, Held: 6 * time.Minute, Times: 4,
			}}
		},
		good:    func(n *node) { n.facts.Lingering = nil },
		subject: "mlx5_0/1", says: "LinkErrorRecovery, 4 times for 6m since 15s ago", held: 15 * time.Second,
	},
	"GPUMemoryFailing": {
		bad: func(n *node) { n.problem(model.ProblemRemapFailure, true); n.problem(model.ProblemRemapPending, true) },
		good: func(n *node) {
			n.problem(model.ProblemRemapFailure, false)
			n.problem(model.ProblemRemapPending, false)
		},
		subject: "GPU 0", says: "row_remap_failure",
	},
	"GPUMemoryRepairPending": {
		bad:     func(n *node) { n.problem(model.ProblemRemapPending, true); n.problem(model.ProblemECC, true) },
		good:    func(n *node) { n.problem(model.ProblemRemapPending, false); n.problem(model.ProblemECC, false) },
		subject: "GPU 0", says: "row_remap_pending",
	},
	"GPUUncorrectedECC": {
		bad:     func(n *node) { n.problem(model.ProblemECC, true) },
		good:    func(n *node) { n.problem(model.ProblemECC, false) },
		subject: "GPU 0", says: "ecc_uncorrected",
	},
	"GPUThermalSlowdown": {
		bad: func(n *node) { n.problem(model.ProblemThermal, true) }, after: 91 * time.Second,
		good:  func(n *node) { n.problem(model.ProblemThermal, false) },
		lasts: 15 * time.Minute, subject: "GPU 0", says: "slowed down in 1m31s of 15m",
	},
	"GPUPowerBrake": {
		bad: func(n *node) { n.problem(model.ProblemPowerBrake, true) }, after: 91 * time.Second,
		good:  func(n *node) { n.problem(model.ProblemPowerBrake, false) },
		lasts: 15 * time.Minute, subject: "GPU 0", says: "slowed down in 1m31s of 15m",
	},
	"GPUUnhealthy": {
		bad:     func(n *node) { n.problem(model.ProblemLinkDown, true) },
		good:    func(n *node) { n.problem(model.ProblemLinkDown, false) },
		subject: "GPU 0", says: "link_down",
	},
	"GPUMemoryUnowned": {
		bad: func(n *node) {
			n.shares.GPUs = []attribution.GPUShare{{GPU: n.gpu(), Listed: true, Memory: model.Some(16 << 30)}}
		},
		good: func(n *node) { // it may be managed memory of the only workload
			n.shares.GPUs = append(n.shares.GPUs, attribution.GPUShare{Owner: 1, GPU: n.gpu(), Listed: true, Processes: 2})
		},
		subject: "GPU 0", says: "20% of 80.0 GiB", held: 30 * time.Minute,
	},
	"RDMAQueuePairsStalled": {
		bad: func(n *node) {
			n.shares.Outstanding = []attribution.OutstandingShare{{Owner: 1, Device: "mlx5_0", Stalled: 2, Oldest: 45 * time.Second}}
		},
		good:    func(n *node) { n.shares.Outstanding[0].Stalled = 0 },
		subject: "ml/a/x on mlx5_0", says: "2 queue pairs; oldest work request 45s", held: 45 * time.Second,
	},
	"RDMACompletionErrors": {
		bad: func(n *node) {
			n.shares.CompletionErrors = []attribution.Share[model.CompletionErrorKey, model.Count]{
				{Owner: 1, Key: model.CompletionErrorKey{Device: "mlx5_0", Status: "retry_exceeded"}, Value: 1},
				{Owner: 1, Key: model.CompletionErrorKey{Device: "mlx5_1", Status: "retry_exceeded"}, Value: 2},
				{Owner: 1, Key: model.CompletionErrorKey{Device: "mlx5_0", Status: "wr_flush_error"}, Value: 99},
			}
		},
		lasts: 10 * time.Minute, subject: "ml/a/x (retry_exceeded)", says: "completions with an error +3 in 10m",
	},
	"RDMAVerbsErrors": {
		bad: func(n *node) {
			n.shares.VerbErrors = []attribution.Share[model.VerbErrorKey, model.Count]{
				{Owner: 1, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM"}, Value: 4},
				{Owner: 1, Key: model.VerbErrorKey{Device: "mlx5_1", Verb: "create_qp", Errno: "ENOMEM"}, Value: 2},
				{Owner: 1, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "query_gid", Errno: "ENODATA"}, Value: 99},
				{Owner: 1, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: "EINTR"}, Value: 99},
			}
		},
		lasts: 15 * time.Minute, subject: "ml/a/x (ENOMEM)", says: "failed verbs +6 in 15m",
	},
	"GPUAllocationFailures": {
		bad: func(n *node) {
			n.shares.FailedAllocations = []attribution.Share[model.AllocationKey, model.Allocations]{
				{Owner: 0, Key: model.AllocationKey{Vendor: model.NVIDIA}, Value: model.Allocations{Count: 9}},
				{Owner: 1, Key: model.AllocationKey{Vendor: model.NVIDIA}, Value: model.Allocations{Count: 1}},
			}
		},
		lasts: 15 * time.Minute, subject: "ml/a/x (nvidia)", says: "failed allocations +1 in 15m",
	},
	"WorkloadPlacedBadly": {
		bad:     func(n *node) { n.place("pci0000:00", "pci0000:80", "pci0000:80") },
		good:    func(n *node) { n.place("pci0000:80", "pci0000:00", "pci0000:80") },
		subject: "ml/a/x", says: "GPU 0: all HCAs that the workload uses are on another NUMA node; nearer are mlx5_1", held: 15 * time.Minute,
	},
	"WorkloadWithoutGPUDirect": {
		bad: func(n *node) {
			n.place("pci0000:80", "pci0000:00", "pci0000:80")
			n.shares.Registered = []attribution.RegisteredShare{{Owner: 1, Device: "mlx5_0", Memory: model.HostMemory, Bytes: 1}}
		},
		good:    func(n *node) { n.shares.Registered[0].Memory = model.GPUMemory },
		subject: "ml/a/x", says: "GPU 0: the workload registered no memory of GPUs, and its HCAs on the same PCIe switch are mlx5_0",
		held: 30 * time.Minute,
	},
	"WorkloadDataDirectPath": {
		bad: func(n *node) {
			n.placeGrace(0x1d)
			n.shares.Registered = []attribution.RegisteredShare{{Owner: 1, Device: "mlx5_0", Memory: model.GPUMemory, Bytes: 1}}
		},
		good:    func(n *node) { n.shares.Registered[0].Memory = model.HostMemory },
		subject: "ml/a/x", held: 15 * time.Minute,
		says: "GPU 0: ACS redirects transfers with the Data Direct function of mlx5_0: requests at 0009:02:00.0",
	},
	"RDMACoverageGap": {
		bad: func(n *node) {
			n.shares.Coverage = []attribution.CoverageShare{
				{Owner: 1, Device: "mlx5_0", Gap: model.GapDEVX},
				{Owner: 1, Device: "mlx5_0", Gap: model.GapLate},
				{Owner: 1, Device: "mlx5_1", Gap: model.GapOff},
			}
		},
		good:    func(n *node) { n.shares.Coverage = n.shares.Coverage[2:] },
		subject: "ml/a/x on mlx5_0", says: "devx, late", held: 5 * time.Minute,
	},
	"AccelscopeSourceLost": {
		bad:     func(n *node) { n.states[0].State, n.states[0].Reason = model.StateUnsupported, "no netlink" },
		good:    func(n *node) { n.states[0].State = model.StateOK },
		subject: "source rdma", says: "unsupported; no netlink",
	},
	"AccelscopeSourceStuck": {
		bad: func(n *node) {
			n.states[0].State, n.states[0].Reason = model.StateStuck, "Read has not returned within 2s"
		},
		good:    func(n *node) { n.states[0].State = model.StateOK },
		subject: "source rdma", says: "stuck; Read has not returned within 2s",
	},
	"AccelscopeDeviceUnreadable": {
		bad: func(n *node) {
			n.facts.DeviceStates = []model.DeviceState{
				{Source: "rdma", Device: "mlx5_0", State: model.StateQuarantined, Reason: "failed 3 times"},
				{Source: "nvidia", Device: "1", State: model.StateReleased},
				{Source: "rdma", Device: "mlx5_1", State: model.StateOK},
			}
		},
		good:    func(n *node) { n.facts.DeviceStates[0].State = model.StateOK },
		subject: "source rdma mlx5_0", says: "quarantined: failed 3 times",
	},
	"AccelscopeHooksLost": {
		bad: func(n *node) {
			n.facts.Hooks[0].State, n.facts.Hooks[0].Reason = model.StateFailed, "EBUSY"
			n.facts.Hooks[1].State = model.StateUnsupported
		},
		good:    func(n *node) { n.facts.Hooks[0].State, n.facts.Hooks[1].State = model.StateOK, model.StateOK },
		subject: "node", says: "2 of 2 hooks; ib_uverbs_reg_mr: EBUSY; rdma_restrack_add",
	},
	"AccelscopeLosing": {
		bad: func(n *node) { n.facts.Losses[0].Count = 3 }, lasts: 15 * time.Minute,
		subject: "node (verbs_full)", says: "events +3 in 15m",
	},
	"AccelscopeMapNearlyFull": {
		bad:     func(n *node) { n.facts.Maps[0].Entries = 91 },
		good:    func(n *node) { n.facts.Maps[0].Entries = 90 },
		subject: "node (verbs)", says: "91 of 100 entries", held: 15 * time.Minute,
	},
	"AccelscopeBudgetExceeded": {
		bad:     func(n *node) { n.shares.Budgets = []attribution.BudgetShare{{Owner: 1, SpentRatio: 0.016}} },
		good:    func(n *node) { n.shares.Budgets[0].SpentRatio = 0.015 },
		subject: "ml/a/x", says: "2% of the CPU time; the budget is 1%",
	},
	"RDMADeviceGone": {
		bad: func(n *node) {
			n.facts.Missing = []model.MissingDevice{{
				Kind: model.KindHCA, ID: "0x1", Name: "mlx5_3", Slot: "0000:1b:00.0", Seen: start.Add(-time.Hour), Since: start, Rebooted: true,
			}}
		},
		good:    func(n *node) { n.facts.Missing[0].Excused = true },
		subject: "mlx5_3 (0x1)", says: "mlx5_3 at 0000:1b:00.0; last listed 1h0m15s ago, before the node was started",
		held: 15 * time.Second,
	},
	"RDMAModuleGone": {
		bad: func(n *node) {
			n.facts.Missing = []model.MissingDevice{{
				Kind: model.KindModule, ID: "0x1/1 SN1", Name: "mlx5_3", Port: 1, Serial: "SN1", Slot: "0x1/1", Seen: start.Add(-time.Hour), Since: start,
			}}
		},
		good:    func(n *node) { n.facts.Missing[0].Excused = true },
		subject: "mlx5_3/1 (0x1/1 SN1)",
		says:    "module with the serial number SN1; last read 1h0m15s ago; its EEPROM cannot be read, and the interface has no carrier",
		held:    15 * time.Second,
	},
	"GPUGone": {
		bad: func(n *node) {
			n.facts.PCI = []model.PCIFunction{{Address: "0000:4e:00.0"}}
			n.facts.Missing = []model.MissingDevice{{
				Kind: model.KindGPU, ID: "GPU-7", Name: "H100", Serial: "165", Slot: "0000:4e:00.0", Seen: start.Add(-time.Hour), Since: start.Add(-time.Hour),
			}}
		},
		good:    func(n *node) { n.facts.Missing = nil },
		subject: "GPU GPU-7", says: "H100, serial number 165 at 0000:4e:00.0; last listed 1h0m15s ago; its PCI function is there, without a driver",
		held: time.Hour + 15*time.Second,
	},
	"AccelscopeEventsLost": {
		bad: func(n *node) { n.facts.Events.Dropped[0].Count = 2 }, lasts: 15 * time.Minute,
		subject: "source events", says: "events +2 in 15m",
	},
}

func names(r Result) (all []string) {
	for i := range r.Verdicts {
		all = append(all, r.Verdicts[i].Name)
	}
	return all
}

// TestJudgments: the second refresh shows the verdict (with severity info after its time). It is the only verdict, and
// is gone by the refresh after its end, or after its window.
func TestJudgments(t *testing.T) {
	nothing := []string{"NothingWrong"}
	for _, c := range Conditions {
		tt, ok := judgments[c.Name]
		if c == nothingWrong || c == rdmaIdle || c == gpuIdle || c == pathSlow || strings.HasPrefix(c.Name, "Job") {
			continue // other tests cover it
		}
		t.Run(c.Name, func(t *testing.T) {
			if !ok {
				t.Fatal("no test")
			}
			n, j := newNode(), &Judge{}
			at := start
			if first := names(n.judge(j, at)); !slices.Equal(first, nothing) {
				t.Fatalf("at first: %v", first)
			}
			tt.bad(n)
			at = at.Add(max(tt.after, 15*time.Second))
			found := n.judge(j, at)
			if c.Severity == Info && c.For > 0 {
				if !slices.Equal(names(found), nothing) {
					t.Errorf("too early: %v", names(found))
				}
				at = at.Add(c.For)
				found = n.judge(j, at)
			}
			if len(found.Verdicts) != 1 || found.Verdicts[0].Name != c.Name || found.Omitted != 0 {
				t.Fatalf("%+v", found)
			}
			v := found.Verdicts[0]
			if v.Severity != c.Severity || v.Summary != c.Summary || v.Runbook != c.Runbook() || at.Sub(v.Since) != tt.held {
				t.Errorf("%+v, holds for %v", v, at.Sub(v.Since))
			}
			if got := strings.Join(v.Evidence.Texts(), "; "); v.Subject.String() != tt.subject || !strings.Contains(got, tt.says) {
				t.Errorf("%q: %q", v.Subject, got)
			}
			if tt.good != nil {
				tt.good(n)
			}
			if tt.lasts > 0 {
				if now := names(n.judge(j, at.Add(tt.lasts/2))); !slices.Equal(now, []string{c.Name}) {
					t.Errorf("within its window: %v", now)
				}
			}
			at = at.Add(tt.lasts + 15*time.Second)
			if last := names(n.judge(j, at)); !slices.Equal(last, nothing) {
				t.Errorf("at last: %v", last)
			}
		})
	}
}

// TestOwnerLosses: a loss because of a share names the workload with the share, and is not a loss of the node.
func TestOwnerLosses(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.facts.Losses = []model.Loss{{Reason: "verbs_map_share", Count: 1}}
	n.shares.OwnerLosses = []attribution.Share[model.LossKey, model.Count]{{Owner: 1, Key: model.LossKey{Reason: "verbs_map_share"}, Value: 1}}
	n.judge(j, start)
	n.facts.Losses[0].Count, n.shares.OwnerLosses[0].Value = 4, 4
	got := n.judge(j, start.Add(15*time.Second))
	if len(got.Verdicts) != 1 || got.Verdicts[0].Name != "AccelscopeLosing" {
		t.Fatalf("%+v", got)
	}
	v := got.Verdicts[0]
	if evidence := strings.Join(v.Evidence.Texts(), "; "); v.Subject.String() != "ml/a/x (verbs_map_share)" || !strings.Contains(evidence, "events +4 in 15m") {
		t.Errorf("%q: %q", v.Subject, evidence)
	}
}

// TestIdle: a device that is allocated and unused for two hours has a verdict, until it is used.
func TestIdle(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.shares.Registered = []attribution.RegisteredShare{{Device: "mlx5_0"}}
	n.shares.Assigned = []attribution.DeviceShare{
		{Owner: 1, HCA: &n.facts.HCAs[0], Device: "mlx5_0", Allocated: attribution.EvidenceKubelet},
		{Owner: 1, GPU: n.gpu(), Device: "GPU-0", Allocated: attribution.EvidenceKubelet},
	}
	n.shares.GPUs = []attribution.GPUShare{
		{Owner: 1, GPU: n.gpu(), Listed: true, Assigned: &n.shares.Assigned[1], Processes: 1, Engines: []model.Figure{{Name: "sm", Value: 0.01}}},
	}
	n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: "mlx5_0", Type: model.QP, Created: 1}}
	at := start
	for _, step := range []struct {
		after time.Duration
		set   func()
		want  []string
	}{
		{0, func() {}, []string{"NothingWrong"}},
		{29 * time.Minute, func() {}, []string{"NothingWrong"}},
		{time.Minute, func() {}, []string{"NothingWrong"}},
		{89 * time.Minute, func() {}, []string{"NothingWrong"}},
		{time.Minute, func() {}, []string{"RDMAAllocatedIdle", "GPUAllocatedIdle"}},
		{time.Minute, func() { n.shares.GPUs[0].Engines[0].Value = 0.02 }, []string{"RDMAAllocatedIdle"}},
		{time.Minute, func() { n.shares.Objects[0].Created = 2 }, []string{"NothingWrong"}}, // a queue pair between two refreshes
		{30 * time.Minute, func() { n.shares.GPUs[0].Engines = nil }, []string{"NothingWrong"}},
		{90 * time.Minute, func() {}, []string{"RDMAAllocatedIdle"}}, // a process without engines uses the GPU
		{time.Minute, func() { n.shares.Objects[0].Current = 1 }, []string{"NothingWrong"}},
	} {
		at = at.Add(step.after)
		step.set()
		got := n.judge(j, at)
		if d := cmp.Diff(step.want, names(got)); d != "" {
			t.Fatalf("at %v: %s", at, d)
		}
		if v := got.Verdicts[0]; v.Name == "RDMAAllocatedIdle" && !strings.HasPrefix(strings.Join(v.Evidence.Texts(), "; "), "not used for 2h") {
			t.Errorf("%q", v.Evidence.Texts())
		}
	}
}

// TestIdleUnknown: a GPU that nobody owns, or whose use is not listed, is not idle, and memory regions of an HCA are no use.
func TestIdleUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*node)
		want string
	}{
		"not listed":       {func(n *node) { n.shares.GPUs[0].Listed = false }, "NothingWrong"},
		"of nobody":        {func(n *node) { n.shares.GPUs[0].Owner = 0 }, "NothingWrong"},
		"not allocated":    {func(n *node) { n.shares.GPUs[0].Assigned = nil }, "NothingWrong"},
		"listed and owned": {func(*node) {}, "GPUAllocatedIdle"},
		"memory regions": {func(n *node) {
			n.shares.GPUs = nil
			n.shares.Registered = []attribution.RegisteredShare{{Device: "mlx5_0"}}
			n.shares.Assigned = []attribution.DeviceShare{{Owner: 1, HCA: &n.facts.HCAs[0], Device: "mlx5_0", Allocated: attribution.EvidenceKubelet}}
			n.shares.Objects = []attribution.ObjectShare{{Owner: 1, Device: "mlx5_0", Type: model.MR, Current: 1}}
		}, "RDMAAllocatedIdle"},
	} {
		n, j := newNode(), &Judge{}
		n.shares.Assigned = []attribution.DeviceShare{{Owner: 1, GPU: n.gpu(), Device: "GPU-0", Allocated: attribution.EvidenceKubelet}}
		n.shares.GPUs = []attribution.GPUShare{{Owner: 1, GPU: n.gpu(), Listed: true, Assigned: &n.shares.Assigned[0]}}
		c.set(n)
		for _, after := range []time.Duration{0, 30 * time.Minute, hour} {
			n.judge(j, start.Add(after))
		}
		if got := names(n.judge(j, start.Add(2*hour))); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestSharedHCAs: a workload with only device nodes of HCAs uses all of them, and the containers of a pod use an HCA
// for each other.
func TestSharedHCAs(t *testing.T) {
	n, j := newNode(), &Judge{}
	other := worker
	other.Workload, other.Container, other.ContainerID = "ml/a/y", "y", "c2"
	n.shares.Owners = append(n.shares.Owners, other, identity.Owner{Workload: "docker:z", ContainerID: "c3"})
	n.shares.Registered = []attribution.RegisteredShare{{Device: "mlx5_0"}, {Device: "mlx5_1"}}
	for owner, evidence := range map[int]attribution.Evidence{
		1: attribution.EvidenceKubelet, 2: attribution.EvidenceKubelet, 3: attribution.EvidenceNode,
	} {
		n.shares.Assigned = append(n.shares.Assigned, attribution.DeviceShare{Owner: owner, HCA: &n.facts.HCAs[0], Allocated: evidence})
	}
	n.shares.Objects = []attribution.ObjectShare{
		{Owner: 1, Device: "mlx5_0", Type: model.QP, Current: 1}, {Owner: 3, Device: "mlx5_1", Type: model.DEVXObj, Current: 1},
	}
	for _, after := range []time.Duration{0, 30 * time.Minute, 2 * hour} {
		if got := names(n.judge(j, start.Add(after))); !slices.Equal(got, []string{"NothingWrong"}) {
			t.Errorf("%v: %v", after, got)
		}
	}
}

// TestNothingWrong: the verdict shows what was judged, and since when nothing is wrong. A refresh without sources was
// not judged.
func TestNothingWrong(t *testing.T) {
	n, j := newNode(), &Judge{}
	n.judge(j, start)
	got := n.judge(j, start.Add(hour))
	want := []Verdict{{
		Name: "NothingWrong", Severity: OK, Subject: Subject{Kind: OfNode}, Summary: nothingWrong.Summary, Since: start, Runbook: page,
	}}
	if d := cmp.Diff(want, got.Verdicts, cmpopts.IgnoreFields(Verdict{}, "Evidence")); d != "" {
		t.Error(d)
	}
	evidence := []string{"2 of 2 ports are active", "1 GPUs", "1 workloads", "1 of 2 sources work"}
	if d := cmp.Diff(evidence, got.Verdicts[0].Evidence.Texts()); d != "" {
		t.Error(d)
	}
	if got := new(Judge).Update(Input{At: start, Facts: &model.Snapshot{}, Shares: &attribution.Attribution{}}); len(got.Verdicts) != 0 {
		t.Errorf("%+v", got)
	}
}
