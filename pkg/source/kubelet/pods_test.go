// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

func body(t *testing.T, v any) io.Reader {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

func id(digit string) string { return strings.Repeat(digit, 64) }

// TestContainers decodes every kind of container in every state of core/v1.
func TestContainers(t *testing.T) {
	started, finished := time.Unix(1700000000, 0), time.Unix(1700000100, 0)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}}
	terminated := func(id string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(finished), ContainerID: id,
		}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	list := &corev1.PodList{Items: []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{
			Name: "train", Namespace: "ml", UID: "uid-1",
			Labels:      map[string]string{"app": "llm", "team": "vision", "both": "label"},
			Annotations: map[string]string{"owner": "me", "both": "annotation", "long": strings.Repeat("é", 1000)},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "init", ContainerID: "cri-o://" + id("1"), State: terminated("cri-o://"+id("1"), 0)},
			},
			ContainerStatuses: []corev1.ContainerStatus{
				{
					Name: "main", ContainerID: "containerd://" + id("2"), Image: "registry/llm:1",
					ImageID: "registry/llm@sha256:77", RestartCount: 3, State: running,
					LastTerminationState: terminated("containerd://"+id("9"), 137), // an earlier container
				},
				{
					Name: "loops", ContainerID: "containerd://" + id("3"), RestartCount: 7, State: waiting,
					LastTerminationState: terminated("containerd://"+id("3"), -1),
				},
				{
					Name: "made", ContainerID: "containerd://" + id("4"), State: waiting,
					LastTerminationState: terminated("containerd://"+id("8"), 1), // an earlier container, too
				},
				{Name: "not yet", State: waiting},
				{Name: "odd", ContainerID: "no-runtime"},
				{
					Name: "lost", ContainerID: "containerd://" + id("6"), // its state is lost
					State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
						ExitCode: 137, StartedAt: metav1.NewTime(time.Unix(0, 0)),
					}},
				},
			},
			EphemeralContainerStatuses: []corev1.ContainerStatus{
				{Name: "debug", ContainerID: "docker://" + id("5"), State: running},
			},
		},
	}}}
	got, err := decodePods(body(t, list), []string{"app", "owner", "both", "long", "none"})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "llm", "owner": "me", "both": "label", "long": strings.Repeat("é", 512)}
	if d := cmp.Diff([]model.Pod{{UID: "uid-1", Namespace: "ml", Name: "train", Labels: labels}}, got.Pods); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	c := func(name, runtime, digit string, status model.ContainerStatus, restarts uint64) model.Container {
		return model.Container{
			ID: id(digit), Runtime: runtime, Name: name, Namespace: "ml", Pod: "train", PodUID: "uid-1",
			Labels: labels, Status: status, Restarts: &restarts,
		}
	}
	zero, lost, killed := uint32(0), uint32(0xffffffff), uint32(137)
	want := []model.Container{
		c("init", "cri-o", "1", model.ContainerExited, 0),
		c("main", "containerd", "2", model.ContainerRunning, 3),
		c("loops", "containerd", "3", model.ContainerExited, 7),
		c("made", "containerd", "4", model.ContainerCreated, 0),
		c("lost", "containerd", "6", model.ContainerExited, 0),
		c("debug", "docker", "5", model.ContainerRunning, 0),
	}
	want[0].Started, want[0].Finished, want[0].ExitCode = started, finished, &zero
	want[1].Started, want[1].Image, want[1].ImageID = started, "registry/llm:1", "registry/llm@sha256:77"
	want[2].Started, want[2].Finished, want[2].ExitCode = started, finished, &lost
	want[4].ExitCode = &killed
	want[5].Started = started
	if d := cmp.Diff(want, got.Containers); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestJob: the controller and the labels of core/v1 give the job of a pod. Another owner is not the controller.
func TestJob(t *testing.T) {
	yes := true
	list := onePod("llm-node-0-1")
	list.Items[0].Labels = map[string]string{"jobset.sigs.k8s.io/jobset-name": "llm", "kueue.x-k8s.io/local-queue-name": "research"}
	list.Items = append(list.Items, *onePod("prep").Items[0].DeepCopy(), *onePod("owned").Items[0].DeepCopy())
	job := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "prep", UID: "u", Controller: &yes}
	list.Items[1].OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "gpu01"}, job}
	list.Items[1].Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": "7"}
	job.Controller = nil
	list.Items[2].OwnerReferences = []metav1.OwnerReference{job}
	got, err := decodePods(body(t, list), nil)
	if err != nil || len(got.Pods) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := []model.Job{{Kind: "JobSet", Name: "llm", Queue: "research"}, {Kind: "Job", Name: "prep", Rank: "7"}, {}}
	for i, p := range got.Pods {
		if p.Job != want[i] {
			t.Errorf("%s: %+v, want %+v", p.Name, p.Job, want[i])
		}
	}
}

// TestStatic: the hash of a static pod is used if the kubelet reports that the pod comes from a file, and ignored if
// the author of the pod writes it.
func TestStatic(t *testing.T) {
	for source, want := range map[string]string{"file": "hash", "http": "hash", "api": "", "": ""} {
		list := onePod("kube-proxy")
		list.Items[0].Annotations = map[string]string{hashAnnotation: "hash"}
		if source != "" {
			list.Items[0].Annotations[sourceAnnotation] = source
		}
		got, err := decodePods(body(t, list), nil)
		if err != nil || len(got.Pods) != 1 || len(got.Containers) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		inPath := "hash"
		if want == "" {
			inPath = "uid-of-pod"
		}
		if got.Pods[0].StaticUID != want || got.Pods[0].UID != "uid-of-pod" || got.Containers[0].PodUID != inPath {
			t.Errorf("%q: %+v, %+v", source, got.Pods[0], got.Containers[0])
		}
	}
}

// TestNetworks parses the annotations of the specification, of its CNIs, and of a hostile author.
func TestNetworks(t *testing.T) {
	const vf = `{"name":"ml/ib","interface":"net1","ips":["10.1.1.7"],"mac":"00:00","dns":{},"device-info":` +
		`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:18:00.A","rdma-device":"mlx5_2",` +
		`"pf-pci-address":"0000:18:00.0"}}}`
	want := model.PodNetwork{Name: "ml/ib", Interface: "net1", PCIAddress: "0000:18:00.a", RDMADevice: "mlx5_2"}
	for name, tt := range map[string]struct {
		status string
		want   []model.PodNetwork
	}{
		"none": {"", nil},
		"VF":   {`[{"name":"cbr0","interface":"eth0","default":true},` + vf + `]`, []model.PodNetwork{want}},
		"two":  {`[` + vf + `,` + vf + `]`, []model.PodNetwork{want, want}},
		"vdpa": {`[{"name":"v","device-info":{"type":"vdpa","vdpa":{"pci-address":"0000:18:00.3"}}},` +
			strings.Replace(vf, `"pci"`, `"vdpa"`, 1) + `]`, nil},
		"memif":  {`[{"name":"m","device-info":{"type":"memif","memif":{"role":"client"}}}]`, nil},
		"odd":    {`[{"name":7},` + vf + `]`, []model.PodNetwork{want}},
		"object": {vf, nil},
		"cut":    {`[` + vf[:100], nil},
		"long":   {`[` + strings.Replace(vf, "mlx5_2", strings.Repeat("m", maxLabel+1), 1) + `]`, nil},
		"many": {
			`[` + strings.Repeat(vf+`,`, 1000) + vf + `]`,
			slices.Repeat([]model.PodNetwork{want}, maxNetworks),
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, annotation := range []string{networksAnnotation, networksAnnotationOld} {
				list := onePod("train")
				list.Items[0].Annotations = map[string]string{annotation: tt.status}
				got, err := decodePods(body(t, list), nil)
				if err != nil || len(got.Pods) != 1 {
					t.Fatalf("%+v, %v", got, err)
				}
				if d := cmp.Diff(tt.want, got.Pods[0].Networks); d != "" {
					t.Errorf("%s (-want +got)\n%s", annotation, d)
				}
			}
		})
	}
}

const goodPod = `{"metadata":{"name":"a","namespace":"b","uid":"c"}}`

// TestGarbage: an invalid answer is refused as a whole, an invalid pod drops only itself, and unknown fields are
// skipped.
func TestGarbage(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		pods  int // -1 when it is refused
		wrong string
	}{
		"empty":          {"", -1, "EOF"},
		"none":           {`{"items":[]}`, 0, ""},
		"null items":     {`{"kind":"PodList","items":null}`, 0, ""},
		"null":           {`null`, -1, "lists no pods"},
		"no items":       {`{"kind":"Status","message":"no"}`, -1, "lists no pods"},
		"HTML":           {`<html>`, -1, "invalid character"},
		"a list":         {`[` + goodPod + `]`, -1, "no { where"},
		"items a number": {`{"items":7}`, -1, "no [ where"},
		"cut off":        {`{"items":[` + goodPod + `,`, -1, "EOF"},
		"cut in a pod":   {`{"items":[` + goodPod[:20], -1, "EOF"},
		"two documents":  {`{"items":[]}{"items":[]}`, -1, "follows after its end"},
		"unknown":        {`{"x":{"y":[1,{"z":"\u00e9"}]},"items":[` + goodPod + `],"w":null}`, 1, ""},
		"a number":       {`{"items":[7,` + goodPod + `]}`, 1, "1 entries"},
		"null pod":       {`{"items":[null,` + goodPod + `]}`, 1, "without UID"},
		"no UID":         {`{"items":[{"metadata":{"name":"a","namespace":"b"}},` + goodPod + `]}`, 1, "without UID"},
		"wrong type":     {`{"items":[` + strings.Replace(goodPod, `"a"`, `{}`, 1) + `,` + goodPod + `]}`, 1, "1 entries"},
		"wrong restarts": {`{"items":[{"metadata":{"name":"a","namespace":"b","uid":"c"},` +
			`"status":{"containerStatuses":[{"restartCount":"x"}]}},` + goodPod + `]}`, 1, "1 entries"},
		"wrong time": {`{"items":[{"metadata":{"name":"a","namespace":"b","uid":"c"},"status":{"containerStatuses":` +
			`[{"containerID":"a://b","state":{"running":{"startedAt":"noon"}}}]}}]}`, 1, ""},
		"deep":     {`{"x":` + strings.Repeat("[", 20000), -1, "exceeded max depth"},
		"huge pod": {`{"items":[{"metadata":{"name":"` + strings.Repeat("x", 2*maxValue) + `"}}]}`, -1, "larger than"},
		"huge key": {`{"` + strings.Repeat("x", 2*maxValue) + `":1}`, -1, "larger than"},
		"too many": {`{"items":[{"metadata":{"name":"a","namespace":"b","uid":"c"},"status":{"containerStatuses":[` +
			strings.Repeat(`{"containerID":"a://b"},`, maxFacts) + `{"containerID":"a://b"}]}}]}`, -1, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodePods(strings.NewReader(tt.body), nil)
			if (err != nil) != (tt.wrong != "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("error %v, want %q", err, tt.wrong)
			}
			if n := pods(got); n != tt.pods {
				t.Errorf("%d pods, want %d", n, tt.pods)
			}
			if err != nil && len(err.Error()) > 400 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func pods(f *facts) int {
	if f == nil || f.Pods == nil {
		return -1
	}
	return len(f.Pods)
}

// TestEndless: an endless answer is refused by its size.
func TestEndless(t *testing.T) {
	s := newStream(forever(" "))
	s.total = 1 << 16
	if err := s.object(func(string) error { return nil }); !errors.Is(err, errBody) {
		t.Errorf("error %v", err)
	}
}

// forever is a body without an end.
type forever string

func (f forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = f[i%len(f)]
	}
	return len(p), nil
}

// TestSummary: an unmeasured value is not zero.
func TestSummary(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		node  *model.NodeStorage
		pods  int // -1 when it is refused
		wrong bool
	}{
		"full": {
			`{"node":{"fs":{"usedBytes":1,"availableBytes":2,"capacityBytes":3,"inodes":4}},"pods":[` +
				`{"podRef":{"name":"a","namespace":"b","uid":"c"},"ephemeral-storage":{"usedBytes":0},"volume":[]}]}`,
			&model.NodeStorage{UsedBytes: 1, AvailableBytes: 2, CapacityBytes: 3}, 1, false,
		},
		"node not measured": {`{"node":{"fs":{"usedBytes":1}},"pods":[]}`, nil, 0, false},
		"pod not measured":  {`{"pods":[{"podRef":{"uid":"c"},"ephemeral-storage":{}},{"podRef":{"uid":"c"}}]}`, nil, 0, false},
		"no UID":            {`{"pods":[{"ephemeral-storage":{"usedBytes":1}}]}`, nil, 0, false},
		"wrong type":        {`{"pods":[{"podRef":{"uid":"c"},"ephemeral-storage":{"usedBytes":"1"}}]}`, nil, 0, true},
		"negative":          {`{"node":{"fs":{"usedBytes":-1,"availableBytes":2,"capacityBytes":3}},"pods":[]}`, nil, 0, true},
		"null pods":         {`{"node":{},"pods":null}`, nil, 0, false},
		"no pods":           {`{"node":{}}`, nil, -1, true},
		"cut":               {`{"pods":[`, nil, -1, true},
		"text":              {`Unauthorized`, nil, -1, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeSummary(strings.NewReader(tt.body))
			if (err != nil) != tt.wrong {
				t.Errorf("error %v", err)
			}
			if got == nil {
				if tt.pods >= 0 {
					t.Errorf("no result, want %d pods", tt.pods)
				}
				return
			}
			if d := cmp.Diff(tt.node, got.NodeStorage); d != "" || len(got.PodStorage) != tt.pods || got.PodStorage == nil {
				t.Errorf("%+v, want %d pods\n%s", got.PodStorage, tt.pods, d)
			}
		})
	}
}

// FuzzPods decodes any answer of the kubelet to both requests.
func FuzzPods(f *testing.F) {
	for _, list := range []*corev1.PodList{{}, onePod("train")} {
		b, err := json.Marshal(list)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	b, err := json.Marshal(oneSummary(7))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"items":[7,` + goodPod + `,{"metadata":{"uid":"u","name":"n","namespace":"s","labels":{"a":"\ud800"},` +
		`"annotations":{"` + networksAnnotation + `":"[{\"device-info\":{\"type\":\"pci\",\"pci\":{\"rdma-device\":\"m\"}}}]",` +
		`"` + sourceAnnotation + `":"file","` + hashAnnotation + `":"h"}},"status":{"containerStatuses":[{"containerID":` +
		`"a://b","restartCount":1,"state":{"terminated":{"exitCode":1,"finishedAt":"2026-01-01T00:00:00Z"}}}]}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, _ := decodePods(bytes.NewReader(b), []string{"a"}); got != nil {
			for _, p := range got.Pods {
				if p.UID == "" || p.Name == "" || p.Namespace == "" || len(p.Labels) > 1 || len(p.Labels["a"]) > maxLabel ||
					len(p.Networks) > maxNetworks {
					t.Errorf("%+v", p)
				}
				for _, n := range p.Networks {
					if n.PCIAddress == "" && n.RDMADevice == "" {
						t.Errorf("a network without a device: %+v", n)
					}
				}
			}
			for _, c := range got.Containers {
				if c.ID == "" || c.PodUID == "" || c.Pod == "" || (c.ExitCode != nil) && c.Status != model.ContainerExited {
					t.Errorf("%+v", c)
				}
			}
		}
		if got, _ := decodeSummary(bytes.NewReader(b)); got != nil {
			for _, p := range got.PodStorage {
				if p.UID == "" {
					t.Error(fmt.Sprint(p))
				}
			}
		}
	})
}
