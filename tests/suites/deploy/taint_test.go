// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestTaint: the pod that marks nodes is not installed by default, changes nothing by default, and may change conditions and
// DeviceTaintRules only. TestKubernetes asks the API server what the account may do.
func TestTaint(t *testing.T) {
	for name := range helm(t, "") {
		if slices.Contains([]string{"Deployment/accelscope-taint", "ClusterRole/accelscope-taint", "ServiceAccount/accelscope-taint"}, name) {
			t.Errorf("the chart installs %s by default", name)
		}
	}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"list"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"devicetaintrules"}, Verbs: []string{"list", "create", "delete"}},
	}
	for name, o := range map[string]Objects{
		"kustomize": kustomize(t, "overlays/taint"), "chart": helm(t, "taint: {enabled: true}"),
		"with a secret": helm(t, "taint: {enabled: true, configSecret: a}"),
	} {
		if diff := cmp.Diff(rules, get[*rbacv1.ClusterRole](t, o, "ClusterRole/accelscope-taint").Rules); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		b := get[*rbacv1.ClusterRoleBinding](t, o, "ClusterRoleBinding/accelscope-taint")
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "accelscope-taint", Namespace: "accelscope"}}
		if diff := cmp.Diff(want, b.Subjects); diff != "" || b.RoleRef.Name != "accelscope-taint" {
			t.Errorf("%s: %s, role %s", name, diff, b.RoleRef.Name)
		}
		d := get[*appsv1.Deployment](t, o, "Deployment/accelscope-taint").Spec
		p := d.Template.Spec
		if *d.Replicas != 1 || d.Strategy.Type != appsv1.RecreateDeploymentStrategyType || p.ServiceAccountName != "accelscope-taint" ||
			p.AutomountServiceAccountToken == nil || !*p.AutomountServiceAccountToken || p.HostNetwork || p.HostPID || p.HostIPC {
			t.Errorf("%s: %+v", name, d)
		}
		if !slices.Contains(p.Containers[0].Args, "--taint.dry-run") {
			t.Errorf("%s: it changes the cluster by default: %v", name, p.Containers[0].Args)
		}
		for _, v := range p.Volumes {
			if v.Secret == nil {
				t.Errorf("%s: the volume %+v is no Secret", name, v)
			}
		}
		withoutPrivileges(t, name, p.Containers[0].SecurityContext)
	}
	args := get[*appsv1.Deployment](t, helm(t, "taint: {enabled: true, dryRun: false, maxNodes: 9, effect: NoExecute}"), "Deployment/accelscope-taint").Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{"--no-taint.dry-run", "--taint.max-nodes=9", "--taint.effect=NoExecute"} {
		if !slices.Contains(args, want) {
			t.Errorf("%v has no %s", args, want)
		}
	}
}
