// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Source reads facts. A partial Snapshot together with an error is valid and
// used. Read may be called again while an earlier call hangs only after that
// one returned: the engine joins a stuck read instead of starting another.
type Source interface {
	Name() string
	Read(ctx context.Context) (model.Snapshot, error)
	Close() error
}

// A Resolver names the owners of what the sources of the same refresh saw. It
// is asked after all of them have answered, so that no figure can be older
// than its name. It returns Tasks for the process ids, Entities for the cgroup
// ids and for the cgroups of those processes, and what is Expired.
type Resolver interface {
	Resolve(ctx context.Context, cgroups []uint64, pids []int) (model.Snapshot, error)
}

// A Forgetter drops what it keeps of cgroups that are gone for longer than the
// grace time. The engine calls the sources that hold figures before those that
// hold names, after a refresh, never during one; Forget does not block.
type Forgetter interface {
	Forget(cgroups []uint64)
}

// Registration is a source and how it is to be read.
type Registration struct {
	Source Source
	// Err is why the source could not be made; Source is then only its name.
	Err error
	// Interval is how often the source is read in the background; zero reads
	// it on the scrape.
	Interval time.Duration
	// Deadline is how long a scrape waits for it.
	Deadline time.Duration
}
