// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kubelet has what a kubelet knows in addition to a pod.
type Kubelet struct {
	NodeName, NodeIP string
	// ConfigMaps are directories with the content of a ConfigMap, by its name.
	ConfigMaps map[string]string
	// Account is a directory with the token of the service account.
	Account string
	// Hosts and TerminationLog are the files that it mounts into each container.
	Hosts, TerminationLog string
}

// A Translation is a pod with one container, translated to requests of the CRI.
type Translation struct {
	Sandbox   *cri.PodSandboxConfig
	Container *cri.ContainerConfig
	// Probes are the container's: startup, liveness, readiness. Their ports are numbers.
	Probes map[string]*corev1.Probe
	Grace  int64 // seconds
}

// take returns the value of a field and clears it: fields that remain set are an error, so no field is ignored.
func take[T any](field *T) T {
	value := *field
	*field = *new(T)
	return value
}

// left returns an error that lists the fields of a value that are still set.
func left(value any) error {
	if reflect.ValueOf(value).Elem().IsZero() {
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return fmt.Errorf("%T: these fields are not translated: %s", value, text)
}

// Translate converts a pod to requests of the CRI as the kubelet does. It supports the fields in the manifests of
// deploy/kubernetes; any other field is an error.
func (k Kubelet) Translate(namespace, name string, template corev1.PodTemplateSpec) (*Translation, error) {
	t := template.DeepCopy()
	p := &Pod{Namespace: namespace, Name: name, UID: uid(namespace, name)}
	p.Labels, p.Annotations = take(&t.Labels), take(&t.Annotations)
	s := &t.Spec
	p.HostNetwork = take(&s.HostNetwork)
	out := &Translation{Sandbox: p.config()}
	security := out.Sandbox.Linux.SecurityContext
	if take(&s.HostPID) {
		security.NamespaceOptions.Pid = cri.NamespaceMode_NODE
	} else {
		security.NamespaceOptions.Pid = cri.NamespaceMode_CONTAINER
	}
	if grace := take(&s.TerminationGracePeriodSeconds); grace != nil {
		out.Grace = *grace
	}
	// These are for the scheduler and the API server, and for cluster DNS, which the guest does not have.
	take(&s.Tolerations)
	take(&s.NodeSelector)
	take(&s.PriorityClassName)
	take(&s.ServiceAccountName)
	take(&s.DNSPolicy)
	account := take(&s.AutomountServiceAccountToken)
	volumes, err := k.volumes(take(&s.Volumes))
	if err != nil {
		return nil, err
	}
	containers := take(&s.Containers)
	if len(containers) != 1 {
		return nil, fmt.Errorf("%d containers, want 1", len(containers))
	}
	c := &containers[0]
	if out.Container, err = k.container(p, c, volumes); err != nil {
		return nil, err
	}
	if account != nil && *account {
		out.Container.Mounts = append(out.Container.Mounts, &cri.Mount{
			HostPath: k.Account, ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", Readonly: true,
		})
	}
	sc := out.Container.Linux.SecurityContext
	sc.NamespaceOptions = security.NamespaceOptions
	security.Privileged = sc.Privileged // as the kubelet does if any container is privileged
	security.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	ports := take(&c.Ports)
	out.Probes = map[string]*corev1.Probe{
		"startup": take(&c.StartupProbe), "liveness": take(&c.LivenessProbe), "readiness": take(&c.ReadinessProbe),
	}
	for kind, probe := range out.Probes {
		if err := resolvePort(probe, ports); err != nil {
			return nil, fmt.Errorf("%s probe: %w", kind, err)
		}
	}
	return out, errors.Join(left(c), left(t))
}

// volumes returns the directories of the volumes on the node, by name.
func (k Kubelet) volumes(volumes []corev1.Volume) (map[string]string, error) {
	at := map[string]string{}
	for i := range volumes {
		v := &volumes[i]
		name := take(&v.Name)
		switch {
		case v.HostPath != nil:
			if v.HostPath.Type != nil {
				return nil, fmt.Errorf("volume %s: a type is not checked here", name)
			}
			at[name] = take(&v.HostPath).Path
		case v.ConfigMap != nil:
			at[name] = k.ConfigMaps[take(&v.ConfigMap.Name)]
			if err := left(v.ConfigMap); err != nil || at[name] == "" {
				return nil, fmt.Errorf("volume %s: no such ConfigMap, or %w", name, err)
			}
			v.ConfigMap = nil
		}
		if err := left(v); err != nil {
			return nil, err
		}
	}
	return at, nil
}

func (k Kubelet) container(p *Pod, c *corev1.Container, volumes map[string]string) (*cri.ContainerConfig, error) {
	out := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name},
		Image:    &cri.ImageSpec{Image: take(&c.Image)},
		LogPath:  c.Name + "_0.log",
		Labels: map[string]string{
			"io.kubernetes.container.name": c.Name, "io.kubernetes.pod.name": p.Name,
			"io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID,
		},
		Annotations: map[string]string{"io.kubernetes.container.restartCount": "0"},
		Command:     take(&c.Command), Args: take(&c.Args), WorkingDir: take(&c.WorkingDir),
		Mounts: []*cri.Mount{
			{HostPath: k.Hosts, ContainerPath: "/etc/hosts"},
			{HostPath: k.TerminationLog, ContainerPath: "/dev/termination-log"},
		},
		Linux: &cri.LinuxContainerConfig{Resources: resources(take(&c.Resources))},
	}
	take(&c.Name)
	take(&c.ImagePullPolicy) // the image is there
	for _, e := range take(&c.Env) {
		value, err := k.value(e)
		if err != nil {
			return nil, err
		}
		out.Envs = append(out.Envs, &cri.KeyValue{Key: e.Name, Value: []byte(value)})
	}
	mounts := take(&c.VolumeMounts)
	for i := range mounts {
		m := &mounts[i]
		name := take(&m.Name)
		mount := &cri.Mount{HostPath: volumes[name], ContainerPath: take(&m.MountPath), Readonly: take(&m.ReadOnly)}
		if mount.HostPath == "" {
			return nil, fmt.Errorf("no volume %s", name)
		}
		if mode := take(&m.MountPropagation); mode != nil {
			value, ok := propagation[*mode]
			if !ok {
				return nil, fmt.Errorf("mount propagation %s", *mode)
			}
			mount.Propagation = value
		}
		if err := left(m); err != nil {
			return nil, err
		}
		out.Mounts = append(out.Mounts, mount)
	}
	var err error
	out.Linux.SecurityContext, err = securityContext(take(&c.SecurityContext))
	return out, err
}

var propagation = map[corev1.MountPropagationMode]cri.MountPropagation{
	corev1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	corev1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	corev1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// value resolves references of the downward API.
func (k Kubelet) value(e corev1.EnvVar) (string, error) {
	if e.ValueFrom == nil {
		return e.Value, nil
	}
	from := *e.ValueFrom
	if field := take(&from.FieldRef); field != nil {
		switch field.FieldPath {
		case "spec.nodeName":
			return k.NodeName, left(&from)
		case "status.hostIP":
			return k.NodeIP, left(&from)
		}
	}
	return "", fmt.Errorf("environment %s: its source is not known: %+v", e.Name, e.ValueFrom)
}

// resources returns the limits, and the OOM score of a pod with critical priority: it is killed last.
func resources(r corev1.ResourceRequirements) *cri.LinuxContainerResources {
	out := &cri.LinuxContainerResources{
		CpuShares:          max(2, r.Requests.Cpu().MilliValue()*1024/1000),
		MemoryLimitInBytes: r.Limits.Memory().Value(),
		OomScoreAdj:        -997,
	}
	if limit := r.Limits.Cpu().MilliValue(); limit > 0 {
		out.CpuPeriod, out.CpuQuota = 100_000, limit*100
	}
	return out
}

// Paths in /proc and /sys that the kubelet hides or makes read-only, unless a container is privileged.
var (
	masked = strings.Fields("/proc/asound /proc/acpi /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list " +
		"/proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap")
	readonly = strings.Fields("/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger")
)

func securityContext(s *corev1.SecurityContext) (*cri.LinuxContainerSecurityContext, error) {
	out := &cri.LinuxContainerSecurityContext{
		MaskedPaths: masked, ReadonlyPaths: readonly,
		Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
	} // AppArmor: no profile means the runtime's default
	if s == nil {
		return out, nil
	}
	is := func(b *bool) bool { return b != nil && *b }
	out.Privileged = is(take(&s.Privileged))
	if out.Privileged {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	out.ReadonlyRootfs = is(take(&s.ReadOnlyRootFilesystem))
	if escalate := take(&s.AllowPrivilegeEscalation); escalate != nil {
		out.NoNewPrivs = !*escalate
	}
	if user := take(&s.RunAsUser); user != nil {
		out.RunAsUser = &cri.Int64Value{Value: *user}
	}
	if c := take(&s.Capabilities); c != nil {
		out.Capabilities = &cri.Capability{}
		for _, name := range c.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range c.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(name))
		}
	}
	if p := take(&s.SeccompProfile); p != nil {
		switch p.Type {
		case corev1.SeccompProfileTypeRuntimeDefault:
			out.Seccomp.ProfileType = cri.SecurityProfile_RuntimeDefault
		case corev1.SeccompProfileTypeUnconfined:
		default:
			return nil, fmt.Errorf("seccomp profile %+v", p)
		}
	}
	if p := take(&s.AppArmorProfile); p != nil {
		switch p.Type {
		case corev1.AppArmorProfileTypeUnconfined:
			out.Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
		default:
			return nil, fmt.Errorf("AppArmor profile %+v", p)
		}
	}
	return out, left(s)
}

// resolvePort replaces the name of a probe's port by its number.
func resolvePort(probe *corev1.Probe, ports []corev1.ContainerPort) error {
	if probe == nil || probe.HTTPGet == nil {
		return fmt.Errorf("%+v is not by HTTP", probe)
	}
	if probe.HTTPGet.Port.IntVal != 0 {
		return nil
	}
	for _, port := range ports {
		if port.Name == probe.HTTPGet.Port.StrVal {
			probe.HTTPGet.Port.IntVal = port.ContainerPort
			return nil
		}
	}
	return fmt.Errorf("no port %v", probe.HTTPGet.Port)
}

// logFile is the file to which a translated container writes its output.
func (t *Translation) logFile() string {
	return filepath.Join(t.Sandbox.LogDirectory, t.Container.LogPath)
}
