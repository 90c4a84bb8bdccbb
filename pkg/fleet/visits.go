// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxVisits is the number of searches and jobs that are asked for or being shown at a time, and maxOfClient the number of those of one
	// client: others are answered although Prometheus does not answer the searches of one.
	maxVisits   = 8
	maxOfClient = 2
	// maxWait is the time that a client waits until it may ask.
	maxWait = 5 * time.Second
)

// ErrBusy reports that too many searches and jobs are being asked for.
var ErrBusy = errors.New("other searches and jobs have no answer yet: try again")

// visits are the places of those that ask.
type visits struct {
	all  chan struct{}
	wait time.Duration

	mu sync.Mutex
	of map[netip.Addr]*visitor
}

// visitor is a client that asks or waits.
type visitor struct {
	places chan struct{}
	n      int // of its requests
}

func newVisits() *visits {
	return &visits{all: make(chan struct{}, maxVisits), wait: maxWait, of: map[netip.Addr]*visitor{}}
}

// enter takes a place for a client. It fails if there was none in time.
func (v *visits) enter(ctx context.Context, client netip.Addr) (leave func(), err error) {
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

// take takes a place, and reports whether there was one in time.
func take(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
