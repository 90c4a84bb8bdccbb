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
// storage that a pod uses with du. What containerd reports of the containers must arrive as an event, once.
func testLives(t *testing.T) {
	const ns = "lives"
	makeNamespace(t, ns)
	w := watchEvents(t, ns)
	startSensor(t, "--events.otlp-endpoint="+eventsEndpoint, "--events.otlp-insecure")
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
		out, err := restarts(ns)(ctx)
		delete(out, "evicted main")
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
	w.once(t, map[string]int{
		"crashes exit 3": 2, "fails-once exit 4": 1, "hungry oom": 1, "hungry exit 137": 1, "evicted exit 137": 1, "writes start": 1,
	})
	removePods(t, ns)
	w.once(t, map[string]int{"crashes delete": 2, "writes exit 137": 1, "writes delete": 1, "hungry delete": 1})
}
