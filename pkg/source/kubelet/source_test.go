// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/accelscope/accelscope/pkg/model"
)

type clock struct{ now time.Time }

func (c *clock) read() time.Time { return c.now }

func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func state(t *testing.T, s model.Snapshot, part string) (model.State, string) {
	t.Helper()
	for _, d := range s.DeviceStates {
		if d.Device == part && d.Source == "kubelet" {
			return d.State, d.Reason
		}
	}
	t.Fatalf("no state of %s in %v", part, s.DeviceStates)
	return "", ""
}

func onePod(name string) *corev1.PodList {
	return &corev1.PodList{Items: []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ml", UID: "uid-of-pod"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", ContainerID: "containerd://" + strings.Repeat("ab", 32)},
		}},
	}}}
}

func oneSummary(used uint64) *statsv1alpha1.Summary {
	available, capacity := uint64(700), uint64(1000)
	return &statsv1alpha1.Summary{
		Node: statsv1alpha1.NodeStats{
			NodeName: "gpu01",
			Fs:       &statsv1alpha1.FsStats{UsedBytes: &used, AvailableBytes: &available, CapacityBytes: &capacity},
		},
		Pods: []statsv1alpha1.PodStats{{
			PodRef:           statsv1alpha1.PodReference{Name: "train", Namespace: "ml", UID: "uid-of-pod"},
			EphemeralStorage: &statsv1alpha1.FsStats{UsedBytes: &used},
		}},
	}
}

// TestRead checks the results of all four requests.
func TestRead(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveSocket(t, socket, devices("train", "GPU-0", "GPU-1"))
	a := serveAPI(t, onePod("train"), oneSummary(250))
	o := a.options()
	o.Socket = socket
	got, err := open(t, o).Read(limit(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	restarts := uint64(0)
	given := model.Allocation{Namespace: "ml", Pod: "train", Container: "main", Resource: "nvidia.com/gpu", ID: "GPU-0"}
	given1 := given
	given1.ID = "GPU-1"
	want := model.Snapshot{
		Pods: []model.Pod{{UID: "uid-of-pod", Namespace: "ml", Name: "train"}},
		Containers: []model.Container{{
			ID: strings.Repeat("ab", 32), Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "train",
			PodUID: "uid-of-pod", Status: model.ContainerCreated, Restarts: &restarts,
		}},
		Allocations: []model.Allocation{given, given1},
		Allocatable: []model.Allocatable{{Resource: "nvidia.com/gpu", IDs: []string{"GPU-0", "GPU-1"}}},
		PodStorage:  []model.PodStorage{{UID: "uid-of-pod", Namespace: "ml", Pod: "train", UsedBytes: 250}},
		NodeStorage: &model.NodeStorage{UsedBytes: 250, AvailableBytes: 700, CapacityBytes: 1000},
		DeviceStates: []model.DeviceState{
			{Source: "kubelet", Device: "pod-resources", State: model.StateOK},
			{Source: "kubelet", Device: "allocatable", State: model.StateOK},
			{Source: "kubelet", Device: "pods", State: model.StateOK},
			{Source: "kubelet", Device: "summary", State: model.StateOK},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestAbsent: a node without a kubelet is not a failure.
func TestAbsent(t *testing.T) {
	got, err := open(t, Options{Socket: filepath.Join(t.TempDir(), "no.sock")}).Read(t.Context())
	if !errors.Is(err, model.ErrAbsent) {
		t.Errorf("error %v", err)
	}
	if d := cmp.Diff(model.Snapshot{}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestNoURL: the socket alone is enough, and the other parts report the missing URL.
func TestNoURL(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveSocket(t, socket, devices("train", "GPU-0"))
	got, err := open(t, Options{Socket: socket}).Read(t.Context())
	if err != nil || len(got.Allocations) != 1 || got.Pods != nil || got.PodStorage != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if st, reason := state(t, got, "pods"); st != model.StateAbsent || !strings.Contains(reason, "--kubelet.url") {
		t.Errorf("pods: %s %q", st, reason)
	}
}

// TestRestart: the last answers are kept while the kubelet restarts, and its new socket is found at once.
func TestRestart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	now := &clock{now: time.Unix(1e9, 0)}
	s := open(t, Options{Socket: socket, Now: now.read})
	read := func() (model.Snapshot, error) { return s.Read(limit(t, time.Minute)) }

	stop := serveSocket(t, socket, devices("old", "GPU-0"))
	if got, err := read(); err != nil || len(got.Allocations) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	stop()
	now.now = now.now.Add(keep)
	got, err := read()
	if err == nil || errors.Is(err, model.ErrAbsent) {
		t.Errorf("away: error %v, want a failure", err)
	}
	if len(got.Allocations) != 1 || got.Allocations[0].Pod != "old" || len(got.Allocatable) != 1 {
		t.Errorf("away: %+v", got)
	}
	if st, reason := state(t, got, "pod-resources"); st != model.StateFailed || !strings.Contains(reason, "5m0s old") {
		t.Errorf("away: %s %q", st, reason)
	}
	now.now = now.now.Add(time.Second)
	if got, err = read(); err == nil || got.Allocations != nil || got.Allocatable != nil {
		t.Errorf("away for long: %+v, %v", got, err)
	}
	if st, _ := state(t, got, "pod-resources"); st != model.StateFailed {
		t.Errorf("away for long: %s", st)
	}

	serveSocket(t, socket, devices("new", "GPU-1"))
	if got, err = read(); err != nil || len(got.Allocations) != 1 || got.Allocations[0].Pod != "new" {
		t.Errorf("back: %+v, %v", got, err)
	}
	// The old kubelet still serves a socket without a path.
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	serveSocket(t, socket, devices("newer", "GPU-1"))
	if got, err = read(); err != nil || len(got.Allocations) != 1 || got.Allocations[0].Pod != "newer" {
		t.Errorf("replaced: %+v, %v", got, err)
	}
}

// TestNoListener uses the socket of a kubelet that was killed.
func TestNoListener(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
	start := time.Now()
	got, err := open(t, Options{Socket: socket}).Read(limit(t, time.Minute))
	if err == nil || !strings.Contains(err.Error(), "is the kubelet running?") {
		t.Errorf("error %v", err)
	}
	if st, _ := state(t, got, "allocatable"); st != model.StateFailed {
		t.Errorf("state %s", st)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}

// TestSlow: a request without an answer drops only its own result, and takes no longer than the deadline.
func TestSlow(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	slow := devices("train", "GPU-0")
	slow.list = func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	serveSocket(t, socket, slow)
	a := serveAPI(t, onePod("train"), oneSummary(1))
	// It begins to answer, and stops.
	a.setPods(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, `{"items":[`)
		w.(http.Flusher).Flush()
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	o := a.options()
	o.Socket = socket
	start := time.Now()
	got, err := open(t, o).Read(limit(t, 5*time.Second)) // the others have as long, on a busy machine too
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	if err == nil || !strings.Contains(err.Error(), "pod-resources: ") || !strings.Contains(err.Error(), "pods: ") {
		t.Errorf("error %v", err)
	}
	if got.Allocations != nil || got.Pods != nil || len(got.Allocatable) != 1 || len(got.PodStorage) != 1 {
		t.Errorf("%+v", got)
	}
	for part, want := range map[string]model.State{
		"pod-resources": model.StateFailed, "pods": model.StateFailed,
		"allocatable": model.StateOK, "summary": model.StateOK,
	} {
		if st, reason := state(t, got, part); st != want {
			t.Errorf("%s: %s %q, want %s", part, st, reason, want)
		}
	}
}

// TestSilentSocket has a listener that never answers, or does not use gRPC.
func TestSilentSocket(t *testing.T) {
	for name, say := range map[string]string{"silent": "", "garbage": "HTTP/1.1 400 Bad Request\r\n\r\n\xff\x00garbage"} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = conn.Write([]byte(say))
				}
			}()
			t.Cleanup(func() {
				listener.Close()
				<-done
			})
			start := time.Now()
			got, err := open(t, Options{Socket: socket}).Read(limit(t, 300*time.Millisecond))
			if err == nil || got.Allocations != nil || time.Since(start) > 20*time.Second {
				t.Errorf("%+v, %v after %s", got, err, time.Since(start))
			}
		})
	}
}

// TestUnimplemented: a method that the kubelet does not serve is not a failure, and does not affect the others.
func TestUnimplemented(t *testing.T) {
	disabled := devices("train", "GPU-0")
	disabled.allocatable = func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
		return nil, errors.New("PodResources API GetAllocatableResources disabled")
	}
	onlyList := devices("train", "GPU-0")
	onlyList.allocatable = nil
	for name, l := range map[string]*lister{"unimplemented": onlyList, "feature gate": disabled} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			serveSocket(t, socket, l)
			got, err := open(t, Options{Socket: socket}).Read(limit(t, time.Minute))
			if err != nil || len(got.Allocations) != 1 || got.Allocatable != nil {
				t.Errorf("%+v, %v", got, err)
			}
			if st, _ := state(t, got, "allocatable"); st != model.StateUnsupported {
				t.Errorf("state %s", st)
			}
		})
	}
	t.Run("no v1 at all", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "kubelet.sock")
		serveSocket(t, socket, nil)
		got, err := open(t, Options{Socket: socket}).Read(limit(t, time.Minute))
		if !errors.Is(err, model.ErrUnsupported) || errors.Is(err, model.ErrAbsent) || got.Allocations != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// TestPartialFailure has each request fail alone, without and with an earlier answer. An absent part never hides a
// failure.
func TestPartialFailure(t *testing.T) {
	broken := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "panic", http.StatusInternalServerError) }
	has := func(s model.Snapshot) map[string]bool {
		return map[string]bool{
			"pod-resources": s.Allocations != nil, "allocatable": s.Allocatable != nil,
			"pods": s.Pods != nil && s.Containers != nil, "summary": s.PodStorage != nil && s.NodeStorage != nil,
		}
	}
	for _, part := range []string{"pod-resources", "allocatable", "pods", "summary"} {
		t.Run(part, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			l := devices("train", "GPU-0")
			good := *l
			serveSocket(t, socket, l)
			a := serveAPI(t, onePod("train"), oneSummary(1))
			o := a.options()
			o.Socket = socket
			fail := func() {
				switch part {
				case "pod-resources":
					l.list = func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
						return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
					}
				case "allocatable":
					l.allocatable = func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
						return nil, status.Error(codes.Internal, "no")
					}
				case "pods":
					a.setPods(broken)
				case "summary":
					a.setSummary(broken)
				}
			}
			check := func(s *Source, kept bool) {
				t.Helper()
				got, err := s.Read(limit(t, time.Minute))
				if err == nil || !strings.Contains(err.Error(), part+": ") || errors.Is(err, model.ErrAbsent) {
					t.Errorf("error %v", err)
				}
				for p, there := range has(got) {
					want, wantState := true, model.StateOK
					if p == part {
						want, wantState = kept, model.StateFailed
					}
					if st, reason := state(t, got, p); there != want || st != wantState {
						t.Errorf("%s: facts %t, want %t; %s %q, want %s", p, there, want, st, reason, wantState)
					}
				}
			}
			fail()
			check(open(t, o), false)
			l.list, l.allocatable = good.list, good.allocatable
			a.setPods(answer(t, onePod("train")))
			a.setSummary(answer(t, oneSummary(1)))
			s := open(t, o)
			if got, err := s.Read(limit(t, time.Minute)); err != nil {
				t.Fatalf("%+v, %v", got, err)
			}
			fail()
			check(s, true)
		})
	}
}

// TestAllocations checks device plugins of all kinds and resource claims.
func TestAllocations(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	resources := func(name string, ids ...string) *podresourcesv1.ContainerDevices {
		return &podresourcesv1.ContainerDevices{ResourceName: name, DeviceIds: ids}
	}
	serveSocket(t, socket, &lister{
		list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
			return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{
				{Name: "idle", Namespace: "ml", Containers: []*podresourcesv1.ContainerResources{{Name: "main"}}},
				{Name: "train", Namespace: "ml", Containers: []*podresourcesv1.ContainerResources{{
					Name: "main",
					Devices: []*podresourcesv1.ContainerDevices{
						resources("nvidia.com/mig-1g.5gb", "MIG-1"), resources("rdma/hca_shared", "7"),
						resources("mellanox.com/ib_vf", "0000:18:00.2"),
					},
					DynamicResources: []*podresourcesv1.DynamicResource{{
						ClaimName: "gpus", ClaimNamespace: "ml",
						ClaimResources: []*podresourcesv1.ClaimResource{
							{
								DriverName: "gpu.nvidia.com", PoolName: "node7", DeviceName: "gpu-0",
								CdiDevices: []*podresourcesv1.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=u-gpu-0"}},
							},
							{CdiDevices: []*podresourcesv1.CDIDevice{{Name: "vendor.com/gpu=gpu1"}, {Name: "odd"}}},
						},
					}},
				}}},
			}}, nil
		},
		allocatable: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
			return &podresourcesv1.AllocatableResourcesResponse{Devices: []*podresourcesv1.ContainerDevices{
				resources("nvidia.com/gpu", "GPU-0"), resources("rdma/hca_shared", "7", "8"),
				resources("nvidia.com/gpu", "GPU-1"), // of the other NUMA node
				resources("amd.com/gpu"),
			}}, nil
		},
	})
	got, err := open(t, Options{Socket: socket}).Read(limit(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	alloc := func(resource, id, claim string) model.Allocation {
		return model.Allocation{
			Namespace: "ml", Pod: "train", Container: "main", Resource: resource, ID: id, Claim: claim,
		}
	}
	if d := cmp.Diff([]model.Allocation{
		alloc("nvidia.com/mig-1g.5gb", "MIG-1", ""), alloc("rdma/hca_shared", "7", ""),
		alloc("mellanox.com/ib_vf", "0000:18:00.2", ""), alloc("gpu.nvidia.com/node7", "gpu-0", "gpus"),
		alloc("vendor.com/gpu", "vendor.com/gpu=gpu1", "gpus"), alloc("odd", "odd", "gpus"),
	}, got.Allocations); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff([]model.Allocatable{
		{Resource: "nvidia.com/gpu", IDs: []string{"GPU-0", "GPU-1"}},
		{Resource: "rdma/hca_shared", IDs: []string{"7", "8"}},
		{Resource: "amd.com/gpu"},
	}, got.Allocatable); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestAllocationsOfEndedPod: allocations of an ended pod are dropped, unless a new pod has the same name.
func TestAllocationsOfEndedPod(t *testing.T) {
	for name, tt := range map[string]struct {
		phases []corev1.PodPhase // of pods of the same name
		want   int
	}{
		"runs": {[]corev1.PodPhase{corev1.PodRunning}, 1}, "succeeded": {[]corev1.PodPhase{corev1.PodSucceeded}, 0},
		"failed":   {[]corev1.PodPhase{corev1.PodFailed}, 0},
		"made new": {[]corev1.PodPhase{corev1.PodPending, corev1.PodFailed}, 1}, "not known": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			serveSocket(t, socket, devices("train", "GPU-0"))
			list := &corev1.PodList{}
			for i, phase := range tt.phases {
				pod := onePod("train").Items[0]
				pod.UID, pod.Status.Phase = types.UID(fmt.Sprint("uid-", i)), phase
				list.Items = append(list.Items, pod)
			}
			a := serveAPI(t, list, oneSummary(1))
			o := a.options()
			o.Socket = socket
			got, err := open(t, o).Read(limit(t, time.Minute))
			if err != nil || got.Allocations == nil || len(got.Allocations) != tt.want || len(got.Pods) != len(tt.phases) {
				t.Errorf("%d allocations, want %d: %+v, %v", len(got.Allocations), tt.want, got, err)
			}
		})
	}
}

// TestFinishedLongAgo: an old answer does not end a pod, because another pod may have its name.
func TestFinishedLongAgo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveSocket(t, socket, devices("train", "GPU-0"))
	list := onePod("train")
	list.Items[0].Status.Phase = corev1.PodSucceeded
	a := serveAPI(t, list, oneSummary(1))
	o := a.options()
	o.Socket = socket
	s := open(t, o)
	if got, err := s.Read(limit(t, time.Minute)); err != nil || len(got.Allocations) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	a.setPods(answer(t, "no"))
	if got, err := s.Read(limit(t, time.Minute)); err == nil || len(got.Allocations) != 1 || len(got.Pods) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSocketOfTheNode follows the absolute link of a kubelet's directory on another disk as the node does.
func TestSocketOfTheNode(t *testing.T) {
	root, err := os.MkdirTemp("", "k") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	err = errors.Join(os.MkdirAll(root+"/data/kubelet", 0o700), os.MkdirAll(root+"/var/lib", 0o700),
		os.Symlink("/data/kubelet", root+"/var/lib/kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	serveSocket(t, root+"/data/kubelet/kubelet.sock", devices("train", "0"))
	got, err := open(t, Options{Root: root, Socket: "/var/lib/kubelet/kubelet.sock"}).Read(limit(t, time.Minute))
	if err != nil || len(got.Allocations) == 0 {
		t.Errorf("%+v, %v", got.Allocations, err)
	}
}
