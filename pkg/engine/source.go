// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Source reads facts. It may return a partial Snapshot with an error; both are used. Its counters are cumulative,
// because the engine discards late answers. The engine does not call Read again before Read has returned.
type Source interface {
	Name() string
	Read(ctx context.Context) (model.Snapshot, error)
	Close() error
}

// A Resolver adds the names of the cgroups in the facts of a refresh. The engine calls it after all sources have
// answered, so that no value is newer than its name. It returns Cgroups, Containers, Pods and Expired.
type Resolver interface {
	Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error)
}

// A Forgetter drops its state of cgroups that ended before the grace period. After a refresh, never during a refresh,
// the engine calls the sources that count, then the sources that name. It calls again for a cgroup if Forget has not
// returned within the deadline.
type Forgetter interface {
	Forget(ids []model.CgroupID)
}

// Registration is a source and how to read it.
type Registration struct {
	Source Source
	// Err is why the source could not be created; Source then has only a name.
	Err error
	// Interval is how often the source is read in the background; 0: on each scrape.
	Interval time.Duration
	// Deadline is how long a scrape waits for the source.
	Deadline time.Duration
}
