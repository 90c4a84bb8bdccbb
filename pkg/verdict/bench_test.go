// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// BenchmarkUpdate judges a node with 10 HCAs, 128 VFs, 8 GPUs and 1000 containers. Each container has an HCA, a GPU and
// some failed verbs.
func BenchmarkUpdate(b *testing.B) {
	n, j := newNode(), &Judge{}
	hca, gpu := n.facts.HCAs[0], n.facts.GPUs[0]
	n.facts.HCAs, n.facts.GPUs, n.shares.Owners = nil, nil, []identity.Owner{{}}
	for i := range 138 {
		hca.Name, hca.VF = fmt.Sprint("mlx5_", i), i >= 10
		n.facts.HCAs = append(n.facts.HCAs, hca)
	}
	for i := range 8 {
		gpu.ID, gpu.UUID = fmt.Sprint(i), fmt.Sprint("GPU-", i)
		n.facts.GPUs = append(n.facts.GPUs, gpu)
	}
	for i := range 10 {
		n.shares.Registered = append(n.shares.Registered, attribution.RegisteredShare{Device: n.facts.HCAs[i].Name})
	}
	for i := range 1000 {
		owner := i + 1
		n.shares.Owners = append(n.shares.Owners, identity.Owner{
			Workload: fmt.Sprintf("ns%d/pod-%d/worker", i%50, i), Namespace: fmt.Sprint("ns", i%50), Pod: fmt.Sprint("pod-", i),
			Container: "worker", ContainerID: fmt.Sprintf("%064x", i),
		})
		h := &n.facts.HCAs[i%10]
		n.shares.Assigned = append(n.shares.Assigned, attribution.DeviceShare{Owner: owner, HCA: h, Allocated: attribution.EvidenceKubelet})
		n.shares.GPUs = append(n.shares.GPUs, attribution.GPUShare{
			Owner: owner, GPU: &n.facts.GPUs[i%8], Listed: true, Processes: 1, Assigned: &attribution.DeviceShare{},
		})
		n.shares.Objects = append(n.shares.Objects, attribution.ObjectShare{Owner: owner, Device: h.Name, Type: model.QP, Current: 4})
		for _, errno := range []string{"ENOMEM", "EINVAL"} {
			n.shares.VerbErrors = append(n.shares.VerbErrors, attribution.Share[model.VerbErrorKey, model.Count]{
				Owner: owner, Key: model.VerbErrorKey{Device: h.Name, Verb: "reg_mr", Errno: errno}, Value: 1,
			})
		}
	}
	b.ReportAllocs()
	at := start
	for b.Loop() {
		at = at.Add(15 * time.Second)
		if got := n.judge(j, at); got.Verdicts[0].Name != "NothingWrong" {
			b.Fatal(got.Verdicts[0])
		}
	}
}

// BenchmarkCongested judges 138 ports whose counters of congestion grow: each port has several verdicts.
func BenchmarkCongested(b *testing.B) {
	n, j := newNode(), &Judge{}
	hca := n.facts.HCAs[1]
	n.facts.HCAs = nil
	for i := range 138 {
		hca.Name = fmt.Sprint("mlx5_", i)
		hca.Ports = slices.Clone(hca.Ports)
		hca.Ports[0].HWCounters = slices.Clone(hca.Ports[0].HWCounters)
		n.facts.HCAs = append(n.facts.HCAs, hca)
	}
	b.ReportAllocs()
	at, found := start, 0
	for b.Loop() {
		at = at.Add(15 * time.Second)
		for i := range n.facts.HCAs {
			for k := range n.facts.HCAs[i].Ports[0].HWCounters {
				n.facts.HCAs[i].Ports[0].HWCounters[k].Value += 1e6
			}
		}
		found = len(n.judge(j, at).Verdicts)
	}
	b.ReportMetric(float64(found), "verdicts")
}
