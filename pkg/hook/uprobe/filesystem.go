// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
)

// ErrFileSystem means that a file must not be opened, mapped or probed: its user can delay each of these without limit.
var ErrFileSystem = errors.New("the file system can delay the kernel")

// allowed returns ErrFileSystem for FUSE, whose server may answer late, and for an overlay that a user namespace has
// mounted: its lower directories may be on FUSE, and statfs(2) reports overlayfs. A container's overlay is mounted in
// the first user namespace, also for a container with its own user namespace, but not by rootless runtimes.
func allowed(magic uint64, userNamespace uint32) error {
	switch {
	case magic == unix.FUSE_SUPER_MAGIC:
		return fmt.Errorf("%w: FUSE", ErrFileSystem)
	case magic == unix.OVERLAYFS_SUPER_MAGIC && userNamespace > 0:
		return fmt.Errorf("%w: overlayfs of a user namespace", ErrFileSystem)
	}
	return nil
}

// CheckFile returns ErrFileSystem unless the file may be opened. fd may be opened with O_PATH. It reads the kernel's
// structures, because a system call would ask the file system.
func (g *Gate) CheckFile(fd int) error {
	e := g.eyes
	e.mu.Lock()
	defer e.mu.Unlock()
	known, err := e.object.Program(gen.MappingsProgCheckFile).Run(&ebpf.RunOptions{Context: [1]uint64{uint64(fd)}})
	if err != nil {
		return fmt.Errorf("file system of a file: %w", err)
	}
	var at gen.MappingsLookedAt
	if err := e.object.Coll.Variables[gen.MappingsVarLooked].Get(&at); err != nil {
		return err
	}
	if known == 0 {
		return fmt.Errorf("%w: unknown", ErrFileSystem)
	}
	return allowed(at.Magic, at.UserNs)
}

// open opens a file if the file system cannot delay this. A call that hangs nevertheless keeps one of few threads.
func (g *Gate) open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := g.CheckFile(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.Open(path)
}
