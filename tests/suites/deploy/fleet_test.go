// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestFleet: the pod that shows all nodes has no privilege, no token and nothing of its node.
func TestFleet(t *testing.T) {
	if o := helm(t, ""); o["Deployment/accelscope-fleet"] != nil || o["Service/accelscope-fleet"] != nil {
		t.Error("the chart installs it by default")
	}
	for name, o := range map[string]Objects{
		"kustomize": kustomize(t, "overlays/fleet"), "chart": helm(t, "fleet: {enabled: true}"),
		"with secrets": helm(t, "fleet: {enabled: true, configSecret: a}\nweb: {configSecret: b}"),
	} {
		p := get[*appsv1.Deployment](t, o, "Deployment/accelscope-fleet").Spec.Template.Spec
		if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken || p.ServiceAccountName != "" || p.HostNetwork || p.HostPID || p.HostIPC {
			t.Errorf("%s: %+v", name, p)
		}
		for _, v := range p.Volumes {
			if v.Secret == nil {
				t.Errorf("%s: the volume %+v is no Secret", name, v)
			}
		}
		withoutPrivileges(t, name, p.Containers[0].SecurityContext)
	}
}

func withoutPrivileges(t *testing.T, name string, s *corev1.SecurityContext) {
	t.Helper()
	switch {
	case s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0:
		t.Errorf("%s: it runs as root", name)
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Privileged != nil && *s.Privileged:
		t.Errorf("%s: it may gain privileges", name)
	case s.Capabilities == nil || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) > 0:
		t.Errorf("%s: capabilities %+v", name, s.Capabilities)
	case s.SeccompProfile == nil || s.SeccompProfile.Type != "RuntimeDefault":
		t.Errorf("%s: seccomp %+v", name, s.SeccompProfile)
	}
}
