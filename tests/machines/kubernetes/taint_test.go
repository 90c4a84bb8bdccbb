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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
`

// testTaint has accelscope taint mark the node and a GPU, with the account of its manifests, by what a stand-in of Prometheus answers. The
// scheduler leaves the GPU out. Without an answer nothing changes, and what others made stays.
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

	startDriver(t, "sick.example.com", []draDevice{{Name: "gpu-0", Attributes: map[string]string{"uuid": nvml.UUID(0)}}})
	apply(t, taintYAML)
	foreign := `{"status": {"conditions": [{"type": "GPUProblem", "status": "True", "reason": "Theirs", "message": "of another"}]}}`
	if _, err := running.kubectl(t.Context(), "patch", "node", nodeName, "--subresource=status", "--patch="+foreign); err != nil {
		t.Fatal(err)
	}
	v := &verdicts{}
	startTaint(t, v)
	v.asked(t, 10)
	marked(t, false)

	v.set(nvml.UUID(0), false)
	marked(t, true)
	apply(t, podYAML("taint", "user", "  resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]\n  containers:\n"+
		"  - {name: main, IMAGE, SLEEP, resources: {claims: [{name: gpu}]}}\n"))
	t.Cleanup(func() { removePods(t, "taint") })
	until(t, "the scheduler finds no GPU", func(ctx context.Context) error { return scheduled(ctx, false) })
	v.set("", true)
	v.asked(t, 20)
	marked(t, true)
	v.set("", false)
	marked(t, false)
	until(t, "the pod has the GPU", func(ctx context.Context) error { return scheduled(ctx, true) })
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
		"--interval=1s", "--taint.set-after=3s", "--taint.clear-after=6s", "--web.listen-address=127.0.0.1:9853")
	d.log = filepath.Join(running.dir, "taint.log")
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop(syscall.SIGTERM)
		t.Logf("accelscope taint:\n%s", d.tail())
	})
}

// marked waits for the marks of the node and of its GPU, or that both are unmarked. What others made must be there.
func marked(t *testing.T, yes bool) {
	t.Helper()
	want := map[string]float64{"Ready True KubeletReady": 1, "GPUProblem True Theirs": 1, "rule other.example.com//": 1}
	if yes {
		want["AccelscopeGPUProblem True CriticalVerdict"] = 1
		want["rule sick.example.com/"+nodeName+"/gpu-0"] = 1
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

// scheduled returns an error unless the scheduler has placed the pod, or has refused it.
func scheduled(ctx context.Context, yes bool) error {
	var pod corev1.Pod
	if err := running.get(ctx, "/api/v1/namespaces/taint/pods/user", &pod); err != nil {
		return err
	}
	status := corev1.ConditionFalse
	if yes {
		status = corev1.ConditionTrue
	}
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled && c.Status == status }) {
		return fmt.Errorf("%+v", pod.Status.Conditions)
	}
	return nil
}
