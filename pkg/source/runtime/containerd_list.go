// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"

	"github.com/accelscope/accelscope/pkg/model"
)

// relist reports all containers. Events continue while the list is made, and an event may arrive after a list that
// shows its effect. If a container had events meanwhile, they determine its state, and the list adds only its names.
func (d *containerdDriver) relist(ctx context.Context, received <-chan *types.Envelope) error {
	listed, err := d.list(ctx)
	if err != nil {
		return err
	}
	touched := map[string]bool{} // whether it exists after the last event
	longest := time.After(relistLongest)
	for quiet := false; !quiet; {
		select {
		case e := <-received:
			id, exists, err := d.happened(ctx, e)
			if err != nil {
				return err
			}
			touched[id] = exists
		case <-time.After(relistQuiet):
			quiet = true
		case <-longest:
			quiet = true
		}
	}
	var all []model.Container
	all, d.known = afterEvents(listed, touched)
	maps.DeleteFunc(d.pods, func(id string, _ podLabels) bool { return !d.known[id] })
	d.sync(all)
	return nil
}

func (d *containerdDriver) list(ctx context.Context) ([]model.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	// This call does not involve a shim.
	quick, done := context.WithTimeout(ctx, callTimeout)
	defer done()
	all, err := d.namespaces.List(quick, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	var records []*record
	for i, ns := range all.GetNamespaces() {
		if ns.GetName() == mobyNamespace || i >= maxNamespaces {
			continue
		}
		if records, err = d.listNamespace(ctx, ns.GetName(), records); err != nil {
			return nil, err
		}
	}
	described := make([]model.Container, 0, len(records))
	for _, r := range records {
		described = append(described, d.describe(r))
	}
	return described, nil
}

func (d *containerdDriver) listNamespace(ctx context.Context, ns string, records []*record) ([]*record, error) {
	ctx = inNamespace(ctx, ns)
	// A stream, because the specifications of a full node exceed the size limit of a message.
	stream, err := d.containers.ListStream(ctx, &containers.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("containers of %s: %w", ns, err)
	}
	first, byID := len(records), map[string]*record{}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("containers of %s: %w", ns, err)
		}
		if len(records) < maxContainers {
			r := newRecord(ns, m.GetContainer(), d.labels)
			records, byID[m.GetContainer().GetID()] = append(records, r), r
			d.notePod(r)
		}
	}
	if len(records) == first {
		return records, nil
	}
	list, err := d.tasks.List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("tasks of %s: %w", ns, err)
	}
	for _, t := range list.GetTasks() {
		if r := byID[t.GetID()]; r != nil {
			r.setTask(t, d.procfs)
		}
	}
	return records, nil
}

func (d *containerdDriver) notePod(r *record) {
	if r.Sandbox && r.Labels != nil {
		d.pods[r.ID] = r.Labels
	}
}

// describe returns the container of r with the labels of its pod, which override its own labels.
func (d *containerdDriver) describe(r *record) model.Container {
	if pod := d.pods[r.sandbox]; pod != nil && !r.Sandbox {
		r.Labels = pick(d.labels, r.Labels, pod)
	}
	return r.Container
}
