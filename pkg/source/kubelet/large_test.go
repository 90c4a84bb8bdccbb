// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// largeNode returns n pods with two containers each, as the three servers encode them. One entry of each list is
// encoded and repeated under other names.
func largeNode(t *testing.T, n int) (pods, summary []byte, given *podresourcesv1.ListPodResourcesResponse) {
	t.Helper()
	const number = "00000" // placeholder for the number of the pod
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "train-" + number, Namespace: "ml", UID: number + "000-1111-2222-3333-444444444444",
			Labels:      map[string]string{"app": "train-" + number},
			Annotations: map[string]string{"last-applied": strings.Repeat("x", 500)},
		},
		Spec: corev1.PodSpec{NodeName: "gpu01"},
	}
	for _, c := range []string{"a", "b"} {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: c, Image: "registry/llm:1", Args: []string{strings.Repeat("y", 100)},
		})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c, ContainerID: "containerd://" + strings.Repeat(c, 59) + number, Image: "registry/llm:1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(1700000001, 0)}},
		})
	}
	stats := oneSummary(1)
	stats.Pods[0].PodRef = statsv1alpha1.PodReference{Name: pod.Name, Namespace: "ml", UID: string(pod.UID)}
	stats.Pods[0].Containers = make([]statsv1alpha1.ContainerStats, 2)

	repeated := func(list any, key string) []byte {
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, _ := bytes.Cut(text, []byte(key))
		one := bytes.TrimSuffix(rest, []byte("]}"))
		out := append(before, key...)
		for i := range n {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, bytes.ReplaceAll(one, []byte(number), fmt.Appendf(nil, "%05d", i))...)
		}
		return append(out, "]}"...)
	}
	given = &podresourcesv1.ListPodResourcesResponse{}
	for i := range n {
		p := &podresourcesv1.PodResources{Name: fmt.Sprintf("train-%05d", i), Namespace: "ml"}
		for c, container := range []string{"a", "b"} {
			p.Containers = append(p.Containers, &podresourcesv1.ContainerResources{
				Name: container, CpuIds: []int64{1, 2, 3, 4},
				Devices: []*podresourcesv1.ContainerDevices{{
					ResourceName: "rdma/hca_shared",
					DeviceIds:    []string{fmt.Sprintf("%0160x", 4*i+c), fmt.Sprintf("%0160x", 4*i+2+c)},
				}},
			})
		}
		given.PodResources = append(given.PodResources, p)
	}
	return repeated(&corev1.PodList{Items: []corev1.Pod{pod}}, `"items":[`), repeated(stats, `"pods":[`), given
}

// TestTenThousandPods reads more pods than any node runs, over both protocols. The memory is for the result, not for
// the answers.
func TestTenThousandPods(t *testing.T) {
	const n = 10000
	pods, summary, resources := largeNode(t, n)
	message := proto.Size(resources)
	if message < 4<<20 {
		t.Fatalf("the message has %d bytes: gRPC's own limit would let it pass", message)
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l := devices("train", "GPU-0")
	l.list = func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) { return resources, nil }
	serveSocket(t, socket, l)
	a := serveAPI(t, pods, summary)
	o := a.options()
	o.Socket, o.Labels = socket, []string{"app"}
	source := open(t, o)

	base := heap()
	stop, peak := make(chan struct{}), make(chan uint64)
	go watchHeap(stop, peak)
	start := time.Now()
	got, err := source.Read(limit(t, time.Minute))
	took := time.Since(start)
	close(stop)
	most := int64(<-peak) - base
	held := heap() - base
	t.Logf("%d pods, %d containers, %d allocations in %s; GET /pods %d KiB, List %d KiB; "+
		"%d KiB of facts, %d KiB at most with garbage and the servers",
		len(got.Pods), len(got.Containers), len(got.Allocations), took.Round(time.Millisecond),
		len(pods)>>10, message>>10, held>>10, most>>10)
	if err != nil || len(got.Pods) != n || len(got.Containers) != 2*n || len(got.PodStorage) != n ||
		len(got.Allocations) != 4*n {
		t.Errorf("%d with storage, %v", len(got.PodStorage), err)
	}
	if all := int64(len(pods) + message); held > 2*all || most > 6*all {
		t.Errorf("%d KiB kept and %d KiB used for %d KiB", held>>10, most>>10, all>>10)
	}
	runtime.KeepAlive(source)
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the second one also empties pools
	return int64(heapObjects())
}

func heapObjects() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// watchHeap returns the largest heap, garbage included.
func watchHeap(stop <-chan struct{}, peak chan<- uint64) {
	var most uint64
	for {
		most = max(most, heapObjects())
		select {
		case <-stop:
			peak <- most
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestTooLarge: a message beyond the limit is refused, and the last answer is kept.
func TestTooLarge(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l := devices("train", "GPU-0")
	good := l.list
	serveSocket(t, socket, l)
	s := open(t, Options{Socket: socket})
	if _, err := s.Read(limit(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	huge := strings.Repeat("x", maxMessage/64)
	l.list = func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		r, err := good(ctx)
		for range 65 {
			r.PodResources = append(r.PodResources, &podresourcesv1.PodResources{Name: huge})
		}
		return r, err
	}
	got, err := s.Read(limit(t, time.Minute))
	if err == nil || !strings.Contains(err.Error(), "larger than max") || len(got.Allocations) != 1 {
		t.Errorf("%d allocations, %v", len(got.Allocations), err)
	}
}
