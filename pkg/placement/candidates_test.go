// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestCandidates compares candidates with their definition, on random nodes.
func TestCandidates(t *testing.T) {
	found := 0
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := dgxA100.facts()
		for i := range 6 {
			s.HCAs = append(s.HCAs, model.HCA{Name: fmt.Sprint("vf", i), VF: true, PF: s.HCAs[rnd.IntN(12)].Name})
		}
		for i := range s.HCAs {
			s.HCAs[i].Ports = []model.Port{{
				State:     []string{"ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", "DOWN", ""}[rnd.IntN(7)],
				LinkLayer: []string{"InfiniBand", "Ethernet"}[rnd.IntN(2)], RateBits: []float64{100e9, 200e9}[rnd.IntN(2)],
			}}
		}
		own := rnd.Perm(len(s.HCAs))[:1+rnd.IntN(3)]
		p := of(s, attributed(s, job{gpus: []int{0}, hcas: own}))
		w := &p.Workloads[0]
		var want []int
		for i, d := range p.Devices {
			replaces := d.Kind == HCA && d.Active && (d.PF == "" || slices.Contains(w.HCAs, i))
			sameLayer := false
			for _, h := range w.HCAs {
				used := p.Devices[h]
				sameLayer = sameLayer || used.Active && used.LinkLayer == d.LinkLayer
				replaces = replaces && !used.Unknown && (!used.Active || d.Rate >= used.Rate)
			}
			if replaces && sameLayer {
				want = append(want, i)
			}
		}
		if got := sorted(newJudge(&p).candidates(w)); !slices.Equal(got, want) {
			t.Fatalf("seed %d: the workload uses %v: %v, want %v", seed, w.HCAs, got, want)
		}
		found += len(want)
	}
	if found < 2000 {
		t.Errorf("%d candidates in 2,000 nodes", found)
	}
}
