// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// from is a connection from an address.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (f *from) RemoteAddr() net.Addr { return address(f.address) }
func (f *from) Close() error         { f.closed = true; return nil }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// opened is whether the server keeps a new connection.
func opened(c *Clients, host string) bool {
	f := &from{address: net.JoinHostPort(host, "1")}
	c.ConnState(f, http.StateNew)
	return !f.closed
}

// A client that scrapes regularly is served while others hold all places: one scrape at a time.
func TestRegularClient(t *testing.T) { synctest.Test(t, testRegularClient) }

func testRegularClient(t *testing.T) {
	c := NewClients(zap.NewNop())
	scrape := func(host clientAddress) bool {
		end, ok := c.begin(t.Context(), host)
		if ok {
			end()
		}
		return ok
	}
	for range regularScrapes {
		time.Sleep(15 * time.Second)
		if !scrape("prometheus") {
			t.Fatal("a scrape is refused")
		}
	}
	var ends []func()
	for i := range maxScrapes {
		end, ok := c.begin(t.Context(), clientAddress(fmt.Sprint("pod", i)))
		if !ok {
			t.Fatalf("scrape %d is refused", i)
		}
		ends = append(ends, end)
	}
	if scrape("pod") {
		t.Error("one scrape too many is answered")
	}
	end, ok := c.begin(t.Context(), "prometheus")
	if !ok {
		t.Fatal("the regular scrape is refused")
	}
	if scrape("prometheus") {
		t.Error("a second one beside it is answered")
	}
	waits := make(chan bool)
	go func() { waits <- scrape("prometheus") }()
	synctest.Wait()
	if end(); !<-waits {
		t.Error("the second one does not get the place of the first")
	}
	for _, end := range ends {
		end()
	}
	if len(c.places) != 0 || len(c.scrapers.place("prometheus", time.Now())) != 0 {
		t.Error("places are taken after the last scrape")
	}
}

// Four clients that scrape some times when the sensor starts, and go away, do not take the place of the scraper that comes later.
func TestFirstClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClients(zap.NewNop())
		for i := range 4 {
			for _, wait := range []time.Duration{2, 9, 3} {
				time.Sleep(wait * time.Second)
				if end, ok := c.begin(t.Context(), clientAddress(fmt.Sprint("10.0.1.", i))); ok {
					end()
				}
			}
		}
		for range 5 {
			time.Sleep(15 * time.Second)
			if end, ok := c.begin(t.Context(), "10.0.0.1"); ok {
				end()
			}
		}
		for i := range maxScrapes {
			end, ok := c.begin(t.Context(), clientAddress(fmt.Sprint("10.0.2.", i)))
			if !ok {
				t.Fatal("a scrape is refused")
			}
			defer end()
		}
		began := time.Now()
		end, ok := c.begin(t.Context(), "10.0.0.1")
		if !ok {
			t.Fatalf("the scraper is refused after %v: clients that came first own all places", time.Since(began))
		}
		end()
	})
}

// A flood of scrapers that begins with the sensor, and goes on, owns the places. Another client is served in its turn nevertheless.
func TestFloodFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClients(zap.NewNop())
		flood, stop := context.WithCancel(t.Context())
		var pods sync.WaitGroup
		defer pods.Wait()
		defer stop()
		for i := range 2 * maxScrapes {
			pods.Go(func() {
				for flood.Err() == nil {
					end, ok := c.begin(flood, clientAddress(fmt.Sprint("pod", i)))
					time.Sleep(time.Second) // of the scrape, or after its refusal
					if ok {
						end()
					}
				}
			})
		}
		time.Sleep(time.Minute)
		for range 20 {
			time.Sleep(15 * time.Second)
			began := time.Now()
			end, ok := c.begin(t.Context(), "prometheus")
			if c.scrapers.place("prometheus", time.Now()) != nil {
				t.Fatal("it has a place of its own")
			}
			if !ok {
				t.Fatalf("refused after %v", time.Since(began))
			}
			end()
		}
	})
}

// Connections beyond the limits are closed at once, but for some of the owners of places.
func TestConnections(t *testing.T) { synctest.Test(t, testConnections) }

func testConnections(t *testing.T) {
	c := NewClients(zap.NewNop())
	for range regularScrapes {
		time.Sleep(15 * time.Second)
		if end, ok := c.begin(t.Context(), "10.0.0.1"); ok {
			end()
		}
	}
	for i := range maxConnections {
		if !opened(c, fmt.Sprint("pod", i%3)) {
			t.Fatalf("connection %d is closed instead of one without a request", i)
		}
	}
	if n := len(c.connections); n != 3*maxOfClient {
		t.Errorf("three clients have %d connections, want %d each", n, maxOfClient)
	}
	for i := 0; len(c.connections) < maxConnections; i++ {
		if !opened(c, fmt.Sprint("other", i)) {
			t.Fatalf("connection %d is closed", len(c.connections))
		}
	}
	if opened(c, "late") || !opened(c, "10.0.0.1") {
		t.Error("at the limit another client is served, or the regular one is not")
	}
	for conn := range c.connections {
		c.ConnState(conn, http.StateClosed)
	}
	if len(c.connections) != 0 || len(c.of) != 0 {
		t.Errorf("%d connections of %d clients are left", len(c.connections), len(c.of))
	}
}

// A client whose connections are all idle, or have not sent a request, is served: the one that waits longest is closed.
func TestIdleConnections(t *testing.T) {
	for _, state := range []http.ConnState{http.StateIdle, http.StateNew} {
		synctest.Test(t, func(t *testing.T) {
			c := NewClients(zap.NewNop())
			conns := make([]*from, maxOfClient)
			for i := range conns {
				conns[i] = &from{address: "10.0.0.1:1"}
				c.ConnState(conns[i], http.StateNew)
				if i > 0 && state != http.StateNew {
					c.ConnState(conns[i], http.StateActive)
					c.ConnState(conns[i], state)
				}
				time.Sleep(time.Millisecond)
			}
			c.ConnState(conns[0], http.StateActive) // the oldest has a request in progress
			if !opened(c, "10.0.0.1") {
				t.Errorf("%v: the next connection is closed", state)
			}
			for i, conn := range conns {
				if conn.closed != (i == 1) {
					t.Errorf("%v: connection %d: closed %t", state, i, conn.closed)
				}
			}
			for _, conn := range conns {
				c.ConnState(conn, http.StateActive)
			}
			for i := len(c.connections); i < maxOfClient+1; i++ {
				opened(c, "10.0.0.1")
			}
			if n := c.of["10.0.0.1"]; n != maxOfClient {
				t.Errorf("%v: %d connections", state, n)
			}
		})
	}
}

// When clients have taken all connections and are idle, another one is served. Those with a request in progress are not closed.
func TestIdleFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClients(zap.NewNop())
		conns := make([]*from, maxConnections)
		for i := range conns {
			conns[i] = &from{address: fmt.Sprintf("10.0.1.%d:1", i/maxOfClient)}
			c.ConnState(conns[i], http.StateNew)
			if i%2 == 0 {
				c.ConnState(conns[i], http.StateActive)
			}
		}
		if opened(c, "10.0.0.1") {
			t.Error("a connection is closed that has had no time for its first request")
		}
		time.Sleep(requestWait)
		for range maxConnections / 2 {
			if !opened(c, "10.0.0.1") {
				break // it has its share
			}
		}
		if n := c.of["10.0.0.1"]; n < maxOfClient/2 || len(c.connections) > maxConnections {
			t.Errorf("%d connections, of all %d", n, len(c.connections))
		}
		for i, conn := range conns {
			if conn.closed && i%2 == 0 {
				t.Errorf("connection %d was closed during a request", i)
			}
		}
	})
}

// A real client that holds idle connections, with and without a request before, scrapes.
func TestIdleClient(t *testing.T) {
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }), zap.NewNop())
	server.ConnState = NewClients(zap.NewNop()).ConnState
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Close() //nolint:errcheck // the test ends
	for i := range 3 * maxOfClient {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test ends
		if i%2 == 0 {
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	answer, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatalf("a scrape beside %d idle connections: %v", maxOfClient, err)
	}
	_ = answer.Body.Close()
}
