// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"fmt"
	"testing"
	"time"
)

// clock is a time that a test sets.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Unix(1e9, 0)} }

// scrapes has an address scrape a number of times.
func (c *clock) scrapes(s *scrapers, of clientAddress, n int, interval time.Duration) {
	for range n {
		c.now = c.now.Add(interval)
		s.seen(of, c.now)
	}
}

func (c *clock) owns(s *scrapers, of clientAddress) bool { return s.place(of, c.now) != nil }

// TestOneOffClients: clients that come first, once or a few times at no interval, own no place. A scraper that comes later does.
func TestOneOffClients(t *testing.T) {
	s, c := newScrapers(), newClock()
	for i := range maxOwners {
		once, some := clientAddress(fmt.Sprint("once", i)), clientAddress(fmt.Sprint("some", i))
		c.scrapes(s, once, 1, time.Second)
		for _, wait := range []time.Duration{0, 2 * time.Second, 17 * time.Second, 3 * time.Second, 41 * time.Second} {
			c.now = c.now.Add(wait)
			s.seen(some, c.now)
		}
		if c.owns(s, once) || c.owns(s, some) {
			t.Fatal("a client without an interval owns a place")
		}
	}
	c.scrapes(s, "prometheus", regularScrapes-1, 15*time.Second)
	if c.owns(s, "prometheus") {
		t.Error("it owns a place before its interval is known")
	}
	if c.scrapes(s, "prometheus", 1, 15*time.Second); !c.owns(s, "prometheus") {
		t.Error("the scraper owns no place")
	}
}

// TestOwners: as many scrapers own a place as there are. One that stays away is a known one for an hour, but after ten minutes it
// makes way for another.
func TestOwners(t *testing.T) {
	s, c := newScrapers(), newClock()
	four := []clientAddress{"a", "b", "c", "d"}
	for range regularScrapes {
		c.now = c.now.Add(30 * time.Second)
		for _, of := range append(four, "late") {
			s.seen(of, c.now)
		}
	}
	for _, of := range four {
		if !c.owns(s, of) {
			t.Errorf("%s owns no place", of)
		}
	}
	if c.owns(s, "late") {
		t.Error("the fifth owns a place")
	}
	for range int(absentTime / time.Minute) { // a is away
		c.now = c.now.Add(time.Minute)
		for _, of := range append(four[1:], "late") {
			s.seen(of, c.now)
		}
	}
	if !c.owns(s, "late") || c.owns(s, "a") || !c.owns(s, "b") {
		t.Error("the place of the absent one is not that of the next")
	}
	s, c = newScrapers(), newClock()
	c.scrapes(s, "a", regularScrapes, 15*time.Second)
	last := c.now
	if c.now = last.Add(knownTime - 1); !c.owns(s, "a") {
		t.Error("it is forgotten within an hour, although no other is there")
	}
	if c.now = last.Add(knownTime); c.owns(s, "a") {
		t.Error("it is known after an hour")
	}
	if s.seen("a", c.now); c.owns(s, "a") {
		t.Error("one scrape makes it known again")
	}
}

// TestIntervals: which scrapes have an interval. Several scrapers behind one address are one client.
func TestIntervals(t *testing.T) {
	at := func(seconds ...float64) (out []time.Duration) {
		for _, x := range seconds {
			out = append(out, time.Duration(x*float64(time.Second)))
		}
		return out
	}
	for name, test := range map[string]struct {
		at   []time.Duration
		want bool
	}{
		"once":                      {at(0), false},
		"too few":                   {at(0, 15, 30), false},
		"each 15 s":                 {at(0, 15, 30, 45), true},
		"late scrapes":              {at(0, 16, 30, 46), true},
		"each second":               {at(0, 1.1, 2.2, 3.3), true},
		"within a second":           {at(0, .2, .4, .6, .8), false},
		"reloads":                   {at(0, 3, 40, 44), false},
		"one is missing":            {at(0, 15, 45, 60), false},
		"after one is missing":      {at(0, 15, 45, 60, 75, 90), true},
		"another interval":          {at(0, 15, 30, 90, 150, 210, 270), true},
		"two behind an address":     {at(0, 4, 15, 19, 30, 34, 45), true},
		"15 s and a minute":         {at(0, 7, 15, 30, 45, 60, 67), true},
		"three of different phases": {at(0, 7, 21, 30, 37, 51, 60, 67, 81, 90), true},
	} {
		s, c := newScrapers(), newClock()
		start := c.now
		for _, x := range test.at {
			c.now = start.Add(x)
			s.seen("a", c.now)
		}
		if c.owns(s, "a") != test.want {
			t.Errorf("%s: owns a place: %v", name, !test.want)
		}
	}
	s, c := newScrapers(), newClock()
	c.scrapes(s, "a", regularScrapes, 15*time.Second)
	for range 2 * regularScrapes {
		if c.scrapes(s, "a", 1, 2*time.Minute); !c.owns(s, "a") {
			t.Fatal("it loses its place with another interval")
		}
	}
}

// TestManyClients: clients that come once, more than are remembered, take neither the memory nor the place of a scraper.
func TestManyClients(t *testing.T) {
	s, c := newScrapers(), newClock()
	visit := func(n int) {
		for i := range n {
			s.seen(clientAddress(fmt.Sprint(c.now.Unix(), " ", i)), c.now)
		}
	}
	visit(2 * maxRemembered)
	for range regularScrapes {
		c.scrapes(s, "prometheus", 1, 15*time.Second)
		visit(maxRemembered - 1)
	}
	if !c.owns(s, "prometheus") || len(s.known) > maxRemembered {
		t.Errorf("among many clients the scraper owns no place, or %d are remembered", len(s.known))
	}
	for range 20 {
		c.now = c.now.Add(time.Minute)
		visit(2 * maxRemembered)
	}
	if !c.owns(s, "prometheus") {
		t.Error("many clients made it lose its place")
	}
}

// TestScrapesOfAClient: the last scrapes of a client are remembered, and they are bounded.
func TestScrapesOfAClient(t *testing.T) {
	s, c := newScrapers(), newClock()
	c.scrapes(s, "prometheus", 3*maxTimes, 15*time.Second)
	if k := s.known["prometheus"]; len(k.times) != maxTimes || k.last() != c.now {
		t.Errorf("%d scrapes are remembered, the last at %v, want %d until %v", len(k.times), k.last(), maxTimes, c.now)
	}
}

// TestClientAddress: a client is an address, however the kernel writes it.
func TestClientAddress(t *testing.T) {
	for text, want := range map[string]clientAddress{
		"10.0.0.1:5000":          "10.0.0.1",
		"[::ffff:10.0.0.1]:5001": "10.0.0.1",
		"[::ffff:a00:1]:5001":    "10.0.0.1",
		"[fd00:0::1]:5000":       "fd00::1",
		"[fe80::1%eth0]:5000":    "fe80::1%eth0",
		"@":                      "@", // of the control socket
		"":                       "",
	} {
		if got := addressOf(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
