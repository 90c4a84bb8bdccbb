// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// legKey is a network interface behind a port. A port on a bond has several, its legs.
type legKey struct {
	portKey
	netdev string
}

// legState is what is remembered of an interface.
type legState struct {
	seen            time.Time
	enabled, active time.Time // when it was last administratively up, and when it last had a carrier; zero: never
	disabled, down  time.Time // since when it is not
}

// linksByPort returns the interfaces of each port. Those of physical functions without an HCA are below the zero key.
func (r *round) linksByPort() map[portKey][]*model.Link {
	links := make(map[portKey][]*model.Link, len(r.Facts.Links))
	for i := range r.Facts.Links {
		l := &r.Facts.Links[i]
		key := portKey{l.Device, l.Port}
		links[key] = append(links[key], l)
	}
	return links
}

// legSubject returns the subject of an interface: its port, and for a leg of a bond its name.
func legSubject(s Subject, l *model.Link, all []*model.Link) Subject {
	if len(all) > 1 {
		s.Detail = l.Netdev
	}
	return s
}

// judgeLegs judges whether the interfaces of a port are administratively up.
func (r *round) judgeLegs(s Subject, links []*model.Link) {
	for _, l := range links {
		if l.Carrier == nil {
			continue
		}
		state := r.leg(legKey{portKey{l.Device, l.Port}, l.Netdev}, l.Carrier)
		if state == nil {
			continue
		}
		if !l.Carrier.Admin && r.within(state.enabled, portDisabled) {
			r.find(portDisabled, legSubject(s, l, links), state.disabled, "interface "+l.Netdev+" is administratively down")
		}
	}
}

// within reports whether a moment is not longer ago than the limit of a condition; false for the zero time.
func (r *round) within(t time.Time, c *Condition) bool {
	return !t.IsZero() && r.At.Sub(t).Seconds() < c.limit(0)
}

// leg returns what is remembered of an interface, with its present carrier. It returns nil if there is no room.
func (r *round) leg(key legKey, c *model.Carrier) *legState {
	state := r.j.legs[key]
	if state == nil {
		if len(r.j.legs) >= maxPorts {
			r.omitted++
			return nil
		}
		state = &legState{}
		r.j.legs[key] = state
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

// findHeld finds the HCAs that a workload has: it has queue pairs there, or the HCA was allocated to it.
func (r *round) findHeld() {
	r.heldHCAs = map[string]bool{}
	for device := range r.used {
		r.heldHCAs[device] = true
	}
	for i := range r.Shares.Assigned {
		if a := &r.Shares.Assigned[i]; a.HCA != nil && a.Allocated != "" && a.Owner != 0 {
			r.heldHCAs[a.HCA.Name] = true
		}
	}
	r.read, r.downPorts = map[string]bool{}, map[portKey]bool{}
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		r.read[h.Name] = true
		for k := range h.Ports {
			if p := &h.Ports[k]; p.State != "" && p.State != stateActive {
				r.downPorts[portKey{h.Name, p.Number}] = true
			}
		}
	}
}

// sharesLink reports whether the link of an HCA is that of another one, which is judged: a virtual function has the state, the rate and the
// errors of the link of its physical function.
func (r *round) sharesLink(h *model.HCA) bool { return h.VF && r.read[h.PF] }

// follows reports whether a port that is not active has no fault of its own. A virtual function that nobody has was returned by a
// container: CNI plugins set its interface down. That of a physical function without a link has none either.
func (r *round) follows(h *model.HCA, p *model.Port) bool {
	return h.VF && (!r.heldHCAs[h.Name] || r.downPorts[portKey{h.PF, p.Number}])
}
