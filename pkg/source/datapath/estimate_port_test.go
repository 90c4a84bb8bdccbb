// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/attribution/traffic"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// fakePort is a FAKE port that sends what the processes of a job post. Every ten seconds its counter is read, and the bytes are
// attributed.
type fakePort struct {
	job      *estimatedJob
	ledger   traffic.Ledger
	counters attribution.Counters
	owners   identity.Table
	next     time.Duration
	// sent and credited are what each process sent at the last scrape, and what was credited to it.
	sent, credited map[model.CgroupID]uint64
	// expected is what each process sent in the intervals whose bytes were split, split the sum of what was credited,
	// possible what all sent since observations suffice.
	expected        map[model.CgroupID]uint64
	split, possible uint64
}

const (
	scrapeInterval = 10 * time.Second
	bytesPerPost   = 10 // of testdata/load.c
)

func newFakePort(j *estimatedJob) *fakePort {
	return &fakePort{
		job: j, next: scrapeInterval,
		sent: map[model.CgroupID]uint64{}, credited: map[model.CgroupID]uint64{}, expected: map[model.CgroupID]uint64{},
	}
}

// scrape reads the port if it is time.
func (p *fakePort) scrape(b *testing.B, elapsed time.Duration) {
	b.Helper()
	if elapsed < p.next {
		return
	}
	p.next += scrapeInterval
	names := map[model.CgroupID]identitytest.Entity{}
	facts := model.Snapshot{Objects: []model.Objects{}, Created: []model.Series[model.ObjectKey, model.Count]{}}
	moved := map[model.CgroupID]uint64{}
	var counter, all, held uint64
	for id, f := range p.job.fakes {
		sent := f.posted() * bytesPerPost
		counter += sent
		moved[id], p.sent[id] = sent-p.sent[id], sent
		all += moved[id]
		name := fmt.Sprint("c", id)
		names[id] = identitytest.Entity{Workload: "ns/" + name, Namespace: "ns", Pod: name, Container: "c", ContainerID: name, Cgroup: "/" + name}
		for _, typ := range []model.ObjectType{model.Context, model.QP} {
			facts.Objects = append(facts.Objects, model.Objects{Cgroup: id, Device: "fake0", Type: typ, Current: toInt[uint64](!f.over)})
			facts.Created = append(facts.Created, model.Series[model.ObjectKey, model.Count]{
				Cgroup: id, Key: model.ObjectKey{Device: "fake0", Type: typ}, Value: 1,
			})
		}
		held += toInt[uint64](!f.over)
	}
	facts.Traffic = p.job.source.snapshot(b).Traffic
	facts.HCAs = []model.HCA{{Name: "fake0", Ports: []model.Port{{
		Number: 1, LinkLayer: "Ethernet", HWCounters: []model.Counter{{Name: "tx_bytes", Value: counter}},
	}}}}
	facts.Resources = []model.Resource{
		{Device: "fake0", Type: model.QP, Count: held + 1}, {Device: "fake0", Type: model.Context, Count: held},
	}
	merges := p.owners.Resolve(identitytest.Facts(names), nil)
	p.counters.Credit(&facts, &p.owners, merges)
	a := attribution.Attribute(&facts, &p.owners, &p.counters, func(a *attribution.Attribution) {
		p.ledger.Settle(&facts, a, &p.owners, time.Now())
		a.Traffic = p.ledger.Shares(a.Use)
	})
	credited := map[string]uint64{}
	var sum, split uint64
	for _, s := range a.Traffic {
		if s.Direction != model.Transmit || s.Sampled {
			continue
		}
		sum += s.Bytes
		if s.Method == model.MethodSampled {
			credited[a.Owners[s.Owner].ContainerID] = s.Bytes
			split += s.Bytes
		}
	}
	if sum != counter {
		b.Errorf("the shares are %d, the port sent %d", sum, counter)
	}
	if p.next > 4*scrapeInterval {
		p.possible += all
	}
	if split > p.split {
		for id, n := range moved {
			p.expected[id] += n
			p.credited[id] = credited[fmt.Sprint("c", id)]
		}
	}
	p.split = split
}

func (p *fakePort) report(b *testing.B) {
	b.Helper()
	worst := 0.0
	for id, n := range p.expected {
		if n > 0 {
			if e := float64(p.credited[id])/float64(n) - 1; math.Abs(e) > math.Abs(worst) {
				worst = e
			}
		}
	}
	if len(p.job.fakes) == 1 {
		return // the port has an exclusive owner
	}
	b.ReportMetric(100*worst, "split-error-%")
	b.ReportMetric(100*float64(p.split)/max(float64(p.possible), 1), "split-%")
}
