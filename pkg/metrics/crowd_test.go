// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

func crowdHCA(i int) string { return fmt.Sprint("mlx5_", i) }

// crowdVerbs lists more verbs than programs call.
func crowdVerbs(n int) (verbs []string) {
	for _, object := range []string{"pd", "cq", "qp", "mr", "srq", "ah", "mw", "flow", "counters", "dm"} {
		for _, verb := range []string{
			"create_", "modify_", "query_", "destroy_", "attach_", "detach_", "post_", "poll_", "import_", "export_", "resize_", "advise_",
		} {
			verbs = append(verbs, verb+object)
		}
	}
	return verbs[:n]
}

// crowdProbe returns the counts of cgroups 1 to n. Each cgroup calls all verbs on each HCA in usesOf, and each fourth
// verb fails with several errnos.
func crowdProbe(n, calls, errnos int, usesOf func(int) []int) model.Snapshot {
	s := model.Snapshot{
		Objects: []model.Objects{}, Registered: []model.Registered{}, VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{},
	}
	for i := 1; i <= n; i++ {
		id := model.CgroupID(i)
		for _, hca := range usesOf(i) {
			device := crowdHCA(hca)
			for _, typ := range objectTypes {
				s.Objects = append(s.Objects, model.Objects{Cgroup: id, Device: device, Type: typ, Current: 1})
				s.Created = append(s.Created, created(id, device, typ, 2))
			}
			s.Registered = append(s.Registered, model.Registered{Cgroup: id, Device: device, Memory: model.HostMemory, Bytes: 1 << 30})
			for v, verb := range crowdVerbs(calls) {
				h := model.Histogram{Count: 3, Sum: 1e5}
				h.Buckets[4], h.Buckets[5] = 2, 1
				s.Verbs = append(s.Verbs, verbs(id, device, verb, h))
				for i := range errnos {
					if v%4 == 3 {
						s.VerbErrors = append(s.VerbErrors, verbErrors(id, device, verb, fmt.Sprint("E", i), 1))
					}
				}
			}
		}
	}
	return s
}

// crowdUsage returns the resource usage of cgroups 1 to n with all values of cgroup v2, and the network of their pods.
func crowdUsage(n int) model.Snapshot {
	some := model.Some
	s := model.Snapshot{Namespaces: []model.Namespace{}}
	for i := 1; i <= n; i++ {
		s.Usages = append(s.Usages, model.Usage{
			Cgroup: model.CgroupID(i),
			CPU: model.CPUUsage{
				Total: some(1), User: some(1), System: some(1), Periods: some(1), ThrottledPeriods: some(1), Throttled: some(1),
				Quota: some(1e5), Period: some(1e5), Shares: some(1024), Waiting: some(1), Stalled: some(1),
			},
			Memory: model.MemoryUsage{
				Usage: some(1), Peak: some(1), WorkingSet: some(1), RSS: some(1), Cache: some(1), Swap: some(1), MappedFile: some(1),
				Kernel: some(1), Limit: some(math.Inf(1)), SwapLimit: some(math.Inf(1)), Reservation: some(0), LimitHits: some(0),
				Faults: some(1), MajorFaults: some(1), FaultsBelow: some(1), MajorFaultsBelow: some(1), OOMKills: some(0),
				Waiting: some(1), Stalled: some(1),
			},
			IO: []model.DeviceIO{{
				Device: "/dev/nvme0n1", Major: 259, ReadBytes: some(1), WriteBytes: some(1), DiscardBytes: some(1), Reads: some(1), Writes: some(1),
			}},
			IOWaiting: some(1), IOStalled: some(1), Processes: some(1), Threads: some(1), ThreadsMax: some(1000),
		})
		s.Namespaces = append(s.Namespaces, model.Namespace{
			Inode: uint64(i + 1), PID: i, Cgroup: model.CgroupID(i), Interfaces: []model.Interface{{Name: "eth0"}},
		})
	}
	return s
}

// crowdContainers returns the containers of cgroups 1 to n with all that Docker, the rdma cgroup controller and open
// device nodes report. With given, they were allocated the HCAs' device nodes.
func crowdContainers(n int, usesOf func(int) []int, given bool) model.Snapshot {
	s := model.Snapshot{RDMACgroups: []model.RDMACgroup{}, DeviceHandles: []model.DeviceHandles{}}
	for i := 1; i <= n; i++ {
		id := model.CgroupID(i)
		c := model.Container{
			ID: fmt.Sprintf("%064d", i), Runtime: "containerd", Name: "main", Namespace: "ml", Pod: fmt.Sprint("train-", i), PodUID: fmt.Sprint("uid-", i),
			Status: model.ContainerRunning, Health: "healthy", Restarts: new(uint64), Created: time.Unix(1, 0), Started: time.Unix(2, 0),
		}
		for _, hca := range usesOf(i) {
			node := fmt.Sprint("uverbs", hca)
			if given {
				c.Devices = append(c.Devices, "/dev/infiniband/"+node)
			}
			s.RDMACgroups = append(s.RDMACgroups, model.RDMACgroup{Cgroup: id, Device: crowdHCA(hca), Handles: 1, Objects: 9})
			s.DeviceHandles = append(s.DeviceHandles, model.DeviceHandles{Cgroup: id, Device: node, Class: model.ClassRDMA, Count: 1})
			s.DeviceOpens = append(s.DeviceOpens, model.Series[model.OpenKey, model.Opens]{
				Cgroup: id, Key: model.OpenKey{Device: node, Class: model.ClassRDMA}, Value: model.Opens{Allowed: 1},
			})
		}
		s.Containers = append(s.Containers, c)
	}
	return s
}

// crowdNames names each of the cgroups 1 to n as the container of a pod.
func crowdNames(n int) *fakeNames {
	entities := map[model.CgroupID]identitytest.Entity{}
	for i := 1; i <= n; i++ {
		entities[model.CgroupID(i)] = identitytest.Entity{
			Workload: fmt.Sprint("ml/train-", i, "/main"), Namespace: "ml", Pod: fmt.Sprint("train-", i), Container: "main",
			ContainerID: fmt.Sprintf("%064d", i), PodUID: fmt.Sprint("uid-", i), Runtime: "containerd", Cgroup: fmt.Sprint("/kubepods/", i),
		}
	}
	return names(entities)
}

func crowd(n int, facts ...model.Snapshot) []engine.Registration {
	sources := []engine.Registration{{Source: crowdNames(n)}}
	for i, s := range facts {
		sources = append(sources, engine.Registration{Source: &fake{name: fmt.Sprint("source", i), facts: s}})
	}
	return sources
}

// seriesOf counts the series by family as Prometheus does: each bucket, sum and count of a histogram is a series.
func seriesOf(t *testing.T, c collector) (byFamily map[string]int, all int, text string) {
	t.Helper()
	body, err := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), false)
	if err != nil {
		t.Fatal(err)
	}
	byFamily, text = map[string]int{}, string(body)
	family := ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			family, _, _ = strings.Cut(name, " ")
		}
		if !strings.HasPrefix(line, "#") {
			byFamily[family]++
			all++
		}
	}
	return byFamily, all, text
}
