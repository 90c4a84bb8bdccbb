// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

func (s *Source) publish(now time.Time) {
	facts := model.Snapshot{LinkFlaps: slices.Clone(s.flaps)}
	if facts.LinkFlaps == nil {
		facts.LinkFlaps = []model.LinkFlap{}
	}
	if !s.searched.IsZero() {
		facts.Links = []model.Link{}
	}
	for _, name := range slices.Sorted(maps.Keys(s.netdevs)) {
		n := s.netdevs[name]
		l := n.link
		l.Carrier = n.carrier()
		l.Bond, l.Backup, l.SpeedBits = n.bond, n.backup, n.speed
		if len(n.ports) == 0 {
			facts.Links = append(facts.Links, l)
		}
		for _, p := range n.ports {
			l.Device, l.Port = p.device, p.number
			facts.Links = append(facts.Links, l)
		}
		state := s.stateOf(n, now)
		if state.State != model.StateOK {
			facts.DeviceStates = append(facts.DeviceStates, state)
		}
		s.logRecovery(state)
	}
	if s.tool != nil {
		s.tool.publish(&facts, s.Name(), now)
	}
	maps.DeleteFunc(s.logged, func(name string, _ model.State) bool { return s.netdevs[name] == nil })
	err := s.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts, s.err = facts, err
}

func (s *Source) state() error {
	switch {
	case s.searchErr != nil:
		return s.searchErr
	case s.searched.IsZero():
		return errors.New("the interfaces were not listed yet: reading sysfs may hang")
	case len(s.netdevs) == 0 && (s.tool == nil || s.tool.empty()):
		return model.WithReason(errors.New("no HCA has a network interface"), model.ErrAbsent)
	case !s.o.isSysfs(s.o.Sysfs):
		return fmt.Errorf("%s is not a sysfs, drivers are not asked: %w", s.o.Sysfs, model.ErrUnsupported)
	}
	return nil
}

func (s *Source) stateOf(n *netdev, now time.Time) model.DeviceState {
	d := model.DeviceState{Source: s.Name(), Device: n.name, State: model.StateOK}
	switch h := s.hanging; {
	case h != nil && h.netdev == n:
		d.State, d.Waiting = model.StateStuck, h.began
		d.Reason = "a request about the interface has not returned: its driver may hang, and the network configuration of the node with it"
	case h != nil && h.netdev != nil && now.Sub(n.due) > interval:
		d.State, d.Waiting = model.StateBlocked, h.began
		d.Reason = fmt.Sprintf("waits for %s, which is stuck", h.netdev.name)
	case n.backoff.Waiting(now):
		d.State = model.StateQuarantined
		d.Reason = fmt.Sprintf("not read for %v: the last readings took more than %v", n.backoff.Left(now).Round(time.Second), limit)
	case errors.Is(n.err, model.ErrUnsupported):
		d.State, d.Reason = model.StateUnsupported, n.err.Error()
	case n.err != nil:
		d.State, d.Reason = model.StateFailed, n.err.Error()
	}
	return d
}

// logRecovery logs that an interface is read again. The engine logs the other states.
func (s *Source) logRecovery(d model.DeviceState) {
	if last, known := s.logged[d.Device]; known && last != d.State && d.State == model.StateOK {
		s.o.Logger.Info("link is read again", zap.String("netdev", d.Device), zap.String("was", string(last)))
	}
	s.logged[d.Device] = d.State
}
