// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Interval is how often a subscriber looks without an announcement.
const Interval = time.Minute

// settle is the time in which further announcements usually follow: a driver adds one device after the other.
const settle = 100 * time.Millisecond

// Subscription announces changes to one subscriber. A nil Subscription has no announcements.
type Subscription struct {
	watcher   *Watcher
	changed   chan struct{}
	device    func(subsystem string) bool
	netdevice func(index int) bool
}

// Devices subscribes to devices and drivers of the subsystems with one of the prefixes: classes, buses, and "module" for modules.
func (w *Watcher) Devices(prefixes ...string) *Subscription {
	return w.subscribe(&Subscription{device: func(subsystem string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(subsystem, p) {
				return true
			}
		}
		return false
	}})
}

// Interfaces subscribes to the network interfaces for which wanted returns true. wanted must return at once.
func (w *Watcher) Interfaces(wanted func(index int) bool) *Subscription {
	return w.subscribe(&Subscription{netdevice: wanted})
}

func (w *Watcher) subscribe(s *Subscription) *Subscription {
	if w == nil {
		return nil
	}
	s.watcher, s.changed = w, make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscriptions = append(w.subscriptions, s)
	return s
}

// Changed has a value after a change.
func (s *Subscription) Changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.changed
}

// Interval returns how often the subscriber looks without an announcement: every poll if announcements may be missing.
func (s *Subscription) Interval(poll time.Duration) time.Duration {
	if s == nil {
		return poll
	}
	s.watcher.mu.Lock()
	defer s.watcher.mu.Unlock()
	if s.watcher.incomplete != nil {
		return poll
	}
	return Interval
}

// Follow calls look after each change and again poll later, because the driver may not be ready when the kernel
// announces its device, and every Interval(poll), until ctx ends.
func (s *Subscription) Follow(ctx context.Context, poll time.Duration, look func()) {
	timer := time.NewTimer(s.Interval(poll))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.Changed():
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
			select {
			case <-s.Changed():
			default:
			}
			timer.Reset(poll)
		case <-timer.C:
			timer.Reset(s.Interval(poll))
		}
		look()
	}
}

func (s *Subscription) announce() {
	select {
	case s.changed <- struct{}{}:
	default: // a value is waiting already
	}
}

func (w *Watcher) announceAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subscriptions {
		s.announce()
	}
}

// announceDevice handles a uevent.
func (w *Watcher) announceDevice(message []byte) {
	subsystem := subsystemOf(message)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subscriptions {
		if s.device != nil && s.device(subsystem) {
			s.announce()
		}
	}
}

// subsystemOf returns the SUBSYSTEM of a uevent, or "": ACTION@PATH, and then NAME=VALUE pairs, each followed by a NUL.
func subsystemOf(message []byte) string {
	_, after, _ := bytes.Cut(message, []byte("\x00SUBSYSTEM="))
	name, _, _ := bytes.Cut(after, []byte{0})
	return string(name)
}

// announceInterface handles a message of rtnetlink.
func (w *Watcher) announceInterface(message []byte) {
	index, ok := indexOf(message)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subscriptions {
		if s.netdevice != nil && s.netdevice(index) {
			s.announce()
		}
	}
}

// indexOf returns the number of the interface in an RTM_NEWLINK or RTM_DELLINK: struct nlmsghdr, then struct ifinfomsg,
// with the number at its fourth byte.
func indexOf(message []byte) (index int, ok bool) {
	if len(message) < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
		return 0, false
	}
	switch binary.NativeEndian.Uint16(message[4:]) {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return int(int32(binary.NativeEndian.Uint32(message[unix.SizeofNlMsghdr+4:]))), true
	}
	return 0, false
}
