// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/identity"
)

// TestRefreshes: a Builder writes the same as a new Builder after any change of series, and keeps no label set of a
// removed series.
func TestRefreshes(t *testing.T) {
	names := [][]string{{"device"}, append(slices.Clip(Identity), "device"), {"a", "b", "c", "d"}}
	declare := func() (*Builder, []*Metric) {
		b := NewBuilder(nil)
		var metrics []*Metric
		for i, labels := range names {
			for part := range 2 {
				metrics = append(metrics, b.Declare(fmt.Sprintf("family_%d_%d", i, part), "A test.", gauge, labels, Detail{}))
			}
		}
		return b, metrics
	}
	random := rand.New(rand.NewPCG(1, 2))
	kept, keptMetrics := declare()
	numbers := make([]int, 8)
	for round := range 300 {
		if random.IntN(3) > 0 { // otherwise the same series again
			for range 1 + random.IntN(3) {
				numbers[random.IntN(len(numbers))] = random.IntN(12)
			}
		}
		if random.IntN(10) == 0 {
			random.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
		}
		fill := func(b *Builder, metrics []*Metric) string {
			b.Begin()
			for i, m := range metrics {
				b.Metric(m)
				for at, n := range numbers {
					device := fmt.Sprint("mlx5_", n)
					switch value := float64(n + i); len(m.schema.names) {
					case 1:
						b.Value(value, device)
					case 4:
						b.Value(value, "1", "2", device, fmt.Sprint(at)) // the last value is not part of the key
					default:
						b.Share(value, b.Owner(identity.Owner{Workload: fmt.Sprint("w", n%3)}), device)
					}
				}
			}
			var e Encoder
			text, err := e.Encode(NewPage(b.End(), Forms{}), expfmt.NewFormat(expfmt.TypeTextPlain), false)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		fresh, freshMetrics := declare()
		if d := cmp.Diff(fill(fresh, freshMetrics), fill(kept, keptMetrics)); d != "" {
			t.Fatalf("refresh %d of %v (-want +got)\n%s", round, numbers, d)
		}
		if k := kept.Kept(); k.Sets != fresh.Kept().Sets {
			t.Fatalf("refresh %d: %d label sets, want %d", round, k.Sets, fresh.Kept().Sets)
		}
	}
}
