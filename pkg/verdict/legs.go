// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// legKey is a network interface behind a port. A port on a bond has several, its legs.
type legKey struct {
	portKey
	netdev string
}

// legState is what the judge remembers about an interface.
type legState struct {
	seen            time.Time
	enabled, active time.Time // when it was last administratively up, and when it last had a carrier; zero: never
	disabled, down  time.Time // since when it is not; zero: it is
}

// legSubject returns the subject of an interface: its port, and for a leg of a bond its name.
func legSubject(s Subject, l *model.Link, all []*model.Link) Subject {
	if len(all) > 1 {
		s.Detail = l.Netdev
	}
	return s
}

// judgeLegs judges whether the interfaces of a port are administratively up, and whether each leg of a bond has a
// carrier while the port is active: without it the bond has a part of its rate, or no redundancy.
func (r *portRules) judgeLegs(s Subject, active bool, links []*model.Link) {
	for _, l := range links {
		if l.Carrier == nil {
			continue
		}
		state := r.leg(legKey{portKey{l.Device, l.Port}, l.Netdev}, l.Carrier)
		if state == nil {
			continue
		}
		switch leg := legSubject(s, l, links); {
		case !l.Carrier.Admin && r.within(state.enabled, portDisabled):
			if l.Carrier.SetDown == l.Bond && l.Bond != "" {
				leg = s
			}
			if !r.has(portDisabled, leg) {
				r.find(portDisabled, leg, state.disabled, "interface "+cmp.Or(l.Carrier.SetDown, l.Netdev)+" is administratively down")
			}
		case l.Carrier.Admin && !l.Carrier.Up && active && len(links) > 1 && r.within(state.active, bondDegraded):
			r.find(bondDegraded, leg, state.down, bondEvidence(l, links)...)
		}
	}
}

// bondEvidence describes a leg without a carrier.
func bondEvidence(l *model.Link, legs []*model.Link) []string {
	up := 0
	for _, other := range legs {
		if other.Carrier != nil && other.Carrier.Up {
			up++
		}
	}
	evidence := []string{"interface " + l.Netdev + " has no carrier", fmt.Sprintf("%d of %d legs have one", up, len(legs))}
	if reason := downReason(l); reason != "" {
		evidence = append(evidence, reason)
	}
	return evidence
}

// legEvidence names the interface of a verdict about one leg of several.
func legEvidence(l *model.Link, all []*model.Link, evidence ...string) []string {
	if len(all) > 1 {
		return append(evidence, "interface "+l.Netdev)
	}
	return evidence
}

// leg returns the state of an interface, updated with its current carrier, or nil without room.
func (r *portRules) leg(key legKey, c *model.Carrier) *legState {
	state := r.legs[key]
	if state == nil {
		if len(r.legs) >= maxPorts {
			r.omitted++
			return nil
		}
		state = &legState{}
		r.legs[key] = state
	}
	state.seen = r.At
	note := func(is bool, last, since *time.Time) {
		if is {
			*last, *since = r.At, time.Time{}
		} else if since.IsZero() {
			*since = r.At
		}
	}
	note(c.Admin, &state.enabled, &state.disabled)
	note(c.Up, &state.active, &state.down)
	return state
}

// setDown reports whether all interfaces of a port were set down, which the port follows.
func setDown(links []*model.Link) bool {
	return len(links) > 0 && !slices.ContainsFunc(links, func(l *model.Link) bool { return l.Carrier == nil || l.Carrier.Admin })
}

func legCounter(s Subject, l *model.Link) counterKey {
	return counterKey{device: s.Device, port: s.Port, detail: l.Netdev}
}

// flaps returns how often an interface lost its carrier within an hour and within 12 hours.
func (r *portRules) flaps(s Subject, l *model.Link) (inHour, halfDay uint64) {
	if l.Carrier == nil {
		return 0, 0
	}
	key := legCounter(s, l)
	key.condition, key.number = linkUnstable, 2
	inHour = r.counted(key, l.Carrier.Flaps, nil)
	key.condition, key.number = flapping, 3
	return inHour, r.counted(key, l.Carrier.Flaps, nil)
}

func unstable(inHour, halfDay uint64) bool {
	return float64(inHour) > linkUnstable.limit(0) || float64(halfDay) > linkUnstable.limit(2)
}

func flapEvidence(inHour, halfDay uint64) []string {
	return []string{grewIn("losses of the carrier", inHour, hour), grewIn("losses of the carrier", halfDay, flapping.Window)}
}

// judgeBare judges the interfaces of physical functions that have no HCA while their virtual functions have HCAs.
func (r *portRules) judgeBare(links []*model.Link) {
	for _, l := range links {
		s, alone := Subject{Kind: OfPort, Device: l.Netdev}, []*model.Link{l}
		r.judgeLegs(s, false, alone)
		if inHour, halfDay := r.flaps(s, l); unstable(inHour, halfDay) {
			r.find(linkUnstable, s, time.Time{}, flapEvidence(inHour, halfDay)...)
		}
		p := &model.Port{LinkLayer: "Ethernet"}
		if l.Carrier != nil && l.Carrier.Up {
			p.State = stateActive
		}
		r.judgeInterface(p, s, l, alone)
	}
}
