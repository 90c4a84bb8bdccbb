// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

const (
	// A client is a scraper for knownTime after its last scrape if regularScrapes of its scrapes had the same interval.
	regularScrapes = 4
	knownTime      = time.Hour
	// maxOwners scrapers own a place. One that has not scraped for absentTime makes way for another.
	maxOwners  = 4
	absentTime = 10 * time.Minute

	minInterval   = time.Second // scrapes within it count as one
	maxRemembered = 1024        // clients that may become scrapers
	maxTimes      = 16          // scrapes of a client that are remembered: more than one scraper may have its address
)

// clientAddress is the IP address of a client, without its port.
type clientAddress string

// addressOf returns the client with an address that net.Conn returned. An IPv4 address that is mapped to IPv6 is the same client. An
// address that is not an IP address, such as a Unix socket's, is a client, too.
func addressOf(remote string) clientAddress {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return clientAddress(remote)
	}
	return clientAddress(a.Addr().Unmap().String())
}

// scrapers are the clients that scraped within the last hour, and the places that those with an interval own.
type scrapers struct {
	known map[clientAddress]*scraper
}

// scraper is a client that has scraped.
type scraper struct {
	times   []time.Time   // of the last scrapes
	regular bool          // some of them had an interval
	own     chan struct{} // its place, for one scrape at a time; nil if it owns none
}

func newScrapers() *scrapers { return &scrapers{known: map[clientAddress]*scraper{}} }

func (s *scraper) last() time.Time { return s.times[len(s.times)-1] }

// seen counts a request for a scrape.
func (s *scrapers) seen(of clientAddress, now time.Time) {
	k := s.known[of]
	switch {
	case k == nil:
		s.forget(now)
		k = &scraper{}
		s.known[of] = k
	case now.Sub(k.last()) < minInterval:
		return
	case now.Sub(k.last()) >= knownTime:
		*k = scraper{}
	}
	if len(k.times) == maxTimes {
		k.times = slices.Delete(k.times, 0, 1)
	}
	k.times = append(k.times, now)
	k.regular = k.regular || hasInterval(k.times)
	if k.regular && k.own == nil && s.makeWay(now) {
		k.own = make(chan struct{}, 1)
	}
}

// hasInterval reports whether the last scrape and some before it have an interval. Others may be between them.
func hasInterval(times []time.Time) bool {
	last := times[len(times)-1]
	for _, t := range times[:len(times)-1] {
		interval := last.Sub(t)
		tolerance := max(interval/5, minInterval/2) // scrapes may be late
		n := 2
		for n < regularScrapes && slices.ContainsFunc(times, func(t time.Time) bool {
			return (last.Sub(t) - time.Duration(n)*interval).Abs() <= tolerance
		}) {
			n++
		}
		if n == regularScrapes {
			return true
		}
	}
	return false
}

// makeWay reports whether there is a place for another owner. The owner that is away for the longest time loses its place.
func (s *scrapers) makeWay(now time.Time) bool {
	var away *scraper
	owners := 0
	for _, k := range s.known {
		if k.own == nil {
			continue
		}
		owners++
		if now.Sub(k.last()) >= absentTime && (away == nil || k.last().Before(away.last())) {
			away = k
		}
	}
	if owners < maxOwners {
		return true
	}
	if away != nil {
		away.own = nil
	}
	return away != nil
}

// place returns the place that a client owns, nil if it owns none.
func (s *scrapers) place(of clientAddress, now time.Time) chan struct{} {
	if k := s.known[of]; k != nil && now.Sub(k.last()) < knownTime {
		return k.own
	}
	return nil
}

// forget makes room for a client: it drops clients that were last seen more than an hour ago, and if need be the client with the
// fewest scrapes, the oldest first. So clients that come once drive out neither an owner nor a client that comes again.
func (s *scrapers) forget(now time.Time) {
	if len(s.known) < maxRemembered {
		return
	}
	var least clientAddress
	for name, k := range s.known {
		if now.Sub(k.last()) >= knownTime {
			delete(s.known, name)
			continue
		}
		if k.own != nil {
			continue
		}
		if l := s.known[least]; l == nil || cmp.Or(cmp.Compare(len(k.times), len(l.times)), k.last().Compare(l.last())) < 0 {
			least = name
		}
	}
	if len(s.known) >= maxRemembered {
		delete(s.known, least)
	}
}
