// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// connection is an open connection of a client.
type connection struct {
	client clientAddress
	state  http.ConnState // new: without a request yet; active, or idle
	since  time.Time
}

// ConnState is for http.Server.ConnState. At a limit it closes a connection that waits for a request, or else the new one before anything
// is read from it.
func (c *Clients) ConnState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch state {
	case http.StateNew:
		client := addressOf(conn.RemoteAddr().String())
		own := c.of[client] < ownConnections && c.scrapers.place(client, now) != nil
		if !own && !c.makeRoom(client, now) {
			c.warn(client)
			_ = conn.Close()
			return
		}
		c.connections[conn] = &connection{client, state, now}
		c.of[client]++
	case http.StateActive, http.StateIdle:
		if k := c.connections[conn]; k != nil {
			k.state, k.since = state, now
		}
	case http.StateClosed, http.StateHijacked:
		c.forget(conn)
	}
}

func (c *Clients) forget(conn net.Conn) {
	if k := c.connections[conn]; k != nil {
		delete(c.connections, conn)
		if c.of[k.client]--; c.of[k.client] == 0 {
			delete(c.of, k.client)
		}
	}
}

// makeRoom reports whether a client may have another connection. A client that has all of its own gives up the one that waits longest for a
// request. When all are taken, the client with most gives up one that is idle, or that has not sent a request in time.
func (c *Clients) makeRoom(client clientAddress, now time.Time) bool {
	if c.of[client] >= maxOfClient {
		return c.evict(func(k *connection) bool { return k.client == client })
	}
	if len(c.connections) < maxConnections {
		return true
	}
	return c.evict(func(k *connection) bool {
		protected := c.of[k.client] <= ownConnections && c.scrapers.place(k.client, now) != nil
		return !protected && (k.state == http.StateIdle || now.Sub(k.since) >= requestWait)
	})
}

// evict closes a connection without a request that may be closed: of the client with most, an idle one before one that is new, the oldest
// first. It returns false if there is no such connection.
func (c *Clients) evict(may func(*connection) bool) bool {
	var victim net.Conn
	for conn, k := range c.connections {
		if k.state != http.StateActive && may(k) && (victim == nil || c.before(k, c.connections[victim])) {
			victim = conn
		}
	}
	if victim == nil {
		return false
	}
	c.forget(victim)
	if t, ok := victim.(*tls.Conn); ok {
		victim = t.NetConn() // its Close would wait until the peer has received an alert
	}
	_ = victim.Close()
	return true
}

// before reports whether a is closed before b.
func (c *Clients) before(a, b *connection) bool {
	switch {
	case c.of[a.client] != c.of[b.client]:
		return c.of[a.client] > c.of[b.client]
	case a.state != b.state:
		return a.state == http.StateIdle
	}
	return a.since.Before(b.since)
}

// warn logs that a connection was closed, at most once a minute.
func (c *Clients) warn(client clientAddress) {
	if now := time.Now(); now.Sub(c.warned) >= time.Minute {
		c.warned = now
		c.log.Warn("too many connections",
			zap.String("client", string(client)), zap.Int("of the client", c.of[client]), zap.Int("all", len(c.connections)))
	}
}
