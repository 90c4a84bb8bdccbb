// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Limits of what clients may hold at once. A client is an address.
const (
	maxConnections = 256
	maxOfClient    = 64 // connections
	maxScrapes     = 16 // more get status 503
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
	log *zap.Logger
	now func() time.Time

	mu          sync.Mutex
	connections map[net.Conn]string // the client
	of          map[string]int      // connections by client
	running     map[string]int      // scrapes by client
	scrapes     int
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
		log: log, now: time.Now, connections: map[net.Conn]string{}, of: map[string]int{}, running: map[string]int{},
		known: map[string]*client{},
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
	if now := c.now(); now.Sub(c.warned) >= time.Minute {
		c.warned = now
		c.log.Warn("too many connections",
			zap.String("client", host), zap.Int("of the client", c.of[host]), zap.Int("all", len(c.connections)))
	}
}

// begin reports whether a client may scrape now. It calls end then.
func (c *clients) begin(host string) (end func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scraped(host) // also if it is refused: it comes again
	own := c.running[host] == 0 && c.isRegular(host)
	if !own && c.scrapes >= maxScrapes {
		return nil, false
	}
	c.scrapes++
	c.running[host]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.scrapes--
		if c.running[host]--; c.running[host] == 0 {
			delete(c.running, host)
		}
	}, true
}

func (c *clients) isRegular(host string) bool {
	k := c.known[host]
	return k != nil && k.regular && c.now().Sub(k.last) < regularTime
}

// scraped counts a request of a client for a scrape.
func (c *clients) scraped(host string) {
	now := c.now()
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
