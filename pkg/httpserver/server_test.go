// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/pages"
)

// The address of probes answers nothing else.
func TestProbeAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	ready := func() (bool, []string) { return true, []string{"rdma: absent: no HCA"} }
	if _, err := serveProbes(address, ready, zap.NewNop()); err == nil {
		t.Error("the address is in use, and there is no error")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := serveProbes(address, ready, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	long := "/" + strings.Repeat("x", 2*maxHeaderBytes)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 404, "/pods": 404, "/": 404, long: 431} {
		if code := status(t, "http://"+address+path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

func TestScrapesAreLimited(t *testing.T) {
	entered, open := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(NewClients(zap.NewNop()).Limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-open
	})))
	defer s.Close()
	var wg sync.WaitGroup
	for range maxScrapes {
		wg.Go(func() { status(t, s.URL) })
	}
	for range maxScrapes {
		<-entered
	}
	if code := status(t, s.URL); code != http.StatusServiceUnavailable {
		t.Errorf("one more than %d scrapes: %d, want 503", maxScrapes, code)
	}
	close(open)
	wg.Wait()
}

// While clients hold all connections of the port, all slots of answers and all places of scrapes, the probe address answers everybody, and
// the port answers the client that scrapes regularly. Another client gets the connection of one that is idle, but no place.
func TestHeldPlaces(t *testing.T) {
	entered, open := make(chan struct{}), make(chan struct{})
	defer close(open)
	hold := func() {
		entered <- struct{}{}
		<-open
	}
	list := func() ([]attribution.PeerShare, error) {
		hold()
		return nil, nil
	}
	scrape := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			hold()
		}
	})
	facts := func() api.Known { return api.Known{At: time.Unix(1, 0)} }
	isReady := func() (bool, []string) { return true, nil }
	c := NewClients(zap.NewNop())
	for i := range regularScrapes {
		c.scrapers.seen("127.0.0.1", time.Now().Add(time.Duration(i-regularScrapes)*15*time.Second))
	}
	slots, mux := api.NewSlots(), http.NewServeMux()
	mux.Handle("GET /metrics", c.Limit(scrape))
	for _, routes := range []map[string]http.Handler{
		pages.Handlers(pages.Options{Facts: facts, Peers: list, Slots: slots}), api.Handlers(facts, list, slots), ProbeRoutes(isReady),
	} {
		for pattern, handler := range routes {
			mux.Handle(pattern, handler)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := New(mux, c, zap.NewNop())
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	probeAddress := freeAddress(t)
	probes, err := serveProbes(probeAddress, isReady, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer probes.Close()

	for i := range maxConnections {
		path, held := "/healthz", true
		switch {
		case i < cap(slots):
			path = "/api/v1/peers?each"
		case i < cap(slots)+maxScrapes:
			path = "/metrics?collect[]=held"
		default:
			held = false // answered, and kept
		}
		conn, err := dialerAt(fmt.Sprintf("127.0.1.%d", 1+i/maxOfClient)).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: sensor\r\n\r\n", path)
		if held {
			select {
			case <-entered:
			case <-time.After(time.Minute):
				t.Fatalf("%s is not being answered", path)
			}
		} else if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("connection %d: %v", i, err)
		}
	}

	regular, other, url := clientAt("127.0.0.1"), clientAt("127.0.2.1"), "http://"+l.Addr().String()
	for _, target := range []string{url + "/healthz", url + "/readyz", url + "/metrics"} {
		if err := ask(regular, target); err != nil {
			t.Errorf("the regular scraper: %v", err)
		}
		if err := ask(other, target); (err == nil) != (target != url+"/metrics") {
			t.Errorf("another client: %s: %v", target, err)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if err := ask(other, "http://"+probeAddress+path); err != nil {
			t.Errorf("a probe: %v", err)
		}
	}
	for _, path := range []string{"/pods", "/?q=x"} { // neither JSON nor a page has a slot of its own
		if err := ask(regular, url+path); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("%s: %v, want status 503", path, err)
		}
	}
}

// clientAt returns a client with an address of the loopback network.
func clientAt(address string) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: dialerAt(address).DialContext}}
}

func dialerAt(address string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}

// ask sends a request and reads its answer, which must have status 200.
func ask(client *http.Client, url string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// freeAddress returns an address of the host on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// status returns the status of the answer to a request.
func status(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
