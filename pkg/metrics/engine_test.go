// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// value finds a series by its name and some of its labels.
func value(families []*dto.MetricFamily, name string, labels ...string) (float64, bool) {
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.Metric {
			for _, want := range labels {
				k, v, _ := strings.Cut(want, "=")
				for _, l := range m.Label {
					if l.GetName() == k && l.GetValue() != v {
						continue series
					}
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue(), true
		}
	}
	return 0, false
}

func mustGather(t *testing.T, c collector) []*dto.MetricFamily {
	t.Helper()
	f, err := c.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRefreshIsSharedAndReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fake{name: "rdma", read: func(context.Context) (model.Snapshot, error) {
			time.Sleep(100 * time.Millisecond)
			return nodeHCAs(), nil
		}}
		c := newCollector(setup{Sources: []engine.Registration{{Source: slow}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		var wg sync.WaitGroup
		var got [50][]*dto.MetricFamily
		for i := range got {
			wg.Go(func() { got[i] = mustGather(t, c) })
		}
		wg.Wait()
		for i := range got {
			if &got[i][0] != &got[0][0] {
				t.Errorf("scrape %d got another refresh", i)
			}
		}
		time.Sleep(999 * time.Millisecond)
		mustGather(t, c)
		if n := slow.count(); n != 1 {
			t.Errorf("read %d times within the second, want once", n)
		}
		time.Sleep(time.Millisecond)
		mustGather(t, c)
		if n := slow.count(); n != 2 {
			t.Errorf("read %d times after the second, want twice", n)
		}
	})
}

func TestStuckSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := &fake{name: "rdma", read: hangs(release)}
		sources := node()
		sources[0] = engine.Registration{Source: stuck, Deadline: 500 * time.Millisecond}
		c := newCollector(setup{Sources: sources})

		start := time.Now()
		families := mustGather(t, c)
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("the first scrape took %s, want the deadline", took)
		}
		if v, _ := value(families, "accelscope_source_state", "source=rdma", "state=stuck"); v != 1 {
			t.Error("the source is not stuck")
		}
		if _, ok := value(families, "container_rdma_verbs_total"); !ok {
			t.Error("the other sources' series are missing")
		}
		for range 20 {
			time.Sleep(time.Second)
			start = time.Now()
			mustGather(t, c)
			if took := time.Since(start); took != 0 {
				t.Errorf("a later scrape waited %s for the stuck source", took)
			}
		}
		if n := stuck.count(); n != 1 {
			t.Errorf("%d reads hang, want one", n)
		}
		// Close does not wait longer than a scrape does.
		if err := c.Close(); !errors.Is(err, engine.ErrStuck) {
			t.Errorf("Close: %v, want %v", err, engine.ErrStuck)
		}
		close(release)
	})
}

func TestStuckSourceRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		late := &fake{name: "rdma", read: func(context.Context) (model.Snapshot, error) {
			if reads.Add(1) == 1 {
				time.Sleep(10 * time.Second)
			}
			return nodeHCAs(), nil
		}}
		c := newCollector(setup{Sources: []engine.Registration{{Source: late}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		mustGather(t, c)
		time.Sleep(15 * time.Second)
		if v, ok := value(mustGather(t, c), "rdma_resources", "type=qp"); !ok || v != 12 {
			t.Errorf("rdma_resources = %v, %v after the source came back", v, ok)
		}
	})
}

func TestPoliteSourceKeepsItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polite := &fake{name: "rdma", read: func(ctx context.Context) (model.Snapshot, error) {
			<-ctx.Done()
			return nodeHCAs(), ctx.Err()
		}}
		c := newCollector(setup{Sources: []engine.Registration{{Source: polite}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		families := mustGather(t, c)
		if v, _ := value(families, "accelscope_source_state", "state=failed"); v != 1 {
			t.Error("the source has not failed")
		}
		if _, ok := value(families, "rdma_resources"); !ok {
			t.Error("what it had read is missing")
		}
	})
}

func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := observer.New(zapcore.InfoLevel)
		sources := node()
		sources[0].Source = &fake{name: "rdma", read: func(context.Context) (model.Snapshot, error) { panic("boom") }}
		sources[2].Source = &fakeNames{
			fake:    fake{name: "cgroup", facts: cgroupFacts()},
			resolve: func(context.Context, []model.CgroupID) (model.Snapshot, error) { panic("bang") },
		}
		c := newCollector(setup{Sources: sources, Logger: zap.New(log)})
		defer c.Close() //nolint:errcheck // nothing to lose
		families := mustGather(t, c)
		for _, source := range []string{"rdma", "cgroup"} {
			if v, _ := value(families, "accelscope_source_state", "source="+source, "state=failed"); v != 1 {
				t.Errorf("%s is not reported as failed", source)
			}
		}
		if v, _ := value(families, "container_rdma_objects_created_total", "workload=", "type=qp"); v != 15 {
			t.Errorf("%v QPs without names, want all 15", v)
		}
		if n := logged.FilterMessageSnippet("panic in").Len(); n != 2 {
			t.Errorf("%d panics logged, want 2", n)
		}
	})
}

func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := observer.New(zapcore.InfoLevel)
		failing := errors.New("no such device")
		rdma := &fake{name: "rdma"}
		rdma.read = func(context.Context) (model.Snapshot, error) {
			if rdma.count() == 3 {
				return model.Snapshot{}, failing
			}
			return nodeHCAs(), nil
		}
		c := newCollector(setup{Logger: zap.New(log), Sources: []engine.Registration{
			{Source: rdma},
			{Source: &fake{name: "probe"}, Err: fmt.Errorf("old kernel: %w", model.ErrUnsupported)},
			{Source: &fake{name: "cgroup", err: fmt.Errorf("no file system: %w", model.ErrAbsent)}},
		}})
		defer c.Close() //nolint:errcheck // nothing to lose
		want := []model.SourceState{
			{Source: "rdma", State: model.StateOK},
			{Source: "probe", State: model.StateUnsupported, Reason: "old kernel: unsupported", Err: model.ErrUnsupported, Age: -1},
			{Source: "cgroup", State: model.StateAbsent, Reason: "no file system: absent", Err: model.ErrAbsent},
		}
		if d := cmp.Diff(want, c.states(), cmpopts.EquateErrors()); d != "" {
			t.Error(d)
		}
		for range 4 {
			time.Sleep(time.Second)
			mustGather(t, c)
		}
		var changes []string
		for _, e := range logged.All() {
			changes = append(changes, fmt.Sprint(e.ContextMap()["source"], " ", e.ContextMap()["state"]))
		}
		wantChanges := []string{"rdma ok", "probe unsupported", "cgroup absent", "rdma failed", "rdma ok"}
		if d := cmp.Diff(wantChanges, changes); d != "" {
			t.Errorf("each change of state is logged once:\n%s", d)
		}
	})
}

func TestBackgroundSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fake{name: "slow", read: func(context.Context) (model.Snapshot, error) {
			time.Sleep(time.Second)
			return nodeHCAs(), nil
		}}
		c := newCollector(setup{Sources: []engine.Registration{{Source: slow, Interval: time.Minute}}})
		if _, ok := value(mustGather(t, c), "rdma_resources"); !ok {
			t.Error("the first scrape did not wait for the first reading")
		}
		time.Sleep(30 * time.Second)
		families := mustGather(t, c)
		if v, _ := value(families, "accelscope_source_age_seconds"); v != 30 {
			t.Errorf("age %v s, want 30", v)
		}
		time.Sleep(60 * time.Second)
		if n := slow.count(); n != 2 {
			t.Errorf("read %d times in 91 s at an interval of a minute, want 2", n)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		before := slow.count()
		time.Sleep(5 * time.Minute)
		if slow.count() != before || slow.closed != 1 {
			t.Errorf("after Close: %d more reads, closed %d times", slow.count()-before, slow.closed)
		}
	})
}

// TestNamesHoldWhileTheResolverIsStuck checks that a late name does not move values to the unattributed share and back.
func TestNamesHoldWhileTheResolverIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		late := names(nodeNames())
		table := late.resolve
		var asked atomic.Int32
		late.resolve = func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
			if asked.Add(1) > 1 {
				<-release
			}
			return table(ctx, ids)
		}
		sources := node()
		sources[2].Source = late
		c := newCollector(setup{Sources: sources})
		before := mustGather(t, c)
		time.Sleep(time.Second)
		after := mustGather(t, c)
		if v, _ := value(after, "accelscope_source_state", "source=cgroup", "state=stuck"); v != 1 {
			t.Error("the resolver is not reported as stuck")
		}
		compareShares(t, before, after)
		time.Sleep(time.Second)
		compareShares(t, before, mustGather(t, c))
		if n := asked.Load(); n != 2 {
			t.Errorf("called %d times, want 2 with one that hangs", n)
		}
		close(release)
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func compareShares(t *testing.T, before, after []*dto.MetricFamily) {
	t.Helper()
	for _, workload := range []string{"workload=ml/train-0/main", "workload=slurm:42", "workload="} {
		a, _ := value(before, "container_rdma_resources", workload, "type=qp")
		b, ok := value(after, "container_rdma_resources", workload, "type=qp")
		if !ok || a != b {
			t.Errorf("%s: %v QPs, then %v", workload, a, b)
		}
	}
}

// TestForget checks the order of Forget (source.go): after the refresh, first the sources that count, then the sources
// that name, and no cgroup in use.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var calls []string
		note := func(source string) func([]model.CgroupID) {
			return func(ids []model.CgroupID) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, fmt.Sprint(source, ids))
			}
		}
		counting := &fakeForgetter{fake: fake{name: "probe", facts: probeFacts()}, onForget: note("counters")}
		namer := names(nodeNames())
		namer.onForget = note("names")
		table := namer.resolve
		var expired []model.CgroupID
		namer.resolve = func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
			s, err := table(ctx, ids)
			s.Expired = expired
			return s, err
		}
		c := newCollector(setup{Sources: []engine.Registration{{Source: namer}, {Source: counting}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		hold := func(id, objects, bytes uint64) {
			s := counting.facts
			s.Objects = slices.Clone(s.Objects)
			for i := range s.Objects {
				if s.Objects[i].Cgroup == model.CgroupID(id) {
					s.Objects[i].Current = objects
				}
			}
			s.Registered = []model.Registered{{Cgroup: model.CgroupID(id), Device: "mlx5_0", Memory: model.HostMemory, Bytes: bytes}}
			counting.facts = s
		}
		for _, step := range []struct {
			what    string
			prepare func()
			want    []string
		}{
			{"nothing expired", func() {}, nil},
			{"still holds objects", func() { hold(101, 1, 0); expired = []model.CgroupID{101} }, nil},
			{"still holds memory", func() { hold(101, 0, 1) }, nil},
			{"holds nothing", func() { hold(101, 0, 0) }, []string{"counters[101]", "names[101]"}},
			{
				"no name was ever known", func() { hold(999, 0, 0); expired = []model.CgroupID{999} },
				[]string{"counters[999]", "names[999]"},
			},
		} {
			step.prepare()
			calls = nil
			time.Sleep(time.Second)
			mustGather(t, c)
			if d := cmp.Diff(step.want, calls, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s:\n%s", step.what, d)
			}
		}
	})
}

// TestTotalsDoNotFall checks that the counts of a cgroup stay with its owner when the cgroup gets a name and when it is
// forgotten.
func TestTotalsDoNotFall(t *testing.T) {
	job := func(step int) identitytest.Entity {
		return identitytest.Entity{Workload: "slurm:42", Step: fmt.Sprint(step)}
	}
	for name, tt := range map[string]struct {
		workload string
		first    map[model.CgroupID]identitytest.Entity
	}{
		"unattributed": {"", map[model.CgroupID]identitytest.Entity{}},
		"steps of job": {"slurm:42", map[model.CgroupID]identitytest.Entity{1: job(0), 2: job(1), 3: job(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testTotals(t, tt.workload, tt.first) })
		})
	}
}

func testTotals(t *testing.T, workload string, entities map[model.CgroupID]identitytest.Entity) {
	namer := names(entities)
	table := namer.resolve
	var expired []model.CgroupID
	namer.resolve = func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
		s, err := table(ctx, ids)
		s.Expired = expired
		return s, err
	}
	probe := &fakeForgetter{fake: fake{name: "probe"}, onForget: func([]model.CgroupID) {}}
	set := func(made map[model.CgroupID]uint64) {
		probe.facts = model.Snapshot{
			Objects: []model.Objects{}, Created: []model.Series[model.ObjectKey, model.Count]{},
			Verbs: []model.Series[model.VerbKey, model.Histogram]{}, VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{},
		}
		for id, n := range made {
			probe.facts.Objects = append(probe.facts.Objects, model.Objects{Cgroup: id, Device: "rxe0", Type: model.QP})
			probe.facts.Created = append(probe.facts.Created, created(id, "rxe0", model.QP, n))
			h := model.Histogram{Count: n, Sum: n * 1e9}
			h.Buckets[3] = n
			probe.facts.Verbs = append(probe.facts.Verbs,
				verbs(id, "rxe0", "create_qp", h))
			probe.facts.VerbErrors = append(probe.facts.VerbErrors, verbErrors(id, "rxe0", "create_qp", "ENOMEM", n))
		}
	}
	c := newCollector(setup{Sources: []engine.Registration{{Source: probe}, {Source: namer}}})
	defer c.Close() //nolint:errcheck // nothing to lose
	for _, step := range []struct {
		what    string
		prepare func()
		want    float64 // 0: no series
	}{
		{"two", func() { set(map[model.CgroupID]uint64{1: 5, 2: 3}) }, 8},
		{"one has ended", func() { expired = []model.CgroupID{2} }, 8},
		{"and is seen once more", func() { expired = nil }, 8},
		{"and is gone", func() { set(map[model.CgroupID]uint64{1: 6}) }, 9},
		{"another comes", func() { set(map[model.CgroupID]uint64{1: 6, 3: 1}) }, 10},
		{"the probe does not answer", func() { probe.facts, probe.err = model.Snapshot{}, errors.New("gone") }, 0},
		{"and is back", func() { set(map[model.CgroupID]uint64{1: 6, 3: 2}); probe.err = nil }, 11},
	} {
		step.prepare()
		time.Sleep(time.Second)
		families := mustGather(t, c)
		for _, name := range []string{
			"container_rdma_objects_created_total", "container_rdma_verbs_total", "container_rdma_verbs_errors_total",
		} {
			if v, ok := value(families, name, "workload="+workload); v != step.want || ok != (step.want > 0) {
				t.Errorf("%s: %s is %v, want %v", step.what, name, v, step.want)
			}
		}
	}
	if workload == "" {
		// Counts from before the name was known stay unattributed.
		entities[1] = identitytest.Entity{Workload: "late"}
		for _, late := range []uint64{0, 4} {
			set(map[model.CgroupID]uint64{1: 6 + late, 3: 2})
			time.Sleep(time.Second)
			families := mustGather(t, c)
			if v, _ := value(families, "container_rdma_objects_created_total", "workload="); v != 11 {
				t.Errorf("after a cgroup got its name %v are unattributed, want the 11 counted before", v)
			}
			v, ok := value(families, "container_rdma_objects_created_total", "workload=late")
			if v != float64(late) || !ok {
				t.Errorf("the cgroup with the late name has created %v, want %v", v, late)
			}
		}
		return
	}
	// When all cgroups have ended, no series is left. Cgroup 2 was seen again, so it expires again.
	expired = []model.CgroupID{1, 2, 3}
	time.Sleep(time.Second)
	mustGather(t, c)
	set(nil)
	expired = nil
	time.Sleep(time.Second)
	if v, ok := value(mustGather(t, c), "container_rdma_verbs_total", "workload="+workload); ok {
		t.Errorf("a series of %v is left after its owner has ended", v)
	}
}

// TestTotalsOfSteps checks that a job's totals count each step once while its steps end one after the other, with and
// without counts of objects.
func TestTotalsOfSteps(t *testing.T) {
	for _, objects := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { testSteps(t, objects) })
	}
}

func testSteps(t *testing.T, objects bool) {
	const steps = 12
	entities := map[model.CgroupID]identitytest.Entity{}
	for id := uint64(1); id <= steps; id++ {
		entities[model.CgroupID(id)] = identitytest.Entity{Workload: "slurm:42", Runtime: "slurm"}
	}
	namer := names(entities)
	table := namer.resolve
	var expired []model.CgroupID
	namer.resolve = func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
		s, err := table(ctx, ids)
		s.Expired = expired
		return s, err
	}
	probe := &fakeForgetter{fake: fake{name: "probe"}, onForget: func([]model.CgroupID) {}}
	c := newCollector(setup{Sources: []engine.Registration{{Source: probe}, {Source: namer}}})
	defer c.Close() //nolint:errcheck // nothing to lose
	for gone := range uint64(steps) {
		for _, ended := range []bool{false, true} {
			expired = nil
			if ended {
				expired = []model.CgroupID{model.CgroupID(gone + 1)}
			}
			probe.facts = model.Snapshot{Verbs: []model.Series[model.VerbKey, model.Histogram]{}}
			for id := gone + 1; id <= steps; id++ {
				h := model.Histogram{Count: 1, Sum: 1e9}
				h.Buckets[3] = 1
				probe.facts.Verbs = append(probe.facts.Verbs,
					verbs(model.CgroupID(id), "rxe0", "create_qp", h))
				if objects {
					probe.facts.Objects = append(probe.facts.Objects, model.Objects{Cgroup: model.CgroupID(id), Device: "rxe0", Type: model.QP})
					probe.facts.Created = append(probe.facts.Created, created(model.CgroupID(id), "rxe0", model.QP, 1))
				}
			}
			time.Sleep(time.Second)
			families := mustGather(t, c)
			if v, _ := value(families, "container_rdma_verbs_total", "workload=slurm:42"); v != steps {
				t.Fatalf("after %d steps have ended the job has called %v verbs, want %d", gone, v, steps)
			}
			v, ok := value(families, "container_rdma_objects_created_total", "workload=slurm:42")
			if ok != objects || objects && v != steps {
				t.Fatalf("after %d steps have ended the job has created %v objects, want %d", gone, v, steps)
			}
		}
	}
}

// TestConcurrentScrapes scrapes with 50 clients while a source hangs, a source panics and a source is read in the
// background, for the race detector.
func TestConcurrentScrapes(t *testing.T) {
	release := make(chan struct{})
	well := node()
	for i := range well {
		well[i].Deadline = time.Minute // even a busy machine reads them in every scrape
	}
	sources := append(well,
		engine.Registration{Source: &fake{name: "hangs", read: hangs(release)}, Deadline: 50 * time.Millisecond},
		engine.Registration{Source: &fake{name: "panics", read: func(context.Context) (model.Snapshot, error) { panic("boom") }}},
		engine.Registration{Source: &fake{name: "slow"}, Interval: 5 * time.Millisecond},
	)
	c := newCollector(setup{Sources: sources, Compat: CompatSets(), Reuse: time.Millisecond})
	stop := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				start := time.Now()
				families := mustGather(t, c)
				if took := time.Since(start); took > 20*time.Second { // it waited for the source that hangs
					t.Errorf("a scrape took %s", took)
				}
				if v, _ := value(families, "container_rdma_resources", "workload=slurm:42", "type=qp"); v != 3 {
					t.Errorf("slurm:42 holds %v QPs, want 3", v)
				}
				c.states()
			}
		})
	}
	wg.Wait()
	if err := c.Close(); !errors.Is(err, engine.ErrStuck) {
		t.Errorf("Close: %v, want %v", err, engine.ErrStuck)
	}
	close(release)
}

// TestGatherAfterClose checks that Gather returns the last refresh after Close, and does not read.
func TestGatherAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdma := &fake{name: "rdma", facts: nodeHCAs()}
		c := newCollector(setup{Sources: []engine.Registration{{Source: rdma}}})
		before := mustGather(t, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if after := mustGather(t, c); len(after) != len(before) || rdma.count() != 1 {
			t.Errorf("%d families after %d reads, want %d after one", len(after), rdma.count(), len(before))
		}
	})
}

// TestForgetWaitsForAStuckSource checks that no cgroup is forgotten while a source that counts is stuck: the cgroup may
// have objects.
func TestForgetWaitsForAStuckSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		forgot := 0
		count := func([]model.CgroupID) { forgot++ }
		namer := names(nodeNames())
		namer.onForget = count
		namer.resolve = func(context.Context, []model.CgroupID) (model.Snapshot, error) {
			return model.Snapshot{Expired: []model.CgroupID{101}}, nil
		}
		counting := &fakeForgetter{fake: fake{name: "probe", read: hangs(release)}, onForget: count}
		c := newCollector(setup{Sources: []engine.Registration{{Source: counting}, {Source: namer}}})
		mustGather(t, c)
		if forgot != 0 {
			t.Errorf("forgot %d times while a source was stuck", forgot)
		}
		close(release)
		time.Sleep(time.Second)
		mustGather(t, c)
		if forgot != 2 {
			t.Errorf("forgot %d times afterwards, want both", forgot)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseBeforeTheFirstScrape(t *testing.T) {
	c := newCollector(setup{Sources: node()})
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if families := mustGather(t, c); len(families) != 0 {
		t.Errorf("%d families of closed sources", len(families))
	}
}

// TestRecent checks that Recent does not read if the last refresh is recent enough.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fake{name: "probe", facts: probeFacts()}
		c := newCollector(setup{Sources: []engine.Registration{{Source: src}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		for range 10 {
			if len(c.Recent(10*time.Second).Shares.Verbs) == 0 {
				t.Error("no verbs")
			}
			time.Sleep(time.Second)
		}
		if n := src.count(); n != 1 {
			t.Errorf("%d readings in 10 s", n)
		}
		if c.Recent(10 * time.Second); src.count() != 2 {
			t.Errorf("%d readings after 10 s", src.count())
		}
	})
}

// TestNoAnswerYet checks that a source without an answer is not ok.
func TestNoAnswerYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		slow := &fake{name: "kubelet", read: hangs(release)}
		c := newCollector(setup{Sources: []engine.Registration{{Source: slow, Interval: time.Minute, Deadline: 10 * time.Second}}})
		if s := c.states()[0]; s.State != model.StateStuck || s.Age >= 0 {
			t.Errorf("%+v", s)
		}
		close(release)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if s := c.states()[0]; s.State == model.StateStuck || s.Age < 0 {
			t.Errorf("%+v", s)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRecentAfterClose checks that Recent returns an empty refresh after Close.
func TestRecentAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: []engine.Registration{{Source: &fake{name: "probe", facts: probeFacts()}}}})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if len(c.Recent(time.Second).Shares.Verbs) > 0 {
			t.Error("verbs without a reading")
		}
	})
}
