// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Limits of what clients may hold at once. A client is an address.
const (
	maxConnections = 256
	maxOfClient    = 64              // connections
	maxScrapes     = 16              // others wait for their turn
	maxWait        = 5 * time.Second // for the turn, then status 503: half of scrape_timeout of Prometheus
	// ownConnections is the number of connections that the owner of a place has when other clients have taken all.
	ownConnections = 4
	// requestWait is how long a connection may be without its first request when other clients need its place.
	requestWait = time.Second
)

// Clients admits connections and scrapes.
type Clients struct {
	log    *zap.Logger
	places chan struct{} // of scrapes that run

	mu          sync.Mutex
	connections map[net.Conn]*connection
	of          map[clientAddress]int // connections by client
	scrapers    *scrapers
	warned      time.Time
}

// NewClients returns the clients of a server.
func NewClients(log *zap.Logger) *Clients {
	return &Clients{
		log: log, places: make(chan struct{}, maxScrapes), connections: map[net.Conn]*connection{}, of: map[clientAddress]int{},
		scrapers: newScrapers(),
	}
}

// Limit lets a handler answer scrapes when their turn has come.
func (c *Clients) Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end, ok := c.begin(r.Context(), addressOf(r.RemoteAddr))
		if !ok {
			http.Error(w, fmt.Sprintf("%d other scrapes have run for %v", maxScrapes, maxWait), http.StatusServiceUnavailable)
			return
		}
		defer end()
		next.ServeHTTP(w, r)
	})
}

// begin reports whether a client may scrape, when its turn has come. It calls end then. A client that owns a place takes another as long as
// there is one, and has one scrape in its own.
func (c *Clients) begin(ctx context.Context, client clientAddress) (end func(), ok bool) {
	now := time.Now()
	c.mu.Lock()
	c.scrapers.seen(client, now) // also if it is refused: it comes again
	own := c.scrapers.place(client, now)
	c.mu.Unlock()
	if leave := enter(c.places); leave != nil {
		return leave, true
	}
	if leave := enter(own); leave != nil {
		return leave, true
	}
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	select { // nobody enters a place that is nil
	case c.places <- struct{}{}:
		return func() { <-c.places }, true
	case own <- struct{}{}:
		return func() { <-own }, true
	case <-wait.C:
	case <-ctx.Done():
	}
	return nil, false
}

// enter takes a place and returns a function that leaves it, nil if no place is free.
func enter(places chan struct{}) (leave func()) {
	select {
	case places <- struct{}{}:
		return func() { <-places }
	default:
		return nil
	}
}
