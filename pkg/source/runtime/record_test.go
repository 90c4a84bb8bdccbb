// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestRecordOfImage checks images with labels that imitate a pod and nerdctl.
func TestRecordOfImage(t *testing.T) {
	id := strings.Repeat("ab", 32)
	pod := map[string]string{
		labelPodName: "db-0", labelPodNamespace: "victim", labelPodUID: podUID, labelContainerName: "db", labelKind: "sandbox",
	}
	nerdctl := map[string]string{labelNerdctlName: "db", "nerdctl/namespace": "default", "nerdctl/state-dir": "/var/lib/nerdctl/1/containers/default/" + id}
	with := func(m map[string]string, k, v string) map[string]string {
		m = maps.Clone(m)
		m[k] = v
		return m
	}
	container := with(pod, labelKind, "container")
	systemd := "kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice:cri-containerd:" + id
	cri := func(what, s string) map[string]*anypb.Any {
		return map[string]*anypb.Any{"io.cri-containerd." + what + ".metadata": {Value: []byte(s)}}
	}
	const own = `{"Metadata":{"Config":{"metadata":{"name":"main","attempt":2},"labels":{"io.kubernetes.pod.name":"p","io.kubernetes.pod.namespace":"ns"}}}}`
	for name, c := range map[string]struct {
		ns, id, cgroup string
		labels         map[string]string
		extensions     map[string]*anypb.Any
		want           string // namespace/pod/uid/name sandbox
	}{
		"ctr":                          {"default", "evil", "/default/evil", pod, nil, "///evil false"},
		"ctr in k8s.io":                {"k8s.io", id, "/k8s.io/" + id, pod, nil, "/// false"},
		"another's pod":                {"k8s.io", id, "/kubepods/burstable/pod0/" + id, pod, nil, "/// false"},
		"no UID":                       {"k8s.io", id, "/kubepods/burstable/pod/" + id, with(pod, labelPodUID, ""), nil, "/// false"},
		"outside k8s.io":               {"default", id, "/kubepods/burstable/pod" + podUID + "/" + id, pod, nil, "/// false"},
		"a cgroup that ends alike":     {"k8s.io", id, "/jobs/pod" + podUID + "/" + id, pod, nil, "/// false"},
		"where the kubelet puts it":    {"k8s.io", id, "/kubepods/burstable/pod" + podUID + "/" + id, container, nil, "victim/db-0/" + podUID + "/db false"},
		"and by systemd":               {"k8s.io", id, systemd, container, nil, "victim/db-0/" + podUID + "/db false"},
		"by CRI":                       {"k8s.io", id, "/x", pod, cri("container", own), "ns/p//main false"},
		"a sandbox by CRI":             {"k8s.io", id, "/x", pod, cri("sandbox", `{"Metadata":{"Config":{"metadata":{"name":"p","namespace":"ns","uid":"u"}}}}`), "ns/p/u/ true"},
		"a record of nothing":          {"k8s.io", id, "/x", pod, cri("container", "{"), "/// false"},
		"nerdctl":                      {"default", id, "", nerdctl, nil, "///db false"},
		"nerdctl of another id":        {"default", id, "", with(nerdctl, "nerdctl/state-dir", "/var/lib/x/"+strings.Repeat("0", 64)), nil, "/// false"},
		"nerdctl without a state":      {"default", id, "", with(nerdctl, "nerdctl/state-dir", ""), nil, "/// false"},
		"nerdctl of another namespace": {"other", id, "", nerdctl, nil, "/// false"},
		"nerdctl's labels, ctr's id":   {"default", "evil", "", with(nerdctl, "nerdctl/state-dir", "/x/evil"), nil, "///evil false"},
	} {
		m := &containers.Container{ID: c.id, Labels: c.labels, Extensions: c.extensions, Spec: &anypb.Any{
			Value: fmt.Appendf(nil, `{"linux":{"cgroupsPath":%q}}`, c.cgroup),
		}}
		r := newRecord(c.ns, m, nil)
		if got := fmt.Sprintf("%s/%s/%s/%s %v", r.Namespace, r.Pod, r.PodUID, r.Name, r.Sandbox); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if restarts := r.Restarts != nil; restarts != (name == "by CRI") {
			t.Errorf("%s: restarts %v", name, r.Restarts)
		}
	}
}

// TestRecordLabels checks an image with a label that the pod also has: the pod's label counts, and in a CRI container
// the labels of an image do not count.
func TestRecordLabels(t *testing.T) {
	d := &containerdDriver{labels: []string{"team", "role"}, pods: map[string]podLabels{"sb": {"team": "vision"}}}
	image := map[string]string{"team": "an image's", "role": "an image's"}
	for extension, want := range map[string]string{
		"":                 "map[role:an image's team:vision]",
		extensionContainer: "map[team:vision]",
	} {
		r := newRecord("k8s.io", &containers.Container{ID: "x", Labels: image, Extensions: map[string]*anypb.Any{
			extension: {Value: []byte(`{"Metadata":{"Config":{"metadata":{"name":"main"}}}}`)},
		}}, d.labels)
		r.sandbox = "sb"
		if got := fmt.Sprint(d.describe(r).Labels); got != want {
			t.Errorf("%s: %s, want %s", extension, got, want)
		}
	}
}

func TestQualifiedID(t *testing.T) {
	id := strings.Repeat("ab", 32)
	for in, want := range map[[2]string]string{
		{"default", "web"}: "web", {"k8s.io", "web"}: "k8s.io/web", {"other", "web"}: "other/web",
		{"default", id}: id, {"k8s.io", id}: id, {"other", id}: id,
	} {
		if got := qualifiedID(in[0], in[1]); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
}
