// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"time"
)

// TestSpare: spare stages run while there is time and no stage failed. What is cut off is no failure, what fails is a failure.
func TestSpare(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "Makefile", "good:\n\t@true\nbad:\n\t@false\n")
	put(t, logs+"/x", "")
	for _, tt := range []struct {
		name    string
		stages  []string
		since   time.Duration
		results []result
		want    []string
		passed  bool
	}{
		{"in time", []string{"good", "good"}, 0, nil, []string{ok, ok}, true},
		{"late", []string{"good"}, enough - leastSpare + time.Second, nil, []string{unended}, true},
		{"it fails", []string{"bad", "good"}, 0, nil, []string{failed, ok}, false},
		{"another failed", []string{"good"}, 0, []result{{verdict: failed}}, nil, false},
	} {
		r := runner{spare: tt.stages, results: tt.results}
		r.runSpare(t.Context(), time.Now().Add(-tt.since))
		for i, s := range r.results[len(tt.results):] {
			if i >= len(tt.want) || s.verdict != tt.want[i] {
				t.Errorf("%s: stage %d: %s, want %v", tt.name, i, s.verdict, tt.want)
			}
		}
		if got := r.summarize(0); got != tt.passed || len(r.results) != len(tt.results)+len(tt.want) {
			t.Errorf("%s: %d stages, passed: %v", tt.name, len(r.results), got)
		}
	}
}

// TestOutOfTime: a stage that is cut off is killed, and has not failed.
func TestOutOfTime(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "Makefile", "slow:\n\t@sleep 1000\n")
	put(t, logs+"/x", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var r runner
	if r.stage(ctx, "make", "slow"); r.results[0].verdict != unended || !r.summarize(0) {
		t.Errorf("the stage is %q", r.results[0].verdict)
	}
}
