// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// compare makes events of the differences between what is known of a container
// and what a list says of it.
func (r *registry) compare(socket int, c *model.Container, now time.Time) {
	e := model.Event{Type: model.EventCreate, Time: now, Container: *c, Reconciled: true}
	known := r.admit(socket, c, e)
	if known == nil {
		return
	}
	happen := func(t model.EventType) {
		e.Type = t
		r.happen(known, e)
	}
	switch c.Status {
	case model.ContainerRunning, model.ContainerPaused:
		if !runs(known) || anotherRun(known, c) {
			// Of a run that a list shows no event is late.
			known.ran, known.Finished = 0, time.Time{}
			happen(model.EventStart)
		}
		if c.PID != 0 {
			known.PID = c.PID
		}
		if known.Started.IsZero() {
			known.Started = c.Started
		}
		if c.Status == model.ContainerPaused {
			happen(model.EventPause)
		} else {
			happen(model.EventResume)
		}
		if c.Health != "" {
			happen(model.EventHealth)
		}
	case model.ContainerExited:
		known.PID = 0 // whichever run it was
		happen(model.EventExit)
	case model.ContainerCreated:
		// Containerd forgets a run when its task is deleted.
		if runs(known) {
			e.Container.PID, e.Container.Finished, e.Container.ExitCode = 0, time.Time{}, nil
			happen(model.EventExit)
		}
	}
}

// happen applies one event to what is known and tells it, unless it changes
// nothing or is late.
func (r *registry) happen(known *entry, e model.Event) {
	c := &e.Container
	switch e.Type {
	case model.EventStart:
		at := c.Started
		if at.IsZero() && !e.Reconciled {
			at = e.Time
		}
		if r.late(known, at, e) || known.Status == model.ContainerExited && r.fresh(known) && c.PID != 0 && c.PID == known.ran {
			return
		}
		if runs(known) {
			if !anotherRun(known, c) {
				// A pause before the start was one of an earlier run.
				r.happen(known, model.Event{Type: model.EventResume, Time: e.Time, Reconciled: true})
				known.listed = time.Time{}
				return
			}
			r.happen(known, model.Event{Type: model.EventExit, Time: e.Time, Reconciled: true})
		}
		known.Status, known.PID, known.ran = model.ContainerRunning, c.PID, 0
		known.Started, known.Finished, known.Health = at, time.Time{}, c.Health
		known.ExitCode, e.ExitCode = nil, nil
	case model.EventExit:
		if !r.exit(known, &e) {
			return
		}
	case model.EventPause:
		if known.Status != model.ContainerRunning || r.late(known, e.Time, e) {
			return
		}
		known.Status = model.ContainerPaused
	case model.EventResume:
		if known.Status != model.ContainerPaused || r.late(known, e.Time, e) {
			return
		}
		known.Status = model.ContainerRunning
	case model.EventHealth:
		if known.Health == c.Health {
			return
		}
		known.Health = c.Health
	case model.EventOOM:
	default:
		return
	}
	switch {
	case e.Reconciled:
		known.listed = r.now()
	case e.Type != model.EventOOM && e.Type != model.EventHealth: // which may be of any run
		known.listed = time.Time{}
	}
	r.emit(known, e)
}

// lateEvents is how long an event may take that a list was faster than.
const lateEvents = 10 * time.Second

// fresh says whether what is known is from a list that was made just now.
func (r *registry) fresh(known *entry) bool {
	return r.now().Sub(known.listed) < lateEvents
}

// late says whether an event of a time is older than the list that what is known
// is from. Nothing else asks what time it was: clocks are set back.
func (r *registry) late(known *entry, at time.Time, e model.Event) bool {
	return !e.Reconciled && r.fresh(known) && (at.Before(known.Started) || at.Before(known.Finished))
}

// exit applies the end of a run and says whether it is that of the run that is
// known, and the first.
func (r *registry) exit(known *entry, e *model.Event) bool {
	c := &e.Container
	if e.ExitCode == nil {
		e.ExitCode = c.ExitCode
	}
	if e.ExitCode != nil && e.Signal == 0 {
		e.Signal = signalOf(*e.ExitCode)
	}
	at := c.Finished
	if at.IsZero() && !e.Reconciled {
		at = e.Time
	}
	if known.Status == model.ContainerExited {
		// It was told without the code, which is learnt now.
		if known.ExitCode == nil && (known.ran == 0 || c.PID == 0 || known.ran == c.PID) {
			known.ExitCode = e.ExitCode
		}
		return false
	}
	if known.PID != 0 && c.PID != 0 {
		if known.PID != c.PID {
			return false
		}
	} else if r.late(known, at, *e) {
		return false
	}
	known.ran = known.PID
	if c.PID != 0 {
		known.ran = c.PID
	}
	if !c.Started.IsZero() && known.Started.IsZero() {
		known.Started = c.Started
	}
	known.Status, known.PID, known.Health = model.ContainerExited, 0, ""
	known.ExitCode, known.Finished = e.ExitCode, at
	return true
}

// signalOf is the signal that an exit status tells of, as shells do: 128 more.
func signalOf(code uint32) int {
	if code > 128 && code <= 128+64 {
		return int(code - 128)
	}
	return 0
}

// runs says whether a container has a process.
func runs(known *entry) bool {
	return known.Status == model.ContainerRunning || known.Status == model.ContainerPaused
}

// anotherRun says whether c, which runs, was started again since.
func anotherRun(known *entry, c *model.Container) bool {
	if known.PID != 0 && c.PID != 0 {
		return known.PID != c.PID
	}
	return !known.Started.IsZero() && c.Started.Sub(known.Started) > time.Second
}

// replaced says whether c is another container that was given the name of one
// that is gone. Docker lists the time of creation in seconds.
func replaced(known, c *model.Container) bool {
	return !known.Created.IsZero() && c.Created.Sub(known.Created) > time.Second && !isID(c.ID)
}

// describe brings what is known of a container, its life apart, up to date.
func describe(known, c *model.Container) {
	fill := func(dst *string, src string) {
		if src != "" {
			*dst = src
		}
	}
	fill(&known.Runtime, c.Runtime)
	fill(&known.Name, c.Name)
	fill(&known.Namespace, c.Namespace)
	fill(&known.Pod, c.Pod)
	fill(&known.PodUID, c.PodUID)
	fill(&known.Image, c.Image)
	fill(&known.ImageID, c.ImageID)
	fill(&known.Cgroup, c.Cgroup)
	known.Sandbox = known.Sandbox || c.Sandbox
	if c.Labels != nil {
		known.Labels = c.Labels
	}
	if c.Devices != nil {
		known.Devices = c.Devices
	}
	if c.GPURequests != nil {
		known.GPURequests = c.GPURequests
	}
	known.AllDevices = known.AllDevices || c.AllDevices
	if c.Restarts != nil {
		known.Restarts = c.Restarts
	}
	if known.Created.IsZero() {
		known.Created = c.Created
	}
}
