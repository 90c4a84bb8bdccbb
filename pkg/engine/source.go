// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Source reads facts. A partial Snapshot together with an error is valid and used. Read
// must be repeatable, as an answer that is late is lost: what a source counts is cumulative.
// Read is not called again before it returned: the engine joins a stuck call.
type Source interface {
	Name() string
	Read(ctx context.Context) (model.Snapshot, error)
	Close() error
}

// A Resolver adds the names of the cgroups that occur in the facts of a refresh. It is asked
// after all sources have answered, so that no value is newer than its name. It returns
// Cgroups, Containers or Pods, and what is Expired.
type Resolver interface {
	Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error)
}

// A Forgetter drops what it keeps of cgroups that ended longer ago than the grace period. The
// engine calls the sources that count before those that name, after a refresh, never during
// one. Forget does not block.
type Forgetter interface {
	Forget(ids []model.CgroupID)
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
