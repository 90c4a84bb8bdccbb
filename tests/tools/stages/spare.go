// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	enough     = 55 * time.Minute // of all stages, of the hour that CI may take
	mostSpare  = 10 * time.Minute // of a spare stage
	leastSpare = 5 * time.Minute  // in less time it would show nothing
)

// runSpare runs the spare stages in the time that is left, if no other stage failed.
func (r *runner) runSpare(ctx context.Context, began time.Time) {
	if slices.ContainsFunc(r.results, func(s result) bool { return s.verdict == failed }) {
		return
	}
	for _, name := range r.spare {
		left := min(enough-time.Since(began), mostSpare)
		if left < leastSpare {
			r.print(fmt.Sprintf("%s is not run: there is no time left\n", name))
			r.results = append(r.results, result{name: name, verdict: unended})
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, left)
		again := r.again
		r.stage(bounded, append(append([]string{"make"}, r.built...), name)...)
		r.again = again // one more guest may run again
		cancel()
	}
}
