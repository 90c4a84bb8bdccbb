// SPDX-License-Identifier: Apache-2.0

package budget

import "time"

// A unit is what is switched: the calls of one group in one file.
type unit struct {
	calls, probes int
	// want is what is decided, on what is; exact that it is not windowed.
	want, on, exact bool

	since time.Time     // it is on or off
	look  time.Duration // until the next look
	seen  time.Time     // the last look
	// closing is when the window ends, length how long one is.
	closing time.Time
	length  time.Duration
	// price is what a window costs each process, in seconds of its earnings, and
	// before what the process had paid when the window opened.
	price  map[int]float64
	before map[int][2]float64 // hits, tolls
	opened time.Time          // when that was
	// lingers: it is off, and still in the way; rates is what that costs processes, in
	// seconds for each second.
	lingers bool
	rates   map[int]float64
	settled bool // the price of the last window is known
	jitter  float64
	retry   time.Time     // when a hopeless one is tried again
	proving time.Duration // for how long it must be on to be exact
	exactly time.Time     // since when it is exact

	// The period that is counted began when the last one ended; all is seen since from,
	// which is zero while the probes are being attached or off.
	last, from   time.Time
	ended        bool // at this tick
	scale, ratio float64
}

func newUnit(now time.Time, calls int) *unit {
	return &unit{
		calls: calls, want: true, exact: true, since: now, seen: now, exactly: now,
		look: firstLook, length: newWindow, proving: prove / 2, jitter: 1, scale: 1, ratio: 1,
		price: map[int]float64{}, before: map[int][2]float64{},
	}
}

// decide says until when at most the decision holds.
func (u *unit) decide(b *Budget, now time.Time, pids []int) time.Time {
	accounts := make(map[int]*account, len(pids))
	for _, pid := range pids {
		if a := b.processes[pid]; a != nil {
			accounts[pid] = a
		}
	}
	longest := maxLook
	asleep := true
	for pid, a := range accounts {
		longest = min(longest, time.Duration(a.perSecond*float64(30*time.Second)))
		asleep = asleep && a.hits[u.calls] == u.before[pid][0]
	}
	longest = max(longest, minLook)
	if asleep {
		longest = max(longest, min(time.Duration(b.limit*float64(30*time.Second)), maxLook))
	}
	switch {
	case u.exact:
		return u.watch(now, accounts, longest)
	case u.want != u.on:
		// It was not followed yet, or could not be.
		return now.Add(minWait)
	case u.want:
		return u.window(b, now, accounts, longest)
	}
	return u.wait(now, accounts)
}

// watch is for an exact unit.
func (u *unit) watch(now time.Time, accounts map[int]*account, longest time.Duration) time.Time {
	begins := false
	for pid, a := range accounts {
		if _, ok := u.before[pid]; !ok {
			begins = true
			u.open(pid, a)
		}
	}
	if u.overdrawn(accounts) {
		u.relapse(now, accounts)
		return now.Add(minWait)
	}
	due := u.seen.Add(u.look)
	switch {
	case begins:
		u.look = firstLook
	case now.Before(due):
		return due // It was asked for something else.
	default:
		u.look = min(2*u.look, longest)
	}
	u.remember(now, accounts)
	u.seen = now
	return now.Add(u.look)
}

// relapse ends exact watching. What the calls cost since the last look tells what a
// window will.
func (u *unit) relapse(now time.Time, accounts map[int]*account) {
	if now.Sub(u.exactly) > 4*u.proving {
		u.proving = prove / 2
	}
	u.proving = min(2*u.proving, maxProve)
	u.want, u.exact, u.settled = false, false, true
	u.last, u.from = now, time.Time{}
	u.ended, u.scale, u.ratio = true, 1, 1
	u.jitter = 1
	clear(u.price)
	seconds := max(now.Sub(u.seen), firstLook).Seconds()
	for pid, a := range accounts {
		u.price[pid] = (a.hits[u.calls] - u.before[pid][0]) / seconds * u.length.Seconds() / a.perSecond
	}
	u.resize(0)
}

// window is for a unit that is on for a while.
func (u *unit) window(b *Budget, now time.Time, accounts map[int]*account, longest time.Duration) time.Time {
	for pid, a := range accounts {
		if _, ok := u.before[pid]; !ok {
			u.open(pid, a)
			u.look, u.seen = firstLook, now
		}
	}
	if u.from.IsZero() { // attached since the last tick
		u.from, u.closing = now, now.Add(u.length)
	}
	over := u.overdrawn(accounts)
	if now.Before(u.closing) && !over {
		if due := u.seen.Add(u.look); now.Before(due) {
			return earlier(due, u.closing)
		}
		u.look, u.seen = min(2*u.look, longest), now
		return earlier(now.Add(u.look), u.closing)
	}
	u.end(now)
	u.settle(accounts)
	if !over && u.affordable(accounts, 1) == 0 {
		if now.Sub(u.since) >= u.proving {
			u.exact, u.exactly = true, now
		}
		u.remember(now, accounts)
		u.from, u.seen, u.closing = now, now, now.Add(u.length)
		return earlier(now.Add(u.look), u.closing)
	}
	u.want, u.settled = false, false
	u.jitter = 1 + b.random()/2
	return now.Add(minWait)
}

// wait is for a unit that is off until all can pay for a window.
func (u *unit) wait(now time.Time, accounts map[int]*account) time.Time {
	if u.lingers {
		return now.Add(DetachWait)
	}
	if !u.settled {
		if dearest := u.settle(accounts); dearest > hopeless {
			// One that takes more than half a minute's earnings is tried less often.
			u.retry = now.Add(max(retry, time.Duration(2*dearest*float64(time.Second))))
		}
	}
	wait := u.affordable(accounts, u.jitter)
	if left := u.retry.Sub(now); left > 0 {
		wait = max(wait, left)
	}
	if wait > 0 {
		return now.Add(min(max(wait, 2*minWait), maxLook))
	}
	u.want, u.look, u.seen = true, firstLook, now
	clear(u.before)
	u.remember(now, accounts)
	u.closing = now.Add(u.length)
	return earlier(now.Add(u.look), u.closing)
}

// overdrawn says whether somebody cannot pay any more.
func (u *unit) overdrawn(accounts map[int]*account) bool {
	for _, a := range accounts {
		if a.credit[u.calls] < a.floor() {
			return true
		}
	}
	return false
}

// affordable is how long it will take until everybody can pay for a window.
func (u *unit) affordable(accounts map[int]*account, jitter float64) time.Duration {
	var wait time.Duration
	for pid, a := range accounts {
		// For a hopeless one only a part is saved: the wait is long enough for the rest.
		need := min(u.price[pid], hopeless) * jitter * a.perSecond
		if need < trap && a.credit[u.calls] > a.floor() {
			continue
		}
		a.save[u.calls] = max(a.save[u.calls], 1.2*need) // as what a second earns moves a little
		switch missing := need - a.credit[u.calls]; {
		case missing <= need/100:
		case missing > a.perSecond*maxLook.Seconds():
			return maxLook
		default:
			wait = max(wait, time.Duration(missing/(kept*a.perSecond)*float64(time.Second)), 1)
		}
	}
	return wait
}

// settle takes what a window has cost, tells what it cost whom it cost most, and
// sets the length of the next one.
func (u *unit) settle(accounts map[int]*account) float64 {
	u.settled = true
	var dearest, fixed float64
	for pid, a := range accounts {
		before, ok := u.before[pid]
		if !ok {
			continue
		}
		hits, tolls := a.hits[u.calls]-before[0], a.tolls[u.calls]-before[1]
		price := (hits + tolls) / a.perSecond
		if hits+tolls < trap {
			price = 0
		}
		if old, ok := u.price[pid]; ok && price < old {
			price = (price + old) / 2
		}
		u.price[pid] = price
		if price > dearest {
			dearest, fixed = price, tolls/a.perSecond
		}
	}
	for pid := range u.price {
		if accounts[pid] == nil {
			delete(u.price, pid)
		}
	}
	u.resize(fixed)
	return dearest
}

// resize sets the length of a window by what it costs; fixed is what it costs
// however short it is.
func (u *unit) resize(fixed float64) {
	var dearest float64
	for _, p := range u.price {
		dearest = max(dearest, p)
	}
	length := u.length
	switch {
	case dearest < 0.4, dearest < 1.2 && fixed > dearest/2:
		length = min(2*length, maxWindow)
	case dearest > 1.2 && fixed < dearest/2:
		length = max(time.Duration(float64(length)*0.8/dearest), minWindow)
	}
	for pid := range u.price {
		u.price[pid] *= length.Seconds() / u.length.Seconds()
	}
	u.length = length
}

func (u *unit) remember(now time.Time, accounts map[int]*account) {
	u.opened = now
	for pid, a := range accounts {
		u.open(pid, a)
	}
	for pid := range u.before {
		if accounts[pid] == nil {
			delete(u.before, pid)
		}
	}
}

func (u *unit) open(pid int, a *account) {
	u.before[pid] = [2]float64{a.hits[u.calls], a.tolls[u.calls]}
}

// linger takes what the calls cost processes while they were counted last.
func (u *unit) linger(now time.Time, accounts map[int]*account, pids []int) {
	begun := u.opened
	if u.since.After(begun) {
		begun = u.since
	}
	seconds := max(now.Sub(begun), 100*time.Microsecond).Seconds()
	u.lingers, u.rates = true, make(map[int]float64, len(pids))
	for _, pid := range pids {
		if a := accounts[pid]; a != nil {
			u.rates[pid] = (a.hits[u.calls] - u.before[pid][0]) / seconds
		}
	}
}

// turn says that it was attached or detached.
func (u *unit) turn(on bool, at time.Time) {
	u.on, u.since = on, at
	if on {
		u.closing = at.Add(u.length)
	}
}

// end ends a period of counting in windows.
func (u *unit) end(now time.Time) {
	on := max(now.Sub(u.from), 100*time.Microsecond).Seconds()
	u.scale = max(now.Sub(u.last).Seconds()/on, 1)
	u.ratio = 1 / u.scale
	u.last, u.from, u.ended = now, time.Time{}, true
}

func (u *unit) sampling(now time.Time) Sampling {
	switch {
	case u.ended:
		u.ended = false
		return Sampling{Windowed: true, Scale: u.scale, Ratio: u.ratio}
	case u.exact:
		return Sampling{Scale: 1, Ratio: 1}
	}
	// What is seen at the tick that a window begins with came before it.
	begins := u.from.Equal(now)
	return Sampling{Windowed: true, Begins: begins, Void: begins || u.from.IsZero(), Ratio: u.ratio}
}

// rebase is for a clock that went back.
func (u *unit) rebase(now time.Time) {
	u.since, u.seen, u.exactly, u.last = now, now, now, now
	if !u.from.IsZero() {
		u.from = now
	}
	u.closing = earlier(u.closing, now)
	u.retry = earlier(u.retry, now.Add(retry))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
