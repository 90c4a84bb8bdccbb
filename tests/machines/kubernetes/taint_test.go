// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

const taintAccount = "system:serviceaccount:accelscope:accelscope-taint"

// clearAfter is how long devices must be healthy until their marks go.
const clearAfter = 40 * time.Second

// others are nodes without a kubelet.
var others = []string{"node-2", "node-3"}

// sensors are FAKE sensors of all nodes, with a GPU each. The GPU of one node may have a critical XID.
type sensors struct {
	sick atomic.Pointer[string] // node
	at   atomic.Int64           // of the XID, in Unix seconds
}

func (s *sensors) set(node string) {
	s.at.Store(time.Now().Unix())
	s.sick.Store(&node)
}

// ServeHTTP answers the scrape of /NODE.
func (s *sensors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node := strings.TrimPrefix(r.URL.Path, "/")
	gpu := fmt.Sprintf(`gpu_id="0",uuid=%q`, uuidOf(node))
	fmt.Fprintf(w, "accelscope_build_info{version=\"1\"} 1\ngpu_info{%s,vendor=\"nvidia\"} 1\n", gpu)
	if *s.sick.Load() == node {
		fmt.Fprintf(w, "gpu_problem{%[1]s,problem=\"xid\"} 1\ngpu_xid_last_timestamp_seconds{%[1]s,xid=\"79\"} %[2]d\n", gpu, s.at.Load())
	} else {
		fmt.Fprintf(w, "gpu_problem{%s,problem=\"xid\"} 0\n", gpu)
	}
}

// uuidOf returns the UUID of a node's GPU.
func uuidOf(node string) string {
	var n int
	_, _ = fmt.Sscanf(node, "node-%d", &n)
	return nvml.UUID(n - 1)
}

// prometheus is a real Prometheus with the alerts of deploy/, which scrapes the sensors.
type prometheus struct {
	address, sensors string
	running          *daemon
}

// start starts it, without what an earlier one has stored; if empty, without rules and targets, too.
func (p *prometheus) start(t *testing.T, empty bool) {
	t.Helper()
	dir := t.TempDir()
	text := "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}\n"
	if !empty {
		text += "rule_files: [" + filepath.Join(repository(), "deploy/prometheus/rules/*.yaml") + "]\nscrape_configs:\n- job_name: accelscope\n  static_configs:\n"
		for _, node := range append([]string{nodeName}, others...) {
			text += fmt.Sprintf("  - {targets: [%q], labels: {instance: %s, __metrics_path__: /%[2]s}}\n", p.sensors, node)
		}
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := write(config, text); err != nil {
		t.Fatal(err)
	}
	p.running = running.daemon("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	if err := p.running.start(); err != nil {
		t.Fatal(err)
	}
	err := p.running.until(t.Context(), func(ctx context.Context) error {
		_, err := request(ctx, http.DefaultClient, "http://"+p.address+"/-/ready")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *prometheus) stop() { p.running.stop(syscall.SIGKILL) }

const taintYAML = `apiVersion: resource.k8s.io/v1
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
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [` + nodeName + `]}]}
      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
      containers:
      - {name: main, IMAGE, SLEEP, resources: {claims: [{name: gpu}]}}
`

// otherYAML is a node without a kubelet: NODE is its name, UUID its GPU's.
const otherYAML = `apiVersion: v1
kind: Node
metadata: {name: NODE, labels: {kubernetes.io/hostname: NODE}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: NODE, namespace: kube-node-lease}
spec: {holderIdentity: NODE, leaseDurationSeconds: 40}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: sick-NODE}
spec:
  driver: sick.example.com
  nodeName: NODE
  pool: {name: NODE, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, attributes: {uuid: {string: UUID}}}]
`

const readyStatus = `{"status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}, "capacity": {"cpu": "8", "memory": "8Gi", "pods": "10"},
	"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "without a kubelet"}]}}`

// startOthers makes nodes without a kubelet until the end of the test: pods are assigned to them, but do not run. Their leases are renewed
// as a kubelet would.
func startOthers(t *testing.T) {
	t.Helper()
	renew := func(ctx context.Context) error {
		for _, node := range others {
			now := fmt.Sprintf(`{"spec": {"renewTime": %q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
			_, err := running.kubectl(ctx, "--namespace=kube-node-lease", "patch", "lease", node, "--type=merge", "--patch="+now)
			if err != nil {
				return err
			}
		}
		return nil
	}
	t.Cleanup(func() {
		for _, node := range others {
			for _, command := range [][]string{
				{"delete", "node/" + node, "resourceslice/sick-" + node}, {"--namespace=kube-node-lease", "delete", "lease", node, "--ignore-not-found"},
			} {
				if _, err := running.kubectl(context.Background(), command...); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, node := range others {
		apply(t, expand(expand(otherYAML, "NODE", node), "UUID", uuidOf(node)))
		if _, err := running.kubectl(t.Context(), "patch", "node", node, "--subresource=status", "--patch="+readyStatus); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for {
			err := renew(ctx)
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-time.After(10 * time.Second):
			}
			if err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("renewal of leases: %v", err)
		}
	})
}

// testTaint has accelscope taint mark one of three nodes and its GPU, with the account of its manifests, by the alerts of a real Prometheus.
// The pod that has the GPU is replaced by a pod on another node. Without Prometheus, and with an empty Prometheus, nothing changes, and what
// others made stays.
func testTaint(t *testing.T) {
	makeNamespace(t, "taint")
	applyOverlay(t, "privileged")
	apply(t, rendered(t, "taint", ""))
	if _, err := running.kubectl(t.Context(), "--namespace="+accelscope, "delete", "deployment/accelscope-taint", "daemonset/"+accelscope); err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(own)
	for _, r := range []string{
		"nodes [list]", "nodes/status [patch]", "resourceslices.resource.k8s.io [list]", "devicetaintrules.resource.k8s.io [list create delete]",
	} {
		want[r] = 1
	}
	same(t, "permissions", func(context.Context) (map[string]float64, error) { return want, nil }, permissions(taintAccount))

	startDriver(t, "sick.example.com", []draDevice{{Name: "gpu-0", Attributes: map[string]string{"uuid": uuidOf(nodeName)}}})
	startOthers(t)
	apply(t, withImage(taintYAML))
	t.Cleanup(func() {
		for _, what := range [][]string{{"deployment/user", "--timeout=1m"}, {"pods", "--all", "--force", "--grace-period=0"}} { // no kubelet ends them
			if _, err := running.kubectl(context.Background(), append([]string{"--namespace=taint", "delete"}, what...)...); err != nil {
				t.Error(err)
			}
		}
	})
	foreign := `{"status": {"conditions": [{"type": "GPUProblem", "status": "True", "reason": "Theirs", "message": "of another"}]}}`
	if _, err := running.kubectl(t.Context(), "patch", "node", nodeName, "--subresource=status", "--patch="+foreign); err != nil {
		t.Fatal(err)
	}
	s := &sensors{}
	s.set("")
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	p := &prometheus{address: freeAddress(t), sensors: strings.TrimPrefix(server.URL, "http://")}
	p.start(t, false)
	t.Cleanup(func() { p.stop() })
	startTaint(t, p)
	if node := used(t, others...); node != nodeName {
		t.Fatalf("the first pod is on %s", node)
	}
	ready(t, "taint", "pod", "--selector=app=user")
	time.Sleep(clearAfter) // many evaluations
	marked(t, "")

	s.set(nodeName)
	begin := time.Now()
	marked(t, nodeName)
	took := time.Since(begin)
	t.Logf("the GPU is tainted after %s", took.Round(time.Second))
	if took > time.Minute {
		t.Errorf("the GPU was tainted after %s", took)
	}
	used(t, nodeName)
	for _, empty := range []bool{false, true} {
		p.stop()
		if empty {
			p.start(t, true)
		}
		time.Sleep(clearAfter + 20*time.Second)
		marked(t, nodeName)
	}
	p.stop()
	s.set("")
	p.start(t, false)
	marked(t, "")
}

// used waits until the GPU of a node is allocated, but not the GPUs of the nodes not, and returns the node.
func used(t *testing.T, not ...string) (node string) {
	t.Helper()
	until(t, "a GPU of the pod", func(ctx context.Context) error {
		var claims resourcev1.ResourceClaimList
		if err := running.get(ctx, "/apis/resource.k8s.io/v1/namespaces/taint/resourceclaims", &claims); err != nil {
			return err
		}
		var found []string
		for i := range claims.Items {
			if a := claims.Items[i].Status.Allocation; a != nil {
				found = append(found, a.Devices.Results[0].Pool)
			}
		}
		if len(found) != 1 || slices.Contains(not, found[0]) {
			return fmt.Errorf("GPUs of %q are allocated", found)
		}
		node = found[0]
		return nil
	})
	return node
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func startTaint(t *testing.T, p *prometheus) {
	t.Helper()
	token, err := running.kubectl(t.Context(), "--namespace="+accelscope, "create", "token", "accelscope-taint")
	file := filepath.Join(t.TempDir(), "token")
	if err := errors.Join(err, write(file, token)); err != nil {
		t.Fatal(err)
	}
	d := running.daemon(filepath.Join(repository(), "bin/accelscope-tool"), "taint", "--prometheus=http://"+p.address, "--no-taint.dry-run",
		"--kubernetes.url=https://"+nodeIP+":6443", "--kubernetes.token-file="+file, "--kubernetes.ca-file="+running.pki("ca.crt"),
		"--taint.effect=NoExecute", "--interval=2s", "--taint.clear-after="+clearAfter.String(), "--web.listen-address=127.0.0.1:9853")
	d.log = filepath.Join(running.dir, "taint.log")
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop(syscall.SIGTERM)
		t.Logf("accelscope taint:\n%s", d.tail())
	})
}

// marked waits for the marks of a node and its GPU, or ("") that nothing is marked. What others made must be there.
func marked(t *testing.T, sick string) {
	t.Helper()
	want := map[string]float64{nodeName + " GPUProblem True Theirs": 1, "rule other.example.com//": 1}
	for _, node := range append([]string{nodeName}, others...) {
		want[node+" Ready True KubeletReady"] = 1
	}
	if sick != "" {
		want[sick+" AccelscopeGPUProblem True CriticalVerdict"] = 1
		want["rule sick.example.com/"+sick+"/gpu-0"] = 1
	}
	same(t, "marks", func(context.Context) (map[string]float64, error) { return want, nil }, func(ctx context.Context) (map[string]float64, error) {
		got := map[string]float64{}
		var nodes corev1.NodeList
		err := running.get(ctx, "/api/v1/nodes", &nodes)
		for i := range nodes.Items {
			for _, c := range nodes.Items[i].Status.Conditions {
				if c.Type == corev1.NodeReady || strings.HasSuffix(string(c.Type), "Problem") {
					got[fmt.Sprint(nodes.Items[i].Name, " ", c.Type, " ", c.Status, " ", c.Reason)] = 1
				}
			}
		}
		var rules resourcev1.DeviceTaintRuleList
		err = errors.Join(err, running.get(ctx, "/apis/resource.k8s.io/v1/devicetaintrules", &rules))
		for i := range rules.Items {
			of := rules.Items[i].Spec.DeviceSelector
			got["rule "+strings.Join([]string{text(of.Driver), text(of.Pool), text(of.Device)}, "/")] = 1
		}
		return got, err
	})
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
