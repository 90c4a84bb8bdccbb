// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxLinkSeries is the number of series of links, modules, counters of all drivers, PCIe links (with AER and slot power
// of GPUs) and GIDs of budgetNode with the default options, maxOtherSeries the number of all other series.
const (
	maxLinkSeries  = 720
	maxOtherSeries = 5068
	maxNodeSeries  = maxOtherSeries + maxLinkSeries
)

// budgetNode is a node with 64 CPUs, 8 GPUs, 10 HCAs and 110 pods of one container. Each of the first 16 pods uses a
// GPU and an HCA and calls six verbs.
func budgetNode() []engine.Registration { return clusterNode(110, 16, 8, 10) }

// clusterNode is a node with 64 CPUs and pods of one container. Each accelerated pod uses a GPU and an HCA and calls
// six verbs.
func clusterNode(pods, accelerated, gpus, hcas int) []engine.Registration {
	entities := map[model.CgroupID]identitytest.Entity{}
	usage := crowdUsage(pods)
	usage.Namespaces = nil
	containers, kubelet := model.Snapshot{}, model.Snapshot{Allocations: []model.Allocation{}}
	for i := 1; i <= pods; i++ {
		e := identitytest.Entity{
			Workload: fmt.Sprint("ml/train-", i, "/main"), Namespace: "ml", Pod: fmt.Sprint("train-", i), Container: "main",
			ContainerID: fmt.Sprintf("%064d", i), PodUID: fmt.Sprint("uid-", i), Runtime: "containerd", Image: "registry.example/train:1",
			Cgroup: fmt.Sprint("/kubepods/pod", i, "/", i),
		}
		sandbox := e
		sandbox.Container, sandbox.ContainerID, sandbox.Cgroup = "", fmt.Sprintf("%064d", pods+i), fmt.Sprint("/kubepods/pod", i, "/sandbox")
		entities[model.CgroupID(i)], entities[model.CgroupID(pods+i)] = e, sandbox
		usage.Namespaces = append(usage.Namespaces, model.Namespace{
			Inode: uint64(i), PID: i, Cgroup: model.CgroupID(pods + i), Interfaces: []model.Interface{{Name: "eth0"}},
		})
		c := model.Container{
			ID: e.ContainerID, Runtime: "containerd", Name: "main", Namespace: "ml", Pod: e.Pod, PodUID: e.PodUID, Image: e.Image,
			Status: model.ContainerRunning, Restarts: new(uint64), Created: time.Unix(1, 0), Started: time.Unix(2, 0),
		}
		if i <= accelerated {
			c.Devices = []string{"/dev/nvidiactl", fmt.Sprint("/dev/nvidia", i%gpus), "/dev/infiniband/uverbs" + fmt.Sprint(i%hcas)}
			kubelet.Allocations = append(kubelet.Allocations, model.Allocation{
				Namespace: "ml", Pod: e.Pod, Container: "main", Resource: "nvidia.com/gpu.shared", ID: fmt.Sprint("GPU-", i%gpus, "::", i/gpus),
			})
		}
		containers.Containers = append(containers.Containers, c)
		kubelet.PodStorage = append(kubelet.PodStorage, model.PodStorage{Namespace: "ml", Pod: e.Pod, UsedBytes: 1})
	}
	var cards, access model.Snapshot
	for i := range gpus {
		g := fullNVIDIA(i)
		g.XIDs = []model.XID{}
		cards.GPUs = append(cards.GPUs, g)
	}
	cards.GPUDrivers = nvidiaFacts().GPUDrivers
	for i := 1; i <= accelerated; i++ {
		id := model.CgroupID(i)
		cards.GPUProcesses = append(cards.GPUProcesses, model.GPUProcess{
			GPU: fmt.Sprint("GPU-", i%gpus), PID: i, Cgroup: id, Memory: model.Some(1 << 30), Engines: figures("sm", "memory", "encoder", "decoder"),
		})
		for class, device := range map[model.DeviceClass]string{
			model.ClassNVIDIA: fmt.Sprint("nvidia", i%gpus), model.ClassRDMA: fmt.Sprint("uverbs", i%hcas),
		} {
			access.DeviceHandles = append(access.DeviceHandles, model.DeviceHandles{Cgroup: id, Device: device, Class: class, Count: 1})
			access.DeviceOpens = append(access.DeviceOpens, model.Series[model.OpenKey, model.Opens]{
				Cgroup: id, Key: model.OpenKey{Device: device, Class: class}, Value: model.Opens{Allowed: 1},
			})
		}
	}
	owners := names(entities)
	owners.facts.Losses = losses("cgroup_table_full", "cgroup_watch_paused", "marked_cgroups_full")
	containers.DeviceStates, containers.Losses = allOK("runtime", "containerd"), losses("containers_full")
	usage.Losses = losses("container_interfaces")
	for i := 1; i <= accelerated; i++ {
		usage.RDMACgroups = append(usage.RDMACgroups, model.RDMACgroup{Cgroup: model.CgroupID(i), Device: crowdHCA(i % hcas), Handles: 1, Objects: 9})
	}
	devices := budgetHCAs(hcas)
	for i := range devices.HCAs {
		devices.DeviceStates = append(devices.DeviceStates, allOK("rdma", devices.HCAs[i].Name)...)
	}
	for i := range cards.GPUs {
		cards.DeviceStates = append(cards.DeviceStates, allOK("nvidia", cards.GPUs[i].ID)...)
	}
	cards.Children = []model.ChildProcesses{{Source: "nvidia", Ends: losses("crash", "hang")}}
	kubelet.DeviceStates = allOK("kubelet", "pod-resources", "allocatable", "pods", "summary", "cdi")
	verbs := crowdProbe(accelerated, 6, 2, func(i int) []int { return []int{i % hcas} })
	addProbeState(&verbs)
	addAccessState(&access)
	return []engine.Registration{
		{Source: owners},
		{Source: &fake{name: "runtime", facts: containers}},
		{Source: &fake{name: "container", read: working(usage, accelerated)}},
		{Source: &fake{name: "rdma", facts: devices}},
		{Source: &fake{name: "pci", facts: budgetPCI(gpus, hcas)}},
		{Source: &fake{name: "link", facts: budgetLinks(hcas)}},
		{Source: &fake{name: "probe", facts: verbs}},
		{Source: &fake{name: "access", facts: access}},
		{Source: &fake{name: "nvidia", read: using(cards)}},
		{Source: &fake{name: "amdgpu"}, Err: model.ErrAbsent},
		{Source: &fake{name: "intel"}, Err: model.ErrAbsent},
		{Source: &fake{name: "kernellog", facts: model.Snapshot{
			FaultTotals: []model.FaultTotal{}, Losses: losses("kernel_log_overwritten", "kernel_log_faults_full"),
		}}},
		{Source: &fake{name: "kubelet", facts: kubelet}},
		{Source: &fake{name: "node", read: burning(budgetMachine())}},
	}
}

// using returns a reader of GPUs whose processes use energy between readings.
func using(cards model.Snapshot) func(context.Context) (model.Snapshot, error) {
	readings := 0
	return func(context.Context) (model.Snapshot, error) {
		s := cards
		readings++
		s.GPUs, s.GPUUses = slices.Clone(cards.GPUs), nil
		for i := range s.GPUs {
			g := &s.GPUs[i]
			g.Energy, g.EnergyRead = model.Some(float64(1000*readings)), time.Now()
			s.GPUUses = append(s.GPUUses, model.GPUUse{GPU: g.UUID, Listed: uint64(readings), Active: uint64(readings)})
		}
		for _, p := range s.GPUProcesses {
			s.GPUUses = append(s.GPUUses, model.GPUUse{GPU: p.GPU, Cgroup: p.Cgroup, Rounds: uint64(readings), Busy: time.Duration(readings) * time.Second})
		}
		return s, nil
	}
}

// working returns a reader of cgroups. The first cgroups use CPU time between readings: the source reads no others
// under ScopeAccelerated.
func working(usage model.Snapshot, accelerated int) func(context.Context) (model.Snapshot, error) {
	readings := 0
	return func(context.Context) (model.Snapshot, error) {
		s := usage
		readings++
		s.Usages = slices.Clone(usage.Usages)
		for i := range accelerated {
			s.Usages[i].CPU.Total = model.Some(float64(readings))
		}
		return s, nil
	}
}

// burning returns a reader of a node with two packages and their memory, which use energy between readings.
func burning(m *model.Node) func(context.Context) (model.Snapshot, error) {
	readings := 0
	return func(context.Context) (model.Snapshot, error) {
		n := *m
		readings++
		n.EnergyRead, n.CPUs = time.Now(), slices.Clone(m.CPUs)
		n.CPUs[0].Seconds[0] = float64(64 * readings)
		for i := range 2 {
			for _, domain := range []model.EnergyDomain{model.EnergyOfPackage, model.EnergyOfDRAM} {
				n.Energy = append(n.Energy, model.EnergyZone{
					Name: string(domain), Index: i, Path: fmt.Sprint("/", domain, i), Domain: domain, Microjoules: uint64(1e8 * readings), Limit: 1 << 40,
				})
			}
		}
		return model.Snapshot{Node: &n}, nil
	}
}

func losses(reasons ...string) (list []model.Loss) {
	for _, r := range reasons {
		list = append(list, model.Loss{Reason: r})
	}
	return list
}

func allOK(source string, devices ...string) (list []model.DeviceState) {
	for _, d := range devices {
		list = append(list, model.DeviceState{Source: source, Device: d, State: model.StateOK})
	}
	return list
}

func addProbeState(s *model.Snapshot) {
	for hook, tier := range map[string]string{
		"ib_uverbs_ioctl": "fentry", "ib_uverbs_write": "fentry", "rdma_restrack_begin_del": "", "rdma_restrack_add": "kprobe",
		"rdma_alloc_commit_uobject": "kprobe", "ib_umem_dmabuf_get": "kprobe", "ib_umem_dmabuf_get_pinned": "kprobe",
		"ib_umem_dmabuf_get_pinned_with_dma_device": "kprobe", "ib_umem_dmabuf_get_pinned_revocable_and_lock": "",
		"ib_peer_umem_get": "", "ib_modify_qp_with_udata": "kprobe", "cgroup_mkdir": "raw_tracepoint",
	} {
		h := model.Hook{Name: hook, Tier: tier, State: model.StateOK}
		if tier == "" {
			h.State = model.StateUnsupported
		}
		s.Hooks = append(s.Hooks, h)
	}
	for _, name := range []string{
		gen.VerbsMapVerbs, gen.VerbsMapVerbErrors, gen.ObjectsMapHoldings, gen.ObjectsMapObjects, gen.ObjectsMapAdopted, gen.PeersMapPeers,
	} {
		s.Maps = append(s.Maps, model.Map{Name: name, Entries: 1, Capacity: 8192})
	}
	reasons := [gen.VerbsLossLOSSES + 1]string{
		"verbs_map_full", "errors_map_full", "calls_map_full", "return_missed", "objects_map_full", "holdings_map_full", "peers_map_full",
		"verbs_map_share", "errors_map_share", "objects_map_share", "holdings_map_share", "peers_map_share", "program_skipped",
	}
	s.Losses = losses(reasons[:]...)
	s.Repairs = []model.Repair{{Change: "added"}, {Change: "removed"}}
}

func addAccessState(s *model.Snapshot) {
	for _, hook := range []string{"chrdev_open", "devcgroup_check_permission", "task_file"} {
		s.Hooks = append(s.Hooks, model.Hook{Name: hook, Tier: "fentry", State: model.StateOK})
	}
	s.Maps = []model.Map{{Name: gen.DevicesMapDeviceOpens, Entries: 1, Capacity: 8192}}
	reasons := [gen.DevicesAccessLossACCESS_LOSSES + 2]string{
		"device_opens_map_full", "device_opens_map_share", "device_open_return_missed", "device_program_skipped", "device_handles_full",
	}
	s.Losses = losses(reasons[:]...)
}

// budgetHCAs returns HCAs of mlx5 with one port, with all counters of ports and hw_counters.
func budgetHCAs(n int) model.Snapshot {
	var s model.Snapshot
	for i := range n {
		p := nodeHCAs().HCAs[0].Ports[0]
		p.Counters, p.HWCounters = nil, nil
		p.LinkLayer, p.GIDs, p.PKeys = "Ethernet", []model.GID{}, nil
		for _, name := range []string{
			"port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets", "unicast_rcv_packets", "unicast_xmit_packets",
			"multicast_rcv_packets", "multicast_xmit_packets", "port_xmit_wait",
		} {
			p.Counters = append(p.Counters, model.Counter{Name: name})
		}
		for _, e := range model.PortErrors {
			p.Counters = append(p.Counters, model.Counter{Name: e.Counter})
		}
		for _, name := range []string{
			"duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent", "np_ecn_marked_roce_packets",
			"out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error", "req_cqe_flush_error", "req_remote_access_errors",
			"req_remote_invalid_request", "resp_cqe_error", "resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors",
			"rnr_nak_retry_err", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps",
			"roce_slow_restart_trans", "rp_cnp_handled", "rp_cnp_ignored", "rx_atomic_requests", "rx_icrc_encapsulated", "rx_read_requests",
			"rx_write_requests", "rx_dct_connect",
		} {
			p.HWCounters = append(p.HWCounters, model.Counter{Name: name})
		}
		h := nodeHCAs().HCAs[0]
		h.Name, h.PCIAddress, h.CharDevice = crowdHCA(i), fmt.Sprintf("0000:%02x:00.0", 128+i), fmt.Sprint("uverbs", i)
		h.Ports, h.HWCounters = []model.Port{p}, nil
		s.HCAs = append(s.HCAs, h)
		for _, typ := range objectTypes {
			s.Resources = append(s.Resources, model.Resource{Device: h.Name, Type: typ, Count: 10})
		}
	}
	return s
}

// budgetPCI returns the PCI functions of the GPUs and HCAs, in slots, without errors.
func budgetPCI(gpus, hcas int) model.Snapshot {
	var s model.Snapshot
	add := func(address string) {
		f := pciFacts().PCI[0]
		f.Address, f.AER, f.Upstream.AER = address, []model.AERErrors{{Severity: "correctable"}, {Severity: "nonfatal"}, {Severity: "fatal"}}, nil
		s.PCI = append(s.PCI, f)
	}
	for i := range hcas {
		add(budgetHCAs(hcas).HCAs[i].PCIAddress)
	}
	for i := range gpus {
		add(fullNVIDIA(i).PCIAddress)
	}
	return s
}

// budgetMachine returns a node with 64 CPUs, two disks, six file systems, eight sensors, three network interfaces, and
// one interface for each pod.
func budgetMachine() *model.Node {
	m := machine()
	one := func(n int, name string) (list []model.Figure) {
		for i := range n {
			list = append(list, model.Figure{Name: fmt.Sprint(name, i), Value: 1})
		}
		return list
	}
	m.CPUs, m.Throttles, m.Disks, m.Filesystems, m.NetDevs, m.NetClasses = nil, nil, nil, nil, nil, nil
	m.CPUs = []model.CPU{{}} // their sum
	for i := range 64 {
		m.CPUs = append(m.CPUs, model.CPU{ID: fmt.Sprint(i)})
	}
	m.Memory, m.VM, m.Netstat, m.Sockets = one(54, "m"), one(7, "v"), one(42, "n"), one(18, "s")
	m.Pressure = []model.Pressure{
		{Resource: "cpu", Some: new(0.5)}, {Resource: "io", Some: new(0.5), Full: new(0.5)}, {Resource: "memory", Some: new(0.5), Full: new(0.5)},
	}
	for i := range 2 {
		m.Disks = append(m.Disks, model.Disk{Name: fmt.Sprint("nvme", i, "n1"), Major: 259, Stats: make([]uint64, 17)})
	}
	for i := range 6 {
		m.Filesystems = append(m.Filesystems, model.Filesystem{Device: fmt.Sprint("/dev/", i), MountPoint: fmt.Sprint("/", i), Type: "ext4", Size: 1})
	}
	n := new(int64)
	for i := range 113 { // three of the node, one for each pod
		name := fmt.Sprint("eth", i)
		if i >= 3 {
			name = fmt.Sprint("veth", i)
		}
		m.NetDevs = append(m.NetDevs, model.NetDev{Name: name})
		m.NetClasses = append(m.NetClasses, model.NetClass{
			Name: name, OperState: "up", AddressAssignType: n, Carrier: n, CarrierChanges: n, CarrierUp: n, CarrierDown: n, DeviceID: n,
			Dormant: n, Flags: n, Index: n, Link: n, LinkMode: n, MTU: n, NameAssignType: n, Group: n, SpeedMbits: n, QueueLength: n, ProtocolType: n,
		})
	}
	m.Chips = nil
	for i := range 4 {
		chip := model.Chip{ID: fmt.Sprint("chip", i), Name: "k10temp"}
		for j := range 2 {
			chip.Sensors = append(chip.Sensors, model.Sensor{
				Name: fmt.Sprint("temp", j), Type: "temp", Label: new("Core"), Figures: []model.Figure{{Name: "input"}, {Name: "max"}, {Name: "crit"}},
			})
		}
		m.Chips = append(m.Chips, chip)
	}
	return m
}

// budgetOptions are the options in the table of docs/sizing.md.
var budgetOptions = []struct {
	title  string
	change func(*setup)
}{
	{"default", func(*setup) {}},
	{"`--container.scope=all`", func(s *setup) { s.Scope = ScopeAll }},
	{"`--container.scope=none`", func(s *setup) { s.Scope = ScopeNone }},
	{"`--collector.node.network-exclude=` (none)", func(s *setup) { s.ExcludesInterface = nil }},
	{"`--metrics.histograms=native`, as text", func(s *setup) { s.Forms = Forms{NoClassic: true} }},
	{"`--gpu.detail=full`", func(s *setup) { s.GPUDetail = true }},
	{"`--metrics.exclude=` (none)", func(s *setup) { s.Excludes = nil }},
	{"`--metrics.states=all`", func(s *setup) { s.AllStates = true }},
	{"`--metrics.compat=lens,dcgm`", func(s *setup) { s.Compat = append(s.Compat, CompatDCGM) }},
	{"`--metrics.compat=` (none)", func(s *setup) { s.Compat = []string{Process} }},
}

// TestBudget checks the number of series of a node with the default options, and keeps docs/sizing.md.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := make([]map[string]int, len(budgetOptions))
		total, more := 0, 0
		for i, o := range budgetOptions {
			s := withDefaults(t, budgetNode())
			o.change(&s)
			c := newCollector(s)
			seriesOf(t, c) // the energy of before is nobody's
			time.Sleep(2 * time.Second)
			families, all, _ := seriesOf(t, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("%s: %d series", o.title, all)
			if i == 0 && (all > maxNodeSeries || all < maxNodeSeries/2) {
				t.Errorf("%d series, want at most %d: %v", all, maxNodeSeries, families)
			}
			counts[i] = byGroup(t, families)
			if i == 0 {
				total = all
				for _, name := range []string{
					"rdma_port_gids", "rdma_port_roce_v2_gid_missing", "gpu_pcie_aer_errors_total", "gpu_pcie_slot_power_watts",
				} {
					if families[name] == 0 {
						t.Errorf("%s has no series", name)
					}
					more += families[name]
				}
			}
		}
		links := more
		for _, group := range []string{"RDMA links", "Modules of RDMA links", "RDMA counters of all drivers", "PCIe links"} {
			if counts[0][group] == 0 {
				t.Errorf("%s has no series", group)
			}
			links += counts[0][group]
		}
		if links > maxLinkSeries || total-links > maxOtherSeries {
			t.Errorf("%d series of links and %d others, want at most %d and %d", links, total-links, maxLinkSeries, maxOtherSeries)
		}
		for _, group := range []string{
			"RDMA devices and ports", "RDMA objects and verbs of workloads", "Containers", "GPUs", "GPU health", "GPUs of workloads", "Node",
			"With --metrics.compat=lens (the default)",
		} {
			if counts[0][group] == 0 {
				t.Errorf("%s has no series", group)
			}
		}
		const page, start, end = "../../docs/sizing.md", "<!-- series -->\n", "<!-- end -->\n"
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, _ := strings.Cut(string(text), start)
		_, after, found := strings.Cut(rest, end)
		if !found {
			t.Fatalf("%s has no %q", page, end)
		}
		compare(t, page, before+start+budgetTable(counts)+end+after)
	})
}

// byGroup adds up the series of families by the group of the metric table. The key all has the sum.
func byGroup(t *testing.T, families map[string]int) map[string]int {
	t.Helper()
	sums := map[string]int{}
	for family, n := range families {
		title := ""
		for _, g := range groups(nil) {
			for _, m := range g.rows {
				before, _, pattern := strings.Cut(m.name, "<")
				if m.name == family || pattern && strings.HasPrefix(family, before) && title == "" {
					title = g.title
				}
			}
		}
		if title == "" {
			t.Errorf("%s is in no group", family)
		}
		sums[title] += n
		sums["all"] += n
	}
	return sums
}

// budgetTable returns a row for each group, with the options that change its number of series.
func budgetTable(counts []map[string]int) string {
	var out strings.Builder
	fmt.Fprint(&out, "| metrics | default | with other options |\n|---|---|---|\n")
	row := func(title, key string) {
		var others []string
		for i, c := range counts[1:] {
			if c[key] != counts[0][key] {
				others = append(others, fmt.Sprintf("%s: %d", budgetOptions[i+1].title, c[key]))
			}
		}
		if counts[0][key] > 0 || len(others) > 0 {
			fmt.Fprintf(&out, "| %s | %d | %s |\n", title, counts[0][key], strings.Join(others, ", "))
		}
	}
	for _, g := range groups(nil) {
		row(g.title, g.title)
	}
	row("**all**", "all")
	return out.String()
}

// TestStateSeries checks which series the states of sources, devices and hooks have.
func TestStateSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := model.Snapshot{
			DeviceStates: []model.DeviceState{{Source: "rdma", Device: "mlx5_0", State: model.StateOK}, {Source: "rdma", Device: "mlx5_1", State: model.StateStuck}},
			Hooks:        []model.Hook{{Name: "a", Tier: "fentry", State: model.StateOK}, {Name: "b", State: model.StateUnsupported}},
		}
		sources := []engine.Registration{{Source: &fake{name: "rdma", facts: facts}}, {Source: &fake{name: "nvidia"}, Err: model.ErrAbsent}}
		current := map[string]float64{
			`accelscope_source_state{source="rdma",state="ok"}`:                    1,
			`accelscope_source_state{source="nvidia",state="absent"}`:              1,
			`accelscope_device_state{device="mlx5_0",source="rdma",state="ok"}`:    1,
			`accelscope_device_state{device="mlx5_1",source="rdma",state="stuck"}`: 1,
			`accelscope_probe_hook_state{hook="a",state="ok",tier="fentry"}`:       1,
			`accelscope_probe_hook_state{hook="b",state="unsupported",tier=""}`:    1,
		}
		for _, all := range []bool{false, true} {
			c := newCollector(setup{Sources: sources, AllStates: all})
			_, _, text := seriesOf(t, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			states := 0
			for name, value := range seriesIn(text) {
				if strings.Contains(name, "_state{") {
					states++
					if value != current[name] {
						t.Errorf("all %v: %s is %v", all, name, value)
					}
				}
			}
			want := len(current)
			if all {
				want = 2*len(sourceStates) + 2*len(deviceStates) + 2*len(hookStates)
			}
			if states != want {
				t.Errorf("all %v: %d series, want %d", all, states, want)
			}
		}
	})
}
