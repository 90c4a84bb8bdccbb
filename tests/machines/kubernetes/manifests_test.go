// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespace of the manifests.
const accelscope = "accelscope"

// testManifests has the API server accept all manifests: strictly, with the types of the Prometheus operator, by Pod Security.
func testManifests(t *testing.T) {
	applyOverlay(t, "privileged")
	applyCRDs(t)
	dir := filepath.Join(repository(), "deploy/kubernetes")
	components := dirs(t, filepath.Join(dir, "components"))
	for _, overlay := range dirs(t, filepath.Join(dir, "overlays")) {
		for _, component := range append([]string{""}, components...) {
			if overlay == "fabric" && component != "" { // it has no sensor to change
				continue
			}
			t.Run(overlay+"/"+component, func(t *testing.T) {
				accept(t, rendered(t, overlay, component))
			})
		}
	}
	for name, text := range chartManifests(t) {
		t.Run("chart/"+name, func(t *testing.T) { accept(t, text) })
	}
	t.Run("unknown field", func(t *testing.T) { // the check can fail
		text := strings.Replace(rendered(t, "privileged", ""), "hostPID: true", "hostPIDs: true", 1)
		if _, err := running.kubectlInput(t.Context(), text, dryRun...); err == nil || !strings.Contains(err.Error(), "hostPIDs") {
			t.Errorf("accepted: %v", err)
		}
	})
	for overlay, level := range map[string]string{"privileged": "baseline", "capabilities": "baseline"} {
		t.Run("pod security/"+overlay, func(t *testing.T) { podSecurity(t, overlay, level) })
	}
}

var dryRun = []string{"apply", "--server-side", "--validate=strict", "--force-conflicts", "--dry-run=server", "--filename=-"}

// accept has the API server validate and admit manifests.
func accept(t *testing.T, text string) {
	t.Helper()
	out, err := running.kubectlInput(t.Context(), text, dryRun...)
	if err != nil {
		t.Fatal(err)
	}
	if objects := strings.Count("\n"+text, "\nkind: "); objects != strings.Count(out, "serverside-applied") || objects == 0 {
		t.Errorf("%d objects: %s", objects, out)
	}
}

// rendered returns an overlay with a component.
func rendered(t *testing.T, overlay, component string) string {
	t.Helper()
	dir := filepath.Join(repository(), "deploy/kubernetes")
	target := filepath.Join(dir, "overlays", overlay)
	if component != "" {
		own := t.TempDir()
		to := func(path string) string {
			rel, err := filepath.Rel(own, path)
			if err != nil {
				t.Fatal(err)
			}
			return rel
		}
		if err := write(filepath.Join(own, "kustomization.yaml"), fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n",
			to(target), to(filepath.Join(dir, "components", component)))); err != nil {
			t.Fatal(err)
		}
		target = own
	}
	text, err := running.kubectl(t.Context(), "kustomize", target)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// chartManifests returns the manifests of the Helm chart, which were rendered outside of the node, by name.
func chartManifests(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range charts {
		text, err := os.ReadFile(filepath.Join(running.dir, "chart", name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// applyCRDs applies the types of the Prometheus operator.
func applyCRDs(t *testing.T) {
	t.Helper()
	var args []string
	for _, kind := range []string{"podmonitors", "servicemonitors", "prometheusrules"} {
		args = append(args, "--filename="+filepath.Join(os.Getenv(operatorVar), "example/prometheus-operator-crd/monitoring.coreos.com_"+kind+".yaml"))
	}
	if _, err := running.kubectl(t.Context(), append([]string{"apply", "--server-side"}, args...)...); err != nil {
		t.Fatal(err)
	}
	if _, err := running.kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=3m", "customresourcedefinitions", "--all"); err != nil {
		t.Fatal(err)
	}
}

// podSecurity shows that the level that the manifests set is needed: the next stricter one refuses the pod.
func podSecurity(t *testing.T, overlay, stricter string) {
	t.Helper()
	text, err := running.kubectlInput(t.Context(), rendered(t, overlay, ""), "apply", "--server-side", "--force-conflicts", "--dry-run=server",
		"--filename=-", "--output=json")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	var daemons appsv1.DaemonSet
	for _, item := range list.Items {
		var object appsv1.DaemonSet
		if json.Unmarshal(item, &object) == nil && object.Kind == "DaemonSet" {
			daemons = object
		}
	}
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: daemons.Spec.Template.Spec}
	pod.Name, pod.Spec.ServiceAccountName = "sensor", "default"
	pod.Spec.PriorityClassName = ""
	for level, admitted := range map[string]bool{"privileged": true, stricter: false} {
		ns := "pod-security-" + overlay + "-" + level
		apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+", labels: {pod-security.kubernetes.io/enforce: "+level+"}}\n---\n"+
			"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: "+ns+"}\n")
		pod.Namespace = ns
		body, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		_, err = running.kubectlInput(t.Context(), string(body), "create", "--dry-run=server", "--filename=-")
		if (err == nil) != admitted || !admitted && !strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("level %s: %v", level, err)
		}
	}
}

func dirs(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
