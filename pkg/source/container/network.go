// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Namespaces returns the network namespaces of the workloads at the last Read. The caller must not change the contents
// of its slices.
func (s *Source) Namespaces() []model.Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.namespaces)
}

// readNamespaces reads the namespaces of the processes of groups, each once. tooMany is the number of interfaces beyond
// the limit. If the node's namespace is unknown, it returns no namespaces: the node's traffic must not be reported as a
// pod's.
func (s *Source) readNamespaces(groups []group, skipped *boundedfile.SkippedFiles) (spaces []model.Namespace, tooMany uint64, err error) {
	spaces = []model.Namespace{}
	host, err := s.hostNamespace()
	if err != nil {
		return spaces, 0, fmt.Errorf("network namespace of the node (share the host's process namespace): %w", err)
	}
	seen := map[uint64]bool{}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	for i := range groups {
		g := &groups[i]
		if g.gone || g.known.pid == 0 {
			continue
		}
		if !g.there {
			var gone error
			if g.known.inode, gone = s.namespaceOf(g.known.pid); gone != nil {
				continue // a process may end at any time
			}
		}
		inode := g.known.inode
		if seen[inode] {
			continue
		}
		n := model.Namespace{Inode: inode, PID: g.known.pid, Cgroup: g.id, Host: inode == host}
		if !n.Host && g.wanted {
			b := r.net(s.opt.Procfs, n.PID)
			// The process may have ended, and another process may have its pid.
			if now, gone := s.namespaceOf(n.PID); gone != nil || now != inode || b == nil {
				continue
			}
			var more uint64
			n.Interfaces, more = parseNetDev(b, skipped.In("net/dev"))
			tooMany += more
		}
		seen[inode] = true
		spaces = append(spaces, n)
	}
	return spaces, tooMany, err
}

// hostNamespace returns the namespace of the node's first process, or of the first kernel thread if the first process
// has more capabilities and may not be inspected.
func (s *Source) hostNamespace() (uint64, error) {
	inode, err := s.namespaceOf(1)
	if !errors.Is(err, fs.ErrPermission) {
		return inode, err
	}
	if comm, _ := boundedfile.ReadOnce(filepath.Join(s.opt.Procfs, "2/comm"), make([]byte, 16)); string(comm) != "kthreadd\n" {
		return 0, err
	}
	return s.namespaceOf(2)
}

func (s *Source) namespaceOf(pid int) (uint64, error) {
	var st unix.Stat_t
	file := filepath.Join(s.opt.Procfs, strconv.Itoa(pid), "ns/net")
	if _, err := boundedfile.Retry(func() (int, error) { return 0, unix.Stat(file, &st) }); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	return st.Ino, nil
}

// net reads /proc/PID/net/dev, the interfaces of that process's namespace. The file is cut at the size of the buffer,
// after a whole line.
func (r *reader) net(procfs string, pid int) []byte {
	b := r.file(unix.AT_FDCWD, filepath.Join(procfs, strconv.Itoa(pid), "net/dev"))
	if len(b) == len(r.buf) {
		b = b[:bytes.LastIndexByte(b, '\n')+1]
	}
	return b
}
