// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

type durationKey struct{ source, operation string }

// durations are how long calls took, and how long forks may have waited for them.
type durations struct{ calls, forks model.Histogram }

// Durations returns how long the calls of a source took.
func (g *Gate) Durations(source string) []model.ProbeDurations {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []model.ProbeDurations
	for key, d := range g.durations {
		if key.source == source {
			out = append(out, model.ProbeDurations{Source: source, Operation: key.operation, Calls: d.calls, Forks: d.forks})
		}
	}
	return out
}

func (g *Gate) observe(key durationKey, call time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.durationsOf(key).calls.Observe(call)
}

// observeForks adds how long forks may have waited for a call, if the programs measure it.
func (g *Gate) observeForks(key durationKey, forks time.Duration) {
	if g.eyes.unmeasured != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.durationsOf(key).forks.Observe(forks)
}

func (g *Gate) durationsOf(key durationKey) *durations {
	d := g.durations[key]
	if d == nil {
		d = &durations{}
		g.durations[key] = d
	}
	return d
}
