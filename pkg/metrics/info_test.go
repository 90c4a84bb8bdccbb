// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

func TestInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := model.Snapshot{
			Objects: []model.Objects{{Cgroup: 7, Device: "mlx5_0", Type: model.QP, Current: 1}},
			Cgroups: []model.Cgroup{
				{ID: 7, Workload: "slurm:4711", Runtime: "slurm", User: "ada", Path: "/slurm/uid_1/job_4711"},
			},
			JobSteps: []model.JobStep{{Job: "4711", Step: "0", User: "ada", Account: "physics", Partition: "train", Name: "llm"}, {Job: "4711", Step: "batch", User: "ada"}},
			Containers: []model.Container{{
				ID: "a", Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1", Image: "train:1",
				Labels: map[string]string{"team": "vision", "app.kubernetes.io/name": "x\"y"},
			}},
			Pods: []model.Pod{{
				UID: "u1", Namespace: "ml", Name: "train-0", Job: model.Job{Kind: "JobSet", Name: "train", Queue: "research", Rank: "node-0-1"},
			}},
		}
		c := newCollector(setup{
			Sources: []engine.Registration{{Source: &fake{name: "all", facts: facts}}},
			Node:    "gpu01", Labels: []string{"team", "app.kubernetes.io/name", "team", "app.kubernetes.io.name"},
		})
		defer c.Close() //nolint:errcheck // nothing to lose
		families, err := c.Gather()
		if err != nil {
			t.Fatal(err)
		}
		text := library.Encode(t, families, expfmt.TypeTextPlain)
		for _, want := range []string{
			`accelscope_workload_info{cgroup="",container="worker",container_id="a",image="train:1",` +
				`job_kind="JobSet",job_name="train",label_app_kubernetes_io_name="x\"y",label_team="vision",namespace="ml",node="gpu01",pod="train-0",pod_uid="u1",` +
				`queue="research",rank="node-0-1",runtime="containerd",user="",workload="ml/train-0/worker"} 1`,
			`accelscope_workload_info{cgroup="/slurm/uid_1/job_4711",container="",container_id="",image="",` +
				`job_kind="Slurm",job_name="4711",label_app_kubernetes_io_name="",label_team="",namespace="",node="gpu01",pod="",pod_uid="",` +
				`queue="",rank="",runtime="slurm",user="ada",workload="slurm:4711"} 1`,
			`accelscope_slurm_step_info{account="physics",job="4711",job_id="4711",name="llm",partition="train",step="0",user="ada",workload="slurm:4711"} 1`,
			`accelscope_slurm_step_info{account="",job="4711",job_id="4711",name="",partition="",step="batch",user="ada",workload="slurm:4711"} 1`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no series %s", want)
			}
		}
	})
}
