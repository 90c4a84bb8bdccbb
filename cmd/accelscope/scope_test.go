// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

// TestStatesFlag runs the program with and without the series of all states.
func TestStatesFlag(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	_, args := fakeNode(t)
	binary := build(t)
	for _, test := range []struct {
		flags []string
		all   bool
	}{{nil, false}, {[]string{"--metrics.states=all"}, true}} {
		url, stop := start(t, binary, slices.Concat(args, test.flags)...)
		body := scrape(t, url).body
		if _, err := stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(body, `accelscope_source_state{source="rdma",state="ok"} 1`) {
			t.Errorf("%q: rdma is not ok", test.flags)
		}
		if got := strings.Contains(body, `accelscope_source_state{source="rdma",state="stuck"} 0`); got != test.all {
			t.Errorf("%q: other states: %v", test.flags, got)
		}
	}
}
