// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
)

const (
	// maxAge is how old a state may be. The rules are evaluated each minute.
	maxAge = 15 * time.Second
	// timeout is for all queries of a state, a job or a search.
	timeout = 20 * time.Second
)

// Reader reads states.
type Reader struct {
	api     prometheus.API
	now     func() time.Time
	timeout time.Duration

	mu   sync.Mutex
	last *State
	at   time.Time // when last was asked for

	members memo[JobName, Member]
	found   memo[string, Found]
}

// NewReader returns a reader.
func NewReader(api prometheus.API) *Reader {
	return &Reader{api: api, now: time.Now, timeout: timeout}
}

// maxKept is the number of jobs, and of searches, whose answers are kept.
const maxKept = 32

// memo keeps answers for maxAge.
type memo[K comparable, V any] struct {
	mu   sync.Mutex
	kept map[K]kept[V]
}

type kept[V any] struct {
	at       time.Time
	list     []V
	problems []string
}

// get returns what is kept for a key, or asks for it. Who asks for another key waits.
func (m *memo[K, V]) get(key K, now func() time.Time, ask func() ([]V, []string)) ([]V, []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.kept, func(_ K, k kept[V]) bool { return now().Sub(k.at) >= maxAge })
	if k, ok := m.kept[key]; ok {
		return k.list, k.problems
	}
	list, problems := ask()
	if m.kept == nil || len(m.kept) >= maxKept {
		m.kept = map[K]kept[V]{}
	}
	m.kept[key] = kept[V]{now(), list, problems}
	return list, problems
}

// Read returns a state that is at most 15 seconds old. Whoever asks at the same time gets the same one. If Prometheus does not answer,
// it is the last one that it answered, with the problems of the last attempt. The context of who asks does not end the queries: others
// wait for them, too.
func (r *Reader) Read() *State {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.last != nil && now.Sub(r.at) < maxAge {
		return r.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	s := r.read(ctx, now)
	if s.Empty() && r.last != nil && !r.last.Empty() {
		old := *r.last
		old.Problems = append([]string{fmt.Sprintf("no answers since %s", old.At.UTC().Format("15:04:05 UTC"))}, s.Problems...)
		s = &old
	}
	s.Tried = now
	r.last, r.at = s, r.now()
	return s
}

// Empty reports whether no query of the nodes was answered.
func (s *State) Empty() bool {
	return s.Nodes == nil && s.Jobs == nil && s.Alerts == nil && len(s.Problems) > 0
}
