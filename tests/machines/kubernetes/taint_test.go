// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

const taintAccount = "system:serviceaccount:accelscope:accelscope-taint"

// verdicts stands in for a Prometheus with accelscope's rules.
type verdicts struct {
	mu      sync.Mutex
	sick    string // UUID of a GPU with GPULost
	down    bool
	answers int // of rules
}

func (v *verdicts) set(sick string, down bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sick, v.down = sick, down
}

// asked waits until some further requests were answered, or refused.
func (v *verdicts) asked(t *testing.T, more int) {
	t.Helper()
	count := func() int { v.mu.Lock(); defer v.mu.Unlock(); return v.answers }
	before := count()
	until(t, "requests for rules", func(context.Context) error {
		if n := count() - before; n < more {
			return fmt.Errorf("%d of %d", n, more)
		}
		return nil
	})
}

func (v *verdicts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rules := strings.HasSuffix(r.URL.Path, "/rules")
	if rules {
		v.answers++
	}
	if v.down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	now := time.Now()
	if !rules {
		fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"instance": %q}, "value": [%d, "%[2]d"]}]}}`,
			nodeName, now.Unix())
		return
	}
	_ = r.ParseForm()
	var list []map[string]any
	for _, name := range r.Form["rule_name[]"] {
		rule := map[string]any{"name": name, "health": "ok", "lastEvaluation": now.Format(time.RFC3339Nano), "alerts": []any{}}
		if name == "GPULost" && v.sick != "" {
			rule["alerts"] = []any{map[string]any{"state": "firing", "labels": map[string]string{"instance": nodeName, "uuid": v.sick}}}
		}
		list = append(list, rule)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"groups": []any{map[string]any{"rules": list}}}})
}

const taintYAML = `apiVersion: resource.k8s.io/v1alpha3
kind: DeviceTaintRule
metadata: {name: theirs}
spec: {deviceSelector: {driver: other.example.com}, taint: {key: example.com/theirs, effect: NoSchedule}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: sick.example.com}
spec: {selectors: [{cel: {expression: 'device.driver == "sick.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one, namespace: taint}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: sick.example.com}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: user, namespace: taint}
spec:
  selector: {matchLabels: {app: user}}
  template:
    metadata: {labels: {app: user}}
    spec:
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
      containers:
      - {name: main, IMAGE, SLEEP, resources: {claims: [{name: gpu}]}}
`

// testTaint has accelscope taint mark the node and a GPU, with the account of its manifests, by what a stand-in of Prometheus answers. The pod
// that has the GPU is replaced by a pod with the other GPU. Without an answer nothing changes, and what others made stays.
func testTaint(t *testing.T) {
	makeNamespace(t, "taint")
	applyOverlay(t, "privileged")
	apply(t, rendered(t, "taint", ""))
	if _, err := running.kubectl(t.Context(), "--namespace="+accelscope, "delete", "deployment", "accelscope-taint"); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(own)
	for _, r := range []string{
		"nodes [list]", "nodes/status [patch]", "resourceslices.resource.k8s.io [list]", "devicetaintrules.resource.k8s.io [list create delete]",
	} {
		want[r] = 1
	}
	same(t, "permissions", func(context.Context) (map[string]float64, error) { return want, nil }, permissions(taintAccount))

	var devices []draDevice
	for n := range 2 {
		devices = append(devices, draDevice{Name: fmt.Sprint("gpu-", n), Attributes: map[string]string{"uuid": nvml.UUID(n)}})
	}
	startDriver(t, "sick.example.com", devices)
	apply(t, withImage(taintYAML))
	t.Cleanup(func() {
		if _, err := running.kubectl(context.Background(), "--namespace=taint", "delete", "deployment", "user", "--timeout=1m"); err != nil {
			t.Error(err)
		}
		removePods(t, "taint")
	})
	foreign := `{"status": {"conditions": [{"type": "GPUProblem", "status": "True", "reason": "Theirs", "message": "of another"}]}}`
	if _, err := running.kubectl(t.Context(), "patch", "node", nodeName, "--subresource=status", "--patch="+foreign); err != nil {
		t.Fatal(err)
	}
	v := &verdicts{}
	startTaint(t, v)
	v.asked(t, 10)
	marked(t, -1)
	sick := given(t, -1)
	v.set(nvml.UUID(sick), false)
	marked(t, sick)
	given(t, sick)
	v.set("", true)
	v.asked(t, 20)
	marked(t, sick)
	v.set("", false)
	marked(t, -1)
}

// given waits until the pod has a GPU, but not the sick GPU, and returns its number.
func given(t *testing.T, sick int) (n int) {
	t.Helper()
	until(t, "a GPU of the pod", func(ctx context.Context) error {
		var claims resourcev1.ResourceClaimList
		if err := running.get(ctx, "/apis/resource.k8s.io/v1/namespaces/taint/resourceclaims", &claims); err != nil {
			return err
		}
		for i := range claims.Items {
			c := &claims.Items[i]
			if c.DeletionTimestamp != nil || c.Status.Allocation == nil {
				continue
			}
			name := c.Status.Allocation.Devices.Results[0].Device
			if _, err := fmt.Sscanf(name, "gpu-%d", &n); err == nil && n != sick {
				return nil
			}
		}
		return fmt.Errorf("%d claims, GPU %d", len(claims.Items), n)
	})
	return n
}

func startTaint(t *testing.T, v *verdicts) {
	t.Helper()
	prometheus := httptest.NewServer(v)
	t.Cleanup(prometheus.Close)
	token, err := running.kubectl(t.Context(), "--namespace="+accelscope, "create", "token", "accelscope-taint")
	file := filepath.Join(t.TempDir(), "token")
	if err := errors.Join(err, write(file, token)); err != nil {
		t.Fatal(err)
	}
	d := running.daemon(filepath.Join(repository(), "bin/accelscope-tool"), "taint", "--prometheus="+prometheus.URL, "--no-taint.dry-run",
		"--kubernetes.url=https://"+nodeIP+":6443", "--kubernetes.token-file="+file, "--kubernetes.ca-file="+running.pki("ca.crt"),
		"--taint.effect=NoExecute", "--interval=1s", "--taint.set-after=3s", "--taint.clear-after=6s", "--web.listen-address=127.0.0.1:9853")
	d.log = filepath.Join(running.dir, "taint.log")
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop(syscall.SIGTERM)
		t.Logf("accelscope taint:\n%s", d.tail())
	})
}

// marked waits for the marks of the node and of this GPU, or (-1) that nothing is marked. What others made must be there.
func marked(t *testing.T, sick int) {
	t.Helper()
	want := map[string]float64{"Ready True KubeletReady": 1, "GPUProblem True Theirs": 1, "rule other.example.com//": 1}
	if sick >= 0 {
		want["AccelscopeGPUProblem True CriticalVerdict"] = 1
		want[fmt.Sprintf("rule sick.example.com/%s/gpu-%d", nodeName, sick)] = 1
	}
	same(t, "marks", func(context.Context) (map[string]float64, error) { return want, nil }, func(ctx context.Context) (map[string]float64, error) {
		got := map[string]float64{}
		var node corev1.Node
		err := running.get(ctx, "/api/v1/nodes/"+nodeName, &node)
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady || strings.HasSuffix(string(c.Type), "Problem") {
				got[fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason)] = 1
			}
		}
		var rules struct {
			Items []struct {
				Spec struct {
					DeviceSelector struct{ Driver, Pool, Device string }
				}
			}
		}
		err = errors.Join(err, running.get(ctx, "/apis/resource.k8s.io/v1alpha3/devicetaintrules", &rules))
		for _, r := range rules.Items {
			s := r.Spec.DeviceSelector
			got["rule "+strings.Join([]string{s.Driver, s.Pool, s.Device}, "/")] = 1
		}
		return got, err
	})
}
