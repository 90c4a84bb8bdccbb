// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

func fieldsOf(have map[field]uint64) func([]nvml.FieldValue) nvml.Return {
	return func(values []nvml.FieldValue) nvml.Return {
		for i, v := range values {
			n, ok := have[field{v.FieldId, v.ScopeId}]
			if !ok {
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
			binary.NativeEndian.PutUint64(values[i].Value[:], n)
		}
		return nvml.SUCCESS
	}
}

// slowDevice returns a fake GPU with all supported values.
func slowDevice() *mock.Device {
	return &mock.Device{
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 100, Reserved: 10, Free: 70, Used: 20}, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 100, Free: 70, Used: 30}, nvml.SUCCESS
		},
		GetTotalEnergyConsumptionFunc: func() (uint64, nvml.Return) { return 1500, nvml.SUCCESS },
		GetPcieReplayCounterFunc:      func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetPcieThroughputFunc: func(c nvml.PcieUtilCounter) (uint32, nvml.Return) {
			return map[nvml.PcieUtilCounter]uint32{nvml.PCIE_UTIL_RX_BYTES: 3, nvml.PCIE_UTIL_TX_BYTES: 4}[c], nvml.SUCCESS
		},
		GetTemperatureThresholdFunc: func(k nvml.TemperatureThresholds) (uint32, nvml.Return) {
			switch k {
			case nvml.TEMPERATURE_THRESHOLD_SHUTDOWN:
				return 92, nvml.SUCCESS
			case nvml.TEMPERATURE_THRESHOLD_SLOWDOWN:
				return 89, nvml.SUCCESS
			}
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		GetMemoryErrorCounterFunc: func(
			t nvml.MemoryErrorType, s nvml.EccCounterType, l nvml.MemoryLocation,
		) (uint64, nvml.Return) {
			if l == nvml.MEMORY_LOCATION_SRAM || l == nvml.MEMORY_LOCATION_DRAM {
				return uint64(t)*100 + uint64(s)*10 + uint64(l), nvml.SUCCESS
			}
			return 1000, nvml.SUCCESS // included in sram
		},
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 4, nvml.SUCCESS },
		GetRemappedRowsFunc:   func() (int, int, bool, bool, nvml.Return) { return 2, 0, true, false, nvml.SUCCESS },
		GetRetiredPagesFunc:   func(nvml.PageRetirementCause) ([]uint64, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
		GetNvLinkStateFunc:    func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetFieldValuesFunc: fieldsOf(map[field]uint64{
			{nvml.FI_DEV_PERF_POLICY_POWER, 0}:                     2_500_000_000,
			{nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0}: 5e8,
		}),
	}
}

func TestSlowValues(t *testing.T) {
	var g model.GPU
	everything(slowDevice(), &g)
	want := model.GPU{
		Memory:            model.VideoMemory{Total: model.Some(100), Used: model.Some(20), Free: model.Some(70), Reserved: model.Some(10)},
		Energy:            model.Some(1.5),
		PCIe:              model.GPUPCIe{Replays: model.Some(0), Receive: model.Some(3000), Transmit: model.Some(4000)},
		TemperatureLimits: []model.Figure{{Name: "shutdown", Value: 92}, {Name: "slowdown", Value: 89}},
		Throttled:         []model.Figure{{Name: "sw_power_cap", Value: 2.5}, {Name: "hw_thermal_slowdown", Value: 0.5}},
		RemappedRows:      []model.Figure{{Name: "correctable", Value: 2}, {Name: "uncorrectable", Value: 0}},
		Errors: []model.GPUErrors{
			{Type: "corrected", Scope: "volatile", Block: "dram", Count: 2},
			{Type: "corrected", Scope: "volatile", Block: "sram", Count: 7},
			{Type: "corrected", Scope: "aggregate", Block: "dram", Count: 12},
			{Type: "corrected", Scope: "aggregate", Block: "sram", Count: 17},
			{Type: "uncorrected", Scope: "volatile", Block: "dram", Count: 102},
			{Type: "uncorrected", Scope: "volatile", Block: "sram", Count: 107},
			{Type: "uncorrected", Scope: "aggregate", Block: "dram", Count: 112},
			{Type: "uncorrected", Scope: "aggregate", Block: "sram", Count: 117},
		},
	}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, want\n%+v", g, want)
	}
}

func TestSlowValuesOfOldLibrary(t *testing.T) {
	var g model.GPU
	everything(nvmltest.Missing(&mock.Device{GetMemoryInfoFunc: slowDevice().GetMemoryInfoFunc}), &g)
	want := model.GPU{Memory: model.VideoMemory{Total: model.Some(100), Used: model.Some(30), Free: model.Some(70)}}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, want\n%+v", g, want)
	}
}

// TestSlowValuesOfMIGDevice: the mock panics if a value of the whole GPU is read from the part.
func TestSlowValuesOfMIGDevice(t *testing.T) {
	d := slowDevice()
	g := model.GPU{Parent: "GPU-1"}
	everything(&mock.Device{
		GetMemoryInfo_v2Func: d.GetMemoryInfo_v2Func,
		GetMemoryErrorCounterFunc: func(
			mt nvml.MemoryErrorType, s nvml.EccCounterType, l nvml.MemoryLocation,
		) (uint64, nvml.Return) {
			if mt == nvml.MEMORY_ERROR_TYPE_UNCORRECTED && s == nvml.VOLATILE_ECC && l == nvml.MEMORY_LOCATION_SRAM {
				return 1, nvml.SUCCESS
			}
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
	}, &g)
	if want := []model.GPUErrors{{Type: "uncorrected", Scope: "volatile", Block: "sram", Count: 1}}; !reflect.DeepEqual(g.Errors, want) {
		t.Errorf("%v", g.Errors)
	}
	if g.Memory.Used != model.Some(20) {
		t.Errorf("%+v", g.Memory)
	}
}

func TestECC(t *testing.T) {
	d := slowDevice()
	none := func(nvml.MemoryErrorType, nvml.EccCounterType, nvml.MemoryLocation) (uint64, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetMemoryErrorCounterFunc = none
	got := eccErrors(d)
	if len(got) != 4 || slices.ContainsFunc(got, func(e model.GPUErrors) bool { return e.Block != "all" || e.Count != 4 }) {
		t.Errorf("without any location: %v", got)
	}
	// A chip before Turing: no sram, but the caches.
	d.GetMemoryErrorCounterFunc = func(
		_ nvml.MemoryErrorType, _ nvml.EccCounterType, l nvml.MemoryLocation,
	) (uint64, nvml.Return) {
		if l == nvml.MEMORY_LOCATION_SRAM || l == nvml.MEMORY_LOCATION_CBU {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return uint64(l), nvml.SUCCESS
	}
	var blocks []string
	for _, e := range eccErrors(d)[:6] {
		blocks = append(blocks, e.Block)
	}
	if want := []string{"dram", "l1_cache", "l2_cache", "register_file", "texture_memory", "shared_memory"}; !slices.Equal(blocks, want) {
		t.Errorf("blocks %v, want %v", blocks, want)
	}
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_DISABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetMemoryErrorCounterFunc = nil // would panic
	var g model.GPU
	if slowly(d, nil, &g); g.Errors != nil {
		t.Errorf("ECC is off: %v", g.Errors)
	}
}

func TestLinks(t *testing.T) {
	bus := func(address string) (id [32]int8) {
		for i, c := range []byte(address) {
			id[i] = int8(c)
		}
		return id
	}
	d := slowDevice()
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		switch link {
		case 0, 3:
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		case 2:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		if link == 0 {
			return nvml.PciInfo{BusId: bus("00000000:C1:00.0")}, nvml.SUCCESS
		}
		return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetNvLinkErrorCounterFunc = func(link int, c nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
		if link == 2 || c == nvml.NVLINK_ERROR_DL_ECC_DATA {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return 10 + uint64(c), nvml.SUCCESS
	}
	d.GetFieldValuesFunc = fieldsOf(map[field]uint64{
		{nvml.FI_DEV_NVLINK_LINK_COUNT, 0}:          5,
		{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0}:  2,
		{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0}:  0,
		{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0}:    9999, // includes overhead, so it is not read
		{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 3}:    5000,
		{nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, 3}:     math.MaxUint64, // not available
		{nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, 3}: 6,
	})
	got := readLinks(d)
	want := []model.GPULink{
		{Kind: model.NVLink, Number: 0, Up: model.Some(1), Transmit: model.Some(2048), Receive: model.Some(0), Remote: "0000:c1:00.0", Errors: []model.Counter{
			{Name: "replay", Value: 10}, {Name: "recovery", Value: 11}, {Name: "crc_flit", Value: 12}, {Name: "crc_data", Value: 13},
		}},
		{Kind: model.NVLink, Number: 2, Up: model.Some(0)},
		{Kind: model.NVLink, Number: 3, Up: model.Some(1), Transmit: model.Some(5000), Errors: []model.Counter{{Name: "symbol", Value: 6}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want\n%+v", got, want)
	}
	if n := len(d.GetNvLinkStateCalls()); n != 5 {
		t.Errorf("%d links were asked for, and there are 5", n)
	}
	d.GetFieldValuesFunc = fieldsOf(map[field]uint64{{nvml.FI_DEV_NVLINK_LINK_COUNT, 0}: 1 << 40})
	if readLinks(d); len(d.GetNvLinkStateCalls()) != 5+maxLinks {
		t.Errorf("%d links were read, as many as the library reports", len(d.GetNvLinkStateCalls())-5)
	}
}

// TestOlderLinkErrors has a driver with a field for each error of each link: one call reads all.
func TestOlderLinkErrors(t *testing.T) {
	for i, ends := range [][2]uint32{
		{nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L5, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L11},
		{nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L5, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L11},
		{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L5, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L11},
		{nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L5, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L11},
		{nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L5, nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L11},
	} {
		fifth, _ := linkCounters[i].field(5)
		last, _ := linkCounters[i].field(11)
		if fifth.id != ends[0] || last.id != ends[1] {
			t.Errorf("%s: fields %d and %d, want %d", linkCounters[i].name, fifth.id, last.id, ends)
		}
	}
	d := slowDevice()
	have := map[field]uint64{{nvml.FI_DEV_NVLINK_LINK_COUNT, 0}: 14}
	for i, c := range linkCounters {
		for link := range uint32(12) {
			f, _ := c.field(link)
			have[f] = uint64(100*i) + uint64(link)
		}
	}
	d.GetFieldValuesFunc = fieldsOf(have)
	d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	d.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED }
	d.GetNvLinkErrorCounterFunc = func(link int, c nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
		if c != nvml.NVLINK_ERROR_DL_CRC_DATA {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return uint64(link), nvml.SUCCESS
	}
	for i, link := range readLinks(d) {
		n := uint64(link.Number)
		want := []model.Counter{
			{Name: "replay", Value: n},
			{Name: "recovery", Value: 100 + n},
			{Name: "crc_flit", Value: 200 + n},
			{Name: "crc_data", Value: 300 + n},
			{Name: "ecc_data", Value: 400 + n},
		}
		if i >= 12 { // the fields end with link 11
			want = []model.Counter{{Name: "crc_data", Value: n}}
		}
		if !reflect.DeepEqual(link.Errors, want) {
			t.Errorf("link %d: %+v, want %+v", i, link.Errors, want)
		}
	}
	// The number of links, the fields by scope, which are too many for one call, and the fields by link number.
	fields, functions := len(d.GetFieldValuesCalls()), len(d.GetNvLinkErrorCounterCalls())
	if fields != 4 || functions != 2*len(linkCounters) {
		t.Errorf("%d calls for fields, %d for errors", fields, functions)
	}
}

func TestInteger(t *testing.T) {
	raw := func(n uint64) (v [8]byte) {
		binary.NativeEndian.PutUint64(v[:], n)
		return v
	}
	for _, c := range []struct {
		kind nvml.ValueType
		raw  uint64
		n    uint64
		ok   bool
	}{
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 7 << 40, 7 << 40, true},
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64, 0, false},
		{nvml.VALUE_TYPE_UNSIGNED_LONG, 7, 7, true},
		{nvml.VALUE_TYPE_UNSIGNED_INT, 0xdead_0000_0007, 7, true}, // the rest of the union is undefined
		{nvml.VALUE_TYPE_UNSIGNED_INT, math.MaxUint32, 0, false},
		{nvml.VALUE_TYPE_UNSIGNED_SHORT, 0xdead_0007, 7, true},
		{nvml.VALUE_TYPE_SIGNED_INT, 0xffff_fff0, 0, false},
		{nvml.VALUE_TYPE_SIGNED_INT, 3, 3, true},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, 1 << 63, 0, false},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(12.7), 12, true},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.NaN()), 0, false},
		{nvml.VALUE_TYPE_COUNT, 3, 0, false},
	} {
		if n, ok := integer(c.kind, raw(c.raw)); ok != c.ok || ok && n != c.n {
			t.Errorf("%v %#x: %d %v", c.kind, c.raw, n, ok)
		}
	}
}

func everything(d nvml.Device, g *model.GPU) {
	g.Memory = memory(d)
	if g.Parent != "" {
		g.Errors = eccErrors(d)
		return
	}
	var l linkReader
	values := new(fieldReader).read(d, slices.Concat(roundFields, slowFields, l.fields(d, true)))
	readCounters(d, values, g, true)
	slowly(d, values, g)
	readRemappedRows(d, g, new(health))
	g.PCIe.Receive = throughput(d, nvml.PCIE_UTIL_RX_BYTES)
	g.PCIe.Transmit = throughput(d, nvml.PCIE_UTIL_TX_BYTES)
	g.Links, g.LinkErrors = l.read(d, values, true), l.totals
}

// readLinks reads the links of a device as in its first round.
func readLinks(d nvml.Device) []model.GPULink {
	var l linkReader
	return l.read(d, new(fieldReader).read(d, l.fields(d, true)), true)
}
