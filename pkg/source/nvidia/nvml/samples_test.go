// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const sixth = 166_667 // µs between two samples of most chips

// simulation simulates what ran at each sampling instant. It is a fake driver, made from the documentation of
// nvmlDeviceGetProcessUtilization in nvml.h, with both forms of the answer.
type simulation struct {
	rng     *rand.Rand
	means   bool // one record per process, with its mean
	kept    int  // number of samples that the driver keeps
	repeats bool // also returns samples before the cursor, some twice
	rubbish bool // leaves array elements unwritten
	now     uint64
	samples []instant
	running map[uint32]float64 // probability that a process is active
}

type instant struct {
	at   uint64
	uses map[uint32][4]uint32
}

func (d *simulation) run(length time.Duration) {
	for end := d.now + uint64(length.Microseconds()); d.now+sixth <= end; {
		d.now += sixth + uint64(d.rng.IntN(3)) - 1
		s := instant{d.now, map[uint32][4]uint32{}}
		left := [4]int{100, 100, 100, 100}
		for _, pid := range slices.Sorted(maps.Keys(d.running)) {
			if d.rng.Float64() >= d.running[pid] {
				continue
			}
			var u [4]uint32
			for e := range u {
				n := d.rng.IntN(left[e] + 1)
				u[e], left[e] = uint32(n), left[e]-n
			}
			if u != [4]uint32{} { // only active processes have a sample
				s.uses[pid] = u
			}
		}
		d.samples = append(d.samples, s)
	}
	if len(d.samples) > d.kept {
		d.samples = d.samples[len(d.samples)-d.kept:]
	}
}

// answer returns the driver's answer for the samples after a timestamp.
func (d *simulation) answer(after uint64) []nvml.ProcessUtilizationSample {
	var out []nvml.ProcessUtilizationSample
	record := func(pid uint32, at uint64, u [4]uint32) {
		out = append(out, nvml.ProcessUtilizationSample{
			Pid: pid, TimeStamp: at, SmUtil: u[0], MemUtil: u[1], EncUtil: u[2], DecUtil: u[3],
		})
	}
	sums, last, n := map[uint32][4]float64{}, map[uint32]uint64{}, 0.0
	for _, s := range d.samples {
		if s.at > after {
			n++
		} else if d.means || !d.repeats {
			continue
		}
		for pid, u := range s.uses {
			if !d.means {
				record(pid, s.at, u)
				if d.repeats && d.rng.IntN(4) == 0 {
					record(pid, s.at, u)
				}
			}
			sum := sums[pid]
			for e := range u {
				sum[e] += float64(u[e])
			}
			sums[pid], last[pid] = sum, s.at
		}
	}
	if d.means {
		for pid, sum := range sums {
			var u [4]uint32
			for e := range u {
				u[e] = uint32(math.Round(sum[e] / n))
			}
			record(pid, last[pid], u)
		}
	}
	if d.rubbish {
		record(0, 0, [4]uint32{})
		record(0, d.now, [4]uint32{50, 50, 50, 50})
		record(4711, d.now+uint64(time.Hour.Microseconds()), [4]uint32{4_000_000, 7, 7, 7})
	}
	d.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// first returns the timestamp of the oldest sample.
func (d *simulation) first() uint64 {
	return d.samples[slices.IndexFunc(d.samples, func(s instant) bool { return len(s.uses) > 0 })].at
}

// truth returns the true usage in (from, to], as far as the driver keeps it.
func (d *simulation) truth(from, to uint64) map[int]use {
	uses, n := map[int]use{}, 0.0
	for _, s := range d.samples {
		if s.at <= from || s.at > to {
			continue
		}
		n++
		for pid, u := range s.uses {
			sum := uses[int(pid)]
			for e := range u {
				sum[e] += float64(u[e]) / 100
			}
			uses[int(pid)] = sum
		}
	}
	for pid, sum := range uses {
		for e := range sum {
			sum[e] /= n
		}
		uses[pid] = sum
	}
	return uses
}

// TestSharesMatchSimulation compares the cursor's result with the simulated usage, in both forms
// of the answer.
func TestSharesMatchSimulation(t *testing.T) {
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 4))
		d := &simulation{
			rng: rng, means: seed%2 == 0, kept: 72 + rng.IntN(29), repeats: rng.IntN(2) == 0, rubbish: rng.IntN(2) == 0,
			now: uint64(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC).UnixMicro()) + uint64(rng.IntN(1e9)),
		}
		d.running = map[uint32]float64{}
		for pid := range uint32(1 + rng.IntN(12)) {
			d.running[100+pid] = 0.3 + 0.7*rng.Float64()
		}
		d.run(4 * time.Second)
		var c cursor
		if first := c.next(d.answer(0), time.UnixMicro(int64(d.now))); first != nil {
			t.Fatalf("seed %d: the first read has shares of an unknown time: %v", seed, first)
		}
		for read := range 12 {
			length := time.Duration(3+rng.IntN(5)) * time.Second
			if rng.IntN(4) == 0 { // late: the driver has forgotten the older samples
				length = 40 * time.Second
			}
			if rng.IntN(3) == 0 { // one process ends, another starts
				pids := slices.Sorted(maps.Keys(d.running))
				delete(d.running, pids[rng.IntN(len(pids))])
				d.running[1000+uint32(read)] = 0.3 + 0.7*rng.Float64()
			}
			d.run(length)
			from := c.stamp
			now := time.UnixMicro(int64(d.now)).Add(time.Duration(rng.IntN(160)) * time.Millisecond)
			got := c.next(d.answer(from), now)
			to := c.stamp
			switch {
			case d.means:
				to = d.now // the timestamps do not show when a process ran
			case d.samples[0].at > from+sixth+2: // it is unknown what ran before the oldest sample
				from = d.first() - 1
			}
			want := d.truth(from, to)
			if len(got) != len(want) {
				t.Fatalf("seed %d, read %d: %d processes, and %d ran", seed, read, len(got), len(want))
			}
			sum := use{}
			for pid, u := range got {
				for e := range u {
					sum[e] += u[e]
					// The driver's resolution is one percent; its clock is not exact.
					if math.Abs(u[e]-want[pid][e]) > 0.012 || u[e] > 1 || u[e] < 0 {
						t.Errorf("seed %d, read %d, %s of %d: %.4f, and it was %.4f",
							seed, read, sampledEngines[e], pid, u[e], want[pid][e])
					}
				}
			}
			for e := range sum {
				if sum[e] > 1+0.006*float64(len(got)) {
					t.Errorf("seed %d, read %d: the processes used %.3f of %s", seed, read, sum[e], sampledEngines[e])
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// TestCursorPerDevice: two devices have the same samples, and one device is read later. Its window does not depend on
// the other device.
func TestCursorPerDevice(t *testing.T) {
	base := uint64(time.Now().UnixMicro())
	sample := func(at uint64, util uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: 7, TimeStamp: base + at, SmUtil: util}
	}
	now := time.UnixMicro(int64(base + 5e6))
	var a, b cursor
	a.next([]nvml.ProcessUtilizationSample{sample(0, 10)}, now)
	b.next([]nvml.ProcessUtilizationSample{sample(0, 10)}, now)
	a.next([]nvml.ProcessUtilizationSample{sample(4e6, 90)}, now)
	if got := b.next([]nvml.ProcessUtilizationSample{sample(2e6, 30)}, now)[7][0]; got != 0.3 {
		t.Errorf("%v of the second device", got)
	}
}

func TestSeries(t *testing.T) {
	base := uint64(time.Now().UnixMicro())
	now := time.UnixMicro(int64(base + 10e6))
	s := func(pid uint32, at float64, util uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: base + uint64(at*1e6), SmUtil: util}
	}
	var c cursor
	c.next([]nvml.ProcessUtilizationSample{s(1, 0, 5), s(2, 0, 5)}, now)
	// Each sample covers a second. The second process has no first and last sample, and two samples at the instant
	// between.
	got := c.next([]nvml.ProcessUtilizationSample{
		s(1, 3, 60), s(1, 1, 100), s(2, 2, 80), s(2, 2, 80), s(1, 2, 20), s(1, 0, 100),
	}, now)
	if want := (100.0 + 20 + 60) / 300; math.Abs(got[1][0]-want) > 1e-9 {
		t.Errorf("first: %v, want %v", got[1][0], want)
	}
	if want := 80.0 / 300; math.Abs(got[2][0]-want) > 1e-9 {
		t.Errorf("second: %v, want %v", got[2][0], want)
	}
	// No process ran from 3 to 7: the sample stands for one second of five. The cursor knows that these records are
	// samples.
	if got := c.next([]nvml.ProcessUtilizationSample{s(1, 8, 100)}, now)[1][0]; math.Abs(got-0.2) > 1e-9 {
		t.Errorf("after a pause: %v, want 0.2", got)
	}
}

// TestTwoRecords: two records of a process are not added.
func TestTwoRecords(t *testing.T) {
	base := uint64(time.Now().UnixMicro())
	var c cursor
	var got map[int]use
	for read := range uint64(2) {
		at := base + read*5e6
		got = c.next([]nvml.ProcessUtilizationSample{
			{Pid: 7, TimeStamp: at, SmUtil: 80}, {Pid: 7, TimeStamp: at + 1e6, SmUtil: 40},
		}, time.UnixMicro(int64(at)))
	}
	if math.Abs(got[7][0]-0.6) > 1e-9 {
		t.Errorf("%v", got[7][0])
	}
}

// TestIdle: idle time is not part of the next window, it counts as zero usage, and jumps of the clock have no effect.
func TestIdle(t *testing.T) {
	start := time.Now()
	one := func(at time.Time) []nvml.ProcessUtilizationSample {
		return []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: uint64(at.UnixMicro()), SmUtil: 50}}
	}
	var c cursor
	if got := c.next(nil, start); got == nil || len(got) != 0 || c.stamp != 0 {
		t.Errorf("nothing at the first read: %v, cursor %d", got, c.stamp)
	}
	c.next(one(start), start)
	c.next(nil, start.Add(100*time.Millisecond))
	if c.stamp != uint64(start.UnixMicro()) {
		t.Error("the cursor went back to samples that were read")
	}
	c.next(nil, start.Add(time.Minute))
	if want := start.Add(time.Minute - time.Second).UnixMicro(); c.stamp != uint64(want) {
		t.Errorf("cursor %d after an idle minute, want %d", c.stamp, want)
	}
	c.next(nil, start.Add(-time.Hour))
	if c.stamp != 0 {
		t.Error("the clock was set back, and the cursor is ahead of all samples to come")
	}

	var odd cursor // timestamps since boot
	odd.next([]nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: 5e6, SmUtil: 50}}, start)
	odd.next(nil, start)
	if odd.stamp != 0 {
		t.Errorf("cursor %d: the stamps are of another clock", odd.stamp)
	}
}
