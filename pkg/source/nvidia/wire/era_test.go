// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestEra: what the counters of a GPU show about a reset. One wrong value, which drivers return without an error, shows
// nothing.
func TestEra(t *testing.T) {
	const no = -1 // the value is not known
	begun := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		energy, errors []float64 // one reading each second
		told           int       // an operator reset the GPU before this reading; 0: never
		reset          int       // the next era begins with this reading; 0: never
	}{
		"it goes on":                         {energy: []float64{40, 50, 60, 60}, errors: []float64{1, 1, 1, 1}},
		"energy starts again":                {energy: []float64{40, 50, 2, 3, 60}, errors: []float64{1, 1, 1, 1, 1}, reset: 2},
		"energy starts again, idle":          {energy: []float64{40, 50, 2, 2, 2}, reset: 2},
		"energy starts again, and is used":   {energy: []float64{40, 50, 2, 39, 60}, reset: 2},
		"errors start again":                 {energy: []float64{no, no, no, no}, errors: []float64{1, 1, 0, 0}, reset: 2},
		"errors start again, idle":           {energy: []float64{50, 50, 50, 50}, errors: []float64{1, 1, 0, 0}, reset: 2},
		"errors start again, rarely read":    {errors: []float64{1, no, 1, no, 0, no, 0}, reset: 4},
		"both start again":                   {energy: []float64{40, 50, 2, 3, 4}, errors: []float64{1, 1, no, 0, 0}, reset: 2},
		"an administrator sets errors to 0":  {energy: []float64{40, 50, 60, 70, 80}, errors: []float64{1, 1, 0, 0, 0}},
		"nothing is known":                   {energy: []float64{no, no}},
		"no longer known":                    {energy: []float64{40, 50, no, no, 60}, errors: []float64{1, 1, no, no, 1}},
		"energy is 0 once":                   {energy: []float64{40, 50, 0, 60, 70}},
		"energy is low once":                 {energy: []float64{40, 50, 7, 60, 70}},
		"energy is high once":                {energy: []float64{40, 50, 9e12, 60, 70, 80}},
		"energy starts again after one":      {energy: []float64{50, 2, 3, 4}, reset: 1},
		"energy is high, then low":           {energy: []float64{40, 50, 9e12, 7, 60, 70}},
		"energy is low twice, between":       {energy: []float64{40, 50, 7, 60, 7, 70}},
		"energy is low, then not known":      {energy: []float64{40, 50, 7, no, 60}},
		"errors are 0 once":                  {errors: []float64{5, 5, 0, 5, 5}},
		"errors are many once":               {errors: []float64{5, 5, 9e14, 5, 5}},
		"told":                               {energy: []float64{no, no, no}, told: 2, reset: 2},
		"told, and no errors before":         {errors: []float64{0, 0, 0}, told: 2, reset: 2},
		"told, and the energy goes on":       {energy: []float64{40, 50, 60, 70}, told: 2},
		"told at once, and it goes on":       {energy: []float64{50, 60, 70}, told: 1},
		"told, and the energy starts again":  {energy: []float64{40, 50, 2, 3, 4}, told: 2, reset: 2},
		"told, and there are more errors":    {errors: []float64{1, 1, 2, 2}, told: 2},
		"told, and errors were not known":    {errors: []float64{no, no, 2, 2}, told: 2, reset: 2},
		"told, after a high value of energy": {energy: []float64{40, 50, 9e12, 60, 70}, told: 3},
	} {
		at := func(values []float64, i int) model.Optional {
			if i >= len(values) || values[i] == no {
				return model.Optional{}
			}
			return model.Some(values[i])
		}
		e := Era{Since: begun}
		for i := range max(len(c.energy), len(c.errors)) {
			e = e.Next(at(c.energy, i), at(c.errors, i), c.told > 0 && i == c.told, begun.Add(time.Duration(i)*time.Second))
		}
		since := begun.Add(time.Duration(c.reset) * time.Second)
		if !e.Since.Equal(since) || e.Reset.IsZero() != (c.reset == 0) || c.reset > 0 && !e.Reset.Equal(since) {
			t.Errorf("%s: it began after %v, reset at %v: %+v", name, e.Since.Sub(begun), e.Reset, e)
		}
	}
}
