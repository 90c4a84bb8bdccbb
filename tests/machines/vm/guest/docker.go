// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Docker is a Docker Engine, on a containerd.
type Docker struct {
	server daemon
}

// DockerSocket is where the engine listens.
const DockerSocket = "/run/docker.sock"

// The client's path: a machine may have another client before Debian's in PATH.
const docker = "/usr/bin/docker"

// StartDocker starts the engine on a running containerd, with a driver of cgroups (cgroupfs, systemd), waits until it
// answers and loads Image. Its containers survive a crash of the engine, which finds them again.
func StartDocker(ctx context.Context, driver string) (*Docker, error) {
	if err := mountState("/var/lib/docker"); err != nil {
		return nil, err
	}
	d := &Docker{}
	d.server = daemon{
		name: "dockerd",
		args: []string{
			"--iptables=false", "--bridge=none", "--storage-driver=vfs", "--live-restore", "--containerd=" + Socket,
			"--exec-opt=native.cgroupdriver=" + driver,
		},
		answer: func(ctx context.Context) error { return ping(ctx, DockerSocket) },
	}
	if err := d.server.start(ctx); err != nil {
		return nil, fmt.Errorf("dockerd (Debian package docker.io): %w", err)
	}
	archive := filepath.Join(filepath.Dir(logs), "image.tar")
	if err := WriteImage(archive); err != nil {
		return nil, err
	}
	if _, err := d.Do(ctx, "load", "-i", archive); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Stop ends the engine. Containers continue to run.
func (d *Docker) Stop() error {
	return errors.Join(d.server.end(syscall.SIGTERM), syscall.Unmount("/var/lib/docker", syscall.MNT_DETACH))
}

// Crash kills the engine. Containers continue to run.
func (d *Docker) Crash() error { return d.server.end(syscall.SIGKILL) }

// Start starts the engine again, with its previous state, and waits until it answers.
func (d *Docker) Start(ctx context.Context) error {
	// The engine removes this file when it stops. After a crash it would not start if another process has the PID in
	// the file.
	if err := os.Remove("/run/docker.pid"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return d.server.start(ctx)
}

// Run starts a container of Image with the arguments of `docker run`, flags first, and returns its id. The container
// mounts /usr.
func (d *Docker) Run(ctx context.Context, flags []string, command ...string) (id string, err error) {
	args := []string{
		"run", "--detach", "--security-opt=apparmor=unconfined", "--cap-add=IPC_LOCK", "--entrypoint=", "--volume=/usr:/usr:ro",
		"--volume=/etc/libibverbs.d:/etc/libibverbs.d:ro",
	}
	args = append(append(args, flags...), Image)
	out, err := d.Do(ctx, append(args, command...)...)
	return strings.TrimSpace(out), err
}

// Do runs a command of the client and returns what it printed.
func (d *Docker) Do(ctx context.Context, args ...string) (string, error) {
	return output(ctx, docker, args...)
}

func ping(ctx context.Context, socket string) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/_ping", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// output runs a program and returns its standard output. It kills a program that hangs.
func output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	cmd := child.Command(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
