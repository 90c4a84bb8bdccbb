// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	_ "embed" // queries.promql
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/safely"
)

//go:embed queries.promql
var queryText string

var queries = parseQueries(queryText)

// parseQueries returns the paragraphs with a name and a query.
func parseQueries(text string) map[string]string {
	out := map[string]string{}
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		name, query, ok := strings.Cut(strings.TrimSpace(paragraph), "\n")
		if ok && !strings.HasPrefix(query, "#") {
			out[strings.TrimPrefix(name, "# ")] = query
		}
	}
	return out
}

// The number of concurrent queries for a state, and for a search or a job.
const (
	stateQueriesAtOnce = 4
	queriesAtOnce      = 2
)

// answers are the answers to queries by name, without unanswered queries.
type answers struct {
	vectors  map[string][]sample
	runs     map[string][][]run // of queries over a time, for each sample
	problems []string
	charged  int // bytes
}

// ask sends queries for a time. Strings replace $x. The answers have at most most bytes of memory.
func (r *Reader) ask(ctx context.Context, at time.Time, most, atOnce int, values map[string]string, names ...string) *answers {
	a := &answers{vectors: map[string][]sample{}, runs: map[string][][]run{}}
	in := newStore(most)
	failed := map[string][]string{} // queries by problem
	var mu sync.Mutex
	slots := make(chan struct{}, atOnce)
	var all safely.Group
	for _, name := range names {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			v := &vector{in: in, name: name, samples: []sample{}}
			warnings, err := r.prometheus.ask(ctx, expand(queries[name], values), at, v.series)
			if err != nil {
				v.drop()
			}
			mu.Lock()
			defer mu.Unlock()
			for _, w := range warnings {
				failed[w] = append(failed[w], name)
			}
			if err != nil {
				failed[err.Error()] = append(failed[err.Error()], name)
				return
			}
			a.vectors[name], a.runs[name] = v.samples, v.runs
		})
	}
	all.Wait()
	for _, problem := range slices.Sorted(maps.Keys(failed)) {
		a.problems = append(a.problems, which(failed[problem], len(names))+": "+problem)
	}
	a.charged = in.used
	return a
}

// series adds a series of the answer. A figure that is not a number is unknown, and has no JSON.
func (v *vector) series(s *series) error {
	if len(s.Values) > 0 {
		return v.addRuns(s.Metric, runsOf(s.Values))
	}
	if s.Value == nil || math.IsNaN(float64(s.Value.Value)) || math.IsInf(float64(s.Value.Value), 0) {
		return nil
	}
	return v.add(s.Metric, float64(s.Value.Value))
}

// which names the queries with a problem, out of all.
func which(names []string, all int) string {
	slices.Sort(names)
	switch {
	case len(names) == all && all > 1:
		return "all queries"
	case len(names) > 3:
		return fmt.Sprintf("%s and %d more queries", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

var placeholder = regexp.MustCompile(`\$\w+`)

// expand replaces $name by the quoted value.
func expand(query string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(query, func(name string) string {
		return strconv.Quote(strings.ToValidUTF8(values[name[1:]], "?"))
	})
}

// sums returns the values of a query by a label; nil without an answer.
func (a *answers) sums(name, by string) map[string]float64 {
	vector, ok := a.vectors[name]
	if !ok {
		return nil
	}
	out := make(map[string]float64, len(vector))
	for _, s := range vector {
		out[label(s, by)] += s.value
	}
	return out
}
