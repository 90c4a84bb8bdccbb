// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

const eventually = 3 * time.Minute // for what takes seconds on a machine that is not busy

// same waits until two readings of the same are equal.
func same(t *testing.T, what string, want, got func(context.Context) (map[string]float64, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	start := time.Now()
	last := "" // of the last comparison that the end of the time did not interrupt
	for {
		w, err := want(ctx)
		g, gotErr := got(ctx)
		diff := cmp.Diff(w, g)
		if err == nil && gotErr == nil && diff == "" {
			t.Logf("%s: equal (%d) after %s", what, len(w), time.Since(start).Round(time.Second/10))
			return
		}
		if ctx.Err() == nil || last == "" {
			last = fmt.Sprintf("%v, %v (-want +got)\n%s", err, gotErr, diff)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, last)
		case <-time.After(time.Second):
		}
	}
}

// apply creates objects.
func apply(t *testing.T, yaml string) {
	t.Helper()
	if _, err := running.kubectlInput(t.Context(), yaml, "apply", "--server-side", "--validate=strict", "--filename=-"); err != nil {
		t.Fatal(err)
	}
}

// makeNamespace makes a namespace, with the account that its pods need.
func makeNamespace(t *testing.T, name string) {
	t.Helper()
	if _, err := running.kubectl(t.Context(), "create", "namespace", name); err != nil {
		t.Fatal(err)
	}
	until(t, "the account of pods", func(ctx context.Context) error {
		_, err := running.raw(ctx, "/api/v1/namespaces/"+name+"/serviceaccounts/default")
		return err
	})
}

// applyOverlay applies an overlay of deploy/kubernetes.
func applyOverlay(t *testing.T, overlay string) {
	t.Helper()
	if _, err := running.kubectl(t.Context(), "apply", "--server-side", "--validate=strict", "--force-conflicts",
		"--kustomize="+filepath.Join(repository(), "deploy/kubernetes/overlays", overlay)); err != nil {
		t.Fatal(err)
	}
}

// removePods removes the pods of a namespace, with the objects that make them.
func removePods(t *testing.T, namespace string) {
	t.Helper()
	ctx := context.Background() // the test's context has ended
	if _, err := running.kubectl(ctx, "--namespace="+namespace, "delete", "deployments,jobs,pods", "--all", "--timeout=2m"); err != nil {
		t.Error(err)
	}
}

// startSensor runs a sensor with the account of the manifests until the end of the test. It runs in place of the pod of the DaemonSet,
// because that finds no fake of NVIDIA's library.
func startSensor(t *testing.T, args ...string) *sensor {
	t.Helper()
	applyOverlay(t, "privileged")
	if _, err := running.kubectl(t.Context(), "--namespace="+accelscope, "delete", "daemonset", accelscope); err != nil {
		t.Fatal(err)
	}
	s, err := running.newSensor(t.Context(), binary(), os.Getenv(libraryVar), args...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("the sensor:\n%s", s.tail())
			t.Logf("the kubelet:\n%s", running.kubelet.tail())
		}
	})
	if err := s.until(t.Context(), func(ctx context.Context) error { _, err := scrape(ctx); return err }); err != nil {
		t.Fatal(err)
	}
	return s
}

// startPlugins starts device plugins for the GPUs and the virtual functions until the end of the test.
func startPlugins(t *testing.T, s *sensor) []*devicePlugin {
	t.Helper()
	gpu := &devicePlugin{resource: "nvidia.com/gpu", nodes: map[string]string{}}
	for n := range gpus {
		gpu.nodes[nvml.UUID(n)] = fmt.Sprintf("/dev/nvidia%d", n)
	}
	vf := &devicePlugin{resource: "example.com/vf", nodes: map[string]string{}}
	for _, h := range s.hcas {
		if h.PhysicalFn != "" {
			vf.nodes[h.PCIAddress] = "/dev/infiniband/" + h.CharDevice
		}
	}
	plugins := []*devicePlugin{gpu, vf}
	for _, p := range plugins {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.stop)
	}
	return plugins
}

// podYAML is a pod. Its containers are lines of YAML; IMAGE and SLEEP are replaced.
func podYAML(namespace, name, spec string) string {
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 1
%[3]s---
`, name, namespace, spec)
	return withImage(text)
}

func withImage(text string) string {
	return expand(expand(text, "IMAGE", "image: "+guest.Image+", imagePullPolicy: Never"), "SLEEP", `args: [sleep, "1000000"]`)
}

// allocated compares the GPUs and HCAs that the sensor shows as allocated by the kubelet with the device nodes in the containers.
func allocated(t *testing.T, namespace string, s *sensor) {
	t.Helper()
	for _, kind := range []struct {
		metric, label, dir, prefix string
		name                       func(n string) string // of a device node
	}{
		{"container_gpu_allocated", "uuid", "/dev", "nvidia", func(node string) string {
			var n int
			_, _ = fmt.Sscanf(node, "nvidia%d", &n)
			return nvml.UUID(n)
		}},
		{"container_rdma_allocated", "device", "/dev/infiniband", "uverbs", func(node string) string {
			for _, h := range s.hcas {
				if h.CharDevice == node {
					return h.Name
				}
			}
			return node
		}},
	} {
		same(t, kind.metric, func(ctx context.Context) (map[string]float64, error) {
			nodes, err := running.inContainers(ctx, namespace, kind.dir, kind.prefix)
			out := map[string]float64{}
			for key := range nodes {
				f := strings.Fields(key)
				out[strings.Join([]string{namespace, f[0], f[1], kind.name(f[2]), "kubelet"}, " ")] = 1
			}
			return out, err
		}, func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			return f.values(kind.metric, "namespace", "pod", "container", kind.label, "method"), err
		})
	}
}

// shown returns the containers that run according to the sensor.
func shown(ctx context.Context) (map[string]float64, error) {
	f, err := scrape(ctx)
	return f.shown(), err
}

func (f families) shown() map[string]float64 {
	out := map[string]float64{}
	for key, v := range f.values("container_state", "namespace", "pod", "container", "container_id", "state") {
		if name, ok := strings.CutSuffix(key, " running"); ok && v == 1 {
			out[name] = v
		}
	}
	return out
}

// testNames compares the names and the devices of containers with what the API server says, and with the device nodes that the
// containers have, through the lives of pods, device plugins and the kubelet.
func testNames(t *testing.T) {
	const ns = "training"
	makeNamespace(t, ns)
	s := startSensor(t)
	plugins := startPlugins(t, s)
	t.Cleanup(func() { removePods(t, ns) })

	run := func(name string, test func(t *testing.T)) {
		t.Helper()
		if !t.Failed() { // a test needs the pods of the one before it
			t.Run(name, test)
		}
	}
	check := func(t *testing.T) {
		t.Helper()
		same(t, "containers", running.running, shown)
		allocated(t, ns, s)
	}
	run("pods", func(t *testing.T) {
		apply(t, podYAML(ns, "train-0", `  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 2, example.com/vf: 1}}}
  - {name: logs, IMAGE, SLEEP}
`)+podYAML(ns, "sidecar", `  hostNetwork: true
  initContainers:
  - {name: prepare, IMAGE, args: ["true"]}
  - {name: proxy, IMAGE, SLEEP, restartPolicy: Always}
  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 1}}}
`))
		ready(t, ns, "pod/train-0", "pod/sidecar")
		check(t)
	})
	run("same name again", func(t *testing.T) {
		before, _ := running.running(t.Context())
		if _, err := running.kubectl(t.Context(), "--namespace="+ns, "delete", "pod", "sidecar"); err != nil {
			t.Fatal(err)
		}
		apply(t, podYAML(ns, "sidecar", "  containers:\n  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 2}}}\n"))
		ready(t, ns, "pod/sidecar")
		check(t)
		if after, _ := running.running(t.Context()); len(after) != len(before)-1 {
			t.Errorf("containers before %v, after %v", before, after)
		}
	})
	run("ephemeral container", func(t *testing.T) {
		if _, err := running.kubectl(t.Context(), "--namespace="+ns, "debug", "train-0", "--image="+guest.Image,
			"--image-pull-policy=Never", "--container=look", "--target=main", "--", "/bin/busybox", "sleep", "1000000"); err != nil {
			t.Fatal(err)
		}
		until(t, "the container of kubectl debug runs", func(ctx context.Context) error {
			all, err := running.running(ctx)
			for key := range all {
				if strings.HasPrefix(key, ns+" train-0 look ") {
					return err
				}
			}
			return fmt.Errorf("%v: %w", all, os.ErrNotExist)
		})
		check(t)
	})
	run("static pod", func(t *testing.T) {
		file := filepath.Join(manifestDir, "static.yaml")
		text := podYAML("kube-system", "static", "  containers:\n  - {name: main, IMAGE, SLEEP}\n")
		if err := write(file, strings.TrimSuffix(text, "---\n")); err != nil {
			t.Fatal(err)
		}
		ready(t, "kube-system", "pod/static-"+nodeName)
		check(t)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		gone(t, "kube-system", "pod/static-"+nodeName)
		check(t)
	})
	run("plugin again", func(t *testing.T) {
		plugins[0].stop()
		check(t)
		if err := plugins[0].start(t.Context()); err != nil {
			t.Fatal(err)
		}
		apply(t, podYAML(ns, "late", "  containers:\n  - {name: main, IMAGE, SLEEP, resources: {limits: {example.com/vf: 1}}}\n"))
		ready(t, ns, "pod/late")
		check(t)
	})
	run("kubelet again", func(t *testing.T) {
		before, err := running.running(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		running.kubelet.stop(syscall.SIGKILL)
		for range 5 { // without a kubelet the names remain
			time.Sleep(time.Second)
			if now, err := shown(t.Context()); err != nil || cmp.Diff(before, now) != "" {
				t.Errorf("%v (-want +got)\n%s", err, cmp.Diff(before, now))
			}
		}
		for _, p := range plugins {
			p.stop()
		}
		if err := running.startKubelet(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range plugins {
			if err := p.start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		check(t)
		if after, _ := running.running(t.Context()); cmp.Diff(before, after) != "" {
			t.Errorf("the kubelet changed the containers (-before +after)\n%s", cmp.Diff(before, after))
		}
	})
}

// until calls check until it returns nil.
func until(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// ready waits until pods are ready.
func ready(t *testing.T, namespace string, names ...string) {
	t.Helper()
	until(t, "pods are ready", func(ctx context.Context) error {
		_, err := running.kubectl(ctx, append([]string{"--namespace=" + namespace, "wait", "--for=condition=Ready", "--timeout=1m"}, names...)...)
		if err != nil && ctx.Err() == nil {
			events, _ := running.kubectl(ctx, "--namespace="+namespace, "get", "events", "--sort-by=.lastTimestamp")
			err = fmt.Errorf("%w\n%s", err, events)
		}
		return err
	})
}

// gone waits until an object is removed.
func gone(t *testing.T, namespace, name string) {
	t.Helper()
	if _, err := running.kubectl(t.Context(), "--namespace="+namespace, "wait", "--for=delete", "--timeout=3m", name); err != nil {
		t.Fatal(err)
	}
}
