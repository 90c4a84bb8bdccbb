// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// containerNode returns a pod with a limited container and its sandbox, a job without limits, an exited Docker
// container, and a cgroup without a name.
func containerNode() []engine.Registration {
	n := model.Some
	full := model.Usage{
		Cgroup: 101, Created: time.Unix(1000, 0),
		CPU: model.CPUUsage{
			Total: n(3), User: n(2), System: n(1), Periods: n(10), ThrottledPeriods: n(4), Throttled: n(.5),
			Quota: n(150000), Period: n(100000), Shares: n(998), Waiting: n(7), Stalled: n(6),
		},
		Memory: model.MemoryUsage{
			Usage: n(1e6), Peak: n(1.5e6), WorkingSet: n(8e5), RSS: n(4e5), Cache: n(5e5), Swap: n(77), MappedFile: n(1234),
			Kernel: n(9000), Limit: n(2e6), SwapLimit: n(math.Inf(1)), Reservation: n(0), LimitHits: n(3),
			Faults: n(50), MajorFaults: n(4), FaultsBelow: n(55), MajorFaultsBelow: n(5), OOMKills: n(1),
			Waiting: n(5), Stalled: n(4),
		},
		IO: []model.DeviceIO{
			{
				Device: "/dev/sda", Major: 8, ReadBytes: n(4096), WriteBytes: n(8192), DiscardBytes: n(512),
				Reads: n(1), Writes: n(2),
			},
			{Device: "7:0", Major: 7, ReadBytes: n(1), Reads: n(1)},
		},
		IOWaiting: n(3), IOStalled: n(2),
		Processes: n(3), Threads: n(9), ThreadsMax: n(math.Inf(1)),
	}
	job := model.Usage{
		Cgroup: 102, Created: time.Unix(2000, 5e8),
		CPU:    model.CPUUsage{Total: n(1), Periods: n(0), ThrottledPeriods: n(0), Quota: n(math.Inf(1)), Period: n(100000)},
		Memory: model.MemoryUsage{Usage: n(0), Limit: n(math.Inf(1))},
	}
	entities := nodeNames()
	entities[104] = identitytest.Entity{
		Workload: "ml/train-0", Namespace: "ml", Pod: "train-0", ContainerID: "5a5a",
		PodUID: "11111111-2222", Runtime: "containerd", Cgroup: "/kubepods/pod11111111-2222/5a5a",
	}
	eth0 := model.Interface{
		Name: "eth0", ReceiveBytes: 1001, ReceivePackets: 11, ReceiveErrors: 2, ReceiveDropped: 3,
		TransmitBytes: 2001, TransmitPackets: 21, TransmitErrors: 4, TransmitDropped: 5,
	}
	restarts, code := uint64(2), uint32(137)
	resolver := names(entities)
	return []engine.Registration{
		{Source: &fake{name: "container", facts: model.Snapshot{
			Usages: []model.Usage{full, job, {Cgroup: 104, Threads: n(1)}, {Cgroup: 999, Threads: n(1000)}},
			Namespaces: []model.Namespace{
				{Inode: 1, PID: 50, Cgroup: 104, Interfaces: []model.Interface{eth0}},
				{Inode: 2, PID: 60, Cgroup: 102, Host: true},
			},
		}}},
		{Source: &fake{name: "runtime", facts: model.Snapshot{Containers: []model.Container{
			{
				ID: "0a1b", Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "train-0", PodUID: "11111111-2222",
				Status: model.ContainerRunning, Restarts: &restarts, Created: time.Unix(1234, 0), Started: time.Unix(1235, 25e7),
			},
			{
				ID: "5a5a", Runtime: "containerd", Sandbox: true, Namespace: "ml", Pod: "train-0", PodUID: "11111111-2222",
				Status: model.ContainerRunning, Created: time.Unix(1233, 0), Started: time.Unix(1233, 0),
			},
			{
				ID: "d0d0", Runtime: "docker", Name: "web", Status: model.ContainerExited, Health: "unhealthy", ExitCode: &code,
				Created: time.Unix(1500, 0), Started: time.Unix(1501, 0), Finished: time.Unix(1600, 0),
			},
		}}}},
		{Source: resolver},
	}
}

func TestContainerGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		powered := &fake{name: "node", facts: model.Snapshot{Node: poweredNode(1)}}
		text := library.Encode(t, gather(t, append(containerNode(), engine.Registration{Source: powered})), expfmt.TypeTextPlain)
		compare(t, filepath.Join("testdata", "container.prom"), text)
		// Every metric of the container with all values has a series.
		families := 0
		for _, m := range containerMetrics() {
			if strings.Contains(text, "\n"+m.name+"{") {
				families++
			} else {
				t.Errorf("%s is not shown", m.name)
			}
		}
		if families != len(containerMetrics()) {
			t.Errorf("%d families", families)
		}
		for _, not := range []string{`container_cpu_cfs_periods_total{container="",`, " 1000\n", "container_last_seen"} {
			if strings.Contains(text, not) {
				t.Errorf("%q is shown", not)
			}
		}
	})
}

func TestContainerLint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pedantic(t, setup{Sources: containerNode(), Version: "1.0"})
	})
}

// TestContainerLabelsStay checks that label sets are prepared once, including sets of four labels.
func TestContainerLabelsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: containerNode(), Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		sets := func() map[string][]*dto.LabelPair {
			time.Sleep(time.Second)
			sets := map[string][]*dto.LabelPair{}
			for _, f := range mustGather(t, c) {
				for _, m := range f.Metric {
					sets[f.GetName()+fmt.Sprint(m.Label)] = m.Label
				}
			}
			return sets
		}
		before := sets()
		after := sets()
		for k, v := range after {
			if len(v) > 0 && &before[k][0] != &v[0] {
				t.Errorf("the labels of %s were prepared again", k)
			}
		}
		if len(after) < 50 {
			t.Errorf("%d series", len(after))
		}
	})
}
