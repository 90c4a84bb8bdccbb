// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// network is the network of pods: a bridge, on which the guest is 10.88.0.1.
const network = `{
  "cniVersion": "1.0.0", "name": "guest", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}`

// CRI creates pods like the kubelet, through the CRI of a containerd.
type CRI struct {
	Runtime cri.RuntimeServiceClient
	conn    *grpc.ClientConn
}

// Pod is a pod to run. Its UID is derived from its name and namespace.
type Pod struct {
	Namespace, Name     string
	Labels, Annotations map[string]string
	HostNetwork         bool

	UID string
	ID  string // id of its sandbox
}

// PodMember is a container of a pod to run.
type PodMember struct {
	Name     string
	Restarts uint32
	Devices  []string // paths of character devices
	Mounts   []string // directories, read-only, under the same path inside
	Command  []string
	User     int64 // 0 is root
	Memory   int64 // limit in bytes
	CPU      int64 // limit in thousandths of a CPU
}

// StartCRI loads Image into containerd and connects to its CRI.
func (c *Containerd) StartCRI(ctx context.Context) (*CRI, error) {
	if err := os.MkdirAll(networks, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(networks, "guest.conflist"), []byte(network), 0o644); err != nil {
		return nil, err
	}
	archive := filepath.Join(filepath.Dir(logs), "image.tar")
	if err := WriteImage(archive); err != nil {
		return nil, err
	}
	if _, err := c.Ctr(ctx, "images", "import", archive); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithUnaryInterceptor(limited))
	if err != nil {
		return nil, err
	}
	images := cri.NewImageServiceClient(conn)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		// The plugin learns of the image by an event.
		res, err := images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: Image}})
		if err == nil && res.GetImage() != nil {
			return &CRI{Runtime: cri.NewRuntimeServiceClient(conn), conn: conn}, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the CRI does not know %s: %w", Image, err)
		}
	}
}

// Close closes the connection.
func (c *CRI) Close() error { return c.conn.Close() }

// RunPod creates the sandbox of a pod and sets its UID and ID.
func (c *CRI) RunPod(ctx context.Context, p *Pod) error {
	p.UID = uid(p.Namespace, p.Name)
	res, err := c.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config()})
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	p.ID = res.GetPodSandboxId()
	return nil
}

func (p *Pod) config() *cri.PodSandboxConfig {
	network := cri.NamespaceMode_POD
	if p.HostNetwork {
		network = cri.NamespaceMode_NODE
	}
	labels := map[string]string{
		"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID,
	}
	maps.Copy(labels, p.Labels)
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	maps.Copy(annotations, p.Annotations)
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID},
		Labels:   labels, Annotations: annotations,
		LogDirectory: filepath.Join(logs, p.UID),
		DnsConfig:    &cri.DNSConfig{Servers: []string{"10.88.0.1"}},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/burstable/pod" + p.UID,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: network},
			},
		},
	}
}

// Run starts a container in a pod and returns its id.
func (c *CRI) Run(ctx context.Context, p *Pod, m PodMember) (id string, err error) {
	id, err = c.Create(ctx, p, m)
	if err != nil {
		return "", err
	}
	return id, c.Start(ctx, id)
}

// Start starts a created container.
func (c *CRI) Start(ctx context.Context, id string) error {
	_, err := c.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("start %.12s: %w", id, err)
	}
	return nil
}

// Create creates a container in a pod without starting it.
func (c *CRI) Create(ctx context.Context, p *Pod, m PodMember) (id string, err error) {
	o := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: m.Name, Attempt: m.Restarts},
		Image:    &cri.ImageSpec{Image: Image},
		Command:  m.Command,
		LogPath:  fmt.Sprintf("%s_%d.log", m.Name, m.Restarts),
		Labels: map[string]string{
			"io.kubernetes.container.name": m.Name, "io.kubernetes.pod.name": p.Name,
			"io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID,
		},
		Annotations: map[string]string{
			"io.kubernetes.container.hash":         digest(m.Name)[:8],
			"io.kubernetes.container.restartCount": strconv.FormatUint(uint64(m.Restarts), 10),
		},
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: m.Memory},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				Capabilities: &cri.Capability{AddCapabilities: []string{"IPC_LOCK"}}, RunAsUser: &cri.Int64Value{Value: m.User},
			},
		},
	}
	if m.CPU != 0 {
		o.Linux.Resources.CpuPeriod, o.Linux.Resources.CpuQuota = 100_000, m.CPU*100
	}
	for _, dir := range append([]string{"/usr", "/etc/libibverbs.d"}, m.Mounts...) {
		o.Mounts = append(o.Mounts, &cri.Mount{HostPath: dir, ContainerPath: dir, Readonly: true})
	}
	for _, device := range m.Devices {
		o.Devices = append(o.Devices, &cri.Device{HostPath: device, ContainerPath: device, Permissions: "rw"})
	}
	res, err := c.Runtime.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: o, SandboxConfig: p.config()})
	if err != nil {
		return "", fmt.Errorf("create %s of %s/%s: %w", m.Name, p.Namespace, p.Name, err)
	}
	return res.GetContainerId(), nil
}

// Exec runs a command in a container to its end and returns what it printed.
func (c *CRI) Exec(ctx context.Context, id string, command ...string) (string, error) {
	res, err := c.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 80})
	if err != nil {
		return "", err
	}
	if res.GetExitCode() != 0 {
		return string(res.GetStdout()), fmt.Errorf("%v: exit status %d: %s", command, res.GetExitCode(), res.GetStderr())
	}
	return string(res.GetStdout()), nil
}

// Stop ends a container: SIGTERM, and SIGKILL after the grace time in seconds.
func (c *CRI) Stop(ctx context.Context, id string, grace int64) error {
	_, err := c.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: grace})
	return err
}

// Remove removes a container. A running container is killed.
func (c *CRI) Remove(ctx context.Context, id string) error {
	_, err := c.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return err
}

// RemovePod stops and removes a pod with all of its containers.
func (c *CRI) RemovePod(ctx context.Context, p *Pod) error {
	if _, err := c.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return err
	}
	_, err := c.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID})
	return err
}

// Pods returns the ids of the sandboxes of a namespace, by the names of their pods.
func (c *CRI) Pods(ctx context.Context, namespace string) (map[string]string, error) {
	res, err := c.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for _, p := range res.GetItems() {
		if p.GetMetadata().GetNamespace() == namespace {
			ids[p.GetMetadata().GetName()] = p.GetId()
		}
	}
	return ids, nil
}

// PID returns the PID of the first process of a container.
func (c *CRI) PID(ctx context.Context, id string) (int, error) {
	res, err := c.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(res.GetInfo()["info"]), &info); err != nil {
		return 0, err
	}
	return info.PID, nil
}

// Wait waits for the end of a container and returns its exit code.
func (c *CRI) Wait(ctx context.Context, id string) (uint32, error) {
	for {
		res, err := c.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return 0, err
		}
		if s := res.GetStatus(); s.GetState() == cri.ContainerState_CONTAINER_EXITED {
			return uint32(s.GetExitCode()), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// limited returns a context with a deadline, so that a call cannot hang.
func limited(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption,
) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, o...)
}
