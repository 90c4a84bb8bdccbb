// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Source reads facts. A partial Snapshot together with an error is valid and used. The
// counters of a source are cumulative, because the engine discards an answer that is late.
// Read is not called again before it has returned: the engine joins a stuck call.
type Source interface {
	Name() string
	Read(ctx context.Context) (model.Snapshot, error)
	Close() error
}

// A Resolver adds the names of the cgroups that occur in the facts of a refresh. The engine
// calls it after all sources have answered, so that no value is newer than its name. It
// returns Cgroups, Containers, Pods and Expired.
type Resolver interface {
	Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error)
}

// A Forgetter drops its state of cgroups that ended longer ago than the grace period. The
// engine calls the sources that count before the sources that name, after a refresh, never
// during one, and again for a cgroup if Forget has not returned within the deadline.
type Forgetter interface {
	Forget(ids []model.CgroupID)
}

// Registration is a source and the parameters of reading it.
type Registration struct {
	Source Source
	// Err is the reason why the source could not be created; Source then has only a name.
	Err error
	// Interval is how often the source is read in the background; zero reads
	// it on the scrape.
	Interval time.Duration
	// Deadline is how long a scrape waits for it.
	Deadline time.Duration
}
