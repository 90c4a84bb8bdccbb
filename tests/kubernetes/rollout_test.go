// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"
)

// testRollout runs the image as the DaemonSet of each overlay: it is rolled out, changed, upgraded, rolled back and removed.
func testRollout(t *testing.T) {
	const image, next = "docker.io/library/accelscope:latest", "docker.io/library/accelscope:next"
	if _, err := running.ctr(t.Context(), "images", "import", filepath.Join(here(), "../../bin/accelscope-image.tar")); err != nil {
		t.Fatalf("%v: make image", err)
	}
	if _, err := running.ctr(t.Context(), "images", "tag", "--force", image, next); err != nil {
		t.Fatal(err)
	}
	kubectl := func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := running.kubectl(t.Context(), append([]string{"--namespace=" + accelscope}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	rolledOut := func(t *testing.T, want string) {
		t.Helper()
		if out, err := running.kubectl(t.Context(), "--namespace="+accelscope, "rollout", "status", "daemonset/accelscope", "--timeout=4m"); err != nil {
			t.Fatalf("%v: %s%s", err, out, kubectl(t, "describe", "pods"))
		}
		var daemons appsv1.DaemonSet
		if err := running.get(t.Context(), "/apis/apps/v1/namespaces/accelscope/daemonsets/accelscope", &daemons); err != nil {
			t.Fatal(err)
		}
		until(t, "the pod of the DaemonSet has the image "+want, func(ctx context.Context) error {
			var pods corev1.PodList
			if err := running.get(ctx, "/api/v1/namespaces/accelscope/pods", &pods); err != nil {
				return err
			}
			for i := range pods.Items {
				p := &pods.Items[i]
				if len(pods.Items) == 1 && p.DeletionTimestamp == nil && p.Spec.Containers[0].Image == want {
					return nil
				}
			}
			return fmt.Errorf("%d pods, status %+v", len(pods.Items), daemons.Status)
		})
		same(t, "containers", running.running, shown)
	}
	for _, overlay := range []string{"privileged", "capabilities"} {
		t.Run(overlay, func(t *testing.T) {
			apply(t, rendered(t, overlay, ""))
			// By default the state of a container is shown only if it uses a device.
			change := func(config string) {
				apply(t, strings.Replace(rendered(t, overlay, ""), "log.format: json", config, 1))
			}
			change("log.format: json\n    container.scope: all\n    kubelet.interval: 1s")
			rolledOut(t, "accelscope:latest")
			healthy(t)
			if doctor := kubectl(t, "exec", "daemonset/accelscope", "--", "accelscope", "doctor"); !strings.Contains(doctor, "Can the main job run: ") {
				t.Errorf("doctor: %s", doctor)
			}

			kubectl(t, "set", "image", "daemonset/accelscope", "accelscope=accelscope:next")
			rolledOut(t, "accelscope:next")
			kubectl(t, "rollout", "undo", "daemonset/accelscope")
			rolledOut(t, "accelscope:latest")

			kubectl(t, "set", "image", "daemonset/accelscope", "accelscope=localhost/accelscope:missing")
			until(t, "a missing image", func(ctx context.Context) error {
				out, err := running.kubectl(ctx, "--namespace="+accelscope, "get", "pods", "--no-headers")
				if err == nil && !strings.Contains(out, "ImagePull") {
					err = fmt.Errorf("pods: %s", out)
				}
				return err
			})
			kubectl(t, "rollout", "undo", "daemonset/accelscope")
			rolledOut(t, "accelscope:latest")
			kubectl(t, "delete", "daemonset/accelscope", "--cascade=foreground", "--timeout=3m")
		})
	}
	if _, err := running.kubectl(t.Context(), "delete", "--wait", "--timeout=4m", "--kustomize="+
		filepath.Join(here(), "../../deploy/kubernetes/overlays/privileged")); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"namespace", "clusterrole", "clusterrolebinding"} {
		if out, err := running.kubectl(t.Context(), "get", kind, accelscope, "--ignore-not-found"); err != nil || out != "" {
			t.Errorf("%s is left: %v %s", kind, err, out)
		}
	}
}

// healthy waits until the sensor has all answers of the kubelet.
func healthy(t *testing.T) {
	t.Helper()
	want := map[string]float64{"ok pod-resources": 1, "ok allocatable": 1, "ok pods": 1, "ok summary": 1}
	same(t, "answers of the kubelet", func(context.Context) (map[string]float64, error) { return want, nil },
		func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			got := map[string]float64{}
			for key, v := range f.values("accelscope_device_state", "source", "state", "device") {
				if of, ok := strings.CutPrefix(key, "kubelet "); ok && v == 1 {
					got[of] = 1
				}
			}
			return got, err
		})
}

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
		for key, v := range f.values("container_restarts_total", "namespace", "pod", "container") {
			if name, ok := strings.CutPrefix(key, ns+" "); ok {
				out[name] = v
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
