// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// testRollout runs the image as the DaemonSet: it is rolled out, changed, upgraded, rolled back and removed.
func testRollout(t *testing.T) {
	const next = "docker.io/library/accelscope:next"
	overlay := rendered(t, "privileged", "")
	image := regexp.MustCompile(`\bimage: (accelscope:\S+)`).FindStringSubmatch(overlay)[1]
	if _, err := running.ctr(t.Context(), "images", "import", filepath.Join(repository(), "bin/accelscope-image.tar")); err != nil {
		t.Fatalf("%v: make image", err)
	}
	if _, err := running.ctr(t.Context(), "images", "tag", "--force", "docker.io/library/"+image, next); err != nil {
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
	const namespace = `apiVersion: v1
kind: Namespace
metadata: {name: accelscope, labels: {pod-security.kubernetes.io/enforce: privileged}}
---
`
	// By default the state of a container is shown only if it uses a device.
	const options = "log.format: json\n    container.scope: all\n    kubelet.interval: 1s"
	// The overlay capabilities adds SYS_RESOURCE, which not every machine has: TestDeploy of tests/suites/e2e runs it in a guest.
	for name, manifests := range map[string]string{
		"overlay": strings.Replace(overlay, "log.format: json", options, 1),
		"chart":   namespace + chartManifests(t)["rollout"],
	} {
		t.Run(name, func(t *testing.T) {
			apply(t, manifests)
			rolledOut(t, image)
			healthy(t)
			if doctor := kubectl(t, "exec", "daemonset/accelscope", "--", "accelscope", "doctor"); !strings.Contains(doctor, "Is the use of HCAs counted by workload: ") {
				t.Errorf("doctor: %s", doctor)
			}

			kubectl(t, "set", "image", "daemonset/accelscope", "accelscope=accelscope:next")
			rolledOut(t, "accelscope:next")
			kubectl(t, "rollout", "undo", "daemonset/accelscope")
			rolledOut(t, image)

			kubectl(t, "set", "image", "daemonset/accelscope", "accelscope=localhost/accelscope:missing")
			until(t, "a missing image", func(ctx context.Context) error {
				out, err := running.kubectl(ctx, "--namespace="+accelscope, "get", "pods", "--no-headers")
				if err == nil && !strings.Contains(out, "ImagePull") {
					err = fmt.Errorf("pods: %s", out)
				}
				return err
			})
			kubectl(t, "rollout", "undo", "daemonset/accelscope")
			rolledOut(t, image)

			if _, err := running.kubectlInput(t.Context(), manifests, "delete", "--wait", "--timeout=4m", "--filename=-"); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"namespace", "clusterrole", "clusterrolebinding"} {
				if out, err := running.kubectl(t.Context(), "get", kind, accelscope, "--ignore-not-found"); err != nil || out != "" {
					t.Errorf("%s is left: %v %s", kind, err, out)
				}
			}
		})
	}
}

// healthy waits until the sensor has all answers of the kubelet.
func healthy(t *testing.T) {
	t.Helper()
	healthyAfter(t, nil)
}

// healthyAfter is healthy, and calls prepare before each look.
func healthyAfter(t *testing.T, prepare func()) {
	t.Helper()
	want := map[string]float64{"ok pod-resources": 1, "ok allocatable": 1, "ok pods": 1, "ok summary": 1}
	same(t, "answers of the kubelet", func(context.Context) (map[string]float64, error) { return want, nil },
		func(ctx context.Context) (map[string]float64, error) {
			if prepare != nil {
				prepare()
			}
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
