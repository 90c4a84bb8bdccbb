// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// mocked returns a library with mocks of go-nvml's Go interface. Tests with it do not show the results of a real
// libnvidia-ml.so.1.
func mocked(i nvml.Interface) *Library {
	return &Library{Interface: i, Has: func(string) bool { return true }}
}

// lists returns a fake device with these lists and samples; nil means not supported.
func lists(compute, graphics, mps []nvml.ProcessInfo, samples func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return)) *mock.Device {
	answer := func(l []nvml.ProcessInfo) func() ([]nvml.ProcessInfo, nvml.Return) {
		return func() ([]nvml.ProcessInfo, nvml.Return) {
			if l == nil {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			return l, nvml.SUCCESS
		}
	}
	if samples == nil {
		samples = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	}
	return nvmltest.Missing(&mock.Device{
		GetComputeRunningProcessesFunc:    answer(compute),
		GetGraphicsRunningProcessesFunc:   answer(graphics),
		GetMPSComputeRunningProcessesFunc: answer(mps),
		GetProcessUtilizationFunc:         samples,
	})
}

func whole(pid uint32, memory uint64) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: memory, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
}

func TestListsAreMerged(t *testing.T) {
	d := lists(
		[]nvml.ProcessInfo{whole(30, 1000), whole(10, math.MaxUint64), whole(0, 5)},
		[]nvml.ProcessInfo{whole(30, 1000), whole(20, 0), whole(10, 77)},
		[]nvml.ProcessInfo{whole(30, 900), whole(40, math.MaxUint64)}, nil)
	s := newSampler(mocked(nil), "")
	got, engines, err := s.list(d, "GPU-1", nil, time.Now())
	want := []model.GPUProcess{
		{GPU: "GPU-1", PID: 10, Memory: model.Some(77)},
		{GPU: "GPU-1", PID: 20, Memory: model.Some(0)},
		{GPU: "GPU-1", PID: 30, Memory: model.Some(1000), MPS: true},
		{GPU: "GPU-1", PID: 40, MPS: true},
	}
	if err != nil || engines != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v\n%+v, want\n%+v", err, engines, got, want)
	}
}

// TestMPS: a client of MPS has no engines, and is not idle: the driver samples the server, as on an H200
// (docs/support-matrix.md).
func TestMPS(t *testing.T) {
	const server, client, other = 10, 20, 30
	samples := func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return []nvml.ProcessUtilizationSample{{Pid: server, TimeStamp: 2, SmUtil: 98}}, nvml.SUCCESS
	}
	listed := []nvml.ProcessInfo{whole(server, 66), whole(client, 4000), whole(other, 1000)}
	s := newSampler(mocked(nil), "")
	s.cursor.stamp = 1
	begin := time.Now()
	if _, _, err := s.list(lists(listed, nil, listed[1:2], samples), "GPU-1", nil, begin); err != nil {
		t.Fatal(err)
	}
	got, _, err := s.list(lists(listed, nil, listed[1:2], samples), "GPU-1", nil, begin.Add(time.Second))
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Engines == nil || got[1].Engines != nil || !got[1].MPS || got[2].Engines == nil || len(got[2].Engines) != 0 {
		t.Errorf("server %+v, client %+v, another process %+v", got[0], got[1], got[2])
	}
}

func TestListFailures(t *testing.T) {
	s := newSampler(mocked(nil), "")
	if got, _, err := s.list(lists(nil, nil, nil, nil), "GPU-1", nil, time.Now()); got != nil || err != nil {
		t.Errorf("no list is supported: %v %v", got, err)
	}
	none := []nvml.ProcessInfo{}
	if got, _, err := s.list(lists(none, nil, nil, nil), "GPU-1", nil, time.Now()); got == nil || len(got) != 0 || err != nil {
		t.Errorf("without processes: %v %v", got, err)
	}
	d := lists(none, none, none, nil)
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	if got, _, err := s.list(d, "GPU-1", nil, time.Now()); got != nil || !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("the GPU is lost: %v %v", got, err)
	}
	old := nvmltest.Missing(&mock.Device{GetComputeRunningProcessesFunc: d.GetComputeRunningProcessesFunc})
	if got, _, err := newSampler(mocked(nil), "").list(old, "GPU-1", nil, time.Now()); got == nil || err != nil {
		t.Errorf("old library: %v %v", got, err)
	}
	many := make([]nvml.ProcessInfo, 3*maxProcesses)
	for i := range many {
		many[i] = whole(uint32(i+1), 1)
	}
	if got, _, _ := s.list(lists(many, nil, nil, nil), "GPU-1", nil, time.Now()); len(got) != maxProcesses {
		t.Errorf("%d processes of %d are kept", len(got), len(many))
	}
}

func TestParts(t *testing.T) {
	of := func(pid, gpu, compute uint32) nvml.ProcessInfo {
		return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: 9, GpuInstanceId: gpu, ComputeInstanceId: compute}
	}
	handles := [...]*mock.Device{
		lists([]nvml.ProcessInfo{whole(1, 9)}, nil, nil, nil),
		lists([]nvml.ProcessInfo{whole(2, 9), whole(4, 9)}, nil, nil, nil),
		lists([]nvml.ProcessInfo{whole(3, 9)}, nil, nil, nil),
	}
	parts := []part{
		{handle: handles[0], uuid: "MIG-a", gpuInstance: 3, computeInstance: 0},
		{handle: handles[1], uuid: "MIG-b", gpuInstance: 3, computeInstance: 1},
		{handle: handles[2], uuid: "MIG-c", gpuInstance: 7, computeInstance: 0},
	}
	samples := func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		t.Error("MIG has no samples")
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	for _, c := range []struct {
		name    string
		compute []nvml.ProcessInfo
		handles bool // the part handles are used
		want    []user
	}{
		{
			"by instance",
			[]nvml.ProcessInfo{of(1, 3, 0), of(2, 3, 1), of(3, 7, 0), of(1, 7, 0)},
			false,
			[]user{{"MIG-a", 1}, {"MIG-b", 2}, {"MIG-c", 1}, {"MIG-c", 3}},
		},
		{
			"the only one of its GPU instance",
			[]nvml.ProcessInfo{of(1, 3, 0), of(3, 7, noInstance)},
			false,
			[]user{{"MIG-a", 1}, {"MIG-c", 3}},
		},
		{
			"one of two of its GPU instance",
			[]nvml.ProcessInfo{of(2, 3, noInstance)},
			true,
			[]user{{"MIG-a", 1}, {"MIG-b", 2}, {"MIG-b", 4}, {"MIG-c", 3}},
		},
		{
			"no instances are reported",
			[]nvml.ProcessInfo{whole(1, 9), whole(2, 9)},
			true,
			[]user{{"MIG-a", 1}, {"MIG-b", 2}, {"MIG-b", 4}, {"MIG-c", 3}},
		},
		{
			"an instance that is gone",
			[]nvml.ProcessInfo{of(8, 12, 0)},
			true,
			[]user{{"MIG-a", 1}, {"MIG-b", 2}, {"MIG-b", 4}, {"MIG-c", 3}},
		},
		{
			"no permission", nil, true,
			[]user{{"MIG-a", 1}, {"MIG-b", 2}, {"MIG-b", 4}, {"MIG-c", 3}},
		},
		{"no processes", []nvml.ProcessInfo{}, false, []user{}},
	} {
		before := len(handles[0].GetComputeRunningProcessesCalls())
		d := lists(c.compute, nil, nil, samples)
		got, _, err := newSampler(mocked(nil), "").list(d, "GPU-1", parts, time.Now())
		users := []user{}
		for _, p := range got {
			users = append(users, user{p.GPU, p.PID})
			if p.Engines != nil || p.Memory != model.Some(9) {
				t.Errorf("%s: %+v", c.name, p)
			}
		}
		if err != nil || !slices.Equal(users, c.want) {
			t.Errorf("%s: %v %v, want %v", c.name, err, users, c.want)
		}
		if asked := len(handles[0].GetComputeRunningProcessesCalls()) > before; asked != c.handles {
			t.Errorf("%s: parts asked: %v", c.name, asked)
		}
	}
}

// TestEnginesOfProcesses: usage is known from the second listing on, and a process without samples was idle. The driver
// sets the cursor.
func TestEnginesOfProcesses(t *testing.T) {
	now := time.Now()
	var asked []uint64
	ret := nvml.SUCCESS
	d := lists([]nvml.ProcessInfo{whole(1, 9), whole(2, 9)}, nil, nil,
		func(after uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			asked = append(asked, after)
			at := uint64(now.UnixMicro()) + uint64(len(asked))
			return []nvml.ProcessUtilizationSample{{Pid: 1, TimeStamp: at, SmUtil: 40, MemUtil: 30, EncUtil: 20, DecUtil: 10}}, ret
		})
	s := newSampler(mocked(nil), "")
	list := func() []model.GPUProcess {
		processes, _, err := s.list(d, "GPU-1", nil, now)
		if err != nil || len(processes) != 2 {
			t.Fatal(processes, err)
		}
		return processes
	}
	if p := list(); p[0].Engines != nil {
		t.Errorf("at the first read: %v", p)
	}
	p := list()
	want := []model.Figure{{Name: "sm", Value: 0.4}, {Name: "memory", Value: 0.3}, {Name: "encoder", Value: 0.2}, {Name: "decoder", Value: 0.1}}
	if !reflect.DeepEqual(p[0].Engines, want) || p[1].Engines == nil || len(p[1].Engines) != 0 {
		t.Errorf("%v and %v", p[0].Engines, p[1].Engines)
	}
	if first := uint64(now.UnixMicro()) + 1; !slices.Equal(asked, []uint64{0, first}) {
		t.Errorf("requested samples after %v, want 0 and %d", asked, first)
	}
	if ret = nvml.ERROR_NOT_FOUND; list()[0].Engines == nil {
		t.Error("without samples all processes must be idle")
	}
	if ret = nvml.ERROR_NOT_SUPPORTED; list()[0].Engines != nil {
		t.Error("engines that are not supported")
	}
	// go-nvml slices its buffer beyond its end if the driver adds samples between its calls.
	d.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		n := 2
		return make([]nvml.ProcessUtilizationSample, 1)[:n], nvml.ERROR_INSUFFICIENT_SIZE
	}
	if list()[0].Engines != nil {
		t.Error("engines from a call that failed")
	}
}

// TestEnginesOfDevices checks the mean of the samples since the previous read, else the newest value, and GPM from the
// second read on.
func TestEnginesOfDevices(t *testing.T) {
	value := func(n uint32) (v [8]byte) {
		binary.NativeEndian.PutUint32(v[:], n)
		return v
	}
	var got, freed int
	samples := [2]*mock.GpmSample{{}, {}}
	reads, taken := 0, map[nvml.GpmSample]int{} // when the samples were taken
	library := mocked(&mock.Interface{
		GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) { got++; return samples[got-1], nvml.SUCCESS },
		GpmSampleFreeFunc:  func(nvml.GpmSample) nvml.Return { freed++; return nvml.SUCCESS },
		GpmMetricsGetFunc: func(g *nvml.GpmMetricsGetType) nvml.Return {
			if taken[g.Sample1] != reads-1 || taken[g.Sample2] != reads {
				t.Errorf("read %d compares the samples %d and %d", reads, taken[g.Sample1], taken[g.Sample2])
			}
			for i := range g.NumMetrics {
				m := &g.Metrics[i]
				switch nvml.GpmMetricId(m.MetricId) {
				case nvml.GPM_METRIC_SM_UTIL:
					m.Value = 62.5
				case nvml.GPM_METRIC_ANY_TENSOR_UTIL:
					m.Value = math.NaN()
				case nvml.GPM_METRIC_DRAM_BW_UTIL:
					m.Value = 100.4
				default:
					m.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				}
			}
			return nvml.SUCCESS
		},
	})
	at := uint64(1000)
	d := &mock.Device{
		GetSamplesFunc: func(kind nvml.SamplingType, after uint64) (nvml.ValueType, []nvml.Sample, nvml.Return) {
			switch kind {
			case nvml.GPU_UTILIZATION_SAMPLES: // a sample before the cursor, and an unwritten element
				return nvml.VALUE_TYPE_UNSIGNED_INT, []nvml.Sample{
					{TimeStamp: after, SampleValue: value(100)},
					{TimeStamp: at + 1, SampleValue: value(20)},
					{TimeStamp: at + 2, SampleValue: value(40)},
					{},
				}, nvml.SUCCESS
			case nvml.ENC_UTILIZATION_SAMPLES:
				return nvml.VALUE_TYPE_UNSIGNED_INT, nil, nvml.ERROR_NOT_FOUND
			}
			return 0, nil, nvml.ERROR_NOT_SUPPORTED
		},
		GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{Gpu: 77, Memory: 55}, nvml.SUCCESS
		},
		GetEncoderUtilizationFunc: func() (uint32, uint32, nvml.Return) { return 0, 0, nvml.SUCCESS },
		GetDecoderUtilizationFunc: func() (uint32, uint32, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetOfaUtilizationFunc:     func() (uint32, uint32, nvml.Return) { return math.MaxUint32, 0, nvml.SUCCESS },
		GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) { return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS },
		GpmSampleGetFunc: func(g nvml.GpmSample) nvml.Return {
			reads++
			taken[g] = reads
			return nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST },
	}
	nvmltest.Missing(d)
	s := newSampler(library, "")
	bounded := func(engines []model.Figure) []model.Figure {
		g := model.GPU{Engines: engines}
		g.Bound()
		if want := []model.DroppedValue{{Value: "engine", Text: "ofa 4.29497e+07"}}; !reflect.DeepEqual(g.Dropped, want) {
			t.Errorf("left out: %v, want %v", g.Dropped, want)
		}
		return g.Engines
	}
	_, first, _ := s.list(d, "GPU-1", nil, time.Now())
	first = bounded(first)
	if want := []model.Figure{{Name: "sm", Value: 0.77}, {Name: "memory", Value: 0.55}, {Name: "encoder", Value: 0}}; !reflect.DeepEqual(first, want) {
		t.Errorf("first %v, want %v", first, want)
	}
	at += 100
	_, second, _ := s.list(d, "GPU-1", nil, time.Now())
	second = bounded(second)
	if want := []model.Figure{
		{Name: "sm", Value: 0.3},
		{Name: "memory", Value: 0.55},
		{Name: "encoder", Value: 0},
		{Name: "sm_active", Value: 0.625},
		{Name: "dram_active", Value: 1},
	}; !reflect.DeepEqual(second, want) {
		t.Errorf("then %v, want %v", second, want)
	}
	s.list(d, "GPU-1", nil, time.Now())
	if s.close(); got != 2 || freed != 2 || reads != 3 {
		t.Errorf("%d states of GPM were made and %d freed", got, freed)
	}
}

// TestEnginesOfParts checks GPM of parts that do not share their GPU instance. The samples of a part are freed when the
// part ends.
func TestEnginesOfParts(t *testing.T) {
	made, freed := 0, 0
	instance := map[nvml.GpmSample]int{}
	s := newSampler(mocked(&mock.Interface{
		GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) { made++; return &mock.GpmSample{}, nvml.SUCCESS },
		GpmSampleFreeFunc:  func(nvml.GpmSample) nvml.Return { freed++; return nvml.SUCCESS },
		GpmMetricsGetFunc: func(g *nvml.GpmMetricsGetType) nvml.Return {
			for i := range g.NumMetrics {
				g.Metrics[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			}
			g.Metrics[0].NvmlReturn, g.Metrics[0].Value = uint32(nvml.SUCCESS), float64(instance[g.Sample2])
			if instance[g.Sample1] != instance[g.Sample2] {
				t.Error("two instances are compared")
			}
			return nvml.SUCCESS
		},
	}), "")
	d := &mock.Device{
		GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) { return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS },
		GpmMigSampleGetFunc: func(gi int, g nvml.GpmSample) nvml.Return {
			instance[g] = gi
			return nvml.SUCCESS
		},
	}
	parts := []part{
		{uuid: "MIG-a", gpuInstance: 10},
		{uuid: "MIG-b", gpuInstance: 20},
		{uuid: "MIG-c", gpuInstance: 30, computeInstance: 0},
		{uuid: "MIG-d", gpuInstance: 30, computeInstance: 1},
		{uuid: "MIG-e", gpuInstance: -1},
	}
	s.engines(d, parts)
	got := s.engines(d, parts)
	want := map[string][]model.Figure{
		"MIG-a": {{Name: "gr_active", Value: 0.1}}, "MIG-b": {{Name: "gr_active", Value: 0.2}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s.engines(d, parts[1:]); made != 4 || freed != 2 {
		t.Errorf("%d states were made and %d freed when a part went", made, freed)
	}
	if s.close(); freed != made {
		t.Errorf("%d states of %d were freed", freed, made)
	}
}
