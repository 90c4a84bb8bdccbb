// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxAncestors bounds the walk from a process to its ancestors.
const maxAncestors = 64

// Home opens the topmost ancestor of a process that has the same mount namespace
// (/proc/PID/ns/mnt), which may be the process itself: the first process of its
// container, or of the machine. While it exists, the mounts of the process do.
func (p *Process) Home() (*Process, error) {
	fs, err := procfs.NewFS(p.procfs)
	if err != nil {
		return nil, err
	}
	mounts := func(pid int) (string, error) {
		return os.Readlink(filepath.Join(p.procfs, strconv.Itoa(pid), "ns/mnt"))
	}
	namespace, err := mounts(p.pid)
	if err != nil {
		return nil, err
	}
	home := p.pid
	for range maxAncestors {
		ancestor, err := fs.Proc(home)
		if err != nil {
			return nil, err
		}
		stat, err := ancestor.Stat()
		if err != nil {
			return nil, err
		}
		if other, err := mounts(stat.PPID); stat.PPID == 0 || err != nil || other != namespace {
			break
		}
		home = stat.PPID
	}
	opened, err := OpenProcess(p.procfs, home)
	if err != nil {
		return nil, err
	}
	if other, err := mounts(home); err != nil || other != namespace { // another process has its number
		opened.Close()
		return nil, fmt.Errorf("process %d: %w", home, model.ErrAbsent)
	}
	return opened, nil
}

// PID returns the thread group id.
func (p *Process) PID() int { return p.pid }

// Kept is a provider that is open without a process that maps it.
type Kept struct {
	file    *os.File
	procfs  string
	version version
}

// Keep opens a provider.
func Keep(procfs, path string) (*Kept, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	k := &Kept{file: f, procfs: procfs}
	if k.version, err = k.current(); err != nil {
		f.Close()
		return nil, err
	}
	return k, nil
}

// Path is the path of the file, valid until Close.
func (k *Kept) Path() string { return pathOf(k.procfs, k.file) }

// Changed reports whether the file was written or removed since Keep. The kernel
// would run the instructions of a probed place as they were when it was probed.
func (k *Kept) Changed() bool {
	now, err := k.current()
	return err != nil || now != k.version
}

// Close closes the file.
func (k *Kept) Close() { k.file.Close() }

func (k *Kept) current() (version, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(k.file.Fd()), &st); err != nil {
		return version{}, err
	}
	return versionOf(&st), nil
}
