// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// sync reports the list and the events queued meanwhile. For known containers, the events determine the state and the
// exit code, and the list adds names. For other containers the list determines the state, which may be newer than their
// events.
func (d *dockerEngine) sync(ctx context.Context) error {
	all, err := d.list(ctx)
	if err != nil {
		return err
	}
	var later []dockerEvent
	touched := map[string]bool{} // whether it exists after the last create, start, end or remove event
	outdated := map[string]int{} // number of entries of later that belong to an earlier run
	for range len(d.queue) {
		m := <-d.queue
		id, action := m.Actor.ID, m.Action
		known := d.feed.knows(id)
		switch action {
		case "create", "start", "die", "died", "destroy", "remove":
			if known || action == "create" {
				d.handle(ctx, m)
				touched[id] = action != "destroy" && action != "remove"
				outdated[id] = len(later)
				continue
			}
		case "oom": // precedes the exit that it causes
			if known {
				d.handle(ctx, m)
				continue
			}
		}
		later = append(later, m)
	}
	all, exists := afterEvents(all, touched)
	maps.DeleteFunc(d.forged, func(id string, _ bool) bool { return !exists[id] })
	d.feed.sync(all)
	for i, m := range later {
		if exists[m.Actor.ID] && i >= outdated[m.Actor.ID] {
			d.handle(ctx, m)
		}
	}
	return nil
}

// list requests all containers and inspects each, a few at a time. If an inspection fails, it uses the entry of the
// list.
func (d *dockerEngine) list(ctx context.Context) ([]model.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*d.deadline)
	defer cancel()
	var listed []dockerSummary
	if err := d.api.get(ctx, "/containers/json", url.Values{"all": {"1"}}, &listed); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	all := make([]model.Container, len(listed))
	slots := make(chan struct{}, dockerWorkers)
	var inspections safely.Group
	for i := range all {
		c := &listed[i]
		if !isID(c.ID) {
			continue
		}
		d.suspect(c.ID, c.Labels)
		if i >= maxContainers { // beyond the limit: only counted
			all[i] = dockerListed(c, d.runtime, d.labels)
			continue
		}
		slots <- struct{}{}
		inspections.Go(func() {
			defer func() { <-slots }()
			var err error
			if all[i], err = d.inspect(ctx, c.ID); err != nil && !errors.Is(err, errDockerGone) {
				all[i] = dockerListed(c, d.runtime, d.labels)
			}
		})
	}
	inspections.Wait()
	return slices.DeleteFunc(all, func(c model.Container) bool { return c.ID == "" }), nil
}

func (d *dockerEngine) inspect(ctx context.Context, id string) (model.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, d.deadline)
	defer cancel()
	var i dockerInspection
	if err := d.api.get(ctx, "/containers/"+id+"/json", nil, &i); err != nil {
		return model.Container{}, err
	}
	if i.ID != id {
		return model.Container{}, fmt.Errorf("requested container %s, received %q", id, i.ID)
	}
	return dockerInspected(&i, d.runtime, d.labels), nil
}
