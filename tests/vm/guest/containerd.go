// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
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
	// Namespace is the containerd namespace of all containers, the one that Kubernetes uses.
	Namespace = "k8s.io"

	rootfs = "/run/guest/rootfs"
	logs   = "/run/guest/log"
)

// Container is a container to run. It shares the guest's network and sees its /usr, /etc and Mounts read-only.
type Container struct {
	ID      string
	Cgroup  string            // path below the cgroup root
	Devices []string          // paths of character devices, as /dev/infiniband/uverbs0
	Labels  map[string]string // of the container in containerd
	Env     []string          // NAME=VALUE
	Mounts  []string          // directories, under the same path inside
	Command []string
}

// PodContainer returns a container as the kubelet would name and place it: a pod UID and a container id (derived
// from the names, so that they are the same in each run), the cgroup of a burstable pod, the labels of the CRI.
func PodContainer(namespace, pod, name string, command ...string) Container {
	u := digest(namespace + "/" + pod)
	uid := strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:32]}, "-")
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

// Containerd is a running containerd.
type Containerd struct {
	cmd *exec.Cmd
	log *os.File
}

// StartContainerd starts containerd and waits until it answers.
func StartContainerd(ctx context.Context) (*Containerd, error) {
	for _, dir := range []string{logs, rootfs, "/var/lib/containerd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// The guest's root is an overlay already, on which no other overlay can be put.
	if err := syscall.Mount("tmpfs", "/var/lib/containerd", "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("mount tmpfs on /var/lib/containerd: %w", err)
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+name, filepath.Join(rootfs, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(rootfs, "tmp"), 0o777); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(logs, "containerd"))
	if err != nil {
		return nil, err
	}
	c := &Containerd{cmd: exec.Command("containerd"), log: log}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("containerd (Debian packages containerd, runc): %w", err)
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := c.ctr(wait, "version")
		if err == nil {
			return c, nil
		}
		if wait.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("containerd does not answer: %w: %s", err, text), c.Stop())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Stop ends containerd. Containers go on without it, and a new StartContainerd finds them.
func (c *Containerd) Stop() error {
	defer c.log.Close()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	c.cmd.Wait() // its status after a signal says nothing
	return syscall.Unmount("/var/lib/containerd", syscall.MNT_DETACH)
}

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
	if _, err := c.ctr(ctx, append(args, o.Command...)...); err != nil {
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
	// The name of the process must be new in its container.
	name := fmt.Sprint("exec-", time.Now().UnixNano())
	return c.ctr(ctx, append([]string{"task", "exec", "--exec-id", name, id}, command...)...)
}

// Log returns what a container has printed.
func (c *Containerd) Log(id string) (string, error) {
	text, err := os.ReadFile(filepath.Join(logs, id))
	return string(text), err
}

// Kill sends a signal to the first process of a container.
func (c *Containerd) Kill(ctx context.Context, id string, signal syscall.Signal) error {
	_, err := c.ctr(ctx, "task", "kill", "--signal", strconv.Itoa(int(signal)), id)
	return err
}

// Delete kills a container, if it still runs, and removes it and its cgroup.
func (c *Containerd) Delete(ctx context.Context, id string) error {
	if _, err := c.ctr(ctx, "task", "delete", "--force", id); err != nil {
		return err
	}
	_, err := c.ctr(ctx, "container", "delete", id)
	return err
}

func (c *Containerd) ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "ctr", append([]string{"--address", Socket, "--namespace", Namespace}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// digest makes 64 hexadecimal digits, the length of a container id, of a name.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}
