// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// PodmanSocket is where the API service of podman listens.
const PodmanSocket = "/run/podman/podman.sock"

// Podman is a podman with its API service; it has no other server.
type Podman struct {
	server daemon
}

// StartPodman loads Image and starts the API service.
func StartPodman(ctx context.Context) (*Podman, error) {
	if err := mountState("/var/lib/containers"); err != nil {
		return nil, err
	}
	archive := filepath.Join(filepath.Dir(logs), "image.tar")
	if err := WriteImage(archive); err != nil {
		return nil, err
	}
	p := &Podman{}
	if _, err := p.Do(ctx, "load", "-i", archive); err != nil {
		return nil, fmt.Errorf("podman (Debian packages podman, conmon): %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(PodmanSocket), 0o755); err != nil {
		return nil, err
	}
	p.server = daemon{
		name: "podman", args: append(podmanFlags(), "system", "service", "--time=0", "unix://"+PodmanSocket),
		answer: func(ctx context.Context) error { return ping(ctx, PodmanSocket) },
	}
	return p, p.server.start(ctx)
}

func podmanFlags() []string {
	return []string{"--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file"}
}

// Stop ends the API service. Containers continue without it.
func (p *Podman) Stop() error {
	return errors.Join(p.server.end(syscall.SIGTERM), syscall.Unmount("/var/lib/containers", syscall.MNT_DETACH))
}

// Run starts a container of Image with the flags of `podman run` and returns its id. The container mounts /usr.
func (p *Podman) Run(ctx context.Context, flags []string, command ...string) (id string, err error) {
	args := []string{
		"run", "--detach", "--cap-add=IPC_LOCK", "--entrypoint=[]", "--volume=/usr:/usr:ro",
		"--volume=/etc/libibverbs.d:/etc/libibverbs.d:ro",
	}
	args = append(append(args, flags...), Image)
	out, err := p.Do(ctx, append(args, command...)...)
	return strings.TrimSpace(out), err
}

// Do runs a command of podman and returns its output.
func (p *Podman) Do(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "podman", append(podmanFlags(), args...)...)
}
