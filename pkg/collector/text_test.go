// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

var formats = map[dialect]expfmt.FormatType{plainText: expfmt.TypeTextPlain, openMetrics: expfmt.TypeOpenMetrics}

// compareText compares our text with that of the library.
func compareText(t *testing.T, families []family) {
	t.Helper()
	for d, format := range formats {
		want := encode(t, protoFamilies(families), format)
		var got bytes.Buffer
		w := text{dialect: d, out: &got}
		if err := w.write(families); err != nil || got.String() != want {
			t.Errorf("dialect %d: %v (-library +ours):\n%s", d, err, cmp.Diff(want, got.String()))
		}
	}
}

func TestTextIsThatOfTheLibrary(t *testing.T) {
	for name := range nodes(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Options{Sources: nodes(t)[name], Compat: append(CompatSets(), Process)})
				defer c.Close() //nolint:errcheck // a source may be stuck
				compareText(t, c.now().families)
			})
		})
	}
	t.Run("much", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := New(Options{Sources: big(20, 50)}) // several buffers full
			defer c.Close()                         //nolint:errcheck // nothing to lose
			compareText(t, c.now().families)
		})
	})
	t.Run("numbers", func(t *testing.T) {
		f := family{name: new("a_total"), help: new(`A "b" \ c` + "\nd"), typ: counter}
		for _, v := range []float64{
			0, math.Copysign(0, -1), 1, -1, 0.1, 1e-5, 999999, 1e6, 1234567, -999999, 1e20, 1e21, 1.5, 1 << 53, 1 << 62,
			math.MaxUint64, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1), math.Inf(-1),
		} {
			f.rows = append(f.rows, row{labels: &labelSet{}, value: v})
		}
		compareText(t, []family{f})
	})
}

// FuzzText: whatever names and figures are, the text is that of the library.
func FuzzText(f *testing.F) {
	f.Add("mlx5_0", "ml/train", "A.", 1.0, uint64(3), uint8(2), true)
	f.Add("a\nb", "\"\\", "x\\\n\"", -0.5, uint64(1)<<60, uint8(200), false)
	f.Add("", "名\xff", "", 1e21, uint64(0), uint8(0), true)
	f.Fuzz(func(t *testing.T, device, workload, help string, value float64, count uint64, at uint8, total bool) {
		name := "x"
		if total {
			name = "x_total"
		}
		l := newLabels()
		owned := newSchema(append(slices.Clip(identity), "device"))
		set := l.get(owned, l.owner(ownerOf(workload)), device)
		h := model.Histogram{SumSeconds: value}
		h.Buckets[int(at)%len(h.Buckets)] = count
		var small model.FineHistogram
		small.Buckets[int(at)%len(small.Buckets)] = count
		var families []family
		for _, typ := range []dto.MetricType{counter, gauge, untyped} {
			families = append(families, family{name: &name, help: &help, typ: typ, rows: []row{
				{labels: set, value: value},
				{labels: l.get(newSchema(nil), nil), value: float64(count)},
			}})
		}
		families = append(families, family{name: &name, help: &help, typ: histogram, rows: []row{
			{labels: set, histogram: (*coarse)(&h)},
			{labels: l.get(newSchema(nil), nil), histogram: (*coarse)(&h)},
			{labels: set, histogram: (*fine)(&small)},
		}})
		compareText(t, families)
	})
}

// TestEncode: each format decodes to the families, compressed or not, and is
// compressed once for each refresh.
func TestEncode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{Sources: node(), Compat: CompatSets()})
		defer c.Close() //nolint:errcheck // nothing to lose
		for _, typ := range []expfmt.FormatType{
			expfmt.TypeTextPlain, expfmt.TypeOpenMetrics, expfmt.TypeProtoDelim, expfmt.TypeProtoText, expfmt.TypeProtoCompact,
		} {
			format := expfmt.NewFormat(typ)
			plain, err := c.Encode(format, false)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(encode(t, mustGather(t, c), typ), string(plain)); d != "" {
				t.Errorf("%s:\n%s", format, d)
			}
			packed, err := c.Encode(format, true)
			if err != nil {
				t.Fatal(err)
			}
			r, err := gzip.NewReader(bytes.NewReader(packed))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s: not the same when unpacked: %v", format, err)
			}
			if again, _ := c.Encode(format, true); &again[0] != &packed[0] {
				t.Errorf("%s is compressed twice", format)
			}
		}
		before, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true)
		time.Sleep(time.Minute)
		if after, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true); &after[0] == &before[0] {
			t.Error("a body of a minute ago")
		}
	})
}

func ownerOf(workload string) attribution.Owner {
	return attribution.OwnerOf(model.Entity{Workload: workload, Namespace: "ns", ContainerID: workload})
}
