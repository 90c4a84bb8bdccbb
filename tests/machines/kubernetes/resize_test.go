// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testResize changes the limits of containers while they run. The sensor must show the limits that the API server has from the runtime,
// with the same containers and counters that go on; a container that asks for a restart is another one, once.
func testResize(t *testing.T) {
	const ns = "resize"
	makeNamespace(t, ns)
	startSensor(t)
	t.Cleanup(func() { removePods(t, ns) })
	const resources = "resources: {limits: {cpu: 100m, memory: 64Mi}}"
	apply(t, podYAML(ns, "grows", "  containers:\n  - {name: main, IMAGE, args: [sh, -c, 'while :; do :; done'], "+resources+"}\n"+
		"  - {name: restarts, IMAGE, SLEEP, "+resources+", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}\n"))
	ready(t, ns, "pod/grows")
	same(t, "limits", func(ctx context.Context) (map[string]float64, error) { return limits(ctx, ns) }, shownLimits(ns))
	resize := func(container, asked string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec": {"containers": [{"name": %q, "resources": {"limits": %s, "requests": %[2]s}}]}}`, container, asked)
		if _, err := running.kubectl(t.Context(), "--namespace="+ns, "patch", "pod", "grows", "--subresource=resize", "--patch="+patch); err != nil {
			t.Fatal(err)
		}
		same(t, "limits", func(ctx context.Context) (map[string]float64, error) { return limits(ctx, ns) }, shownLimits(ns))
	}
	want := func(container string, cpu, memory float64) { // the test asks for these numbers: both sides could lack a limit
		t.Helper()
		f, err := scrape(t.Context())
		got := f.shownLimits(ns)
		if name := "grows " + container; err != nil || got[name+" cpu"] != cpu || got[name+" memory"] != memory*(1<<20) {
			t.Errorf("%v: %s is not %v and %v MiB: %v", err, name, cpu, memory, got)
		}
	}
	want("main", 0.1, 64)
	steady(t, func() {
		resize("main", `{"cpu": "200m", "memory": "96Mi"}`)
		want("main", 0.2, 96)
		resize("main", `{"cpu": "50m", "memory": "80Mi"}`)
		want("main", 0.05, 80)
		resize("restarts", `{"cpu": "150m", "memory": "64Mi"}`)
		want("restarts", 0.15, 64)
	})
	before, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whileScraping(t, func(f families) error {
		names := map[string]bool{}
		for key := range f.shown() {
			name, _, _ := strings.Cut(key, " "+strings.Fields(key)[3])
			if names[name] {
				return fmt.Errorf("%s runs twice", name)
			}
			names[name] = true
		}
		return nil
	}, func() {
		resize("restarts", `{"cpu": "150m", "memory": "48Mi"}`)
		same(t, "containers", running.running, shown)
		same(t, "restarts", func(context.Context) (map[string]float64, error) {
			return map[string]float64{"grows main": 0, "grows restarts": 1}, nil
		}, restarts(ns))
	})
	after, err := running.running(t.Context())
	if err != nil || len(after) != len(before) || cmp.Diff(before, after) == "" {
		t.Errorf("%v: the container has not restarted: before %v, after %v", err, before, after)
	}
}

// limits returns the limits of running containers, as "POD CONTAINER RESOURCE", which the kubelet has from the runtime, once they are
// those that the pod asks for.
func limits(ctx context.Context, namespace string) (map[string]float64, error) {
	pods, err := running.pods(ctx)
	out := map[string]float64{}
	for i := range pods {
		if pods[i].Namespace != namespace {
			continue
		}
		for j, s := range pods[i].Status.ContainerStatuses {
			asked := pods[i].Spec.Containers[j].Resources.Limits
			if s.State.Running == nil || s.Resources == nil || !s.Resources.Limits.Cpu().Equal(*asked.Cpu()) ||
				!s.Resources.Limits.Memory().Equal(*asked.Memory()) {
				err = errors.Join(err, fmt.Errorf("%s has %+v, asked %v, conditions %+v", s.Name, s.Resources, asked, pods[i].Status.Conditions))
				continue
			}
			name := pods[i].Name + " " + s.Name
			out[name+" cpu"], out[name+" memory"] = s.Resources.Limits.Cpu().AsApproximateFloat64(), s.Resources.Limits.Memory().AsApproximateFloat64()
		}
	}
	return out, err
}

func shownLimits(namespace string) func(context.Context) (map[string]float64, error) {
	return func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		return f.shownLimits(namespace), err
	}
}

// shownLimits returns the limits of running containers that the sensor shows.
func (f families) shownLimits(namespace string) map[string]float64 {
	out := map[string]float64{}
	of := func(metric string) map[string]float64 {
		return f.values(metric, "namespace", "pod", "container", "container_id")
	}
	quota, period, memory := of("container_spec_cpu_quota"), of("container_spec_cpu_period"), of("container_spec_memory_limit_bytes")
	for key := range f.shown() {
		if names := strings.Fields(key); names[0] == namespace {
			name := names[1] + " " + names[2]
			out[name+" cpu"], out[name+" memory"] = quota[key]/period[key], memory[key]
		}
	}
	return out
}

// restarts returns the restarts of the containers that the sensor shows. Containers that have ended remain for some minutes, each with
// the number of restarts before it.
func restarts(namespace string) func(context.Context) (map[string]float64, error) {
	return func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		out := map[string]float64{}
		for key, v := range f.values("container_restarts_total", "namespace", "pod", "container", "container_id") {
			if names := strings.Fields(key); names[0] == namespace {
				name := names[1] + " " + names[2]
				out[name] = max(out[name], v)
			}
		}
		return out, err
	}
}
