// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// scopeNode returns six workloads: 1 holds RDMA objects, 2 has a process on a GPU, 3 was allocated a GPU by its
// runtime, 4 has an HCA's device node open, 5 and 6 have nothing. Each container has a pod with a network.
func scopeNode() ([]engine.Registration, *fake) {
	const n = 6
	entities := map[model.CgroupID]identitytest.Entity{}
	usage := crowdUsage(n)
	usage.Namespaces = nil
	for i := 1; i <= n; i++ {
		id := model.CgroupID(i)
		e := identitytest.Entity{
			Workload: fmt.Sprint("ml/w", i, "/main"), Namespace: "ml", Pod: fmt.Sprint("w", i), Container: "main",
			ContainerID: fmt.Sprintf("%064d", i), PodUID: fmt.Sprint("uid-", i), Runtime: "containerd", Cgroup: fmt.Sprint("/kubepods/", i),
		}
		entities[id] = e
		e.Container, e.ContainerID, e.Cgroup = "", fmt.Sprintf("%064d", n+i), fmt.Sprint("/kubepods/sandbox", i)
		entities[id+n] = e
		usage.Namespaces = append(usage.Namespaces, model.Namespace{
			Inode: uint64(i), PID: i, Cgroup: id + n, Interfaces: []model.Interface{{Name: "eth0"}},
		})
	}
	probe := &fake{name: "probe", facts: crowdProbe(1, 1, 0, func(int) []int { return []int{0} })}
	gpus := model.Snapshot{
		GPUs: []model.GPU{
			{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}},
			{Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1", Nodes: []string{"/dev/nvidia1"}},
		},
		GPUProcesses: []model.GPUProcess{{GPU: "GPU-0", PID: 11, Cgroup: 2, Memory: model.Some(1)}},
	}
	containers := model.Snapshot{Containers: []model.Container{
		{
			ID: fmt.Sprintf("%064d", 3), Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "w3", PodUID: "uid-3",
			Devices: []string{"/dev/nvidia1"}, Status: model.ContainerRunning,
		},
		{
			ID: fmt.Sprintf("%064d", 6), Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "w6", PodUID: "uid-6",
			Status: model.ContainerRunning,
		},
	}}
	handles := model.Snapshot{DeviceHandles: []model.DeviceHandles{
		{Cgroup: 4, Device: "uverbs0", Class: model.ClassRDMA, Count: 1}, {Cgroup: 5, Device: "uverbs0", Class: model.ClassRDMA},
	}}
	return []engine.Registration{
		{Source: names(entities)},
		{Source: probe},
		{Source: &fake{name: "container", facts: usage}},
		{Source: &fake{name: "nvidia", facts: gpus}},
		{Source: &fake{name: "runtime", facts: containers}},
		{Source: &fake{name: "access", facts: handles}},
	}, probe
}

var podLabel = regexp.MustCompile(`,pod="([^"]*)",`)

func podsOf(text, family string) []string {
	pods := map[string]bool{}
	for series := range seriesIn(text) {
		if m := podLabel.FindStringSubmatch(series); m != nil && len(series) > len(family) && series[:len(family)+1] == family+"{" {
			pods[m[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(pods))
}

func TestScope(t *testing.T) {
	all, accelerated := []string{"w1", "w2", "w3", "w4", "w5", "w6"}, []string{"w1", "w2", "w3", "w4"}
	for _, test := range []struct {
		scope                      Scope
		usage, network, life, info []string
	}{
		{ScopeAll, all, all, []string{"w3", "w6"}, all},
		{"", all, all, []string{"w3", "w6"}, all},
		{ScopeAccelerated, accelerated, accelerated, []string{"w3"}, append(accelerated, "w5")}, // w5 has container_device_handles
		{ScopeNone, nil, nil, nil, all},
	} {
		t.Run(string(test.scope), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sources, probe := scopeNode()
				c := newCollector(setup{Sources: sources, Scope: test.scope, Reuse: time.Nanosecond})
				defer c.Close() //nolint:errcheck // nothing to lose
				for round := range 3 {
					_, _, text := seriesOf(t, c)
					for family, want := range map[string][]string{
						"container_cpu_usage_seconds_total": test.usage, "container_network_receive_bytes_total": test.network,
						"container_state": test.life, "accelscope_workload_info": test.info,
					} {
						if diff := cmp.Diff(want, podsOf(text, family)); diff != "" {
							t.Errorf("round %d: pods in %s (-want +got):\n%s", round, family, diff)
						}
					}
					if round == 2 && len(podsOf(text, "container_rdma_resources")) > 0 {
						t.Error("the workload still holds objects")
					}
					// The series of a workload that has released its device stay.
					probe.facts.Objects, probe.facts.Created = []model.Objects{}, nil
					probe.facts.Registered, probe.facts.Verbs, probe.facts.VerbErrors = nil, nil, nil
					if round == 1 {
						sources[1].Source.(*fake).facts = model.Snapshot{}
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// TestForgottenScope: an owner that had a device is forgotten when more refreshes lack the owner than a runtime that does
// not answer explains.
func TestForgottenScope(t *testing.T) {
	s := scope{Scope: ScopeAccelerated}
	s.selectOwners(&attribution.Attribution{
		Owners: []identity.Owner{{}, {ContainerID: "c1"}}, Objects: []attribution.ObjectShare{{Owner: 1, Device: "mlx5_0", Current: 1}},
	})
	for n := range maxAbsence + 1 {
		s.selectOwners(&attribution.Attribution{Owners: []identity.Owner{{}}})
		if kept := len(s.accelerated) > 0; kept != (n < maxAbsence) {
			t.Fatalf("kept after %d refreshes without the owner: %v", n+1, kept)
		}
	}
}

// TestAccelerated checks which owners the source of containers need not read.
func TestAccelerated(t *testing.T) {
	owner := func(pod, container string) identity.Owner {
		return identity.Owner{Namespace: "ml", Pod: pod, Container: container}
	}
	var a Accelerated
	if !a.Has(owner("w1", "main")) {
		t.Error("nothing is read before the first refresh")
	}
	for range 2 { // the second time nothing changes
		a.set(map[identity.Owner]uint64{owner("w1", "main"): 1, {ContainerID: "docker"}: 1}, map[pod]bool{{"ml", "w1"}: true})
	}
	for o, want := range map[identity.Owner]bool{
		owner("w1", "main"): true, owner("w1", ""): true, owner("w1", "sidecar"): true, {ContainerID: "docker"}: true,
		owner("w2", "main"): false, owner("w2", ""): false, {}: false,
	} {
		if got := a.Has(o); got != want {
			t.Errorf("%+v: %v", o, got)
		}
	}
	a.set(map[identity.Owner]uint64{owner("w2", "main"): 2}, map[pod]bool{{"ml", "w2"}: true})
	if a.Has(owner("w1", "main")) || !a.Has(owner("w2", "main")) {
		t.Error("a change is not seen")
	}
}
