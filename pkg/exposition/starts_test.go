// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestStarts: counters and histograms have their start time in protobuf and for a registry, to the millisecond and
// never later. Gauges and folded series have no start time.
func TestStarts(t *testing.T) {
	b := NewBuilder(nil)
	labels := append(append([]string(nil), Identity...), "device")
	detail := Detail{Labels: []string{"device"}}
	count := b.Declare("count_total", "A test.", counter, labels, detail)
	level := b.Declare("level", "A test.", gauge, labels, Detail{})
	short := b.Declare("short", "A test.", histogram, labels, Detail{})
	long := b.Declare("long", "A test.", histogram, labels, Detail{})
	at := time.Unix(1700000000, 123999999)
	b.Begin()
	o := b.Owner(identity.Owner{Workload: "unit:a"})
	b.Metric(count)
	b.Since(time.Time{}).Share(1, o, "unknown")
	for i := range ownerSeries + 5 {
		b.Since(at).Share(1, o, fmt.Sprint("mlx5_", i))
	}
	b.Metric(level)
	b.Since(at).Share(1, o, "mlx5_0")
	b.Metric(short)
	b.Since(at).FineHistogram(&model.FineHistogram{}, o, "mlx5_0")
	b.Metric(long)
	b.Since(at).Histogram(&model.Histogram{}, o, "mlx5_0")
	page := NewPage(b.End(), Forms{})

	folded := 0
	for _, f := range page.Proto() {
		for _, m := range f.Metric {
			var out dto.Metric
			if err := (series{descOf(f), m}).Write(&out); err != nil {
				t.Fatal(err)
			}
			start := out.Histogram.GetCreatedTimestamp()
			if out.Histogram == nil {
				start = out.Counter.GetCreatedTimestamp()
			}
			device := m.Label[slices.IndexFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "device" })].GetValue()
			if device == other {
				folded++
			}
			known := f.GetName() != "level" && device != "unknown" && device != other
			if known != (start != nil) || known && !start.AsTime().Equal(at.Truncate(time.Millisecond)) {
				t.Errorf("%s %v: %v", f.GetName(), m.Label, start)
			}
		}
	}
	if folded != 1 {
		t.Errorf("%d folded series", folded)
	}
}
