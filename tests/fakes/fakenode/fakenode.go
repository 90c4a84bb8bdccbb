// SPDX-License-Identifier: Apache-2.0

// Package fakenode is a FAKE node for tests and pictures of the pages: facts, as sources report them, of eight HCAs,
// eight GPUs and workloads with growing traffic. The sensor's packages join, attribute and judge its refreshes.
package fakenode

import (
	"fmt"
	"math"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/attribution/traffic"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// Devices is the number of HCAs, and of GPUs.
const Devices = 8

// Workload is a container of a pod, a service or a Slurm job of the node.
type Workload struct {
	Namespace, Pod, Container string
	Name                      string // of a workload outside of a pod
	Job                       model.Job
	GPUs, HCAs                []int
	Rate                      float64 // bytes per second and HCA
	Busy                      float64 // of each GPU
	Failures                  uint64  // of verbs
	HostMemory                bool    // registers no memory of its GPUs
}

// Workloads are the workloads of a node with two jobs.
func Workloads() []Workload {
	llama := model.Job{Kind: "JobSet", Name: "llama-70b", Queue: "research"}
	return []Workload{
		{Namespace: "ml", Pod: "llama-70b-workers-0", Container: "trainer", Job: llama, GPUs: []int{0, 1, 2, 3}, HCAs: []int{0, 1, 2, 3}, Rate: 19e9, Busy: .97},
		{Namespace: "ml", Pod: "llama-70b-workers-1", Container: "trainer", Job: llama, GPUs: []int{4, 5}, HCAs: []int{4, 5}, Rate: 14e9, Busy: .91, Failures: 3},
		{Namespace: "vision", Pod: "resnet-sweep-x7f2p", Container: "train", GPUs: []int{6}, HCAs: []int{6}, Rate: 2.1e9, Busy: .44},
		{Namespace: "serving", Pod: "mixtral-0", Container: "server", GPUs: []int{7}, HCAs: []int{7}, HostMemory: true},
		{Namespace: "storage", Pod: "dfs-client-8k2lq", Container: "client", HCAs: []int{0, 6}, Rate: 310e6},
		{Name: "slurm:4711", HCAs: []int{6}, Rate: 90e6},
	}
}

// Hostile are workloads whose names and jobs try to break out of their place on a page.
func Hostile() []Workload {
	names := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, "{{.}}`${alert(1)}`", "a\u202eb\x00\n</title></svg>",
		`' onmouseover='alert(1)`, `https://evil.example/x.png`,
	}
	var out []Workload
	for i, name := range names {
		out = append(out, Workload{
			Namespace: name, Pod: name, Container: name, Job: model.Job{Kind: "Job", Name: name}, HCAs: []int{i % Devices}, GPUs: []int{i % Devices},
			Rate: 1e6, Busy: .1,
		})
	}
	return out
}

// Crowd returns n small workloads.
func Crowd(n int) []Workload {
	out := make([]Workload, n)
	for i := range out {
		out[i] = Workload{
			Namespace: fmt.Sprintf("team-%d", i%40), Pod: fmt.Sprintf("inference-%04d", i), Container: "server", HCAs: []int{i % Devices}, Rate: 1e6,
		}
	}
	return out
}

// Node is a node. It is not safe for concurrent use.
type Node struct {
	Workloads []Workload
	// Down are the HCAs with a port that is down.
	Down     map[int]bool
	Recorder *overview.Recorder

	began    time.Time
	owners   identity.Table
	counters attribution.Counters
	ledger   traffic.Ledger
	judge    verdict.Judge
	last     api.Known
}

// New returns a node with workloads.
func New(workloads []Workload) *Node {
	return &Node{Workloads: workloads, Down: map[int]bool{}, Recorder: overview.NewRecorder(true)}
}

// Refresh makes a refresh at a time, like the engine.
func (n *Node) Refresh(at time.Time) api.Known {
	if n.began.IsZero() {
		n.began = at
	}
	facts := n.facts(at.Sub(n.began).Seconds(), at)
	states := []model.SourceState{
		{Source: "cgroup", State: model.StateOK},
		{Source: "runtime", State: model.StateOK},
		{Source: "rdma", State: model.StateOK},
		{Source: "pci", State: model.StateOK},
		{Source: "probe", State: model.StateOK},
		{Source: "datapath", State: model.StateOK},
		{Source: "nvidia", State: model.StateOK},
		{Source: "kernellog", State: model.StateOK},
		{Source: "amdgpu", State: model.StateAbsent, Reason: "no driver"},
		{Source: "kubelet", State: model.StateFailed, Reason: "get the pods: 403 Forbidden"},
	}
	for _, m := range n.owners.Resolve(&facts, facts.CgroupIDs()) {
		n.ledger.Merge(m)
	}
	n.counters.Credit(&facts, &n.owners, nil)
	shares := attribution.Attribute(&facts, &n.owners, &n.counters, func(a *attribution.Attribution) {
		n.ledger.Settle(&facts, a, &n.owners, at)
		a.Traffic = n.ledger.Shares(a.Use)
		a.Coverage = attribution.Coverage(&facts, a, &n.owners, states, &n.ledger)
		a.Missed = n.ledger.MissedShares(a.Use)
	})
	facts.DropSeries()
	placed := placement.NewRefresh(&facts, &shares)
	n.last = api.Known{
		At: at, Facts: facts, Shares: shares, States: states, Placement: placed, Node: "simulated-node", Recorder: n.Recorder,
		Verdicts: n.judge.Update(verdict.Input{At: at, Facts: &facts, Shares: &shares, States: states, Placement: placed}),
		Checks: func() []api.Check {
			return []api.Check{
				{Area: "source", Name: "rdma", State: model.StateOK},
				{
					Area: "source", Name: "kubelet", State: model.StateFailed, Reason: "get the pods: 403 Forbidden",
					Cure: "give the service account get on nodes/pods",
				},
			}
		},
	}
	n.Recorder.Observe(at, &facts, &shares)
	return n.last
}

// Peers lists the queue pairs of the workloads.
func (n *Node) Peers() ([]attribution.PeerShare, error) {
	var peers []attribution.PeerShare
	for i := range n.last.Shares.Objects {
		s := &n.last.Shares.Objects[i]
		if s.Type != model.QP || s.Owner == 0 {
			continue
		}
		for q := range min(s.Current, 4) {
			peers = append(peers, attribution.PeerShare{Owner: n.last.Shares.Owners[s.Owner], Peer: model.Peer{
				Device: s.Device, Port: 1, QPN: uint32(100*i) + uint32(q), Type: "RC", State: "RTS",
				RemoteGID: fmt.Sprintf("::ffff:10.70.%d.%d", i%8, 1+q%2), RemoteQPN: 7,
			}})
		}
	}
	return peers, nil
}

func hca(i int) string { return fmt.Sprintf("mlx5_%d", i) }

// uuid returns the UUID of a GPU.
func uuid(i int) string { return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", 0xac0000+i, i) }

// facts are what sources report after some seconds.
func (n *Node) facts(seconds float64, now time.Time) model.Snapshot {
	s := model.Snapshot{
		HCAs: []model.HCA{}, GPUs: []model.GPU{}, GPUProcesses: []model.GPUProcess{}, PCI: []model.PCIFunction{},
		Objects: []model.Objects{}, Registered: []model.Registered{}, VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{},
		DataPath: &model.DataPathStats{Attached: true}, Faults: []model.Series[model.FaultKey, model.Count]{},
		FaultTotals: []model.FaultTotal{},
		FaultHistory: []model.Fault{{
			ID: 1, Time: n.began, Last: n.began, PID: 4711, Process: "python", Cgroup: 102, Text: "NVRM: Xid (PCI:0000:38:00): 31, pid=4711, MMU fault",
			FaultKey: model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:38:00.0", Code: "31"},
		}},
	}
	sent := make([]float64, Devices)
	s.Events = n.events()
	for i := range n.Workloads {
		n.addWorkload(&s, i, seconds, now, sent)
	}
	for i := range Devices {
		n.addDevices(&s, i, seconds, sent[i])
	}
	return s
}

// events are the node's sent events: the first workload started, and a link was lost for a moment.
func (n *Node) events() *model.EventStats {
	e := &model.EventStats{Connected: true, Capacity: 8192, Recent: []model.RecentEvent{}}
	if len(n.Workloads) > 0 && n.Workloads[0].Pod != "" {
		w := &n.Workloads[0]
		name := w.Namespace + "/" + w.Pod + "/" + w.Container
		e.Recent = append(e.Recent, model.RecentEvent{
			Time: n.began, Name: "container.start", Text: "container " + name + " started", Workload: name, ContainerID: fmt.Sprintf("%064x", 1),
		})
	}
	e.Recent = append(e.Recent, model.RecentEvent{
		Time: n.began.Add(time.Second), Name: "device.link_flap", Text: "ib3 of mlx5_3 lost its carrier once", Device: hca(3),
	})
	return e
}

// moved returns the bytes that a workload has moved at a varying rate.
func moved(rate, seconds float64, i int) float64 {
	const period = 400
	return rate * (seconds + 0.35*period/(2*math.Pi)*math.Sin(2*math.Pi*seconds/period+float64(i)))
}

func (n *Node) addDevices(s *model.Snapshot, i int, seconds, sent float64) {
	pcieHCA, pcieGPU := fmt.Sprintf("0000:%02x:00.0", 0x18+0x10*i), fmt.Sprintf("0000:%02x:00.0", 0x19+0x10*i)
	numa := fmt.Sprint(i / 4)
	port := model.Port{
		Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "InfiniBand", RateBits: 400e9, Width: 4, Speed: "NDR",
		PortGUID: fmt.Sprintf("0x98039bfffe0000%02x", i),
		Counters: []model.Counter{
			{Name: "port_xmit_data", Value: uint64(1e12+1.02*sent) / 4}, {Name: "port_rcv_data", Value: uint64(1e12+0.97*sent) / 4},
		},
	}
	if n.Down[i] {
		port.State, port.PhysState, port.RateBits = "DOWN", "Polling", 0
	}
	s.HCAs = append(s.HCAs, model.HCA{
		Name: hca(i), Index: uint32(i), Type: "MT4129", Firmware: "28.43.2026", PCIAddress: pcieHCA, NUMANode: numa, Ports: []model.Port{port},
		CharDevice: fmt.Sprint("uverbs", i),
	})
	used := 2.1e9
	for _, p := range s.GPUProcesses {
		if p.GPU == uuid(i) {
			used += p.Memory.Value
		}
	}
	busy := 0.0
	for _, w := range n.Workloads {
		for _, g := range w.GPUs {
			if g == i {
				busy = math.Min(1, busy+w.Busy*(0.94+0.06*math.Sin(seconds/70+float64(i))))
			}
		}
	}
	s.GPUs = append(s.GPUs, model.GPU{
		Vendor: model.NVIDIA, ID: fmt.Sprint(i), UUID: uuid(i), Name: "NVIDIA H100 80GB HBM3", PCIAddress: pcieGPU, NUMANode: numa,
		Nodes: []string{fmt.Sprint("/dev/nvidia", i)}, Utilization: model.Some(busy),
		Memory:  model.VideoMemory{Total: model.Some(85520809984), Used: model.Some(used)},
		Engines: []model.Figure{{Name: "sm", Value: busy}}, Listed: time.Unix(1, 0), Problems: []model.GPUCondition{{Name: model.ProblemThermal, Active: i == 5}},
		Temperatures: []model.Figure{{Name: "gpu", Value: 60 + 5*busy}}, Power: model.Some(120 + 500*busy),
	})
	full := model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}
	link := full
	if i == 3 {
		link.Width = 8
	}
	bus := 0x10 + 0x20*(i/2) // of a switch for two HCAs and two GPUs
	for j, address := range []string{pcieHCA, pcieGPU} {
		up := fmt.Sprintf("0000:%02x:%02x.0", bus+2, 2*(i%2)+j)
		path := []string{fmt.Sprintf("pci0000:%02x", bus), fmt.Sprintf("0000:%02x:01.0", bus), fmt.Sprintf("0000:%02x:00.0", bus+1), up, address}
		f := model.PCIFunction{
			Address: address, NUMANode: numa, Path: path, PCIEnd: model.PCIEnd{Link: full},
			Upstream: model.PCIUpstream{Address: up, PCIEnd: model.PCIEnd{Link: full}},
		}
		if address == pcieHCA {
			f.Link, f.Upstream.Link = link, link
		}
		s.PCI = append(s.PCI, f)
	}
}

func (n *Node) addWorkload(s *model.Snapshot, i int, seconds float64, now time.Time, sent []float64) {
	w := &n.Workloads[i]
	id := model.CgroupID(101 + i)
	container := fmt.Sprintf("%064x", i+1)
	uid := fmt.Sprintf("00000000-0000-0000-0000-%012d", i)
	if w.Name != "" {
		s.Cgroups = append(s.Cgroups, model.Cgroup{ID: id, Path: model.CgroupPath("/" + w.Name), Workload: w.Name})
	} else {
		s.Cgroups = append(s.Cgroups, model.Cgroup{
			ID: id, Path: model.CgroupPath("/kubepods.slice/" + uid + "/" + container), Workload: "pod:" + uid + "/" + container, ContainerID: container,
			PodUID: uid, Runtime: "containerd",
		})
		c := model.Container{
			ID: container, Runtime: "containerd", Name: w.Container, Namespace: w.Namespace, Pod: w.Pod, PodUID: uid,
			Image: "registry.internal/train:24.10", Status: model.ContainerRunning, Started: now,
		}
		for _, g := range w.GPUs {
			c.Devices = append(c.Devices, fmt.Sprint("/dev/nvidia", g))
		}
		s.Containers = append(s.Containers, c)
		s.Pods = append(s.Pods, model.Pod{UID: uid, Namespace: w.Namespace, Name: w.Pod, Job: w.Job})
	}
	for _, g := range w.GPUs {
		if w.Busy == 0 {
			continue
		}
		s.GPUProcesses = append(s.GPUProcesses, model.GPUProcess{
			GPU: uuid(g), PID: 1000 + 10*i + g, Cgroup: id, Memory: model.Some(14e9 + 50e9*w.Busy), Engines: []model.Figure{{Name: "sm", Value: w.Busy * .96}},
		})
	}
	for _, h := range w.HCAs {
		bytes := moved(w.Rate, seconds, i)
		sent[h] += bytes
		n.addUse(s, id, i, h, seconds, bytes)
	}
}

func (n *Node) addUse(s *model.Snapshot, id model.CgroupID, i, h int, seconds, bytes float64) {
	w, device := &n.Workloads[i], hca(h)
	for _, o := range []struct {
		objectType model.ObjectType
		count      uint64
	}{{model.QP, 8 + uint64(4*len(w.GPUs))}, {model.CQ, 4}, {model.MR, 24}} {
		s.Objects = append(s.Objects, model.Objects{Cgroup: id, Device: device, Type: o.objectType, Current: o.count})
	}
	s.Registered = append(s.Registered, model.Registered{Cgroup: id, Device: device, Memory: model.HostMemory, Bytes: 2 << 30})
	if len(w.GPUs) > 0 && !w.HostMemory {
		s.Registered = append(s.Registered, model.Registered{Cgroup: id, Device: device, Memory: model.GPUMemory, Bytes: 12 << 30})
	}
	for _, d := range []model.Direction{model.Transmit, model.Receive} {
		s.Traffic = append(s.Traffic, model.Traffic{Cgroup: id, Device: device, Method: model.MethodUprobe, Direction: d, Bytes: uint64(math.Max(0, bytes))})
	}
	var gap model.Gap
	if w.Name != "" {
		gap = model.GapLate
	}
	s.Coverage = append(s.Coverage, model.Coverage{Cgroup: id, Device: device, Gap: gap})
	var verbs model.Histogram
	for b := range 10 {
		verbs.Buckets[3+b] = uint64((100 + seconds) * 20 / (1 + math.Abs(float64(b-3))*math.Abs(float64(b-3))))
		verbs.Count += verbs.Buckets[3+b]
	}
	s.Verbs = append(s.Verbs, model.Series[model.VerbKey, model.Histogram]{Cgroup: id, Key: model.VerbKey{Device: device, Verb: "reg_mr"}, Value: verbs})
	var done model.FineHistogram
	for b := range 24 {
		done.Buckets[12+b] = uint64((100 + seconds) * 5000 / (1 + math.Pow(float64(b-7), 2)))
		done.Count += done.Buckets[12+b]
	}
	s.Completions = append(s.Completions, model.Series[model.CompletionKey, model.FineHistogram]{
		Cgroup: id, Key: model.CompletionKey{Device: device, Opcode: "write"}, Value: done,
	})
	if w.Failures > 0 {
		s.VerbErrors = append(s.VerbErrors, model.Series[model.VerbErrorKey, model.Count]{
			Cgroup: id, Key: model.VerbErrorKey{Device: device, Verb: "create_qp", Errno: "ENOMEM"}, Value: model.Count(w.Failures + uint64(seconds/30)),
		})
	}
}
