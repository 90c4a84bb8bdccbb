// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

var formats = map[dialect]expfmt.FormatType{plainText: expfmt.TypeTextPlain, openMetrics: expfmt.TypeOpenMetrics}

// compareText compares our text with the library's.
func compareText(t *testing.T, families []Family) {
	t.Helper()
	for d, format := range formats {
		for created, options := range map[bool][]expfmt.EncoderOption{false: nil, true: {expfmt.WithCreatedLines()}} {
			want := library.Encode(t, protoFamilies(families, Forms{}), format, options...)
			var got bytes.Buffer
			w := text{dialect: d, forms: Forms{CreatedLines: created}}
			if err := w.write(&got, families); err != nil || got.String() != want {
				t.Errorf("dialect %d, created %v: %v (-library +ours):\n%s", d, created, err, cmp.Diff(want, got.String()))
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	f := Family{name: new("a_total"), help: new(`A "b" \ c` + "\nd"), typ: counter}
	for _, v := range []float64{
		0, math.Copysign(0, -1), 1, -1, 0.1, 1e-5, 999999, 1e6, 1234567, -999999, 1e20, 1e21, 1.5, 1 << 53, 1 << 62,
		math.MaxUint64, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1), math.Inf(-1),
	} {
		f.rows = append(f.rows, row{labels: &LabelSet{}, value: v})
	}
	compareText(t, []Family{f})
}

// FuzzText checks that all names and values give the library's text.
func FuzzText(f *testing.F) {
	f.Add("mlx5_0", "ml/train", "A.", 1.0, uint64(3), uint8(2), true)
	f.Add("a\nb", "\"\\", "x\\\n\"", -0.5, uint64(1)<<60, uint8(200), false)
	f.Add("c", "d", "", 7.0, uint64(1700000000123)<<20, uint8(2), true)
	f.Add("", "名\xff", "", 1e21, uint64(0), uint8(0), true)
	f.Fuzz(func(t *testing.T, device, workload, help string, value float64, count uint64, at uint8, total bool) {
		name := "x"
		if total {
			name = "x_total"
		}
		l := newLabels()
		owned := newSchema(append(slices.Clip(Identity), "device"))
		set := l.get(owned, l.owner(ownerOf(workload)), device)
		h := model.Histogram{Sum: uint64(math.Abs(value) * 1e9)}
		h.Buckets[int(at)%len(h.Buckets)] = count
		var small model.FineHistogram
		small.Buckets[int(at)%len(small.Buckets)] = count
		var families []Family
		for _, typ := range []dto.MetricType{counter, gauge, untyped} {
			families = append(families, Family{name: &name, help: &help, typ: typ, rows: []row{
				{labels: set, value: value, since: int64(count >> 20)},
				{labels: l.get(newSchema(nil), nil), value: float64(count)},
			}})
		}
		families = append(families, Family{name: &name, help: &help, typ: histogram, rows: []row{
			{labels: set, since: int64(count >> 20)}, {labels: l.get(newSchema(nil), nil)}, {labels: set},
		}, histograms: []durations{(*coarse)(&h), (*coarse)(&h), (*fine)(&small)}})
		compareText(t, families)
	})
}

func ownerOf(workload string) identity.Owner {
	workload = strings.ToValidUTF8(workload, "\uFFFD")
	return identity.Owner{Workload: workload, Namespace: "ns", ContainerID: workload}
}
