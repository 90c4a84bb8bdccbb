// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	events "github.com/containerd/containerd/api/services/events/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelscope/accelscope/pkg/model"
)

// mobyNamespace is Docker's, which tells of its containers itself.
const mobyNamespace = "moby"

// maxNamespaces bounds the lists of one socket.
const maxNamespaces = 1024

// containerdOrCRI follows the containerd at path through its own API, or through the CRI if the socket serves only that.
func containerdOrCRI(o Options, path string) driver {
	return func(ctx context.Context, f feed) error {
		err := containerd(path, o.Procfs, o.Labels)(ctx, f)
		if status.Code(err) != codes.Unimplemented {
			return err
		}
		return cri(path, o.Labels)(ctx, f)
	}
}

// containerd follows the containerd at path through its own API: the services
// of version 1 for namespaces, containers, tasks and events, which all releases
// from 1.6 serve.
func containerd(path, procfs string, labels []string) driver {
	return func(ctx context.Context, f feed) error {
		c, err := dial(path)
		if err != nil {
			return err
		}
		defer c.close()
		d := &containerdDriver{
			feed: f, procfs: procfs, labels: labels,
			namespaces: namespaces.NewNamespacesClient(c), containers: containers.NewContainersClient(c),
			tasks: tasks.NewTasksClient(c), version: version.NewVersionClient(c),
			known: map[string]bool{}, pods: map[string]podLabels{},
		}
		return c.why(d.run(ctx, events.NewEventsClient(c)))
	}
}

// containerdDriver is one life of a connection to containerd.
type containerdDriver struct {
	feed
	procfs     string
	labels     []string
	namespaces namespaces.NamespacesClient
	containers containers.ContainersClient
	tasks      tasks.TasksClient
	version    version.VersionClient

	known map[string]bool // ids that were told with their names
	pods  map[string]podLabels
}

// podLabels are those of a pod that its containers do not have themselves, by
// the id of its sandbox.
type podLabels map[string]string

func (d *containerdDriver) run(ctx context.Context, api events.EventsClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A runtime that hangs takes requests for streams all the same.
	if err := d.check(ctx); err != nil {
		return err
	}
	stream, err := api.Subscribe(ctx, &events.SubscribeRequest{Filters: []string{
		`topic~="^/containers/"`, `topic~="^/tasks/(start|exit|oom|delete|paused|resumed)$"`,
	}})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	received, ended := receive(ctx, stream.Recv)
	if err := d.relist(ctx, received); err != nil {
		return err
	}
	check, relist := time.NewTicker(checkEvery), time.NewTimer(recheck)
	defer check.Stop()
	defer relist.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-received:
			_, _, err = d.happened(ctx, e)
		case err = <-ended:
			err = fmt.Errorf("events: %w", err)
		case <-check.C:
			err = d.check(ctx)
		case <-relist.C:
			err = d.relist(ctx, received)
			relist.Reset(relistEvery)
		}
		if err != nil {
			return err
		}
	}
}

// receive reads a stream in a goroutine that ends with ctx.
func receive[T any](ctx context.Context, recv func() (T, error)) (<-chan T, <-chan error) {
	received, ended := make(chan T), make(chan error, 1)
	go func() {
		for {
			e, err := recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case received <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return received, ended
}

// check asks for the version, which costs containerd nothing.
func (d *containerdDriver) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := d.version.Version(ctx, &emptypb.Empty{}); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	return nil
}

// fetch asks for one container; of one that is gone only the id is known, and
// false is returned.
func (d *containerdDriver) fetch(ctx context.Context, ns, id string) (model.Container, bool, error) {
	ctx, cancel := context.WithTimeout(inNamespace(ctx, ns), callTimeout)
	defer cancel()
	got, err := d.containers.Get(ctx, &containers.GetContainerRequest{ID: id})
	if status.Code(err) == codes.NotFound {
		return model.Container{ID: tellID(ns, id), Runtime: model.RuntimeContainerd, Name: nameOf(ns, "", id)}, false, nil
	}
	if err != nil {
		return model.Container{}, false, fmt.Errorf("container %s: %w", id, err)
	}
	r := newRecord(ns, got.GetContainer(), d.labels)
	d.notePod(r)
	d.known[r.ID] = true
	return d.describe(r), true, nil
}

func inNamespace(ctx context.Context, ns string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", ns)
}

// moment is a time that may not be set.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() || t.AsTime().Unix() <= 0 {
		return time.Time{}
	}
	return t.AsTime()
}

// taskStatus is a task's state in the words of the model; empty when containerd
// could not learn it from the shim.
var taskStatus = map[task.Status]model.ContainerStatus{
	task.Status_CREATED: model.ContainerCreated,
	task.Status_RUNNING: model.ContainerRunning,
	task.Status_STOPPED: model.ContainerExited,
	task.Status_PAUSED:  model.ContainerPaused,
	task.Status_PAUSING: model.ContainerPaused,
}

// happened tells one event, and returns of which container, and whether that
// exists after it.
func (d *containerdDriver) happened(ctx context.Context, env *types.Envelope) (id string, exists bool, err error) {
	h, ok := parseEvent(env)
	if !ok || env.GetNamespace() == mobyNamespace {
		return "", false, nil
	}
	id = tellID(env.GetNamespace(), h.id)
	c, create := model.Container{ID: id}, h.event.Type == model.EventCreate
	exists = true
	switch {
	case h.event.Type == model.EventDelete:
		delete(d.known, id)
		delete(d.pods, id)
		exists = false
	case create || !d.known[id] && len(d.known) < maxContainers:
		if c, exists, err = d.fetch(ctx, env.GetNamespace(), h.id); err != nil {
			return id, false, err
		}
		switch {
		case exists:
		case !create:
			return id, false, nil // its deletion was told
		case d.known[id]:
			return id, true, nil // its deletion is yet to come
		default: // as are its start and its end
			exists, d.known[id] = true, true
		}
		if c.Image == "" {
			c.Image = h.image
		}
	}
	c.PID, c.Started, c.Finished = h.pid, h.started, h.finished
	h.event.Container = c
	d.event(h.event)
	if h.event.Type == model.EventOOM { // which does not say what it does now
		return "", false, nil
	}
	return id, exists, nil
}
