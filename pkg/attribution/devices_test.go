// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// sriov returns a PF, two visible virtual functions with uverbs devices in reverse order, a function in a pod's network
// namespace, and a PF after its subfunction.
func sriov() []model.HCA {
	port := func(guid string) []model.Port { return []model.Port{{Number: 1, PortGUID: guid}} }
	return []model.HCA{
		{Name: "mlx5_0", NodeGUID: "n0", PCIAddress: "0000:18:00.0", CharDevice: "uverbs0", Ports: port("p0")},
		{
			Name: "mlx5_1", NodeGUID: "n1", PCIAddress: "0000:18:00.1", CharDevice: "uverbs2", VF: true, PF: "mlx5_0",
			Ports: port("p1"),
		},
		{
			Name: "mlx5_2", NodeGUID: "n2", PCIAddress: "0000:18:00.a", CharDevice: "uverbs1", VF: true, PF: "mlx5_0",
			Ports: port(""),
		},
		{
			Name: "mlx5_3", NodeGUID: "n3", PCIAddress: "0000:18:00.3", CharDevice: "uverbs3", VF: true, PF: "mlx5_0",
			Netns: 4026532001,
		},
		{Name: "mlx5_10", Index: 10, NodeGUID: "n10", PCIAddress: "0000:3b:00.0", CharDevice: "uverbs20", Ports: port("p10")},
		{Name: "mlx5_4", Index: 4, NodeGUID: "n4", PCIAddress: "0000:3b:00.0", CharDevice: "uverbs14", Ports: port("p4")},
	}
}

func worker(change ...func(*model.Container)) model.Container {
	c := model.Container{
		ID: "c1", Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1",
		Status: model.ContainerRunning, Created: time.Unix(100, 0),
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func given(resource, id string) model.Allocation {
	return model.Allocation{Namespace: "ml", Pod: "train-0", Container: "worker", Resource: resource, ID: id}
}

// assignments formats the rows: owner (container ID), device, resource, PCI address, PF, GUID.
func assignments(a Attribution) []string {
	rows := []string{}
	for _, s := range a.Assigned {
		o := a.Owners[s.Owner]
		rows = append(rows, fmt.Sprintf("%s(%s) %s|%s|%s|%s|%s", o.Workload, o.ContainerID, s.Device, s.Resource,
			s.PCIAddress, s.PF, s.GUID))
	}
	return rows
}

func TestDevices(t *testing.T) {
	const ib = "nvidia.com/ib"
	exited := func(c *model.Container) { c.ID, c.Status = "c0", model.ContainerExited }
	nodes := func(paths ...string) func(*model.Container) {
		return func(c *model.Container) { c.Devices = append([]string{}, paths...) }
	}
	pod := model.Pod{UID: "u1", Namespace: "ml", Name: "train-0"}
	network := func(pci, device string) []model.Pod {
		p := pod
		p.Networks = []model.PodNetwork{{Name: "cbr0", Interface: "eth0"}, {Interface: "net1", PCIAddress: pci, RDMADevice: device}}
		return []model.Pod{p}
	}
	namespaces := []model.Namespace{{Inode: 4026531840, Cgroup: 1, Host: true}, {Inode: 4026532001, PID: 9, Cgroup: 7}}
	inPod := map[model.CgroupID]identitytest.Entity{7: {
		Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1", PodUID: "u1",
	}}

	for name, c := range map[string]struct {
		facts    model.Snapshot
		entities map[model.CgroupID]identitytest.Entity
		want     []string
	}{
		"nothing": {},
		"a VF by its PCI address": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{given(ib, "0000:18:00.1")}},
			want:  []string{"ml/train-0/worker(c1) mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1"},
		},
		"written in capitals, of a port without a GUID": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{given(ib, "0000:18:00.A")}},
			want:  []string{"ml/train-0/worker(c1) mlx5_2|nvidia.com/ib|0000:18:00.a|mlx5_0|n2"},
		},
		"a PF that has a subfunction": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{given(ib, "0000:3b:00.0")}},
			want:  []string{"ml/train-0/worker(c1) mlx5_4|nvidia.com/ib|0000:3b:00.0||p4"},
		},
		"a network with a long name": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Pods: network("0000:99:00.1", strings.Repeat("x", maxDeviceName))},
			want:  []string{"ml/train-0() ||0000:99:00.1||"},
		},
		"a function without an HCA": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{given("x/vf", "0000:99:00.1")}},
			want:  []string{"ml/train-0/worker(c1) |x/vf|0000:99:00.1||"},
		},
		"GPUs, one of them in parts": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{
				given("nvidia.com/gpu", "GPU-1"), given("nvidia.com/gpu.shared", "GPU-2::3"), given("nvidia.com/gpu.shared", "GPU-2::4"),
			}},
			want: []string{
				"ml/train-0/worker(c1) GPU-1|nvidia.com/gpu|||", "ml/train-0/worker(c1) GPU-2|nvidia.com/gpu.shared|||",
			},
		},
		"a shared resource, nothing else known": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Allocations: []model.Allocation{given("rdma/hca", "17")}},
			want:  []string{"ml/train-0/worker(c1) |rdma/hca|||"},
		},
		"a shared resource, and the device nodes": {
			facts: model.Snapshot{
				Containers:  []model.Container{worker(nodes("/dev/null", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs2"))},
				Allocations: []model.Allocation{given("rdma/hca", "17")},
			},
			want: []string{"ml/train-0/worker(c1) mlx5_1|rdma/hca|0000:18:00.1|mlx5_0|p1"},
		},
		"two shared resources, and the device nodes": {
			facts: model.Snapshot{
				Containers:  []model.Container{worker(nodes("/dev/infiniband/uverbs2"))},
				Allocations: []model.Allocation{given("rdma/a", "1"), given("rdma/b", "1")},
			},
			want: []string{
				"ml/train-0/worker(c1) mlx5_1||0000:18:00.1|mlx5_0|p1",
				"ml/train-0/worker(c1) |rdma/a|||", "ml/train-0/worker(c1) |rdma/b|||",
			},
		},
		"only a device node, never by its number": {
			facts: model.Snapshot{Containers: []model.Container{
				{ID: "d1", Runtime: "docker", Name: "web", Devices: []string{
					"/dev/infiniband/uverbs1", "/dev/infiniband/uverbs10", "/dev/uverbs0", "uverbs0", "/dev/infiniband/",
				}},
			}},
			want: []string{"docker:web(d1) mlx5_2||0000:18:00.a|mlx5_0|n2"},
		},
		"a network of the pod": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Pods: network("0000:18:00.1", "mlx5_9")},
			want:  []string{"ml/train-0() mlx5_1||0000:18:00.1|mlx5_0|p1"},
		},
		"a network by the name of its device": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Pods: network("", "mlx5_1")},
			want:  []string{"ml/train-0() mlx5_1||0000:18:00.1|mlx5_0|p1"},
		},
		"a network with the name of another function": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Pods: network("0000:99:00.1", "mlx5_1")},
			want:  []string{"ml/train-0() ||0000:99:00.1||"},
		},
		"a network of garbage": {
			facts: model.Snapshot{Containers: []model.Container{worker()}, Pods: network("0000:18:00", strings.Repeat("x", 1<<20))},
			want:  []string{},
		},
		"a network of a pod that ended": {
			facts: model.Snapshot{Containers: []model.Container{worker(exited)}, Pods: network("0000:18:00.1", "")},
			want:  []string{},
		},
		"a network of a static pod": {
			facts: model.Snapshot{
				Containers: []model.Container{worker()},
				Pods: []model.Pod{{
					UID: "api", StaticUID: "u1", Namespace: "ml", Name: "train-0",
					Networks: []model.PodNetwork{{PCIAddress: "0000:18:00.1"}},
				}},
			},
			want: []string{"ml/train-0() mlx5_1||0000:18:00.1|mlx5_0|p1"},
		},
		"moved to the namespace of a pod": {
			facts: model.Snapshot{Namespaces: namespaces}, entities: inPod,
			want: []string{"ml/train-0() mlx5_3||0000:18:00.3|mlx5_0|n3"},
		},
		"moved to a namespace without known processes": {
			facts: model.Snapshot{Namespaces: namespaces},
			want:  []string{},
		},
		"moved to the namespace of a container without a pod": {
			facts:    model.Snapshot{Namespaces: namespaces},
			entities: map[model.CgroupID]identitytest.Entity{7: {Workload: "docker:d1", ContainerID: "d1", Runtime: "docker", Called: "web"}},
			want:     []string{"docker:web(d1) mlx5_3||0000:18:00.3|mlx5_0|n3"},
		},
		"all evidence of one device": {
			facts: model.Snapshot{
				Containers:  []model.Container{worker(nodes("/dev/infiniband/uverbs3"))},
				Allocations: []model.Allocation{given(ib, "0000:18:00.3")},
				Pods:        network("0000:18:00.3", "mlx5_3"), Namespaces: namespaces,
			}, entities: inPod,
			want: []string{"ml/train-0/worker(c1) mlx5_3|nvidia.com/ib|0000:18:00.3|mlx5_0|n3"},
		},
		"the pod's evidence of one device": {
			facts: model.Snapshot{
				Containers: []model.Container{worker()},
				Pods:       network("0000:18:00.3", "mlx5_3"), Namespaces: namespaces,
			}, entities: inPod,
			want: []string{"ml/train-0() mlx5_3||0000:18:00.3|mlx5_0|n3"},
		},
		"the network names an invisible device": {
			facts: model.Snapshot{
				Containers:  []model.Container{worker()},
				Allocations: []model.Allocation{given(ib, "0000:18:00.7")}, Pods: network("0000:18:00.7", "mlx5_7"),
			},
			want: []string{"ml/train-0/worker(c1) mlx5_7|nvidia.com/ib|0000:18:00.7||"},
		},
		"allocated to an ended container": {
			facts: model.Snapshot{Containers: []model.Container{worker(exited)}, Allocations: []model.Allocation{given(ib, "0000:18:00.1")}},
			want:  []string{},
		},
		"a recreated pod": {
			facts: model.Snapshot{
				Containers: []model.Container{
					worker(exited, func(c *model.Container) { c.Created = time.Unix(900, 0) }),
					worker(func(c *model.Container) { c.ID, c.PodUID, c.Created = "c2", "u2", time.Unix(200, 0) }),
					worker(func(c *model.Container) { c.ID, c.PodUID = "c3", "u1" }),
				},
				Allocations: []model.Allocation{given(ib, "0000:18:00.1")},
			},
			want: []string{"ml/train-0/worker(c2) mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1"},
		},
		"a running container and a newer one that does not run yet": {
			facts: model.Snapshot{
				Containers: []model.Container{
					worker(func(c *model.Container) { c.ID, c.Status, c.Created = "c2", model.ContainerCreated, time.Unix(200, 0) }),
					worker(),
				},
				Allocations: []model.Allocation{given(ib, "0000:18:00.1")},
			},
			want: []string{"ml/train-0/worker(c1) mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1"},
		},
		"no source lists containers": {
			facts: model.Snapshot{Allocations: []model.Allocation{given(ib, "0000:18:00.1")}},
			want:  []string{"ml/train-0/worker() mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1"},
		},
		"two containers of a pod": {
			facts: model.Snapshot{
				Containers: []model.Container{
					worker(),
					worker(func(c *model.Container) {
						c.ID, c.Name, c.Devices = "c2", "side", []string{"/dev/infiniband/uverbs1"}
					}),
				},
				Allocations: []model.Allocation{given(ib, "0000:18:00.1")},
			},
			want: []string{
				"ml/train-0/worker(c1) mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1",
				"ml/train-0/side(c2) mlx5_2||0000:18:00.a|mlx5_0|n2",
			},
		},
		"the container before a reboot": { // containerd lists it without a task, as not started
			facts: model.Snapshot{
				Containers: []model.Container{
					worker(func(c *model.Container) {
						c.ID, c.Status, c.Devices = "c0", model.ContainerCreated, []string{"/dev/infiniband/uverbs2"}
					}),
					worker(func(c *model.Container) { c.Devices = []string{"/dev/infiniband/uverbs2"} }),
				},
			},
			want: []string{"ml/train-0/worker(c1) mlx5_1||0000:18:00.1|mlx5_0|p1"},
		},
		"the annotation of another pod names it": {
			facts: model.Snapshot{
				Containers: []model.Container{
					worker(), worker(func(c *model.Container) { c.ID, c.Pod, c.PodUID = "c3", "other-0", "u3" }),
				},
				Allocations: []model.Allocation{given(ib, "0000:18:00.1")},
				Pods: []model.Pod{{UID: "u3", Namespace: "ml", Name: "other-0", Networks: []model.PodNetwork{
					{Interface: "net1", PCIAddress: "0000:18:00.1", RDMADevice: "mlx5_1"},
				}}},
			},
			want: []string{"ml/train-0/worker(c1) mlx5_1|nvidia.com/ib|0000:18:00.1|mlx5_0|p1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.HCAs = sriov()
			before := fmt.Sprintf("%+v", c.facts)
			a := attribute(facts{c.facts, c.entities})
			if d := cmp.Diff(strings.Join(c.want, "\n"), strings.Join(assignments(a), "\n")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if fmt.Sprintf("%+v", c.facts) != before {
				t.Error("the snapshot was changed")
			}
			for _, s := range a.Assigned {
				if s.HCA != nil && s.HCA.Name != s.Device {
					t.Errorf("%s with the HCA %s", s.Device, s.HCA.Name)
				}
			}
		})
	}
	if attribute(facts{Snapshot: model.Snapshot{HCAs: sriov()}}).Assigned != nil {
		t.Error("there are assignments without a source of workloads")
	}
}

// TestAllocatedHCAs checks by which evidence an HCA is allocated as an RDMA device. A VF that is only a network
// interface is not allocated, nor is a device node of a container that may use all devices.
func TestAllocatedHCAs(t *testing.T) {
	nodes := func(paths ...string) func(*model.Container) {
		return func(c *model.Container) { c.Devices = append([]string{}, paths...) }
	}
	privileged := func(c *model.Container) { c.AllDevices = true }
	vf := []model.Allocation{given("nvidia.com/vf", "0000:18:00.1")}
	network := func(device string) []model.Pod {
		return []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0", Networks: []model.PodNetwork{
			{PCIAddress: "0000:18:00.1", RDMADevice: device},
		}}}
	}
	containers := func(change ...func(*model.Container)) []model.Container { return []model.Container{worker(change...)} }
	for name, c := range map[string]struct {
		facts    model.Snapshot
		entities map[model.CgroupID]identitytest.Entity
		want     string
	}{
		"VF and its device node":      {facts: model.Snapshot{Containers: containers(nodes("/dev/infiniband/uverbs2")), Allocations: vf}, want: "mlx5_1 kubelet"},
		"VF, device nodes not known":  {facts: model.Snapshot{Containers: containers(), Allocations: vf}, want: "mlx5_1 kubelet"},
		"VF, no source of containers": {facts: model.Snapshot{Allocations: vf}, want: "mlx5_1 kubelet"},
		"VF, privileged":              {facts: model.Snapshot{Containers: containers(nodes(), privileged), Allocations: vf}, want: "mlx5_1 kubelet"},
		"VF as network interface":     {facts: model.Snapshot{Containers: containers(nodes("/dev/net/tun")), Allocations: vf}, want: "mlx5_1 "},
		"shared resource": {
			facts: model.Snapshot{
				Containers:  containers(nodes("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs2")),
				Allocations: []model.Allocation{given("rdma/hca", "17")},
			},
			want: "mlx5_0 device_node, mlx5_1 device_node",
		},
		"device node, privileged": {facts: model.Snapshot{Containers: containers(nodes("/dev/infiniband/uverbs2"), privileged)}, want: "mlx5_1 "},
		"network with an RDMA device": {
			facts: model.Snapshot{Containers: containers(nodes()), Pods: network("mlx5_1")}, want: "mlx5_1 network",
		},
		"network without an RDMA device": {
			facts: model.Snapshot{Containers: containers(nodes()), Pods: network("")}, want: "mlx5_1 ",
		},
		"VF without device node, network with an RDMA device": {
			facts: model.Snapshot{Containers: containers(nodes()), Allocations: vf, Pods: network("mlx5_1")}, want: "mlx5_1 network",
		},
		"device node of a VF that the kubelet allocated": {
			facts: model.Snapshot{Containers: containers(nodes("/dev/infiniband/uverbs2")), Allocations: vf, Pods: network("mlx5_1")},
			want:  "mlx5_1 kubelet",
		},
		"moved to the namespace of the pod": {
			facts: model.Snapshot{
				Containers: containers(nodes("/dev/infiniband/uverbs3")), Namespaces: []model.Namespace{{Inode: 4026532001, PID: 9, Cgroup: 7}},
			},
			entities: map[model.CgroupID]identitytest.Entity{7: {
				Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1", PodUID: "u1",
			}},
			want: "mlx5_3 namespace",
		},
	} {
		c.facts.HCAs = sriov()
		var got []string
		for _, s := range attribute(facts{c.facts, c.entities}).Assigned {
			got = append(got, s.Device+" "+string(s.Allocated))
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDevicesHostile checks that texts of containers and plugins are made valid UTF-8 once.
func TestDevicesHostile(t *testing.T) {
	a := attribute(facts{Snapshot: model.Snapshot{
		Containers: []model.Container{worker(func(c *model.Container) { c.Pod = "train-\xff" })},
		Allocations: []model.Allocation{
			{Namespace: "ml", Pod: "train-\xff", Container: "worker", Resource: "x/\xff", ID: "\xff"},
			{Namespace: "ml", Pod: "train-\xff", Container: "worker", Resource: "x/\xff", ID: "\xfe"},
		},
	}})
	want := []string{"ml/train-\uFFFD/worker(c1) \uFFFD|x/\uFFFD|||"}
	if d := cmp.Diff(want, assignments(a)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestIsPCI(t *testing.T) {
	for s, want := range map[string]bool{
		"0000:18:00.2": true, "FFff:0a:1F.7": true, "": false, "0000:18:00": false, "0000:18:00.g": false,
		"10000:e1:00.0": true, "0000-18-00.2": false, "00000:18:00.2": false, "GPU-12345678": false,
	} {
		if model.IsPCIAddress(s) != want {
			t.Errorf("model.IsPCIAddress(%q) is %v", s, !want)
		}
	}
}

// TestGPUNodes checks that the device node identifies a GPU that the kubelet does not list.
func TestGPUNodes(t *testing.T) {
	s := model.Snapshot{
		Containers: []model.Container{
			{ID: "a", Runtime: "docker", Name: "cuda", Devices: []string{"/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-uvm"}},
			{ID: "b", Runtime: "docker", Name: "rocm", Devices: []string{"/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"}},
			{ID: "c", Runtime: "docker", Name: "render", Devices: []string{"/dev/dri/renderD128", "/dev/dri/by-path"}},
			{ID: "d", Runtime: "docker", Name: "over", Status: model.ContainerExited, Devices: []string{"/dev/nvidia0"}},
			{
				ID: "e", Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "p", PodUID: "u",
				Devices: []string{"/dev/nvidia5"},
			},
		},
		Allocations: []model.Allocation{{Namespace: "ml", Pod: "p", Container: "worker", Resource: "nvidia.com/gpu", ID: "GPU-5"}},
	}
	a := attribute(facts{Snapshot: s})
	got := map[string]string{}
	for _, d := range a.Assigned {
		got[a.Owners[d.Owner].Workload+" "+d.Device] = d.Node
	}
	want := map[string]string{
		"docker:cuda nvidia3": "/dev/nvidia3", "docker:rocm dri/card1": "/dev/dri/card1",
		"docker:render dri/renderD128": "/dev/dri/renderD128", "ml/p/worker GPU-5": "/dev/nvidia5",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestNamedHCA: a plugin may give the kubelet the name of an RDMA device (EFA, DRANET). It is not allocated to a
// container with another device node, and a name in two network namespaces names no device.
func TestNamedHCA(t *testing.T) {
	hcas := []model.HCA{
		{Name: "rdmap79s0", NodeGUID: "n0", PCIAddress: "0000:4f:00.0", CharDevice: "uverbs0"},
		{Name: "rdmap80s0", NodeGUID: "n1", PCIAddress: "0000:50:00.0", CharDevice: "uverbs1"},
		{Name: "mlx5_0", NodeGUID: "n2", PCIAddress: "0000:60:00.0", CharDevice: "uverbs2"},
		{Name: "mlx5_0", NodeGUID: "n3", PCIAddress: "0000:60:00.1", CharDevice: "uverbs3", Netns: 4026532001},
	}
	nodes := func(paths ...string) func(*model.Container) {
		return func(c *model.Container) { c.Devices = append([]string{}, paths...) }
	}
	claim := given("dra.net", "rdmap79s0")
	claim.Claim = "claim"
	const efa = "vpc.amazonaws.com/efa"
	first := "ml/train-0/worker(c1) rdmap79s0|vpc.amazonaws.com/efa|0000:4f:00.0||n0"
	one := []model.Container{worker()}
	for name, test := range map[string]struct {
		containers []model.Container
		allocation model.Allocation
		want       []string
		evidence   Evidence
	}{
		"kubelet only":      {nil, given(efa, "rdmap79s0"), []string{strings.Replace(first, "c1", "", 1)}, EvidenceKubelet},
		"container":         {one, given(efa, "rdmap79s0"), []string{first}, EvidenceKubelet},
		"device node":       {[]model.Container{worker(nodes("/dev/infiniband/uverbs0"))}, given(efa, "rdmap79s0"), []string{first}, EvidenceKubelet},
		"a replica":         {one, given(efa, "rdmap79s0::1"), []string{first}, EvidenceKubelet},
		"not its node":      {[]model.Container{worker(nodes())}, given(efa, "rdmap79s0"), []string{first}, ""},
		"an unknown name":   {one, given(efa, "rdmap81s0"), []string{"ml/train-0/worker(c1) rdmap81s0|vpc.amazonaws.com/efa|||"}, ""},
		"an ambiguous name": {one, given(efa, "mlx5_0"), []string{"ml/train-0/worker(c1) mlx5_0|vpc.amazonaws.com/efa|||"}, ""},
		"DRANET":            {one, claim, []string{strings.Replace(first, efa, "dra.net", 1)}, EvidenceKubelet},
	} {
		a := attribute(facts{model.Snapshot{HCAs: hcas, Containers: test.containers, Allocations: []model.Allocation{test.allocation}}, nil})
		if d := cmp.Diff(test.want, assignments(a)); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		} else if got := a.Assigned[0].Allocated; got != test.evidence {
			t.Errorf("%s: allocated by %q, want %q", name, got, test.evidence)
		}
	}
}
