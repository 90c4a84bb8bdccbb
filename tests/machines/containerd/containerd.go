// SPDX-License-Identifier: Apache-2.0

// Package containerd runs a separate real containerd on this machine, for tests that need containers without processes.
// (Processes need a guest.)
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Namespace is the containerd namespace of Kubernetes, to which all containers belong.
const Namespace = "k8s.io"

// Daemon is a running containerd.
type Daemon struct {
	Socket string

	dir    string
	cmd    *exec.Cmd
	client containers.ContainersClient
	conn   *grpc.ClientConn
}

// Start starts a containerd with its files in dir. The path must be short: it contains a socket. Started again with the
// same dir, it has its previous containers.
func Start(ctx context.Context, dir string) (*Daemon, error) {
	d := &Daemon{Socket: filepath.Join(dir, "containerd.sock"), dir: dir}
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.Socket, d.Socket+".ttrpc")
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = child.Command(context.Background(), "containerd", "--config", file)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("containerd (Debian package containerd): %w", err)
	}
	if d.conn, err = grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, errors.Join(err, d.Kill())
	}
	d.client = containers.NewContainersClient(d.conn)
	wait, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	_, err = namespaces.NewNamespacesClient(d.conn).Create(wait,
		&namespaces.CreateNamespaceRequest{Namespace: &namespaces.Namespace{Name: Namespace}}, grpc.WaitForReady(true))
	if err != nil && wait.Err() != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("containerd does not answer: %w\n%s", err, text), d.Kill())
	}
	return d, nil // the namespace may exist from a previous start
}

// Create creates a container without a process, with the name, labels and cgroup that the CRI would set.
func (d *Daemon) Create(ctx context.Context, id, namespace, pod, uid, name string) error {
	_, err := d.client.Create(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", Namespace),
		&containers.CreateContainerRequest{Container: &containers.Container{
			ID:    id,
			Image: "registry.example/train:1",
			Labels: map[string]string{
				"io.cri-containerd.kind":       "container",
				"io.kubernetes.container.name": name,
				"io.kubernetes.pod.name":       pod,
				"io.kubernetes.pod.namespace":  namespace,
				"io.kubernetes.pod.uid":        uid,
			},
			Runtime: &containers.Container_Runtime{Name: "io.containerd.runc.v2"},
			Spec: &anypb.Any{
				TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec",
				Value: fmt.Appendf(nil, `{"ociVersion":"1.0.2","linux":{"cgroupsPath":"/kubepods/burstable/pod%s/%s",`+
					`"devices":[{"path":"/dev/infiniband/uverbs0","type":"c"}]}}`, uid, id),
			},
		}})
	return err
}

// Delete removes a container.
func (d *Daemon) Delete(ctx context.Context, id string) error {
	_, err := d.client.Delete(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", Namespace),
		&containers.DeleteContainerRequest{ID: id})
	return err
}

// Kill ends the daemon with SIGKILL.
func (d *Daemon) Kill() error {
	if d.conn != nil {
		_ = d.conn.Close() // the daemon is about to end
	}
	err := d.cmd.Process.Kill()
	_ = d.cmd.Wait() // the exit status after a signal does not matter
	return err
}
