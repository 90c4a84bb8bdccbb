// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// staleSuffix marks the path of a removed cgroup in /proc/PID/cgroup.
const staleSuffix = " (deleted)"

// CgroupOf returns the cgroup id of a process or thread, from /proc/PID/cgroup. It returns fs.ErrNotExist if the
// process ended or is outside the mounted tree.
func (s *Source) CgroupOf(pid int) (model.CgroupID, error) {
	path, err := s.pathOf(pid)
	if err != nil {
		return 0, err
	}
	id, err := cgroupID(s.hierarchy.Mount + path)
	if path, deleted := strings.CutSuffix(path, staleSuffix); err != nil && deleted {
		s.mu.Lock()
		defer s.mu.Unlock()
		if id, ok := s.table.lastAt(path); ok {
			return id, nil
		}
	}
	return id, err
}

// pathOf returns the path below the mount of the cgroup of a process, with the suffix of a removed cgroup.
func (s *Source) pathOf(pid int) (string, error) {
	b, err := boundedfile.ReadFile(filepath.Join(s.opt.Procfs, strconv.Itoa(pid), "cgroup"), make([]byte, 512), maxProcCgroup)
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return "", fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	line, ok := procCgroup(b, s.hierarchy.Controller)
	if !ok {
		return "", fmt.Errorf("cgroup of process %d: not in /proc/PID/cgroup: %w", pid, fs.ErrNotExist)
	}
	path, err := s.table.view.below(line)
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	return path, nil
}

// OfContainer returns the path below the root of the hierarchy of a container's cgroup: the cgroup of its first
// process, or the given path if pid is 0. It returns "" if the path alone names the container, or if the path is
// unknown. It returns false if the container has no cgroup of its own, or if the cgroup belongs to a job, unit, guest
// or container above it.
func (s *Source) OfContainer(pid int, id, path string) (cgroup string, own bool) {
	if pid > 0 {
		if at, err := s.pathOf(pid); err == nil {
			if path = cmp.Or(ownCgroup(s.table.view.full(at), id), path); path == "" {
				return "", false
			}
		}
	}
	if path == "" {
		return "", true
	}
	switch e, top, _ := parse(path); {
	case e.ContainerID == id && !e.Claimed:
		return "", true
	case top != path, !isID(id) && !strings.HasPrefix(e.Workload, "cgroup:"):
		return "", false
	}
	return clean(path, maxPath), true
}

// ownCgroup returns the outermost part of a path that has the name of a container: its first process may have made
// cgroups below with any name. It returns "" if the process belongs to something else, because process ids are reused,
// or if the container has no cgroup of its own.
func ownCgroup(path, id string) string {
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		name := strings.TrimSuffix(path[strings.LastIndexByte(path[:end], '/')+1:end], ".scope")
		if rest, ok := strings.CutSuffix(name, id); ok && (rest == "" || strings.HasSuffix(rest, "-") || strings.HasSuffix(rest, ":")) {
			return path[:end]
		}
	}
	return ""
}
