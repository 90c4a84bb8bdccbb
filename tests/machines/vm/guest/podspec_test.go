// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func template() corev1.PodTemplateSpec {
	yes, mode := true, corev1.MountPropagationHostToContainer
	probe := corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("metrics")},
	}}
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		HostPID: true, HostNetwork: true,
		Containers: []corev1.Container{{
			Name: "a", Image: "a:1", Args: []string{"run"},
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9847}},
			Env: []corev1.EnvVar{{
				Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}},
			}},
			StartupProbe: &probe, LivenessProbe: probe.DeepCopy(), ReadinessProbe: probe.DeepCopy(),
			SecurityContext: &corev1.SecurityContext{
				ReadOnlyRootFilesystem: &yes,
				Capabilities:           &corev1.Capabilities{Add: []corev1.Capability{"BPF"}, Drop: []corev1.Capability{"ALL"}},
				SeccompProfile:         &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: "/hostrun", ReadOnly: true, MountPropagation: &mode}},
		}},
		Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run"}}}},
	}}
}

func TestTranslate(t *testing.T) {
	got, err := Kubelet{NodeName: "n7"}.Translate("ns", "p", template())
	if err != nil {
		t.Fatal(err)
	}
	c, s := got.Container, got.Container.Linux.SecurityContext
	m := c.Mounts[len(c.Mounts)-1]
	switch {
	case string(c.Envs[0].Value) != "n7",
		m.HostPath != "/run" || m.ContainerPath != "/hostrun" || !m.Readonly,
		m.Propagation != cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		s.Privileged || !s.ReadonlyRootfs || len(s.MaskedPaths) == 0,
		s.Capabilities.AddCapabilities[0] != "BPF" || s.Capabilities.DropCapabilities[0] != "ALL",
		s.Seccomp.ProfileType != cri.SecurityProfile_RuntimeDefault,
		s.NamespaceOptions.Pid != cri.NamespaceMode_NODE || s.NamespaceOptions.Network != cri.NamespaceMode_NODE,
		got.Probes["readiness"].HTTPGet.Port.IntVal != 9847:
		t.Errorf("%+v", got)
	}
}

// TestTranslateUnknown: a field that is not translated is an error, wherever it is.
func TestTranslateUnknown(t *testing.T) {
	for name, change := range map[string]func(*corev1.PodSpec){
		"hostIPC":    func(p *corev1.PodSpec) { p.HostIPC = true },
		"hostUsers":  func(p *corev1.PodSpec) { p.HostUsers = new(bool) },
		"runAsGroup": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.RunAsGroup = new(int64) },
		"lifecycle":  func(p *corev1.PodSpec) { p.Containers[0].Lifecycle = &corev1.Lifecycle{} },
		"subPath":    func(p *corev1.PodSpec) { p.Containers[0].VolumeMounts[0].SubPath = "x" },
		"secret": func(p *corev1.PodSpec) {
			p.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}
		},
		"fieldPath": func(p *corev1.PodSpec) { p.Containers[0].Env[0].ValueFrom.FieldRef.FieldPath = "metadata.name" },
		"port":      func(p *corev1.PodSpec) { p.Containers[0].Ports[0].Name = "http" },
		"volume":    func(p *corev1.PodSpec) { p.Volumes = nil },
		"init":      func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{{}} },
	} {
		x := template()
		change(&x.Spec)
		if _, err := (Kubelet{}).Translate("ns", "p", x); err == nil || strings.Contains(err.Error(), "nil pointer") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
