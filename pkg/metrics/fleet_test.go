// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// fleetNodes are the nodes that tests/suites/fleet multiplies: budgetNode, and a smaller node with about 640 series that
// rules and dashboards read.
var fleetNodes = []struct {
	file                          string
	pods, accelerated, gpus, hcas int
}{
	{"full.prom", 110, 16, 8, 10},
	{"small.prom", 20, 2, 2, 2},
}

// TestFleetNodes encodes nodes whose accelerated pods are members of a job, as Prometheus scrapes them. With
// ACCELSCOPE_RECORD it writes the text into a directory for tests/suites/fleet.
func TestFleetNodes(t *testing.T) {
	for _, n := range fleetNodes {
		synctest.Test(t, func(t *testing.T) {
			var jobs []model.Pod
			var ranks model.Snapshot
			for i := 1; i <= n.accelerated; i++ {
				jobs = append(jobs, model.Pod{
					UID: fmt.Sprint("uid-", i), Namespace: "ml", Name: fmt.Sprint("train-", i), Job: model.Job{Kind: "JobSet", Name: "train"},
				})
				ranks.CollectiveCoverage = append(ranks.CollectiveCoverage, model.CollectiveCoverage{Cgroup: model.CgroupID(i)})
				ranks.Communicators = append(ranks.Communicators, model.Communicator{
					Cgroup: model.CgroupID(i), Library: "nccl", Version: "2.28.9", Key: "world", Rank: "0", Ranks: 8, LastLaunch: time.Unix(1700000000, 0),
					Operations: []model.CommunicatorOperation{{Operation: "all_reduce", Launches: model.Launches{Count: 1, Bytes: 4096}}},
				})
			}
			s := withDefaults(t, clusterNode(n.pods, n.accelerated, n.gpus, n.hcas))
			s.Sources = append(s.Sources, engine.Registration{Source: &fake{name: "collective", facts: ranks}})
			for _, r := range s.Sources {
				if f, ok := r.Source.(*fake); ok && f.name == "kubelet" {
					f.facts.Pods = jobs
				}
			}
			c := newCollector(s)
			families, all, text := seriesOf(t, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("%s: %d series", n.file, all)
			if all > maxNodeSeries {
				t.Errorf("%s: %d series, want at most %d: %v", n.file, all, maxNodeSeries, families)
			}
			for i := 1; i <= n.accelerated; i++ {
				if !strings.Contains(text, fmt.Sprintf(`job_kind="JobSet",job_name="train",namespace="ml",node="gpu01",pod="train-%d"`, i)) {
					t.Errorf("%s: train-%d is not a member of the job", n.file, i)
				}
			}
			if dir := os.Getenv("ACCELSCOPE_RECORD"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, n.file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
