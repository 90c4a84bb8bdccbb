// SPDX-License-Identifier: Apache-2.0

package traffic

import "testing"

// TestNext has a case for each row of the table of next.
func TestNext(t *testing.T) {
	uncounted, counted := state{}, state{counted: true}
	waiting := func(missed int) state { return state{counted: true, missed: missed} }
	open, ends := interval{}, interval{ends: true}
	for name, tt := range map[string]struct {
		state             state
		reading           reading
		listed, collected bool
		next              state
		interval          interval
	}{
		"uncounted, nothing, listed":                   {uncounted, readNothing, true, true, state{missed: 1}, ends},
		"uncounted, nothing, not listed":               {uncounted, readNothing, false, true, state{missed: 1}, open},
		"uncounted, nothing, not listed, 10 times":     {state{missed: 9}, readNothing, false, true, state{missed: 10}, open},
		"uncounted, nothing, not listed, more":         {state{missed: 10}, readNothing, false, true, state{missed: 11}, ends},
		"uncounted, counters":                          {state{missed: 5}, readAll, true, true, counted, interval{ends: true, mixed: true, begins: true}},
		"uncounted, other counters":                    {uncounted, readPart, true, true, counted, interval{ends: true, mixed: true, begins: true}},
		"counted, all":                                 {counted, readAll, true, true, counted, ends},
		"waiting, all":                                 {waiting(7), readAll, true, true, counted, ends},
		"counted, stale":                               {counted, readStale, true, true, counted, open},
		"counted, part":                                {counted, readPart, true, true, waiting(1), open},
		"counted, nothing":                             {counted, readNothing, false, true, waiting(1), open},
		"waiting, part, 10 times":                      {waiting(9), readPart, true, true, waiting(10), open},
		"waiting, part, more often":                    {waiting(10), readPart, true, true, counted, interval{ends: true, mixed: true}},
		"waiting, nothing, more often":                 {waiting(10), readNothing, false, true, state{missed: 11}, interval{ends: true, mixed: true}},
		"counted, nothing, devices were not collected": {counted, readNothing, false, false, counted, open},
		"waiting, nothing, devices were not collected": {waiting(10), readNothing, false, false, waiting(10), open},
		"counted, VF statistics instead":               {counted, readOther, true, true, counted, interval{ends: true, mixed: true}},
	} {
		next, interval := next(tt.state, tt.reading, tt.listed, tt.collected)
		if next != tt.next || interval != tt.interval {
			t.Errorf("%s: %+v %+v, want %+v %+v", name, next, interval, tt.next, tt.interval)
		}
	}
}
