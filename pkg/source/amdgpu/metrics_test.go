// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestLayouts compares each layout with the size of its struct.
func TestLayouts(t *testing.T) {
	for revision, list := range layouts {
		for _, l := range list {
			var v fields
			at := members(l.members, make([]byte, maxRead), metricsHeader, &v)
			if l.partitions > 0 {
				at = align(at, 8) + l.partitions*l.stride + 4
				if end := members(l.partition, make([]byte, maxRead), 0, &v); end > l.stride {
					t.Errorf("%v: a partition has %d bytes of %d", revision, end, l.stride)
				}
			}
			if got := align(at, 8); got != l.size {
				t.Errorf("%v: %d bytes, want %d", revision, got, l.size)
			}
		}
	}
}

// TestMI100 reads a table of a real MI100, as shown in ROCm/amdsmi issue 38.
func TestMI100(t *testing.T) {
	b, err := hex.DecodeString(strings.ReplaceAll("78 00 01 03 2d 00 31 00 2d 00 2e 00 2d 00 2a 00 "+
		"00 00 00 00 00 00 24 00 5f e7 00 00 00 00 00 00 20 f4 f4 6c 81 01 00 00 2c 01 e8 03 b0 04 bb 00 "+
		"bb 00 ff ff ff ff 2c 01 00 00 00 00 00 00 00 00 ff ff ff ff 00 00 00 00 00 00 10 00 a0 00 ff ff "+
		strings.Repeat("ff ", 32)+"00 00 00 00 00 00 00 00", " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseMetrics(b)
	if err != nil {
		t.Fatal(err)
	}
	want := table{
		revision: "1.3", gfx: model.Some(0), memory: model.Some(0), video: model.Some(0), power: model.Some(36),
		// The energy accumulator is 59231: after 1655 s at 36 W that is no count of 15 µJ. It
		// is not reported.
		temperatures: []model.Figure{
			{Name: "edge", Value: 45},
			{Name: "junction", Value: 49},
			{Name: "memory", Value: 45},
			{Name: "vr_graphics", Value: 46},
			{Name: "vr_soc", Value: 45},
			{Name: "vr_memory", Value: 42},
		},
		clocks: []model.Figure{
			{Name: "graphics", Value: 300e6}, {Name: "soc", Value: 0}, {Name: "memory", Value: 0}, {Name: "video", Value: 0},
		},
		clock: 1655.077270560,
		pcie:  model.GPUPCIe{Width: model.Some(16), Generation: model.Some(4)},
	}
	for _, r := range reasons {
		want.throttles = append(want.throttles, model.GPUCondition{Name: r.name})
	}
	want.clock = got.clock
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if math.Abs(got.clock-float64(0x1816cf4f420)/1e9) > 1e-6 {
		t.Errorf("clock: %v", got.clock)
	}
}

// TestRevisions writes numbers at the offsets of the C structs.
func TestRevisions(t *testing.T) {
	for _, c := range []struct{ table, want string }{
		{"80 1.0 16:2=51 28:2=7 34:2=90 36:4=5 54:2=800 74:1=8 75:1=80", "edge 51 power 90 gfx 0.07 graphics 8e+08 gen 3 width 8"},
		{"96 1.1 4:2=51 16:2=7 22:2=90 24:8=131072 54:2=800 74:2=16 76:2=160 80:4=1 94:2=66", "edge 51 hbm3 66 power 90 gfx 0.07 energy 2 graphics 8e+08 gen 4 width 16"},
		{"104 1.2 22:2=90 90:2=61", "hbm1 61 power 90"},
		{"120 1.3 112:8=0x800000000000", "prochot"},
		{
			"288 1.4 4:2=60 10:2=400 12:2=50 16:2=10 18:2=30 24:8=65536 48:2=16 50:2=320 56:4=1 88:8=9 104:8=4 168:8=5 240:2=100 242:2=2100 280:2=1300",
			"junction 60 power 400 gfx 0.5 video 0.2 energy 1 graphics 2.1e+09 memory 1.3e+09 gen 5 width 16 replays 9 link 0 4096 5120",
		},
		{"360 1.5 16:2=10 88:8=65536 112:2=16 120:4=1 152:8=9 176:8=4 312:2=100 352:2=1300", "video 0.1 energy 1 graphics 1e+08 memory 1.3e+09 width 16 replays 9 link 0 4096"},
		{
			"1664 1.6 16:8=65536 60:2=16 68:4=1 104:8=9 128:8=4 192:8=8 264:2=100 304:2=900 312:4=40 408:2=20 480:4=60",
			"video 0.2 energy 1 graphics 1e+08 memory 9e+08 width 16 replays 9 link 0 4096 8192 part 0.4 part 0.6",
		},
		{"288 1.4 80:8=7 88:8=9 96:8=2", "recoveries 7 replays 9 rollovers 2"},
		{"360 1.5 24:2=30 26:2=10 86:2=50 144:8=7 160:8=2 168:4=5 172:4=6", "jpeg 0.3 recoveries 7 rollovers 2 sent 5 received 6"},
		{
			"1664 1.6 96:8=7 112:8=2 120:4=5 124:4=6 344:2=20 406:2=40 512:2=60",
			"jpeg 0.4 recoveries 7 rollovers 2 sent 5 received 6 jpeg 0.3 jpeg 0.6",
		},
		{"2208 1.7 40:4=1000 104:8=7 120:8=2 128:4=5 132:4=6 512:8=250 568:8=300 744:8=350", "recoveries 7 rollovers 2 sent 5 received 6 below_host_limit 300"},
		{"3360 1.8 40:4=1000 376:2=10 454:2=30 528:8=200 592:8=100", "jpeg 0.2 jpeg 0.2 below_host_limit_power 200 below_host_limit_thermal 100"},
		{
			"3872 1.8 40:4=1000 528:8=200 592:8=100 656:8=9999 720:8=300 968:8=400",
			"below_host_limit 300 below_host_limit_power 300 below_host_limit_thermal 100",
		},
		{"384 1.6 88:8=65536 136:2=16 144:4=1 336:2=100 376:2=900", "energy 1 graphics 1e+08 memory 9e+08 width 16"},
		{"2208 1.7 24:8=65536 76:4=1 112:8=9 136:8=4 264:2=0 296:2=100 336:2=900 344:4=40 576:4=60", "energy 1 graphics 1e+08 memory 9e+08 replays 9 link 0 4096 down part 0.4 part 0.6"},
		{"3360 1.8 24:8=65536 76:4=1 344:4=40 720:4=60 456:2=50", "video 0.5 energy 1 part 0.4 part 0.6"},
		{"3872 1.8 344:4=40 784:4=60", "part 0.4 part 0.6"},
		{"120 2.0 16:2=4700 80:2=400 86:2=933", "graphics 4e+08 fabric 9.33e+08"},
		{"120 2.1 4:2=4700 28:2=700 76:2=400 84:2=200", "graphics 4e+08 video 2e+08"},
		{"128 2.2 78:2=400 120:8=0x100000000", "soc 4e+08 thermal"},
		{"128 2.2 120:8=0x200000000", "cpu"},    // THM_CORE of an APU
		{"128 2.2 120:8=0x400000000000", "cpu"}, // PROCHOT_CPU
		{"152 2.3 120:8=0x10000", "current"},
		{"168 2.4 40:2=15000 76:2=400", "graphics 4e+08"},
		{"264 3.0 4:2=5000 42:2=30 44:2=10 112:4=15000 174:2=800 182:2=1600 186:2=900", "graphics 8e+08 memory 9e+08 fabric 1.6e+09"},
	} {
		fields := strings.Fields(c.table)
		got, err := parseMetrics(metrics(t, fields))
		if err != nil {
			t.Errorf("%s: %v", c.table, err)
			continue
		}
		if text := describe(got); text != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.table, text, c.want)
		}
	}
}

// TestUnknownRevisions checks that an unknown revision is an error.
func TestUnknownRevisions(t *testing.T) {
	for _, c := range []string{"120 1.42 4:2=1", "120 4.0", "128 1.3", "80 2.0"} {
		if _, err := parseMetrics(metrics(t, strings.Fields(c))); !errors.Is(err, errRevision) {
			t.Errorf("%s: %v", c, err)
		}
	}
	for _, b := range [][]byte{nil, {1}, {120, 0, 1, 3}, append(metrics(t, []string{"120", "1.3"})[:100:100], 0)} {
		if _, err := parseMetrics(b); !errors.Is(err, errRevision) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

// attribute returns an attribute of revision 1.9: kind 2 is u16, 4 u32, 6 u64.
func attribute(b []byte, number, kind uint64, values ...uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, kind<<20|number<<10|uint64(len(values)))
	for _, v := range values {
		switch kind {
		case 2:
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		case 4:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		default:
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

func attributeTable() []byte {
	b := []byte{0, 0, 1, 9, 18, 0, 0, 0}
	b = attribute(b, 0, 2, 61)
	b = attribute(b, 1, 2, 0xffff)
	b = attribute(b, 3, 2, 700)
	b = attribute(b, 500, 4, 1, 2, 3) // from a later kernel
	b = attribute(b, 7, 6, 65536)
	b = attribute(b, 9, 6, 1000)
	b = attribute(b, 20, 4, 77)
	b = attribute(b, 24, 6, 7)
	b = attribute(b, 26, 6, 2)
	b = attribute(b, 27, 4, 5)
	b = attribute(b, 28, 4, 6)
	b = attribute(b, 41, 2, 10, 50, 0xffff)
	b = attribute(b, 44, 6, 200, 400)
	b = attribute(b, 45, 6, 100)
	b = attribute(b, 46, 6, 9999)
	b = attribute(b, 47, 6, 400)
	b = attribute(b, 29, 6, 1, 2, math.MaxUint64)
	b = attribute(b, 33, 2, 132, 2100)
	binary.LittleEndian.PutUint16(b, uint16(len(b)))
	return b
}

func TestAttributes(t *testing.T) {
	b := attributeTable()
	got, err := parseMetrics(b)
	if err != nil {
		t.Fatal(err)
	}
	if text, want := describe(got), "junction 61 power 700 jpeg 0.3 energy 1 graphics 2.1e+09 recoveries 7 rollovers 2 sent 5 received 6 "+
		"link 0 1024 link 1 2048 below_host_limit 400 below_host_limit_power 300 below_host_limit_thermal 100"; text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	for n := metricsHeader + 4; n < len(b); n++ { // truncated anywhere
		short := append([]byte(nil), b[:n]...)
		binary.LittleEndian.PutUint16(short, uint16(n))
		if _, err := parseMetrics(short); !errors.Is(err, errRevision) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

// TestThrottling: 250 of 1000 cycles in 2 s were throttled by heat; the counters have 32 bits.
func TestThrottling(t *testing.T) {
	at := func(clock float64, cycles, hot uint32) table {
		return table{clock: clock, cycles: model.Some(float64(cycles)), throttled: []model.Figure{{Name: throttleThermal, Value: float64(hot)}}}
	}
	var s throttling
	for i, c := range []struct {
		table
		seconds float64
		active  bool
	}{
		{at(10, math.MaxUint32-99, math.MaxUint32), 0, false}, // earlier values do not matter
		{at(12, 900, 249), 0.5, true},
		{at(13, 1400, 249), 0.5, false},
		{at(14, 1500, 400), 0.5, false}, // the driver was reloaded: more than all of them
		{at(1, 5, 1), 0.5, false},       // the node was restarted
		{at(2, 105, 101), 1.5, true},
	} {
		seconds, now := s.add(c.table)
		if len(seconds) != 1 || seconds[0].Value != c.seconds || now[0].Active != c.active {
			t.Errorf("%d: got %v %v, want %v %v", i, seconds, now, c.seconds, c.active)
		}
	}
}

// TestThrottlingOfDies: the counters of XCCs have 64 bits, and their mean counts.
func TestThrottlingOfDies(t *testing.T) {
	at := func(seconds, first, second uint64) table {
		got, err := parseMetrics(metrics(t, strings.Fields(fmt.Sprintf(
			"2208 1.7 32:8=%d 40:4=%d 512:8=%d 520:8=%d", seconds*1e9, seconds*1000, first, second))))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	var s throttling
	s.add(at(10, 1<<40, 1<<41))
	seconds, now := s.add(at(20, 1<<40+1000, 1<<41+4000)) // a tenth and four tenths of 10 s
	if want := []model.Figure{{Name: throttleBelowLimit, Value: 2.5}}; !reflect.DeepEqual(seconds, want) || !drm.Active(now, throttleBelowLimit) {
		t.Errorf("%v, %v; want %v", seconds, now, want)
	}
}

func FuzzMetrics(f *testing.F) {
	for revision, list := range layouts {
		for _, l := range list {
			b := make([]byte, l.size)
			binary.LittleEndian.PutUint16(b, uint16(l.size))
			b[2], b[3] = revision[0], revision[1]
			f.Add(b)
		}
	}
	f.Add(attributeTable())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseMetrics(b)
		if err != nil && !errors.Is(err, errRevision) {
			t.Error(err)
		}
		for _, v := range []model.Optional{got.gfx, got.memory, got.video} {
			if v.Value < 0 || v.Value > 1 {
				t.Errorf("a part of %v", v.Value)
			}
		}
		if len(got.links) > 1<<10 || len(got.partitions) > 8 {
			t.Errorf("%d links, %d partitions", len(got.links), len(got.partitions))
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("ue: 0\nce: 3\nde: 1\n"))
	f.Add([]byte("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n"))
	f.Add([]byte("S: 19Mhz *\n0: 500Mhz\n1: 2100Mhz\n"))
	f.Add([]byte(`[{"gpu":0,"bus":{"bdf":"0000:C1:00.0"},"power":{"socket_power":{"value":131,"unit":"W"}}}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if errs := parseErrors("umc", b); len(errs) > 3 {
			t.Errorf("%v", errs)
		}
		parsePages(b)
		if v := parseLevels(b); v.Known && v.Value <= 0 {
			t.Errorf("%v", v)
		}
		if line := drm.Text(b); len(line) > 256 || strings.ContainsAny(line, "\n\x00") {
			t.Errorf("%q", line)
		}
		_, _ = parseSMI(b, b)
	})
}
