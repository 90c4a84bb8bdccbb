// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// Intervals between lists of a CRI runtime, with and without events.
const (
	relistWithoutEvents = 5 * time.Second
	relistWithEvents    = time.Minute
)

// cri follows the runtime at path through the Container Runtime Interface. It subscribes to events, except from
// containerd before 2.0, whose single queue would lose the kubelet's events to a second subscriber. Without events, cri
// lists the containers every 5 seconds.
func cri(ctx context.Context, o Options, path string, f feed) error {
	c, err := dial(path)
	if err != nil {
		return err
	}
	defer c.close()
	d := &criDriver{feed: f, labels: o.Labels, api: api.NewRuntimeServiceClient(c), statuses: map[string]criContainer{}}
	return c.why(d.run(ctx))
}

type criDriver struct {
	feed
	labels  []string
	api     api.RuntimeServiceClient
	runtime string
	// statuses holds the latest answer of status per container.
	statuses map[string]criContainer
}

// criContainer holds the answer of status for a container, and the state at that time.
type criContainer struct {
	state   api.ContainerState
	details model.Container
}

func (d *criDriver) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := d.version(ctx)
	if err != nil {
		return err
	}
	d.runtime = strings.ToLower(v.GetRuntimeName())
	relist := relistWithoutEvents
	var received <-chan *api.ContainerEventResponse
	var ended <-chan error
	if d.runtime != model.RuntimeContainerd || !strings.HasPrefix(strings.TrimPrefix(v.GetRuntimeVersion(), "v"), "1.") {
		stream, err := d.api.GetContainerEvents(ctx, &api.GetEventsRequest{})
		if err != nil {
			return fmt.Errorf("events: %w", err)
		}
		received, ended = receive(ctx, stream.Recv)
		relist = relistWithEvents
	}
	if err := d.list(ctx); err != nil {
		return err
	}
	again := time.NewTimer(recheck)
	check := time.NewTicker(checkEvery)
	defer again.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-received:
			err = d.happened(ctx, e)
		case end := <-ended:
			// Runtimes without events end the stream with different errors.
			if code := status.Code(end); code == codes.Unavailable || code == codes.Canceled {
				return fmt.Errorf("events: %w", end)
			}
			received, ended, relist = nil, nil, relistWithoutEvents
			again.Reset(recheck)
		case <-check.C:
			_, err = d.version(ctx)
		case <-again.C:
			err = d.list(ctx)
			again.Reset(relist)
		}
		if err != nil {
			return err
		}
	}
}

func (d *criDriver) version(ctx context.Context) (*api.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	v, err := d.api.Version(ctx, &api.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	return v, nil
}

func (d *criDriver) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	sandboxes, err := d.api.ListPodSandbox(ctx, &api.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list of sandboxes: %w", err)
	}
	containers, err := d.api.ListContainers(ctx, &api.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list of containers: %w", err)
	}
	pods := make(map[string]*api.PodSandbox, len(sandboxes.GetItems()))
	var all []model.Container
	for _, p := range sandboxes.GetItems() {
		pods[p.GetId()] = p
		all = append(all, d.sandbox(p, p.GetState()))
	}
	statuses := make(map[string]criContainer, len(containers.GetContainers()))
	for i, m := range containers.GetContainers() {
		if i >= maxContainers {
			break
		}
		k, known := d.statuses[m.GetId()]
		if !known || k.state != m.GetState() {
			details, err := d.status(ctx, m.GetId())
			if status.Code(err) == codes.NotFound {
				continue // deleted meanwhile
			}
			if err != nil {
				return err
			}
			k = criContainer{m.GetState(), details}
		}
		statuses[m.GetId()] = k
		c := k.details
		d.name(&c, m, pods[m.GetPodSandboxId()])
		all = append(all, c)
	}
	d.statuses = statuses
	d.sync(all)
	return nil
}

// status requests what lists lack: times, the exit code, and, if the verbose answer of the runtime has them, process
// and devices.
func (d *criDriver) status(ctx context.Context, id string) (model.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := d.api.ContainerStatus(ctx, &api.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return model.Container{}, fmt.Errorf("status of %s: %w", id, err)
	}
	c := times(got.GetStatus())
	parseInfo(&c, []byte(got.GetInfo()["info"]))
	return c, nil
}

var criEvents = map[api.ContainerEventType]model.EventType{
	api.ContainerEventType_CONTAINER_CREATED_EVENT: model.EventCreate,
	api.ContainerEventType_CONTAINER_STARTED_EVENT: model.EventStart,
	api.ContainerEventType_CONTAINER_STOPPED_EVENT: model.EventExit,
	api.ContainerEventType_CONTAINER_DELETED_EVENT: model.EventDelete,
}

// happened reports an event, which contains the state of the whole pod.
func (d *criDriver) happened(ctx context.Context, e *api.ContainerEventResponse) error {
	id, pod := e.GetContainerId(), e.GetPodSandboxStatus()
	out := model.Event{Type: criEvents[e.GetContainerEventType()], Time: nanos(e.GetCreatedAt())}
	out.Container.ID = id
	if out.Type == "" || id == "" {
		return nil
	}
	known := out.Type == model.EventDelete
	if pod.GetId() == id {
		out.Container, known = d.sandbox(pod, pod.GetState()), true
	}
	for _, s := range e.GetContainersStatuses() {
		if s.GetId() != id {
			continue
		}
		c := times(s)
		if out.Type == model.EventStart {
			details, err := d.status(ctx, id)
			if err != nil && status.Code(err) != codes.NotFound {
				return err
			}
			c.PID, c.Devices, c.Cgroup = details.PID, details.Devices, details.Cgroup
			c.AllDevices, c.GPURequests = details.AllDevices, details.GPURequests
		}
		d.name(&c, s, pod)
		out.Container, known = c, true
	}
	if !known { // removed meanwhile, or in a state that the runtime does not know
		return d.list(ctx)
	}
	if out.Type == model.EventExit {
		out.ExitCode = out.Container.ExitCode
	}
	d.event(out)
	return nil
}
