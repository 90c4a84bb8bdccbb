// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
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
	"github.com/accelscope/accelscope/pkg/safely"
)

// mobyNamespace is Docker's namespace. The Docker driver reports its containers.
const mobyNamespace = "moby"

// maxNamespaces bounds the lists of one socket.
const maxNamespaces = 1024

// containerdOrCRI follows the containerd at path through its own API, or through the CRI if the socket serves only the
// CRI.
func containerdOrCRI(ctx context.Context, o Options, path string, f feed) error {
	err := containerd(ctx, o, path, f)
	if status.Code(err) != codes.Unimplemented {
		return err
	}
	return cri(ctx, o, path, f)
}

// containerd follows the containerd at path through its own API: version 1 of the services for namespaces, containers,
// tasks and events, which all releases from 1.6 on serve.
func containerd(ctx context.Context, o Options, path string, f feed) error {
	c, err := dial(path)
	if err != nil {
		return err
	}
	defer c.close()
	d := &containerdDriver{
		feed: f, procfs: o.Procfs, labels: o.Labels,
		namespaces: namespaces.NewNamespacesClient(c), containers: containers.NewContainersClient(c),
		tasks: tasks.NewTasksClient(c), version: version.NewVersionClient(c),
		known: map[string]bool{}, pods: map[string]podLabels{},
	}
	return c.why(d.run(ctx, events.NewEventsClient(c)))
}

type containerdDriver struct {
	feed
	procfs     string
	labels     []string
	namespaces namespaces.NamespacesClient
	containers containers.ContainersClient
	tasks      tasks.TasksClient
	version    version.VersionClient

	known map[string]bool      // ids that were reported with their names
	pods  map[string]podLabels // by the id of the sandbox
}

// podLabels are the labels of a pod, which its containers lack.
type podLabels map[string]string

func (d *containerdDriver) run(ctx context.Context, api events.EventsClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A runtime that hangs still accepts requests for streams.
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
	go safely.Do("runtime", func() {
		why := safely.ErrPanicked
		defer func() { ended <- why }()
		for {
			e, err := recv()
			if err != nil {
				why = err
				return
			}
			select {
			case received <- e:
			case <-ctx.Done():
				why = ctx.Err()
				return
			}
		}
	})
	return received, ended
}

// check requests the version, the cheapest call of containerd.
func (d *containerdDriver) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := d.version.Version(ctx, &emptypb.Empty{}); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	return nil
}

// fetch requests a container. It returns false and only the id if the container is gone.
func (d *containerdDriver) fetch(ctx context.Context, ns, id string) (model.Container, bool, error) {
	ctx, cancel := context.WithTimeout(inNamespace(ctx, ns), callTimeout)
	defer cancel()
	got, err := d.containers.Get(ctx, &containers.GetContainerRequest{ID: id})
	if status.Code(err) == codes.NotFound {
		return model.Container{ID: qualifiedID(ns, id), Runtime: model.RuntimeContainerd, Name: nameOf(ns, "", id)}, false, nil
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

// moment converts a time that may be unset.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() || t.AsTime().Unix() <= 0 {
		return time.Time{}
	}
	return t.AsTime()
}

// taskStatus maps the states of a task. A state that containerd did not get from the shim is missing.
var taskStatus = map[task.Status]model.ContainerStatus{
	task.Status_CREATED: model.ContainerCreated,
	task.Status_RUNNING: model.ContainerRunning,
	task.Status_STOPPED: model.ContainerExited,
	task.Status_PAUSED:  model.ContainerPaused,
	task.Status_PAUSING: model.ContainerPaused,
}

// happened reports an event. It returns the id of the container and whether the container exists after the event.
func (d *containerdDriver) happened(ctx context.Context, env *types.Envelope) (id string, exists bool, err error) {
	e, ok := parseEvent(env)
	if !ok || env.GetNamespace() == mobyNamespace {
		return "", false, nil
	}
	event := e.Container
	id = qualifiedID(env.GetNamespace(), event.ID)
	c, create := model.Container{ID: id}, e.Type == model.EventCreate
	exists = true
	switch {
	case e.Type == model.EventDelete:
		delete(d.known, id)
		delete(d.pods, id)
		exists = false
	case create || !d.known[id] && len(d.known) < maxContainers:
		if c, exists, err = d.fetch(ctx, env.GetNamespace(), event.ID); err != nil {
			return id, false, err
		}
		switch {
		case exists:
		case !create:
			return id, false, nil // its deletion was reported
		case d.known[id]:
			return id, true, nil // its deletion follows
		default: // its start and its end follow
			exists, d.known[id] = true, true
		}
		c.Image = cmp.Or(c.Image, event.Image)
	}
	c.PID, c.Started, c.Finished = event.PID, event.Started, event.Finished
	e.Container = c
	d.event(e)
	if e.Type == model.EventOOM { // whose event lacks the state
		return "", false, nil
	}
	return id, exists, nil
}
