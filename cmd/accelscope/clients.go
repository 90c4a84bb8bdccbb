// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
	// A client that has scraped at least regularScrapes times, not more often than each second, is a regular one until it has
	// not for regularTime. The first maxRegulars of them have a place for a scrape and for some connections when others have
	// taken all places.
	regularScrapes = 3
	regularTime    = 10 * time.Minute
	maxRegulars    = 4
	ownConnections = 4
	maxRemembered  = 256 // clients that may become regular ones
)

// clients admits connections and scrapes.
type clients struct {
	log    *zap.Logger
	places chan struct{} // of scrapes that run

	mu          sync.Mutex
	connections map[net.Conn]string // the client
	of          map[string]int      // connections by client
	running     map[string]int      // scrapes by client, with those that wait
	known       map[string]*client
	warned      time.Time
}

// client is one that has scraped.
type client struct {
	scrapes int
	last    time.Time
	regular bool
}

func newClients(log *zap.Logger) *clients {
	return &clients{
		log: log, places: make(chan struct{}, maxScrapes), connections: map[net.Conn]string{}, of: map[string]int{},
		running: map[string]int{}, known: map[string]*client{},
	}
}

// hostOf returns the address of a client without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// connState is for http.Server.ConnState. It closes connections beyond the limits before anything is read from them.
func (c *clients) connState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		host := hostOf(conn.RemoteAddr().String())
		own := c.of[host] < ownConnections && c.isRegular(host)
		if !own && (len(c.connections) >= maxConnections || c.of[host] >= maxOfClient) {
			c.warn(host)
			_ = conn.Close()
			return
		}
		c.connections[conn] = host
		c.of[host]++
	case http.StateClosed, http.StateHijacked:
		if host, ok := c.connections[conn]; ok {
			delete(c.connections, conn)
			if c.of[host]--; c.of[host] == 0 {
				delete(c.of, host)
			}
		}
	}
}

// warn logs that a connection was closed, at most once a minute.
func (c *clients) warn(host string) {
	if now := time.Now(); now.Sub(c.warned) >= time.Minute {
		c.warned = now
		c.log.Warn("too many connections",
			zap.String("client", host), zap.Int("of the client", c.of[host]), zap.Int("all", len(c.connections)))
	}
}

// begin reports whether a client may scrape, when its turn has come. It calls end then.
func (c *clients) begin(ctx context.Context, host string) (end func(), ok bool) {
	c.mu.Lock()
	c.scraped(host) // also if it is refused: it comes again
	own := c.running[host] == 0 && c.isRegular(host)
	c.running[host]++
	c.mu.Unlock()
	leave, ok := c.place(ctx, own)
	end = func() {
		leave()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running[host]--; c.running[host] == 0 {
			delete(c.running, host)
		}
	}
	if !ok {
		end()
	}
	return end, ok
}

// place takes a place, in the order of those who wait for one. Who has a place of its own does not wait.
func (c *clients) place(ctx context.Context, own bool) (leave func(), ok bool) {
	leave = func() { <-c.places }
	select {
	case c.places <- struct{}{}:
		return leave, true
	default:
	}
	none := func() {}
	if own {
		return none, true
	}
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	select {
	case c.places <- struct{}{}:
		return leave, true
	case <-wait.C:
	case <-ctx.Done():
	}
	return none, false
}

func (c *clients) isRegular(host string) bool {
	k := c.known[host]
	return k != nil && k.regular && time.Since(k.last) < regularTime
}

// scraped counts a request of a client for a scrape.
func (c *clients) scraped(host string) {
	now := time.Now()
	k := c.known[host]
	if k == nil {
		c.forget(now)
		if len(c.known) >= maxRemembered {
			return
		}
		k = &client{}
		c.known[host] = k
	}
	if now.Sub(k.last) < time.Second {
		return
	}
	if now.Sub(k.last) >= regularTime {
		*k = client{}
	}
	k.scrapes, k.last = k.scrapes+1, now
	if !k.regular && k.scrapes >= regularScrapes {
		regulars := 0
		for name := range c.known {
			if c.isRegular(name) {
				regulars++
			}
		}
		k.regular = regulars < maxRegulars
	}
}

// forget drops clients that have not scraped for a while.
func (c *clients) forget(now time.Time) {
	for name, k := range c.known {
		if now.Sub(k.last) >= regularTime {
			delete(c.known, name)
		}
	}
}
