// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what is copied from deploy/prometheus/rules")

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func kustomize(t *testing.T, dir string, components ...string) Objects {
	t.Helper()
	o, err := Kustomize(root(t), dir, components...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// values parses YAML values.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func helm(t *testing.T, text string) Objects {
	t.Helper()
	c, err := Chart(root(t))
	if err != nil {
		t.Fatal(err)
	}
	o, _, err := Helm(c, values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func get[T runtime.Object](t *testing.T, o Objects, name string) T {
	t.Helper()
	x, ok := o[name].(T)
	if !ok {
		t.Fatalf("%s is a %T; there are %v", name, o[name], o.Names())
	}
	return x
}

// sensor returns the pod of the DaemonSet.
func sensor(t *testing.T, o Objects) *corev1.PodSpec {
	return &get[*appsv1.DaemonSet](t, o, "DaemonSet/accelscope").Spec.Template.Spec
}

const monitors = `
podMonitor: {enabled: true}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true}
networkPolicy: {enabled: true}
kubelet: {nodesProxy: true}
gpu: {releaseOnNodeLabels: true}
`

var components = []string{"podmonitor", "servicemonitor", "prometheusrule", "network-policy", "kubelet-before-1.33", "gpu-release"}

// TestHelmMatchesKustomize: the chart renders the same objects as kustomize, except for Helm's own labels, the namespace, which the
// user of Helm creates, and the way in which a changed configuration rolls the pods out.
func TestHelmMatchesKustomize(t *testing.T) {
	fabric := kustomize(t, "overlays/fabric")
	all := kustomize(t, "overlays/capabilities", components...)
	maps.Copy(all, fabric)
	maps.Copy(all, kustomize(t, "overlays/fleet"))
	maps.Copy(all, kustomize(t, "overlays/taint"))
	for _, tt := range []struct {
		name      string
		kustomize Objects
		values    string
	}{
		{"privileged", kustomize(t, "overlays/privileged"), ""},
		{"capabilities", kustomize(t, "overlays/capabilities"), "mode: capabilities"},
		{"everything", all, "mode: capabilities\nfabric: {enabled: true}\nfleet: {enabled: true}\ntaint: {enabled: true}\n" + monitors},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chart := helm(t, tt.values)
			for _, o := range chart {
				withoutHelm(t, o)
			}
			want := Objects{}
			for name, o := range tt.kustomize {
				switch o := o.(type) {
				case *corev1.Namespace:
					continue
				case *corev1.ConfigMap:
					name = "ConfigMap/" + withoutHash(&o.Name)
					o.Data["accelscope.yaml"] = normal(t, o.Data["accelscope.yaml"])
				case *appsv1.DaemonSet:
					for i := range o.Spec.Template.Spec.Volumes {
						if v := o.Spec.Template.Spec.Volumes[i].ConfigMap; v != nil {
							withoutHash(&v.Name)
						}
					}
				}
				want[name] = o
			}
			c := get[*corev1.ConfigMap](t, chart, "ConfigMap/accelscope")
			c.Data["accelscope.yaml"] = normal(t, c.Data["accelscope.yaml"])
			if diff := cmp.Diff(want, chart); diff != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
}

// withoutHash removes the hash that kustomize appends to the name of a ConfigMap.
func withoutHash(name *string) string {
	if base, hash, ok := strings.Cut(*name, "-"); ok && len(hash) == 10 {
		*name = base
	}
	return *name
}

// normal returns the same YAML without comments.
func normal(t *testing.T, text string) string {
	t.Helper()
	out, err := yaml.Marshal(values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func withoutHelm(t *testing.T, o runtime.Object) {
	t.Helper()
	metas := []metav1.Object{o.(metav1.Object)}
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		metas = append(metas, &o.Spec.Template.ObjectMeta)
		if o.Spec.Template.Annotations["checksum/config"] == "" {
			t.Error("another configuration would not roll out")
		}
		delete(o.Spec.Template.Annotations, "checksum/config")
	case *appsv1.Deployment:
		metas = append(metas, &o.Spec.Template.ObjectMeta)
	}
	for _, m := range metas {
		for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"} {
			if m.GetLabels()[label] == "" {
				t.Errorf("%s has no label %s", m.GetName(), label)
			}
			delete(m.GetLabels(), label)
		}
	}
}

// TestOfUser builds the kustomization in the README, with a different configuration.
func TestOfUser(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root(t), "deploy/kubernetes/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	o := ofUser(t, map[string]string{"kustomization.yaml": text, "accelscope.yaml": "log.level: debug\n"})
	for _, v := range sensor(t, o).Volumes {
		if v.ConfigMap == nil {
			continue
		}
		if c := get[*corev1.ConfigMap](t, o, "ConfigMap/"+v.ConfigMap.Name); c.Data["accelscope.yaml"] != "log.level: debug\n" {
			t.Errorf("%+v", c)
		}
	}
	get[*monitoring.PodMonitor](t, o, "PodMonitor/accelscope")
	get[*monitoring.PrometheusRule](t, o, "PrometheusRule/accelscope")
}

// ofUser builds a kustomization beside this repository, which is in ../accelscope.
func ofUser(t *testing.T, files map[string]string) Objects {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	to, err := filepath.Rel(dir, root(t))
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(text, "../accelscope", to)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := build(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestStrict: decoding fails if a field is wrong.
func TestStrict(t *testing.T) {
	good := "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {clusterIP: None}\n"
	if o, err := Decode([]byte("# SPDX\n---\n" + good)); err != nil || len(o) != 1 {
		t.Errorf("%v, %v", o, err)
	}
	for name, bad := range map[string]string{
		"unknown":   good + "  selectors: {}\n",
		"duplicate": good + "spec: {}\n",
		"type":      strings.Replace(good, "None", "[None]", 1),
		"kind":      strings.Replace(good, "Service", "Servis", 1),
		"twice":     good + "---\n" + good,
		"a CRD": "apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nmetadata: {name: x}\n" +
			"spec: {selector: {}, podMetricsEndpoints: [{honorLabel: true}]}\n",
	} {
		if o, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s: %v is accepted", name, o.Names())
		}
	}
}

// TestRights checks the permissions of the service account, and the security context of the containers.
func TestRights(t *testing.T) {
	rules := func(o Objects) []rbacv1.PolicyRule {
		return get[*rbacv1.ClusterRole](t, o, "ClusterRole/accelscope").Rules
	}
	want := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes/stats", "nodes/pods"}}}
	if diff := cmp.Diff(want, rules(kustomize(t, "overlays/privileged"))); diff != "" {
		t.Error(diff)
	}
	want[0].Resources = append(want[0].Resources, "nodes/proxy")
	if diff := cmp.Diff(want, rules(kustomize(t, "overlays/privileged", "kubelet-before-1.33"))); diff != "" {
		t.Error(diff)
	}
	watch := rbacv1.PolicyRule{Verbs: []string{"watch"}, APIGroups: []string{""}, Resources: []string{"nodes"}}
	if diff := cmp.Diff(append(want, watch), rules(kustomize(t, "overlays/privileged", "kubelet-before-1.33", "gpu-release"))); diff != "" {
		t.Error(diff)
	}
	needed := []corev1.Capability{"BPF", "PERFMON", "SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "SYS_RESOURCE"}
	for name, o := range map[string]Objects{
		"overlay": kustomize(t, "overlays/capabilities"), "chart": helm(t, "mode: capabilities"),
	} {
		c := sensor(t, o).Containers[0].SecurityContext
		if c.Privileged == nil || *c.Privileged || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation ||
			!slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(c.Capabilities.Add, needed) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := sensor(t, kustomize(t, "overlays/privileged")).Containers[0].SecurityContext; !*c.Privileged || c.Capabilities != nil {
		t.Errorf("privileged: %+v", c)
	}
}

// TestSeed checks the environment and the mounts against those that the first exporter of this kind requested.
func TestSeed(t *testing.T) {
	mounts := map[string][2]string{ // name: host path, path inside
		"containerd-sock": {"/run/containerd", "/hostrun/containerd"}, "docker-sock": {"/run", "/hostrun"},
		"proc": {"/proc", "/host-proc"}, // and not /dev/dri: GPUs are found through sysfs
		// additional ones
		"sys": {"/sys", "/sys"}, "pod-resources": {"/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources"}, "root": {"/", "/host"},
		"control": {"/run/accelscope", "/run/accelscope"}, "state": {"/var/lib/accelscope", "/var/lib/accelscope"},
	}
	env := map[string]string{"NODE_NAME": "spec.nodeName", "NODE_IP": "status.hostIP"}
	for name, o := range map[string]Objects{
		"privileged": kustomize(t, "overlays/privileged"), "capabilities": kustomize(t, "overlays/capabilities"), "chart": helm(t, ""),
	} {
		p := sensor(t, o)
		if !p.HostPID || !p.HostNetwork {
			t.Errorf("%s: hostPID %v, hostNetwork %v", name, p.HostPID, p.HostNetwork)
		}
		c := p.Containers[0]
		gotEnv, gotMounts := map[string]string{}, map[string][2]string{}
		for _, e := range c.Env {
			gotEnv[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
		for _, v := range p.Volumes {
			if v.HostPath == nil {
				continue
			}
			if v.HostPath.Type != nil {
				t.Errorf("%s: %s would stop the pod on a node without it", name, v.Name)
			}
			i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
			if i < 0 {
				t.Fatalf("%s: %s is not mounted", name, v.Name)
			}
			gotMounts[v.Name] = [2]string{v.HostPath.Path, c.VolumeMounts[i].MountPath}
		}
		for _, m := range c.VolumeMounts {
			if m.ReadOnly == (m.Name == "control" || m.Name == "state") {
				t.Errorf("%s: %s: read-only is %v", name, m.MountPath, m.ReadOnly)
			}
		}
		if diff := cmp.Diff(env, gotEnv); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(mounts, gotMounts); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestPods: every container has resource limits, a read-only root file system and probes; selectors match.
func TestPods(t *testing.T) {
	for name, o := range map[string]Objects{
		"privileged": kustomize(t, "overlays/privileged"), "fabric": kustomize(t, "overlays/fabric"), "fleet": kustomize(t, "overlays/fleet"),
		"taint": kustomize(t, "overlays/taint"), "chart's taint": helm(t, "taint: {enabled: true}"),
		"capabilities": kustomize(t, "overlays/capabilities", components...),
		"chart":        helm(t, "fabric: {enabled: true}\n"+monitors), "chart's fleet": helm(t, "fleet: {enabled: true}"),
		"web": helm(t, "fabric: {enabled: true}\nfleet: {enabled: true, configSecret: z}\nweb: {configSecret: x}"),
	} {
		labels := map[string]map[string]string{}
		for _, object := range o {
			var p *corev1.PodTemplateSpec
			var selector *metav1.LabelSelector
			switch x := object.(type) {
			case *appsv1.DaemonSet:
				p, selector = &x.Spec.Template, x.Spec.Selector
			case *appsv1.Deployment:
				p, selector = &x.Spec.Template, x.Spec.Selector
			default:
				continue
			}
			labels[p.Labels["app.kubernetes.io/name"]] = p.Labels
			if !selects(t, selector, p.Labels) {
				t.Errorf("%s: %v does not select %v", name, selector, p.Labels)
			}
			for _, c := range p.Spec.Containers {
				r := c.Resources
				if r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
					t.Errorf("%s: resources %+v", name, r)
				}
				if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: the root can be written", name)
				}
				if c.LivenessProbe == nil {
					t.Errorf("%s: nobody asks whether it lives", name)
				}
			}
		}
		for _, object := range o {
			switch x := object.(type) {
			case *corev1.Service:
				of := labels[x.Labels["app.kubernetes.io/name"]]
				headless := x.Name != "accelscope-fleet" // which no Prometheus scrapes
				if (x.Spec.ClusterIP == "None") != headless || of == nil || !selects(t, &metav1.LabelSelector{MatchLabels: x.Spec.Selector}, of) {
					t.Errorf("%s: service %s: %+v", name, x.Name, x.Spec)
				}
			case *monitoring.PodMonitor:
				everyone(t, &x.Spec.Selector, labels)
			case *monitoring.ServiceMonitor:
				everyone(t, &x.Spec.Selector, labels)
			case *networkingv1.NetworkPolicy:
				everyone(t, &x.Spec.PodSelector, labels)
			}
		}
	}
}

// TestSampleLimit: Prometheus refuses a scrape with more series than any node has.
func TestSampleLimit(t *testing.T) {
	for name, o := range map[string]Objects{
		"kustomize": kustomize(t, "overlays/privileged", "podmonitor", "servicemonitor"), "chart": helm(t, monitors),
	} {
		pods := get[*monitoring.PodMonitor](t, o, "PodMonitor/accelscope").Spec.SampleLimit
		services := get[*monitoring.ServiceMonitor](t, o, "ServiceMonitor/accelscope").Spec.SampleLimit
		for kind, limit := range map[string]*int64{"PodMonitor": pods, "ServiceMonitor": services} {
			if limit == nil || *limit < 100_000 {
				t.Errorf("%s: %s has no limit of samples, or less than the bound of the series of workloads", name, kind)
			}
		}
	}
}

// TestJobs: two pods on one node are different targets for Prometheus, which keeps only the labels instance (the node)
// and job of them.
func TestJobs(t *testing.T) {
	for name, o := range map[string]Objects{
		"kustomize": kustomize(t, "overlays/privileged", "podmonitor", "servicemonitor"), "chart": helm(t, monitors),
	} {
		const label = "app.kubernetes.io/name"
		if got := get[*monitoring.PodMonitor](t, o, "PodMonitor/accelscope").Spec.JobLabel; got != label {
			t.Errorf("%s: job of the PodMonitor is of label %q", name, got)
		}
		if got := get[*monitoring.ServiceMonitor](t, o, "ServiceMonitor/accelscope").Spec.JobLabel; got != label {
			t.Errorf("%s: job of the ServiceMonitor is of label %q", name, got)
		}
	}
}

// TestCritical: pods of a critical priority class outside kube-system are admitted where that needs a quota (GKE).
func TestCritical(t *testing.T) {
	for name, o := range map[string]Objects{
		"kustomize": kustomize(t, "overlays/privileged"), "chart": helm(t, ""), "fabric": helm(t, "priorityClassName: mine\nfabric: {enabled: true}"),
	} {
		q := get[*corev1.ResourceQuota](t, o, "ResourceQuota/accelscope")
		if s := q.Spec.ScopeSelector.MatchExpressions[0]; s.ScopeName != corev1.ResourceQuotaScopePriorityClass ||
			!slices.Contains(s.Values, "system-node-critical") || q.Spec.Hard.Pods().Value() < 10_000 {
			t.Errorf("%s: %+v", name, q.Spec)
		}
	}
	if o := helm(t, "priorityClassName: mine"); o["ResourceQuota/accelscope"] != nil {
		t.Error("a quota for nothing")
	}
}

func everyone(t *testing.T, s *metav1.LabelSelector, all map[string]map[string]string) {
	t.Helper()
	for _, labels := range all {
		if !selects(t, s, labels) {
			t.Errorf("%v does not select %v", s, labels)
		}
	}
	if selects(t, s, map[string]string{"app.kubernetes.io/name": "other", "app.kubernetes.io/instance": "accelscope"}) {
		t.Errorf("%v selects others", s)
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, labels map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return !selector.Empty() && selector.Matches(set(labels))
}

type set map[string]string

func (s set) Has(label string) bool              { _, ok := s[label]; return ok }
func (s set) Get(label string) string            { return s[label] }
func (s set) Lookup(label string) (string, bool) { v, ok := s[label]; return v, ok }

// TestRules: the rules for the operator, in the component and in the chart, equal deploy/prometheus/rules.
func TestRules(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root(t), "deploy/prometheus/rules/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	var spec monitoring.PrometheusRuleSpec
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var part monitoring.PrometheusRuleSpec
		if err := yaml.UnmarshalStrict(text, &part); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(part.Groups) == 0 {
			t.Errorf("%s has no groups", file)
		}
		spec.Groups = append(spec.Groups, part.Groups...)
	}
	const header = "# SPDX-License-Identifier: Apache-2.0\n# A copy of deploy/prometheus/rules: `make generate-deploy` writes it.\n"
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	component, err := yaml.Marshal(monitoring.PrometheusRule{
		TypeMeta: metav1.TypeMeta{APIVersion: monitoring.SchemeGroupVersion.String(), Kind: "PrometheusRule"},
		ObjectMeta: metav1.ObjectMeta{Name: "accelscope", Namespace: "accelscope", Labels: map[string]string{
			"app.kubernetes.io/name": "accelscope", "app.kubernetes.io/instance": "accelscope",
		}},
		Spec: spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"deploy/helm/accelscope/rules.yaml":                               header + string(text),
		"deploy/kubernetes/components/prometheusrule/prometheusrule.yaml": header + string(component),
	} {
		file = filepath.Join(root(t), file)
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not what deploy/prometheus/rules has (make generate-deploy): %v", file, err)
		}
	}
}
