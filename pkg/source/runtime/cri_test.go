// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// fakeCRI is a fake CRI runtime with the types of the interface, because CRI-O is not available in a unit test. The
// guest tests containerd's real CRI plugin.
type fakeCRI struct {
	api.UnimplementedRuntimeServiceServer
	name, version string
	events        chan *api.ContainerEventResponse // nil: events are not served

	mu         sync.Mutex
	pods       []*api.PodSandbox
	containers map[string]*api.ContainerStatus
	info       string
	calls      map[string]int
}

func (f *fakeCRI) call(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[name]++
}

func (f *fakeCRI) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{RuntimeName: f.name, RuntimeVersion: f.version, RuntimeApiVersion: "v1"}, nil
}

func (f *fakeCRI) ListPodSandbox(context.Context, *api.ListPodSandboxRequest) (*api.ListPodSandboxResponse, error) {
	f.call("list")
	f.mu.Lock()
	defer f.mu.Unlock()
	return &api.ListPodSandboxResponse{Items: f.pods}, nil
}

func (f *fakeCRI) ListContainers(context.Context, *api.ListContainersRequest) (*api.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &api.ListContainersResponse{}
	for _, s := range f.containers {
		out.Containers = append(out.Containers, &api.Container{
			Id: s.Id, PodSandboxId: "pod1", Metadata: s.Metadata, Image: s.Image, ImageRef: s.ImageRef,
			State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
		})
	}
	return out, nil
}

func (f *fakeCRI) ContainerStatus(_ context.Context, r *api.ContainerStatusRequest) (*api.ContainerStatusResponse, error) {
	f.call("status")
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.containers[r.ContainerId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &api.ContainerStatusResponse{Status: s, Info: map[string]string{"info": f.info}}, nil
}

func (f *fakeCRI) GetContainerEvents(_ *api.GetEventsRequest, s api.RuntimeService_GetContainerEventsServer) error {
	if f.events == nil {
		return status.Error(codes.Unimplemented, "not enabled")
	}
	f.call("events")
	for {
		select {
		case e := <-f.events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (f *fakeCRI) send(t api.ContainerEventType, id string) {
	f.mu.Lock()
	e := &api.ContainerEventResponse{
		ContainerId: id, ContainerEventType: t, CreatedAt: at(100).UnixNano(),
		PodSandboxStatus: &api.PodSandboxStatus{Id: f.pods[0].Id, Metadata: f.pods[0].Metadata, Labels: f.pods[0].Labels, Annotations: f.pods[0].Annotations},
	}
	if s := f.containers[id]; s != nil {
		e.ContainersStatuses = append(e.ContainersStatuses, s)
	}
	f.mu.Unlock()
	f.events <- e
}

func serve(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "as-cri-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "crio.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	register(server)
	var running sync.WaitGroup
	running.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return path
}

func startCRI(t *testing.T, f *fakeCRI) string {
	f.calls = map[string]int{}
	if f.pods == nil {
		f.pods = []*api.PodSandbox{{
			Id: "pod1", State: api.PodSandboxState_SANDBOX_READY, CreatedAt: at(1).UnixNano(),
			Metadata:    &api.PodSandboxMetadata{Name: "train-0", Namespace: "ml", Uid: podUID},
			Labels:      map[string]string{"team": "vision"},
			Annotations: map[string]string{"owner": "alice", "not": "listed"},
		}}
	}
	return serve(t, func(s *grpc.Server) { api.RegisterRuntimeServiceServer(s, f) })
}

func criStatus(id string, state api.ContainerState, n int32) *api.ContainerStatus {
	s := &api.ContainerStatus{
		Id: id, Metadata: &api.ContainerMetadata{Name: "worker", Attempt: 2}, State: state, CreatedAt: at(2).UnixNano(),
		Image: &api.ImageSpec{Image: "registry/train:1"}, ImageRef: "sha256:beef",
		Labels: map[string]string{labelPodName: "train-0", labelPodNamespace: "ml", labelPodUID: podUID, "role": "main"},
	}
	if state != api.ContainerState_CONTAINER_CREATED {
		s.StartedAt = at(3).UnixNano()
	}
	if state == api.ContainerState_CONTAINER_EXITED {
		s.FinishedAt, s.ExitCode = at(4).UnixNano(), n
	}
	return s
}

const criInfo = `{"sandboxID":"pod1","pid":4242,"runtimeSpec":{"linux":{"cgroupsPath":"/odd/place",
	"devices":[{"path":"/dev/infiniband/uverbs1","type":"c"}],"resources":{"devices":[{"allow":true,"access":"rwm"}]}},
	"process":{"env":["SECRET=x"]}},"config":{"CDI_devices":[{"name":"nvidia.com/gpu=0"}]}}`

func TestCRI(t *testing.T) {
	t.Parallel()
	f := &fakeCRI{
		name: "cri-o", version: "1.30.0", info: criInfo, events: make(chan *api.ContainerEventResponse),
		containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)},
	}
	path := startCRI(t, f)
	s := open(t, Options{Sockets: []Socket{{"cri", path}}, Labels: []string{"team", "owner", "role"}})
	listed(t, s)
	restarts := uint64(2)
	if d := cmp.Diff(map[string]model.Container{
		"pod1": {
			ID: "pod1", Runtime: "cri-o", Namespace: "ml", Pod: "train-0", PodUID: podUID, Sandbox: true,
			Labels: map[string]string{"team": "vision", "owner": "alice"}, Status: "running", Created: at(1),
		},
		"c1": {
			ID: "c1", Runtime: "cri-o", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: podUID,
			Image: "registry/train:1", ImageID: "sha256:beef", Cgroup: "/odd/place", PID: 4242,
			Labels:     map[string]string{"team": "vision", "owner": "alice", "role": "main"},
			AllDevices: true, GPURequests: []string{"0"},
			Devices: []string{"/dev/infiniband/uverbs1"}, Status: "running", Restarts: &restarts, Created: at(2), Started: at(3),
		},
	}, resolved(s)); d != "" {
		t.Fatalf("the containers after the first read:\n%s", d)
	}
	r := record1(s)
	set := func(id string, s *api.ContainerStatus) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.containers[id] = s; s == nil {
			delete(f.containers, id)
		}
	}
	set("c2", criStatus("c2", api.ContainerState_CONTAINER_CREATED, 0))
	f.send(api.ContainerEventType_CONTAINER_CREATED_EVENT, "c2")
	set("c2", criStatus("c2", api.ContainerState_CONTAINER_RUNNING, 0))
	f.send(api.ContainerEventType_CONTAINER_STARTED_EVENT, "c2")
	eventually(t, soon, "the start with its process", func() bool { return resolved(s)["c2"].PID == 4242 })
	set("c2", criStatus("c2", api.ContainerState_CONTAINER_EXITED, 137))
	f.send(api.ContainerEventType_CONTAINER_STOPPED_EVENT, "c2")
	f.send(api.ContainerEventType_CONTAINER_STOPPED_EVENT, "c2")
	set("c2", nil)
	f.send(api.ContainerEventType_CONTAINER_DELETED_EVENT, "c2")
	eventually(t, soon, "the deletion", func() bool { return len(r.of("c2")) == 4 })
	if d := cmp.Diff([]string{
		"create c2 created", "start c2 running", "exit c2 exited code=137 signal=9", "delete c2 exited",
	}, r.of("c2")); d != "" {
		t.Error(d)
	}
	// The devices were reported with the start.
	if got := resolved(s)["c2"]; !got.AllDevices || len(got.GPURequests) != 1 || got.Pod != "train-0" || got.Name != "worker" || !got.Finished.Equal(at(4)) {
		t.Errorf("%+v", got)
	}
}

// TestCRIWithoutEvents follows a runtime without events, and containerd 1.7, which has events for
// one reader only.
func TestCRIWithoutEvents(t *testing.T) {
	for _, name := range []string{"cri-o", "containerd"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeCRI{
				name: name, version: "v1.7.24",
				containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)},
			}
			if name == "containerd" {
				f.events = make(chan *api.ContainerEventResponse)
			}
			path := startCRI(t, f)
			s := open(t, Options{Sockets: []Socket{{"cri", path}}})
			listed(t, s)
			r := record1(s)
			f.mu.Lock()
			f.containers["c1"] = criStatus("c1", api.ContainerState_CONTAINER_EXITED, 3)
			f.mu.Unlock()
			eventually(t, soon, "the exit is found", func() bool { return len(r.of("c1")) == 1 })
			if d := cmp.Diff([]string{"exit c1 exited code=3 R"}, r.of("c1")); d != "" {
				t.Error(d)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.calls["events"] != 0 || f.calls["status"] != 2 {
				t.Errorf("calls %v: want no reader of the events, and a status for each state", f.calls)
			}
		})
	}
}

// TestCRIOfContainerdAPI follows a socket with the name of containerd's that serves only the CRI.
func TestCRIOfContainerdAPI(t *testing.T) {
	t.Parallel()
	f := &fakeCRI{name: "odd", containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)}}
	s := open(t, Options{Sockets: []Socket{{"containerd", startCRI(t, f)}}})
	listed(t, s)
	if c := resolved(s)["c1"]; c.Runtime != "odd" || c.Pod != "train-0" {
		t.Errorf("%+v", c)
	}
}

// largePods returns pods of one MiB.
func largePods(n int) (pods []*api.PodSandbox) {
	for i := range n {
		pods = append(pods, &api.PodSandbox{Id: fmt.Sprint(i), Annotations: map[string]string{"a": strings.Repeat("x", 1<<20)}})
	}
	return pods
}

func TestCRIHostile(t *testing.T) {
	t.Run("garbage", func(t *testing.T) {
		t.Parallel()
		f := &fakeCRI{
			name: strings.Repeat("x", 1<<20), info: "{", pods: []*api.PodSandbox{{}, {Id: strings.Repeat("p", 1<<20)}},
			containers: map[string]*api.ContainerStatus{
				"c1": {Id: "c1", CreatedAt: -5, State: 77, Metadata: &api.ContainerMetadata{Name: "a\nb\x00"}},
				"":   {},
			},
		}
		s := open(t, Options{Sockets: []Socket{{"cri", startCRI(t, f)}}})
		listed(t, s)
		all := resolved(s)
		if c := all["c1"]; c.Name != "a?b?" || len(c.Runtime) > maxString || c.Status != "created" || !c.Created.IsZero() {
			t.Errorf("%+v", c)
		}
		if len(all) != 2 || len(all[strings.Repeat("p", maxString)].ID) != maxString {
			t.Errorf("%d containers", len(all))
		}
	})
	t.Run("huge", func(t *testing.T) {
		t.Parallel()
		s := open(t, Options{Sockets: []Socket{{"cri", startCRI(t, &fakeCRI{name: "cri-o", pods: largePods(20)})}}})
		snap, err := s.Read(t.Context())
		if err == nil || snap.DeviceStates[0].State != model.StateFailed || len(snap.DeviceStates[0].Reason) > maxImage+100 {
			t.Errorf("%v, %+v", err, snap.DeviceStates)
		}
		if resolved(s) == nil || len(resolved(s)) != 0 {
			t.Errorf("%v", resolved(s))
		}
	})
	t.Run("large", func(t *testing.T) { // beyond gRPC's default of 4 MiB
		t.Parallel()
		s := open(t, Options{Sockets: []Socket{{"cri", startCRI(t, &fakeCRI{name: "cri-o", pods: largePods(15)})}}})
		listed(t, s)
		if n := len(resolved(s)); n != 15 {
			t.Errorf("%d pods, want 15", n)
		}
	})
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		f := &fakeCRI{name: "cri-o"}
		path := startCRI(t, f)
		f.mu.Lock() // it lists nothing
		defer f.mu.Unlock()
		began := time.Now()
		s := open(t, Options{Sockets: []Socket{{"cri", path}}})
		s.Read(t.Context())
		s.Read(t.Context())
		s.Resolve(t.Context(), nil)
		if took := time.Since(began); took >= readyWithin {
			t.Errorf("reads waited %v", took)
		}
	})
}
