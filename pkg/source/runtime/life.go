// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// compare emits events for the differences between the known state of a container and its entry in a list.
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
			// A list shows this run, so its events are not late.
			known.ran, known.Finished = 0, time.Time{}
			happen(model.EventStart)
		}
		known.PID = cmp.Or(c.PID, known.PID)
		known.Started = cmp.Or(known.Started, c.Started)
		if c.Status == model.ContainerPaused {
			happen(model.EventPause)
		} else {
			happen(model.EventResume)
		}
		if c.Health != "" {
			happen(model.EventHealth)
		}
	case model.ContainerExited:
		known.PID = 0 // of any run
		happen(model.EventExit)
	case model.ContainerCreated:
		// Containerd drops a run when its task is deleted.
		if runs(known) {
			e.Container.PID, e.Container.Finished, e.Container.ExitCode = 0, time.Time{}, nil
			happen(model.EventExit)
		}
	}
}

// happen applies an event to the known state and emits it, unless it changes nothing or is late.
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
				// A pause that precedes the start belongs to an earlier run.
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
	case e.Type != model.EventOOM && e.Type != model.EventHealth: // these may belong to any run
		known.listed = time.Time{}
	}
	r.emit(known, e)
}

// lateEvents is the assumed maximum delay of an event behind a list that shows its effect.
const lateEvents = 10 * time.Second

func (r *registry) fresh(known *entry) bool {
	return r.now().Sub(known.listed) < lateEvents
}

// late reports whether an event is older than the list that set the known state. Times are compared only here, because
// clocks may be set back.
func (r *registry) late(known *entry, at time.Time, e model.Event) bool {
	return !e.Reconciled && r.fresh(known) && (at.Before(known.Started) || at.Before(known.Finished))
}

// exit applies the end of a run. It reports whether the event is the first for the end of the known run.
func (r *registry) exit(known *entry, e *model.Event) bool {
	c := &e.Container
	e.ExitCode = cmp.Or(e.ExitCode, c.ExitCode)
	if e.ExitCode != nil && e.Signal == 0 {
		e.Signal = signalOf(*e.ExitCode)
	}
	at := c.Finished
	if at.IsZero() && !e.Reconciled {
		at = e.Time
	}
	if known.Status == model.ContainerExited {
		// The exit was reported without its code.
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
	known.ran = cmp.Or(c.PID, known.PID)
	known.Started = cmp.Or(known.Started, c.Started)
	known.Status, known.PID, known.Health = model.ContainerExited, 0, ""
	known.ExitCode, known.Finished = e.ExitCode, at
	return true
}

// signalOf returns the signal of an exit status, which is 128 plus the signal, as in a shell.
func signalOf(code uint32) int {
	if code > 128 && code <= 128+64 {
		return int(code - 128)
	}
	return 0
}

func runs(known *entry) bool {
	return known.Status == model.ContainerRunning || known.Status == model.ContainerPaused
}

// anotherRun reports whether c runs and was started again since the known start.
func anotherRun(known *entry, c *model.Container) bool {
	if known.PID != 0 && c.PID != 0 {
		return known.PID != c.PID
	}
	return !known.Started.IsZero() && c.Started.Sub(known.Started) > time.Second
}

// replaced reports whether c is a new container with the name of a removed container. Docker lists the time of creation
// in seconds.
func replaced(known, c *model.Container) bool {
	return !known.Created.IsZero() && c.Created.Sub(known.Created) > time.Second && !isID(c.ID)
}

func describe(known, c *model.Container) {
	known.Runtime = cmp.Or(c.Runtime, known.Runtime)
	known.Name = cmp.Or(c.Name, known.Name)
	known.Namespace = cmp.Or(c.Namespace, known.Namespace)
	known.Pod = cmp.Or(c.Pod, known.Pod)
	known.PodUID = cmp.Or(c.PodUID, known.PodUID)
	known.Image = cmp.Or(c.Image, known.Image)
	known.ImageID = cmp.Or(c.ImageID, known.ImageID)
	known.Cgroup = cmp.Or(c.Cgroup, known.Cgroup)
	if c.PID > 0 && (isID(c.ID) || c.Cgroup != "") {
		known.NoCgroup = c.NoCgroup
	}
	known.Restarts = cmp.Or(c.Restarts, known.Restarts)
	known.Sandbox = known.Sandbox || c.Sandbox
	known.AllDevices = known.AllDevices || c.AllDevices
	if c.Labels != nil {
		known.Labels = c.Labels
	}
	if c.Devices != nil {
		known.Devices = c.Devices
	}
	if c.GPURequests != nil {
		known.GPURequests = c.GPURequests
	}
	known.Created = cmp.Or(known.Created, c.Created)
}
