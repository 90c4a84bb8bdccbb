// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxVisits is the number of searches and jobs in progress or being shown, maxOfClient the number for one client:
	// other clients are answered even if Prometheus does not answer one client's searches.
	maxVisits   = 8
	maxOfClient = 2
	// maxWait is how long a client waits for a place.
	maxWait = 5 * time.Second
)

// ErrBusy reports that too many searches and jobs are in progress.
var ErrBusy = errors.New("other searches and jobs have no answer yet: try again")

type visits struct {
	all  chan struct{}
	wait time.Duration

	mu sync.Mutex
	of map[string]*visitor
}

// visitor is a client that asks or waits.
type visitor struct {
	places chan struct{}
	n      int // its requests
}

func newVisits() *visits {
	return &visits{all: make(chan struct{}, maxVisits), wait: maxWait, of: map[string]*visitor{}}
}

// enter takes a place for a client, by any name. It fails if no place is free in time.
func (v *visits) enter(ctx context.Context, client string) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, v.wait)
	defer cancel()
	v.mu.Lock()
	c := v.of[client]
	if c == nil {
		c = &visitor{places: make(chan struct{}, maxOfClient)}
		v.of[client] = c
	}
	c.n++
	v.mu.Unlock()
	gone := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if c.n--; c.n == 0 {
			delete(v.of, client)
		}
	}
	if !take(ctx, c.places) {
		gone()
		return nil, ErrBusy
	}
	if !take(ctx, v.all) {
		<-c.places
		gone()
		return nil, ErrBusy
	}
	return func() {
		<-v.all
		<-c.places
		gone()
	}, nil
}

// take takes a place, and reports whether a place was free in time.
func take(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
