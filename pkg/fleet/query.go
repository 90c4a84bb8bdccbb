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

	"github.com/prometheus/common/model"
)

//go:embed queries.promql
var queryText string

// queries are the queries of queries.promql by name.
var queries = parseQueries(queryText)

// parseQueries returns the paragraphs that have a name and a query.
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

// maxQueries is the number of queries at a time.
const maxQueries = 4

// answers are the answers to queries by name; that of a query without an answer is missing.
type answers struct {
	mu       sync.Mutex
	vectors  map[string]model.Vector
	failed   map[string][]string // the queries by what is wrong with them
	problems []string
}

// ask sends queries for one time. The values of $x are replaced by strings.
func (r *Reader) ask(ctx context.Context, at time.Time, values map[string]string, names ...string) *answers {
	a := &answers{vectors: map[string]model.Vector{}, failed: map[string][]string{}}
	slots := make(chan struct{}, maxQueries)
	var all sync.WaitGroup
	for _, name := range names {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			vector, warnings, err := r.one(ctx, at, expand(queries[name], values))
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, w := range warnings {
				a.failed[w] = append(a.failed[w], name)
			}
			if err != nil {
				a.failed[err.Error()] = append(a.failed[err.Error()], name)
				return
			}
			a.vectors[name] = vector
		})
	}
	all.Wait()
	for _, problem := range slices.Sorted(maps.Keys(a.failed)) {
		a.problems = append(a.problems, which(a.failed[problem], len(names))+": "+problem)
	}
	return a
}

// which names the queries of all that have a problem.
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

func (r *Reader) one(ctx context.Context, at time.Time, query string) (model.Vector, []string, error) {
	value, warnings, _, err := r.api.Query(ctx, query, at)
	if err != nil {
		return nil, warnings, err
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, warnings, fmt.Errorf("the answer is a %s", value.Type())
	}
	// A figure that is no number is not known, and has no JSON.
	vector = slices.DeleteFunc(vector, func(s *model.Sample) bool {
		return math.IsNaN(float64(s.Value)) || math.IsInf(float64(s.Value), 0)
	})
	return vector, warnings, nil
}

var placeholder = regexp.MustCompile(`\$\w+`)

// expand replaces $name by the quoted value.
func expand(query string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(query, func(name string) string {
		return strconv.Quote(strings.ToValidUTF8(values[name[1:]], "?"))
	})
}

// label returns a label of a series.
func label(s *model.Sample, name string) string { return string(s.Metric[model.LabelName(name)]) }

// sums returns the values of a query by a label; nil without an answer.
func (a *answers) sums(name, by string) map[string]float64 {
	vector, ok := a.vectors[name]
	if !ok {
		return nil
	}
	out := make(map[string]float64, len(vector))
	for _, s := range vector {
		out[label(s, by)] += float64(s.Value)
	}
	return out
}
