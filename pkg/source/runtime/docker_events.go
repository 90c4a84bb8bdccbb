// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// handle reports an event of /events. The answer to an inspection may be newer than the received events: the field of
// the event comes from the event.
func (d *dockerEngine) handle(ctx context.Context, m dockerEvent) {
	if m.Type != "container" || !isID(m.Actor.ID) {
		return
	}
	action, detail, _ := strings.Cut(m.Action, ": ")
	e := model.Event{Time: dockerEventTime(m)}
	switch action {
	case "create":
		d.suspect(m.Actor.ID, m.Actor.Attributes)
		e.Type, e.Container = model.EventCreate, d.learn(ctx, m)
	case "start":
		e.Type, e.Container = model.EventStart, d.started(ctx, m, e.Time)
	case "die", "died":
		e.Type, e.Container = model.EventExit, d.named(m)
		e.ExitCode = d.exitCode(ctx, m, e.Time)
		c := &e.Container
		c.Status, c.Finished, c.ExitCode = model.ContainerExited, e.Time, e.ExitCode
	case "oom":
		e.Type, e.Container = model.EventOOM, d.named(m)
	case "pause":
		e.Type, e.Container = model.EventPause, d.named(m)
		e.Container.Status = model.ContainerPaused
	case "unpause":
		e.Type, e.Container = model.EventResume, d.named(m)
		e.Container.Status = model.ContainerRunning
	case "health_status":
		e.Type, e.Container = model.EventHealth, d.named(m)
		e.Container.Health = dockerHealth(detail)
		if e.Container.Health == "" { // podman's event lacks it
			e.Container.Health = d.learn(ctx, m).Health
		}
	case "rename": // a second create event changes only the name
		e.Type, e.Container = model.EventCreate, d.named(m)
	case "destroy", "remove":
		delete(d.forged, m.Actor.ID)
		e.Type, e.Container = model.EventDelete, d.named(m)
	default:
		return
	}
	d.feed.event(e)
}

// started returns the container of a start event. The engine may already report a later run of the container, or the
// end of this run.
func (d *dockerEngine) started(ctx context.Context, m dockerEvent, at time.Time) model.Container {
	c := d.learn(ctx, m)
	if c.Started.IsZero() || c.Started.After(at) {
		c.Started, c.PID = at, 0
	}
	c.Status, c.Finished, c.ExitCode = model.ContainerRunning, time.Time{}, nil
	return c
}

// learn inspects the container of an event. If the inspection fails, for instance because the container is gone, it
// returns the fields of the event.
func (d *dockerEngine) learn(ctx context.Context, m dockerEvent) model.Container {
	c, err := d.inspect(ctx, m.Actor.ID)
	if err != nil {
		c = d.named(m)
		c.Labels = pick(d.labels, m.Actor.Attributes)
		delete(c.Labels, "name") // the engine overwrites these two labels in the attributes
		delete(c.Labels, "image")
	}
	return c
}

// named returns the container with the fields of the event. The engine copies the labels into the attributes.
func (d *dockerEngine) named(m dockerEvent) model.Container {
	a := m.Actor.Attributes
	c := model.Container{ID: m.Actor.ID, Runtime: d.runtime, Image: a["image"]}
	dockerIdentity(&c, a["name"], a)
	return c
}

// suspect records a container with a label exitCode: Docker overwrites the attribute exitCode with it.
func (d *dockerEngine) suspect(id string, labels map[string]string) {
	if _, ok := labels["exitCode"]; ok && d.runtime == model.RuntimeDocker && len(d.forged) < maxContainers {
		d.forged[id] = true
	}
}

// exitCode returns the exit code of an exit event, or nil if it is uncertain.
func (d *dockerEngine) exitCode(ctx context.Context, m dockerEvent, at time.Time) *uint32 {
	if d.forged[m.Actor.ID] {
		c, err := d.inspect(ctx, m.Actor.ID)
		if err != nil || c.Finished.After(at) {
			return nil
		}
		return c.ExitCode
	}
	n, err := strconv.ParseUint(m.Actor.Attributes["exitCode"], 10, 32)
	if err != nil {
		return nil
	}
	code := uint32(n)
	return &code
}

func dockerEventTime(m dockerEvent) time.Time {
	switch {
	case m.TimeNano > 0:
		return time.Unix(0, m.TimeNano)
	case m.Time > 0:
		return time.Unix(m.Time, 0)
	}
	return time.Now()
}
