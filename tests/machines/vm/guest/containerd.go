// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// Socket is where containerd listens.
	Socket = "/run/containerd/containerd.sock"
	// Namespace is the containerd namespace of all containers, as in Kubernetes.
	Namespace = "k8s.io"

	rootfs   = "/run/guest/rootfs"
	logs     = "/run/guest/log"
	networks = "/run/guest/cni"
)

// Container is a container to run. It shares the guest's network, and mounts its /usr and /etc, and Mounts, read-only.
type Container struct {
	ID      string
	Cgroup  string            // path below the cgroup root
	Devices []string          // paths of character devices, as /dev/infiniband/uverbs0
	Labels  map[string]string // of the container in containerd
	Env     []string          // NAME=VALUE
	Mounts  []string          // directories, under the same path inside
	Command []string
}

// PodContainer returns a container with the names and cgroup that the kubelet would set: a pod UID and a container id
// (derived from the names, so each run has the same), the cgroup of a burstable pod, the labels of the CRI.
func PodContainer(namespace, pod, name string, command ...string) Container {
	uid := uid(namespace, pod)
	id := digest(namespace + "/" + pod + "/" + name)
	return Container{
		ID:     id,
		Cgroup: "/kubepods/burstable/pod" + uid + "/" + id,
		Labels: map[string]string{
			"io.cri-containerd.kind":       "container",
			"io.kubernetes.container.name": name,
			"io.kubernetes.pod.name":       pod,
			"io.kubernetes.pod.namespace":  namespace,
			"io.kubernetes.pod.uid":        uid,
		},
		Command: command,
	}
}

// config configures containerd: its CRI plugin finds images and networks in the directories of the guest.
const config = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + Image + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "` + networks + `"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
`

// Containerd is a containerd, with its CRI plugin.
type Containerd struct {
	server daemon
}

// StartContainerd starts containerd and waits until it answers.
func StartContainerd(ctx context.Context) (*Containerd, error) {
	for _, dir := range []string{logs, rootfs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := mountState("/var/lib/containerd"); err != nil {
		return nil, err
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+name, filepath.Join(rootfs, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(rootfs, "tmp"), 0o777); err != nil {
		return nil, err
	}
	const file = "/run/guest/containerd.toml"
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	c := &Containerd{}
	c.server = daemon{name: "containerd", args: []string{"--config", file}, answer: func(ctx context.Context) error {
		_, err := c.Ctr(ctx, "version")
		return err
	}}
	if err := c.server.start(ctx); err != nil {
		return nil, fmt.Errorf("containerd (Debian packages containerd, runc): %w", err)
	}
	return c, nil
}

// Stop ends containerd. Containers continue to run.
func (c *Containerd) Stop() error {
	return errors.Join(c.server.end(syscall.SIGTERM), syscall.Unmount("/var/lib/containerd", syscall.MNT_DETACH))
}

// Crash kills containerd. Containers continue to run.
func (c *Containerd) Crash() error { return c.server.end(syscall.SIGKILL) }

// Start starts containerd again, with its previous state, and waits until it answers.
func (c *Containerd) Start(ctx context.Context) error { return c.server.start(ctx) }

// Run starts a container and returns the process id of its first process.
func (c *Containerd) Run(ctx context.Context, o Container) (pid int, err error) {
	pidFile := filepath.Join(logs, o.ID+".pid")
	args := []string{
		"run", "--detach", "--rootfs", "--net-host", "--cap-add", "CAP_IPC_LOCK", "--cgroup", o.Cgroup,
		"--pid-file", pidFile, "--log-uri", "file://" + filepath.Join(logs, o.ID),
	}
	for _, dir := range append([]string{"/usr", "/etc"}, o.Mounts...) {
		args = append(args, "--mount", "type=bind,src="+dir+",dst="+dir+",options=rbind:ro")
	}
	for _, device := range o.Devices {
		args = append(args, "--device", device)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Labels)) {
		args = append(args, "--label", name+"="+o.Labels[name])
	}
	for _, env := range append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, o.Env...) {
		args = append(args, "--env", env)
	}
	args = append(args, rootfs, o.ID)
	if _, err := c.Ctr(ctx, append(args, o.Command...)...); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// Exec runs a command in a container to its end and returns what it printed.
func (c *Containerd) Exec(ctx context.Context, id string, command ...string) (string, error) {
	// The process id must be unique in its container.
	name := fmt.Sprint("exec-", time.Now().UnixNano())
	return c.Ctr(ctx, append([]string{"task", "exec", "--exec-id", name, id}, command...)...)
}

// Log returns the output of a container.
func (c *Containerd) Log(id string) (string, error) {
	text, err := os.ReadFile(filepath.Join(logs, id))
	return string(text), err
}

// RemoveLog removes the output and PID file of a deleted container from the guest's memory.
func (c *Containerd) RemoveLog(id string) {
	for _, name := range []string{id, id + ".pid"} {
		_ = os.Remove(filepath.Join(logs, name)) // missing if the container did not start
	}
}

// Kill sends a signal to the first process of a container.
func (c *Containerd) Kill(ctx context.Context, id string, signal syscall.Signal) error {
	_, err := c.Ctr(ctx, "task", "kill", "--signal", strconv.Itoa(int(signal)), id)
	return err
}

// Delete kills a running container, and removes it and its cgroup.
func (c *Containerd) Delete(ctx context.Context, id string) error {
	if _, err := c.Ctr(ctx, "task", "delete", "--force", id); err != nil {
		return err
	}
	_, err := c.Ctr(ctx, "container", "delete", id)
	return err
}

// Ctr runs a command of containerd's client in Namespace and returns its output.
func (c *Containerd) Ctr(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "ctr", append([]string{"--address", Socket, "--namespace", Namespace}, args...)...)
}

// uid derives a UID from the name of a pod.
func uid(namespace, pod string) string {
	u := digest(namespace + "/" + pod)
	return strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:32]}, "-")
}

// digest derives 64 hexadecimal digits, the length of a container id, from a name.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}
