// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// read starts a session of the fake library, and reads until the condition holds.
func read(t *testing.T, s *fake.Scenario, old bool, good func(*model.GPU) bool) model.GPU {
	t.Helper()
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	session := started(t, nvmltest.Library(t, old), 100*time.Millisecond)
	defer session.End()
	var g model.GPU
	nvmltest.Eventually(t, "the GPU has the values", func() bool {
		snapshot, err := session.Read(t.Context())
		if err != nil || len(snapshot.GPUs) != 1 {
			return false
		}
		g = snapshot.GPUs[0]
		return good(&g)
	})
	return g
}

func started(t testing.TB, library string, interval time.Duration) *Session {
	t.Helper()
	s, err := Open(Start{
		Start: wire.Start{
			Options: wire.Options{Library: library, Sysfs: t.TempDir(), Procfs: t.TempDir(), Interval: interval}, HangLimit: nvmltest.Long,
		},
		Counts: wire.NewXIDs(), Notify: func(error) {}, Logger: zap.NewNop(),
	}, OpenLibrary)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMargins checks the T.Limit temperatures, the instant power, and which function reads the temperature.
func TestMargins(t *testing.T) {
	for name, c := range map[string]struct {
		old            bool
		margin         model.Optional
		called, before string
	}{
		"new library": {false, model.Some(47), "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"},
		"old library": {true, model.Optional{}, "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"},
	} {
		t.Run(name, func(t *testing.T) {
			s := nvmltest.OneGPU(t)
			g := read(t, s, c.old, func(g *model.GPU) bool { return g.TemperatureMarginLimits != nil })
			limits := []model.Figure{{Name: "shutdown", Value: -8}, {Name: "slowdown", Value: -2}, {Name: "memory_max"}, {Name: "gpu_max"}}
			if g.TemperatureMargin != c.margin || !slices.Equal(g.TemperatureMarginLimits, limits) || figure(g.Temperatures, "gpu") != 40 ||
				figure(g.Temperatures, "memory") != 55 || g.Power != model.Some(350) || g.PowerInstant != model.Some(355) {
				t.Errorf("%+v", g)
			}
			calls, err := s.Calls()
			if err != nil {
				t.Fatal(err)
			}
			if f := calls.Functions(); f[c.called] == 0 || f[c.before] != 0 {
				t.Errorf("%s was called %d times, %s %d times", c.called, f[c.called], c.before, f[c.before])
			}
		})
	}
}

// TestTemperatureOfTheDriver: the library has the newer function, but the driver does not support it.
func TestTemperatureOfTheDriver(t *testing.T) {
	for _, code := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_UNKNOWN} {
		s := nvmltest.OneGPU(t)
		s.Fail("0", "nvmlDeviceGetTemperatureV", int(code))
		s.Fail("0", "nvmlDeviceGetMarginTemperature", int(code))
		g := read(t, s, false, func(g *model.GPU) bool { return g.PCIe.Width.Known && figure(g.Temperatures, "gpu") == 40 })
		if g.TemperatureMargin.Known || g.Problems == nil {
			t.Errorf("%v: margin %v, problems %v", code, g.TemperatureMargin, g.Problems)
		}
	}
}

// TestRates checks the rates of GPM over a round, in MiB/s, and on chips without GPM the rates of the driver's samples.
func TestRates(t *testing.T) {
	const mib = 1 << 20
	s := nvmltest.OneGPU(t)
	for id, v := range map[string]int{"gpm.60": 3, "gpm.61": 4, "gpm.100": 5, "gpm.101": 6, "gpm.102": 7, "gpm.103": 8} {
		s.Set("0", id, v)
	}
	g := read(t, s, false, func(g *model.GPU) bool { return g.Rates != nil && g.PCIe.Transmit.Known })
	want := []model.Figure{
		{Name: model.RateNVLinkTransmit, Value: 4 * mib},
		{Name: model.RateNVLinkReceive, Value: 3 * mib},
		{Name: model.RateC2CTransmit, Value: 5 * mib},
		{Name: model.RateC2CReceive, Value: 6 * mib},
		{Name: model.RateC2CTransmitData, Value: 7 * mib},
		{Name: model.RateC2CReceiveData, Value: 8 * mib},
	}
	if !slices.Equal(g.Rates, want) || g.PCIe.Transmit != model.Some(100*mib) || g.PCIe.Receive != model.Some(200*mib) {
		t.Errorf("rates %+v, PCIe %+v", g.Rates, g.PCIe)
	}
	calls, err := s.Calls()
	if err != nil {
		t.Fatal(err)
	}
	if n := calls.Functions()["nvmlDeviceGetPcieThroughput"]; n != 0 {
		t.Errorf("%d samples of 20 ms on a chip with GPM", n)
	}
	s = nvmltest.OneGPU(t)
	s.Unset("0", "gpm.2") // the chip has no GPM
	g = read(t, s, false, func(g *model.GPU) bool { return g.PCIe.Transmit.Known })
	if g.PCIe.Transmit != model.Some(1000e3) || g.PCIe.Receive != model.Some(2000e3) || g.Rates != nil {
		t.Errorf("rates %+v, PCIe %+v", g.Rates, g.PCIe)
	}
}

// TestEarlyGPM: if a driver rejects a request because it does not know some metrics, the next request has fewer
// metrics.
func TestEarlyGPM(t *testing.T) {
	s := nvmltest.OneGPU(t)
	s.Fail(fake.System, "nvmlGpmMetricsGet", int(nvml.ERROR_INVALID_ARGUMENT))
	l, d := opened(t, s, false)
	g := gpm{l: l}
	defer g.close()
	g.read(d, d.GpmSampleGet)
	if r := g.read(d, d.GpmSampleGet); r.engines != nil || len(g.metrics) != len(gpmMetrics)-laterGPMMetrics {
		t.Errorf("%+v, %d metrics", r, len(g.metrics))
	}
	s.Heal(fake.System, "nvmlGpmMetricsGet")
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	nvmltest.Eventually(t, "metrics are reported", func() bool { return figure(g.read(d, d.GpmSampleGet).engines, "sm_active") == 0.5525 })
}

// TestSumOfLinks: a chip with NVLink 5 reports the sum of the bytes and errors of all links.
func TestSumOfLinks(t *testing.T) {
	d := slowDevice()
	have := map[field]uint64{
		{nvml.FI_DEV_NVLINK_LINK_COUNT, 0}:                         2,
		{nvml.FI_DEV_NVLINK_GET_STATE, 0}:                          1,
		{nvml.FI_DEV_NVLINK_GET_STATE, 1}:                          2, // the link sleeps
		{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, allLinks}:            5000,
		{nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, allLinks}:             6000,
		{nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, allLinks}:            7,
		{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0}:         8,
		{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 7 /* not there */}: 9,
	}
	d.GetFieldValuesFunc = fieldsOf(have)
	d.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED }
	var l linkReader
	var r fieldReader
	round := func(slow bool) []model.GPULink { return l.read(d, r.read(d, l.fields(d, slow)), slow) }
	first := round(true)
	want := []model.GPULink{
		{Kind: model.NVLink, Number: 0, Up: model.Some(1)},
		{Kind: model.NVLink, Number: 1, Up: model.Some(1)},
		{
			Kind: model.NVLink, Number: model.AllLinks, Transmit: model.Some(5000), Receive: model.Some(6000),
			Errors: []model.Counter{{Name: "receive", Value: 7}},
		},
	}
	if !reflect.DeepEqual(first, want) || !slices.Equal(l.totals, []model.Counter{{Name: "crc_flit", Value: 8}}) {
		t.Errorf("%+v, totals %+v", first, l.totals)
	}
	have[field{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, allLinks}] = 5001
	have[field{nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, allLinks}] = 9
	have[field{nvml.FI_DEV_NVLINK_GET_STATE, 0}] = 0
	want[0].Up, want[2].Transmit = model.Some(0), model.Some(5001)
	if got := round(false); !reflect.DeepEqual(got, want) {
		t.Errorf("in a round that is not slow, errors are as of the last slow one: %+v", got)
	}
	want[2].Errors = []model.Counter{{Name: "receive", Value: 9}}
	if got := round(true); !reflect.DeepEqual(got, want) {
		t.Errorf("in the next slow round: %+v", got)
	}
}

// TestPayload checks the rate of all links: the difference of two rounds divided by the time between them.
func TestPayload(t *testing.T) {
	var l linkReader
	start := time.Unix(1000, 0)
	at := func(seconds int, sent, received uint64) model.Optional {
		d := slowDevice()
		d.GetFieldValuesFunc = fieldsOf(map[field]uint64{
			{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks}: sent, {nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks}: received,
		})
		values := new(fieldReader).read(d, []field{
			{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks}, {nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks},
		})
		return l.rate(values, start.Add(time.Duration(seconds)*time.Second))
	}
	for i, c := range []struct {
		seconds        int
		sent, received uint64
		want           model.Optional
	}{
		{0, 100, 50, model.Optional{}}, // the first round
		{5, 100, 60, model.Some(10 * 1024 / 5)},
		{10, 100, 60, model.Some(0)},
		{15, 1, 1, model.Optional{}}, // the driver was reset
		{17, 2, 2, model.Some(1024)},
	} {
		if got := at(c.seconds, c.sent, c.received); got != c.want {
			t.Errorf("reading %d: %v, want %v", i, got, c.want)
		}
	}
	if got := l.rate(nil, start.Add(20*time.Second)); got.Known {
		t.Errorf("without a counter: %v", got)
	}
	if got := at(25, 9, 9); got.Known {
		t.Errorf("after a gap: %v", got)
	}
}

// TestUnsupportedFields: the next slow round is the first to ask again for an unsupported field.
func TestUnsupportedFields(t *testing.T) {
	d, asked := slowDevice(), 0
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		asked += len(values)
		return fieldsOf(map[field]uint64{{1, 0}: 5})(values)
	}
	var r fieldReader
	for i, want := range []int{3, 1, 1, 3} {
		asked = 0
		if i == 3 {
			r.retry()
		}
		if v := r.read(d, []field{{1, 0}, {2, 0}, {1, 1}}); asked != want || len(v) != 1 {
			t.Errorf("read %d: %d fields were asked for, want %d: %v", i, asked, want, v)
		}
	}
}
