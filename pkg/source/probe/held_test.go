// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// Objects of a large job on ten HCAs, in a few cgroups.
const (
	heldQPs     = 10_000
	heldMRs     = 200_000
	heldHCAs    = 10
	heldCgroups = 64
)

func heldObject(i int, code uint8) gen.ObjectsObject {
	return gen.ObjectsObject{
		Cgroup: uint64(1 + i%heldCgroups), Device: uint32(i % heldHCAs), Id: uint32(i), Type: code, Numbered: 1, Bytes: 4096,
	}
}

// BenchmarkHeld measures the cost of a large job that holds more objects than fit into the map and replaces memory
// regions all the time: the memory of the process, a refresh, a dump, and the dumps per hour. RDMA netlink is a FAKE.
// The test puts the objects into the maps as the programs do.
func BenchmarkHeld(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	for range b.N {
		s := newUnhooked(b, defaults)
		fillHeld(b, s)
		debug.FreeOSMemory()
		before := residentMB()
		h := &heldNetlink{}
		opts := Options{Logger: zap.NewNop(), Objects: h.objects, ObjectCounts: h.counts, CgroupOf: func(pid int) (model.CgroupID, error) {
			return model.CgroupID(pid), nil
		}}
		peak := 0.0
		h.listed = func() { peak = max(peak, residentMB()) }
		b.ReportMetric(processCPU(b, func() { _ = s.adopt(b.Context(), opts) }).Seconds(), "adoption-CPU-s")
		b.ReportMetric(peak-before, "adoption-MB")
		b.ReportMetric(residentMB()-before, "held-MB")
		const refreshes = 100
		refresh := processCPU(b, func() {
			for range refreshes {
				var snap model.Snapshot
				if err := s.read(&snap, nil, nil); err != nil {
					b.Fatal(err)
				}
				s.self(&snap, &losses{})
				s.compare(b.Context(), opts)
			}
		})
		b.ReportMetric(refresh.Seconds()*1e3/refreshes, "refresh-CPU-ms")
		h.dumps, h.queries = 0, 0
		for range time.Hour / (15 * time.Second) { // an hour of scrapes
			for t, a := range s.adoptions {
				a.at = a.at.Add(-15 * time.Second)
				s.adoptions[t] = a
			}
			s.loseObject(b, mrCode)
			if due := s.dueTypes(time.Now()); len(due) > 0 {
				_ = s.adopt(b.Context(), opts, due...)
			}
		}
		b.ReportMetric(float64(h.dumps)/60, "dumps/min")
		b.ReportMetric(float64(h.queries)/60, "QP-queries/min")
		b.ReportMetric(0, "ns/op")
	}
}

// fillHeld puts the objects into the map until it is full, and counts the others as lost.
func fillHeld(b *testing.B, s *sensor) {
	b.Helper()
	holdings := map[gen.ObjectsHoldingKey]gen.ObjectsHolding{}
	var addresses []uint64
	var values []gen.ObjectsObject
	for i := range heldQPs + heldMRs {
		o := heldObject(i, qpCode)
		if i >= heldQPs {
			o = heldObject(i-heldQPs, mrCode)
		}
		if i >= minMaxObjects {
			s.loseObject(b, mrCode)
			continue
		}
		addresses, values = append(addresses, uint64(1+i)), append(values, o)
		h := holdings[holdingKeyOf(o)]
		h.Current, h.Created, h.Bytes = h.Current+1, h.Created+1, h.Bytes+int64(o.Bytes)
		holdings[holdingKeyOf(o)] = h
	}
	_, err := s.objects.Coll.Maps[gen.ObjectsMapObjects].BatchUpdate(addresses, values, nil)
	for key, h := range holdings {
		err = errors.Join(err, s.objects.Coll.Maps[gen.ObjectsMapHoldings].Put(key, h))
	}
	if err != nil {
		b.Fatal(err)
	}
}

// heldNetlink lists the objects. It counts dumps and the queue pair queries that drivers would make.
type heldNetlink struct {
	dumps, queries int
	listed         func() // called after each dump
}

func (h *heldNetlink) objects(_ context.Context, types ...model.ObjectType) ([]model.Object, error) {
	var found []model.Object
	add := func(n int, code uint8) {
		for i := range n {
			o := heldObject(i, code)
			found = append(found, model.Object{
				Device: "mlx5_0", Index: o.Device, Type: objectType(uint16(code)), ID: o.Id, PID: int(o.Cgroup), Bytes: o.Bytes,
				Memory: model.UnknownMemory,
			})
		}
	}
	for _, t := range types {
		h.dumps += heldHCAs
		switch t {
		case model.QP:
			h.queries += heldQPs
			add(heldQPs, qpCode)
		case model.MR:
			add(heldMRs, mrCode)
		}
	}
	h.listed()
	return found, nil
}

func (h *heldNetlink) counts(context.Context) (map[model.ObjectTable]uint64, error) {
	counts := map[model.ObjectTable]uint64{}
	for i := range uint32(heldHCAs) {
		counts[model.ObjectTable{Index: i, Type: model.QP}] = heldQPs / heldHCAs
		counts[model.ObjectTable{Index: i, Type: model.MR}] = heldMRs / heldHCAs
	}
	return counts, nil
}

func newUnhooked(t testing.TB, opts Options) *sensor {
	t.Helper()
	s := &sensor{opts: opts, reconciler: newReconciler()}
	t.Cleanup(s.close)
	defer hook.Hold()()
	of := opts.specs()
	for object, spec := range map[**hook.Object]hook.Spec{&s.verbs: of.verbs, &s.objects: of.objects, &s.peers: of.peers} {
		var err error
		if *object, _, err = hook.Open(spec, noHooks); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func noHooks(*hook.Object) ([]model.Hook, error) { return nil, nil }

func processCPU(t testing.TB, f func()) time.Duration {
	t.Helper()
	var before, after unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before)
	f()
	if err = errors.Join(err, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after)); err != nil {
		t.Fatal(err)
	}
	return time.Duration(after.Nano() - before.Nano())
}

func residentMB() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys-m.HeapReleased) / 1e6
}
