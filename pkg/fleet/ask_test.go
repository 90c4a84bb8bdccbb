// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
)

// TestMembers: a member that others wait for first, then outliers, then members with idle GPUs. Series without a member or a number are left out.
func TestMembers(t *testing.T) {
	const a, b, c = "instance=n1 workload=ml/a/main container_id=1", "instance=n2 workload=ml/b/main container_id=2", "instance=n3 workload=ml/c/main container_id=3"
	const d = "instance=n4 workload=ml/d/main container_id=4"
	f := &fakePrometheus{vectors: map[string]model.Vector{
		"members":          {one(a+" pod=a container=main", 1), one(b+" pod=b container=main", 1), one(c+" pod=c container=main", 1), one(d, 1)},
		"member_gpus":      {one(a, 8), one(b, 8)},
		"member_gpus_used": {one(a, 8), one(b, 5)},
		"member_transmit":  {one(c+" method=qp_counter", 10), one(c+" method=survey", 2), one("instance=n9 workload=x", 1)},
		"member_p99":       {one(c, 1e-3), one(a, 1e-5), one(b, math.NaN())},
		"member_ratio":     {one(c, 99)},
		"member_behind":    {one(d, 1)}, "member_last_launch": {one(d, 601), one(a, 600)},
	}}
	report, problems := f.reader(t, "").Job(t.Context(), &State{}, JobName{"ml", "Job", `a"b`})
	if report == nil {
		t.Fatal(problems)
	}
	got := report.Members
	for i := range got {
		got[i].GPUUse, got[i].HCAUse = nil, nil
	}
	want := []Member{
		{Workload: "ml/d/main", ContainerID: "4", Node: "n4", Behind: new(float64(1)), LastLaunch: new(float64(601))},
		{Workload: "ml/c/main", Pod: "c", Container: "main", ContainerID: "3", Node: "n3", Transmit: &Rate{12, true}, P99: new(1e-3), Slower: new(float64(99))},
		{Workload: "ml/b/main", Pod: "b", Container: "main", ContainerID: "2", Node: "n2", GPUs: new(float64(8)), Used: new(float64(5))},
		{Workload: "ml/a/main", Pod: "a", Container: "main", ContainerID: "1", Node: "n1", GPUs: new(float64(8)), Used: new(float64(8)), P99: new(1e-5), LastLaunch: new(float64(600))},
	}
	if diff := gocmp.Diff(want, got); diff != "" || len(problems) > 0 {
		t.Error(diff, problems)
	}
}

func TestSearch(t *testing.T) {
	f := &fakePrometheus{vectors: map[string]model.Vector{
		"found_workloads": {one("instance=n1 workload=ml/ab12/main namespace=ml job_kind=Job job_name=j", 1)},
		"found_gpus":      {one("instance=n2 vendor=nvidia gpu_id=3 uuid=GPU-ab12", 1)},
		"found_devices": {
			one("instance=n3 device=mlx5_0 node_guid=0xab12", 1), one("instance=n3 device=mlx5_0 node_guid=0xab12", 1),
			one("instance=n3 pf_device=mlx5_0 vf=4 node_guid=0xab124", 1), one("instance=n4 device=mlx5_1 port_guid=0xab125", 1),
		},
	}}
	got, problems := f.reader(t, "").Search(t.Context(), "AB:12")
	want := []Found{
		{Kind: "workload", Name: "ml/ab12/main", Node: "n1", Job: JobName{"ml", "Job", "j"}},
		{Kind: "VF", Name: "mlx5_0 VF 4", Node: "n3", ID: "0xab124"},
		{Kind: "HCA", Name: "mlx5_0", Node: "n3", ID: "0xab12"},
		{Kind: "HCA", Name: "mlx5_1", Node: "n4", ID: "0xab125"},
		{Kind: "GPU", Name: "nvidia 3", Node: "n2", ID: "GPU-ab12"},
	}
	if diff := gocmp.Diff(want, got); diff != "" || len(problems) > 0 {
		t.Error(diff, problems)
	}
	if found, _ := f.reader(t, "").Search(t.Context(), "ab"); found != nil {
		t.Errorf("a short text is searched for: %v", found)
	}
}

// TestAlert names the subjects of alerts.
func TestAlert(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"n1 mlx5_0/1":           {"device": "mlx5_0", "port": "1"},
		"n1 ml/a/main mlx5_0":   {"device": "mlx5_0", "workload": "ml/a/main", "namespace": "ml"},
		"n1 GPU 3":              {"gpu_id": "3", "uuid": "GPU-1"},
		"n1":                    {"source": "rdma"},
		"n1 ml/a/main mlx5_0/2": {"workload": "ml/a/main", "device": "mlx5_0", "port": "2", "verb": "post"},
	} {
		a := Alert{Node: "n1", Labels: labels}
		if got := a.Subject(); got != want {
			t.Errorf("%v: %q, want %q", labels, got, want)
		}
	}
	a := Alert{Labels: map[string]string{"uuid": "GPU-1", "gpu_id": "3", "xid": "79", "empty": ""}}
	if diff := gocmp.Diff([]string{"uuid GPU-1", "xid 79"}, a.Details()); diff != "" || !a.Has("gpu-1") || a.Has("nothing") {
		t.Error(diff)
	}
	if got := (&Alert{}).Subject(); got != "all nodes" {
		t.Errorf("%q", got)
	}
}
