// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// The files of a node without a service account, as in the examples of accelscope.yaml. A kubelet's files belong to root only.
const (
	tokenFile  = "/etc/accelscope/kubelet.token"
	caFile     = "/etc/kubernetes/pki/ca.crt"
	pinnedFile = "/var/lib/kubelet/pki/kubelet.crt"
)

// kubelet: the unit sends a token to the kubelet's HTTPS API, a FAKE, and verifies its certificate by a CA, or by a
// copy. No runtime is read, so the names come from the kubelet.
func (d *deployment) kubelet(t *testing.T) {
	defer d.restore(t)()
	a := authority.New(t)
	api, url := serveKubelet(t, a.Local(t, "kubelet"))
	private(t, caFile, string(a.PEM))
	api.accept(t, "first")
	args := []string{"--no-collector.runtime", "--workload.labels=token", "--kubelet.token-file=" + tokenFile, "--kubelet.interval=1s"}
	with(t, append(args, "--kubelet.url="+url, "--kubelet.ca-file="+caFile)...)
	s := d.running(t, older)
	listed(t, s, "first")
	api.accept(t, "second") // tokens rotate
	listed(t, s, "second")

	// A certificate for another address than the URL's.
	other := a.Issue(t, "other", "192.0.2.1", time.Now().Add(time.Hour))
	api, url = serveKubelet(t, other)
	private(t, pinnedFile, string(other.PEM))
	api.accept(t, "third")
	with(t, append(args, "--kubelet.url="+url, "--kubelet.certificate-file="+pinnedFile)...)
	listed(t, d.running(t, older), "third")
}

// listed waits until the sensor has the pods of the traffic from the kubelet that accepts a token.
func listed(t *testing.T, s *sensor, token string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		m := s.scrape()
		for _, pod := range trafficPods() {
			labels := []string{"workload", "default/" + pod.Name + "/worker", "pod_uid", string(pod.UID), "label_token", token}
			if m.sum("accelscope_workload_info", labels...) != 1 {
				return fmt.Errorf("not %v: %v\n%s", labels, m.all("accelscope_workload_info"), page(t, "/readyz"))
			}
			if n := m.sum("pod_ephemeral_storage_usage_bytes", "namespace", "default", "pod", pod.Name); n != ephemeralBytes {
				return fmt.Errorf("%s uses %v bytes of ephemeral storage, want %d", pod.Name, n, ephemeralBytes)
			}
		}
		if m.sum("accelscope_source_state", "source", "kubelet", "state", "ok") != 1 {
			return fmt.Errorf("%v", m.all("accelscope_source_state", "source", "kubelet"))
		}
		return nil
	})
}

// ephemeralBytes is the ephemeral storage that each pod of the fake kubelet uses.
const ephemeralBytes = 4711

// kubeletAPI is a FAKE of the kubelet's HTTPS API, with the types of Kubernetes: it lists the pods of the traffic, with
// the accepted token as a label.
type kubeletAPI struct{ token atomic.Value }

func serveKubelet(t *testing.T, certificate authority.Certificate) (api *kubeletAPI, url string) {
	t.Helper()
	api = &kubeletAPI{}
	server := httptest.NewUnstartedServer(api)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate.Pair}}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return api, server.URL
}

// accept makes the kubelet accept only this token, and replaces the file.
func (k *kubeletAPI) accept(t *testing.T, token string) {
	t.Helper()
	k.token.Store(token)
	private(t, tokenFile, token+"\n")
}

func (k *kubeletAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := k.token.Load().(string)
	if r.Header.Get("Authorization") != "Bearer "+token {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	var answer any
	switch r.URL.Path {
	case "/pods":
		list := &corev1.PodList{Items: trafficPods()}
		for i := range list.Items {
			list.Items[i].Labels = map[string]string{"token": token}
		}
		answer = list
	case "/stats/summary":
		summary := &stats.Summary{}
		used := uint64(ephemeralBytes)
		for _, pod := range trafficPods() {
			summary.Pods = append(summary.Pods, stats.PodStats{
				PodRef:           stats.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
				EphemeralStorage: &stats.FsStats{UsedBytes: &used},
			})
		}
		answer = summary
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func trafficPods() []corev1.Pod {
	server, client := guest.Traffic()
	var pods []corev1.Pod
	for _, c := range []guest.Container{server, client} {
		pods = append(pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: c.Labels["io.kubernetes.pod.name"], Namespace: c.Labels["io.kubernetes.pod.namespace"],
				UID: types.UID(c.Labels["io.kubernetes.pod.uid"]),
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: c.Labels["io.kubernetes.container.name"], ContainerID: "containerd://" + c.ID,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			}}},
		})
	}
	return pods
}

func private(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
}
