// SPDX-License-Identifier: Apache-2.0

package link

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/link/module"
)

// driverReader asks the driver of an interface. One goroutine at a time uses it.
type driverReader struct {
	iface
	next   [stepCount]time.Time // when a step is due
	absent [stepCount]bool      // the driver lacks it; it is not asked again
	errs   [stepCount]error     // of the last time
	first  int                  // the step that comes first

	names      table
	namesRead  time.Time
	plainState bool // the state of the link has no statistics

	dcb     *dcbReply
	global  *pauseReply
	counted *counted
	fec     *model.FEC
	phy     *model.Phy

	moduleDetail ModuleDetail
	moduleMemory module.Memory
	moduleFacts  *model.LinkModule
}

// step is a thing that is read. An IPoIB interface has statistics only (mlx5i_ethtool_ops).
type step struct {
	name  string
	every time.Duration
	ipoib bool
	run   func(*driverReader, kernel, time.Time) error
}

const (
	// interval is the time between two readings of counters. mlx5 needs 20 to 35 commands of the firmware for a
	// reading.
	interval = 30 * time.Second
	// configInterval is the time between two readings of a configuration. mlx5 needs 20 to 35 commands for it too.
	configInterval = 5 * time.Minute
)

var steps = [stepCount]step{
	{"DCB", configInterval, false, (*driverReader).readDCB},
	{"pause", interval, false, (*driverReader).readPause},
	{"statistics", interval, true, (*driverReader).readStatistics},
	{"FEC", interval, false, (*driverReader).readFEC},
	{"link state", interval, false, (*driverReader).readLinkState},
	{"module", moduleInterval, false, (*driverReader).readModule},
}

const (
	stepDCB       = 0
	stepLinkState = 4
	stepModule    = 5
	stepCount     = 6
)

var errForeign = fmt.Errorf("the interface is in another network namespace than the sensor: %w", model.ErrUnsupported)

// read makes the steps that are due, within limit, and reports whether it made all of them. changed is set if the
// carrier has changed: then the state of the link is due. The next read begins with the steps left out.
func (r *driverReader) read(k kernel, changed bool, limit time.Duration) (complete bool, err error) {
	begin := time.Now()
	if err := r.check(k); err != nil {
		return false, err
	}
	if changed {
		r.next[stepLinkState] = time.Time{}
	}
	for range steps {
		i := r.first
		s := &steps[i]
		if time.Since(begin) >= limit {
			return false, errors.Join(r.errs[:]...)
		}
		r.first = (r.first + 1) % len(steps)
		if r.absent[i] || r.infiniband && !s.ipoib || begin.Before(r.next[i]) {
			continue
		}
		r.next[i] = begin.Add(s.every)
		err := s.run(r, k, begin)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			r.absent[i], err = true, nil
		case errors.Is(err, unix.ENODEV):
			return false, fmt.Errorf("%s: %w", s.name, err)
		case err != nil:
			err = fmt.Errorf("%s: %w", s.name, err)
		}
		r.errs[i] = err
	}
	return true, errors.Join(r.errs[:]...)
}

// check compares the interface with the interface of the same name in the sensor's network namespace.
func (r *driverReader) check(k kernel) error {
	index, address, err := k.identify(r.name)
	if errors.Is(err, unix.ENODEV) {
		return errForeign // or it was renamed: then the next search finds the new name
	}
	if err != nil {
		return err
	}
	var digits strings.Builder
	for _, b := range address {
		fmt.Fprintf(&digits, "%02x:", b)
	}
	known := r.address[:min(len(r.address), 3*len(address)-1)]
	if index != r.index || !strings.HasPrefix(digits.String(), known) {
		return errForeign
	}
	return nil
}

func (r *driverReader) readDCB(k kernel, _ time.Time) error {
	before := r.dcb
	r.dcb = nil
	b, err := k.dcb(r.name)
	if err != nil {
		return err
	}
	d, err := parseDCB(b)
	if err != nil {
		return err
	}
	if r.driver != "mlx5_core" { // only mlx5 is known to derive it as parseApps does
		d.Trust = ""
	}
	if r.dcb = &d; before == nil || before.PFC != d.PFC {
		r.namesRead = time.Time{} // mlx5 has statistics of enabled priorities only
	}
	return nil
}

func (r *driverReader) readPause(k kernel, _ time.Time) error {
	r.global = nil
	b, err := k.ethtool(cmdPause, r.index, true)
	if err != nil {
		return err
	}
	p, err := parsePause(b)
	if err == nil {
		r.global = &p
	}
	return err
}

// readStatistics reads the names again when their number has changed, or after a while: a driver may exchange some.
func (r *driverReader) readStatistics(k kernel, now time.Time) error {
	r.counted = nil
	if privateNames[r.driver] == nil {
		return unix.EOPNOTSUPP
	}
	for attempt := 1; ; attempt++ {
		if now.Sub(r.namesRead) >= configInterval {
			b, err := k.statisticNames(r.name)
			if err != nil {
				return err
			}
			r.names, r.namesRead = parseNames(r.driver, b), now
		}
		b, err := k.statistics(r.name)
		if err != nil {
			return err
		}
		if r.counted, err = r.names.parseValues(b); err == nil || attempt == 2 {
			return err
		}
		r.namesRead = time.Time{}
		r.next[stepDCB] = time.Time{} // other priorities may be enabled
	}
}

func (r *driverReader) readFEC(k kernel, _ time.Time) (err error) {
	r.fec = nil
	b, err := k.ethtool(cmdFEC, r.index, true)
	if err != nil {
		return err
	}
	r.fec, err = parseFEC(b)
	return err
}

// readLinkState also asks for statistics. A kernel without statistics of the link state refuses the flag: EINVAL, in
// Linux 5.10 EOPNOTSUPP.
func (r *driverReader) readLinkState(k kernel, _ time.Time) (err error) {
	r.phy = nil
	b, err := k.ethtool(cmdLinkState, r.index, !r.plainState)
	if !r.plainState && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
		r.plainState = true
		b, err = k.ethtool(cmdLinkState, r.index, false)
	}
	if err != nil {
		return err
	}
	r.phy, err = parseLinkState(b)
	return err
}

// facts returns the results. Slices and pointers do not change later.
func (r *driverReader) facts() model.Link {
	l := model.Link{Netdev: r.name, Driver: r.driver, Pause: r.pauses(), Storms: r.storms(), Module: r.moduleFacts}
	if r.dcb != nil {
		l.DCB = new(r.dcb.DCB)
	}
	c := r.counted
	if c == nil {
		c = &counted{}
	}
	// Linux 5.10 has FEC statistics only among the driver's own, and IPoIB interfaces have no others.
	if l.FEC = r.fec; l.FEC == nil && (c.corrected != nil || c.correctedBits != nil) {
		l.FEC = &model.FEC{Corrected: c.corrected, Uncorrectable: c.uncorrectable, CorrectedBits: c.correctedBits}
	}
	l.Stalls = c.stalls
	for _, reason := range slices.Sorted(maps.Keys(c.discards)) {
		l.Discards = append(l.Discards, model.LinkDiscards{Reason: reason, Count: c.discards[reason]})
	}
	phy := model.Phy{}
	if r.phy != nil {
		phy = *r.phy
	}
	if phy.Downs = cmp.Or(phy.Downs, c.downs); phy != (model.Phy{}) {
		l.Phy = &phy
	}
	return l
}

// pauses returns the pause counts of enabled priorities. If the driver does not report which are enabled, a priority is
// listed from its first pause on.
func (r *driverReader) pauses() []model.PauseCount {
	counts := map[pauseKey]*model.PauseCount{}
	if r.counted != nil {
		for key, p := range r.counted.pauses {
			counts[key] = new(*p)
		}
	}
	add := func(transmit bool, priority string, frames *uint64) {
		if frames == nil {
			return
		}
		key := pauseKey{transmit, priority}
		if counts[key] == nil {
			counts[key] = &model.PauseCount{Transmit: transmit, Priority: priority}
		}
		counts[key].Frames = frames
	}
	if r.global != nil { // the standard statistics replace the driver's
		add(false, model.GlobalPause, r.global.received)
		add(true, model.GlobalPause, r.global.sent)
	}
	if r.dcb != nil && countsInDCB[r.driver] {
		for i := range 8 {
			add(false, string(rune('0'+i)), &r.dcb.received[i])
			add(true, string(rune('0'+i)), &r.dcb.sent[i])
		}
	}
	var list []model.PauseCount
	for key, p := range counts {
		if r.enabled(key, p) {
			list = append(list, *p)
		}
	}
	slices.SortFunc(list, func(a, b model.PauseCount) int {
		switch {
		case a.Transmit == b.Transmit:
			return cmp.Compare(a.Priority, b.Priority)
		case b.Transmit:
			return -1
		}
		return 1
	})
	return list
}

// countsInDCB are the drivers whose counters in DCB are used. mlx5 refreshes its own only when `ethtool -S` is read,
// other drivers have no counters there, and privateNames has the rest.
var countsInDCB = map[string]bool{"i40e": true}

// enabled reports whether the pause is enabled or, if this is unknown, has happened.
func (r *driverReader) enabled(key pauseKey, p *model.PauseCount) bool {
	happened := p.Frames != nil && *p.Frames > 0 || p.Micros != nil && *p.Micros > 0
	switch {
	case key.priority == model.GlobalPause && r.global != nil:
		return key.transmit && r.global.tx || !key.transmit && r.global.rx
	case len(key.priority) == 1 && r.dcb != nil:
		return r.dcb.PFC[key.priority[0]-'0']
	}
	return happened
}

func (r *driverReader) storms() []model.PauseStorm {
	counts := map[string]uint64{}
	if r.counted != nil {
		counts = maps.Clone(r.counted.storms)
	}
	if r.global != nil && r.global.storms != nil {
		counts[stormError] = *r.global.storms
	}
	var list []model.PauseStorm
	for _, typ := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, model.PauseStorm{Type: typ, Count: counts[typ]})
	}
	return list
}
