// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// soakGPUs is the number of GPUs of the soak; a container that stays uses one of them.
const soakGPUs = 8

// soakSources are FAKES of what the sensor asks besides the kernel and the runtimes: NVIDIA's library with eight GPUs,
// and a kubelet with the pods that stay, which are a JobSet.
type soakSources struct {
	gpus    *nvml.Scenario
	kubelet *httptest.Server
	token   string // its file
	silent  atomic.Bool
	pods    []identity
}

func startSoakSources(t *testing.T, l *soakLoad) *soakSources {
	t.Helper()
	s := &soakSources{token: filepath.Join(t.TempDir(), "token")}
	for _, o := range l.truths() {
		if o.namespace != "" {
			s.pods = append(s.pods, o.identity)
		}
	}
	var err error
	if s.gpus, err = nvml.New(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for i := range soakGPUs {
		s.gpus.AddH100(i)
	}
	var users [][]int
	for _, dir := range l.stay {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", dir, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		var first int
		if _, err := fmt.Sscan(string(text), &first); err != nil {
			t.Fatalf("%s has no process: %v", dir, err)
		}
		users = append(users, []int{first})
	}
	s.gpus.Own(users)
	if err := errors.Join(s.gpus.Write(), os.WriteFile(s.token, []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, v := range s.gpus.Environment() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	s.kubelet = httptest.NewTLSServer(s)
	t.Cleanup(func() { s.kubelet.CloseClientConnections(); s.kubelet.Close() })
	return s
}

// arguments are the options of the sensor for these sources.
func (s *soakSources) arguments() []string {
	return []string{
		"--gpu.nvml-library=" + os.Getenv(nvmlVar), "--gpu.process-interval=5s",
		"--kubelet.url=" + s.kubelet.URL, "--kubelet.token-file=" + s.token, "--kubelet.interval=10s",
		"--kubelet.insecure-skip-verify", "--kubelet.insecure-send-token",
	}
}

func (s *soakSources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.silent.Load() {
		<-r.Context().Done()
		return
	}
	if r.URL.Path != "/pods" {
		_, _ = w.Write([]byte(`{"pods":[]}`)) // /stats/summary
		return
	}
	list := corev1.PodList{}
	for i, p := range s.pods {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: p.pod, Namespace: p.namespace, UID: "soak", Labels: map[string]string{
				"jobset.sigs.k8s.io/jobset-name": "soak", "batch.kubernetes.io/job-completion-index": fmt.Sprint(i),
			},
		}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: p.container, ContainerID: "containerd://" + p.id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
		list.Items = append(list.Items, pod)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// faults are the faults of these sources.
func (s *soakSources) faults(k *soak) []fault {
	change := func(f func()) func() error {
		return func() error { f(); return s.gpus.Write() }
	}
	const asked = "nvmlDeviceGetTemperature"
	return []fault{
		{
			"NVML call that hangs",
			[]string{"nvml"},
			change(func() { s.gpus.Block("3", asked) }),
			change(func() { s.gpus.Heal("3", asked) }),
		},
		{
			"NVML call that ends the process",
			[]string{"nvml"},
			change(func() { s.gpus.Crash("2", asked) }),
			change(func() { s.gpus.Heal("2", asked) }),
		},
		{
			"GPU that reports XID 79",
			[]string{"nvml"},
			change(func() { s.gpus.XID("1", 79) }),
			func() error { return nil },
		},
		{
			"kubelet that does not answer",
			[]string{"kubelet"},
			func() error { s.silent.Store(true); return nil },
			func() error { s.silent.Store(false); return nil },
		},
		{
			"link down",
			[]string{"rdma"},
			func() error { return k.command("ip", "link", "set", "v1", "down") },
			func() error { return k.command("ip", "link", "set", "v1", "up") },
		},
	}
}
