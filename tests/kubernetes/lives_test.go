// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testLives compares what happens to containers with what the API server says: exits, restarts, an OOM kill, an eviction, and the
// storage that a pod uses with du.
func testLives(t *testing.T) {
	const ns = "lives"
	if _, err := running.kubectl(t.Context(), "create", "namespace", ns); err != nil {
		t.Fatal(err)
	}
	startSensor(t)
	t.Cleanup(func() { removePods(t, ns) })
	apply(t, podYAML(ns, "crashes", "  containers:\n  - {name: main, IMAGE, args: [sh, -c, exit 3]}\n")+
		podYAML(ns, "fails-once", "  restartPolicy: Never\n  containers:\n  - {name: main, IMAGE, args: [sh, -c, exit 4]}\n  - {name: other, IMAGE, SLEEP}\n")+
		podYAML(ns, "hungry", "  containers:\n  - {name: main, IMAGE, args: [sh, -c, 'busybox sleep 5; busybox tail /dev/zero'], resources: {limits: {memory: 30Mi}}}\n")+
		podYAML(ns, "writes", "  volumes: [{name: data, emptyDir: {}}]\n  containers:\n  - {name: main, IMAGE, "+
			"args: [sh, -c, 'busybox dd if=/dev/urandom of=/data/file bs=1M count=40; busybox dd if=/dev/urandom of=/own bs=1M count=20; busybox sleep 1000000'], "+
			"volumeMounts: [{name: data, mountPath: /data}]}\n")+
		podYAML(ns, "evicted", "  volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]\n  containers:\n  - {name: main, IMAGE, "+
			"args: [sh, -c, 'busybox dd if=/dev/zero of=/data/file bs=1M count=20; busybox sleep 1000000'], "+
			"volumeMounts: [{name: data, mountPath: /data}]}\n"))
	until(t, "a pod is evicted, others crash", func(ctx context.Context) error {
		pods, err := running.pods(ctx)
		reasons := map[string]string{}
		for i := range pods {
			p := &pods[i]
			for _, s := range p.Status.ContainerStatuses {
				if last := s.LastTerminationState.Terminated; last != nil && p.Namespace == ns {
					reasons[p.Name] = last.Reason
				}
			}
			if p.Namespace == ns && p.Status.Reason != "" {
				reasons[p.Name] = p.Status.Reason
			}
		}
		want := map[string]string{"crashes": "Error", "hungry": "OOMKilled", "evicted": "Evicted"}
		if diff := cmp.Diff(want, reasons); err == nil && diff != "" {
			err = fmt.Errorf("(-want +got)\n%s", diff)
		}
		return err
	})
	same(t, "containers", running.running, shown)
	same(t, "restarts", func(ctx context.Context) (map[string]float64, error) {
		pods, err := running.pods(ctx)
		out := map[string]float64{}
		for i := range pods {
			for _, s := range pods[i].Status.ContainerStatuses {
				if pods[i].Namespace == ns && pods[i].Status.Reason == "" {
					out[pods[i].Name+" "+s.Name] = float64(s.RestartCount)
				}
			}
		}
		return out, err
	}, func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		out := map[string]float64{}
		// Containers that have ended remain for some minutes, each with the number of restarts before it.
		for key, v := range f.values("container_restarts_total", "namespace", "pod", "container", "container_id") {
			if names := strings.Fields(key); names[0] == ns && names[1] != "evicted" {
				name := names[1] + " " + names[2]
				out[name] = max(out[name], v)
			}
		}
		return out, err
	})
	until(t, "storage of the pod", func(ctx context.Context) error {
		out, err := running.kubectl(ctx, "--namespace="+ns, "exec", "writes", "--", "/bin/busybox", "du", "-xk", "-s", "/data", "/own")
		if err != nil {
			return err
		}
		var want, one float64
		for line := range strings.Lines(out) {
			if _, err := fmt.Sscan(line, &one); err != nil {
				return err
			}
			want += one * 1024
		}
		f, err := scrape(ctx)
		got := f.values("pod_ephemeral_storage_usage_bytes", "namespace", "pod")[ns+" writes"]
		// The kubelet also counts logs, /etc/hosts and directories of the layer.
		if err == nil && (want < 60<<20 || got < want || got > want+1<<20) {
			err = fmt.Errorf("the sensor has %v bytes, du %v", got, want)
		}
		return err
	})
}
