// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/mountinfo"
	"github.com/accelscope/accelscope/pkg/source/cgroup/slurm"
)

// Mode is the way in which cgroups are mounted on a node.
type Mode string

// The modes. Hybrid is version 1 with an additional version 2 tree.
const (
	V1     Mode = "v1"
	V2     Mode = "v2"
	Hybrid Mode = "hybrid"
)

// Hierarchy is the cgroup tree that identifies workloads. The kernel programs must take their cgroup ids from the same
// tree.
type Hierarchy struct {
	Mode  Mode
	Mount string
	// Controller is the v1 controller of the tree, or "" for cgroup v2.
	Controller string
}

// controllers are the v1 controllers whose cgroups can identify a workload, best first. Runtimes always use them, and
// the kernel's enumeration has the same names (NAME_cgrp_id).
var controllers = []string{"memory", "pids", "devices", "cpu", "cpuacct", "cpuset", "freezer"}

// findHierarchy selects the tree below root, usually /sys/fs/cgroup, in this order: root itself if it is cgroup v2; the
// version 1 controller with the jobs of Slurm; the v2 tree beside the controllers if it has the memory controller; the
// first mounted controller; the v2 tree. It returns ErrAbsent if no tree exists.
//
// containerd/cgroups.Mode (v3.1.3) is not sufficient: it has no parameter for root (a container may have the host's
// tree elsewhere), caches its result, selects no tree and reports Legacy if nothing is mounted. TestLibraryMode
// compares the modes.
func findHierarchy(root string) (Hierarchy, error) {
	if isV2(root) {
		return Hierarchy{Mode: V2, Mount: root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Hierarchy{}, fmt.Errorf("cgroup root: %w", err)
	}
	v1, v2 := "", ""
	mounts := map[string]string{}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		switch {
		case isV2(dir):
			v2 = dir
		case isV1(dir):
			for c := range strings.SplitSeq(e.Name(), ",") {
				mounts[c] = dir
			}
		}
	}
	var all []slurm.Hierarchy
	for _, c := range controllers {
		if mounts[c] != "" {
			all = append(all, slurm.Hierarchy{Controller: c, Mount: mounts[c]})
			v1 = cmp.Or(v1, c)
		}
	}
	jobs := slurm.Followed(all).Controller
	v1 = cmp.Or(jobs, v1)
	switch {
	case v2 != "" && jobs == "" && (v1 == "" || v1 != "memory" && hasWord(filepath.Join(v2, "cgroup.controllers"), "memory")):
		return Hierarchy{Mode: Hybrid, Mount: v2}, nil
	case v1 == "":
		return Hierarchy{}, fmt.Errorf("no cgroup hierarchy is mounted below %s: %w", root, model.ErrAbsent)
	case v2 != "":
		return Hierarchy{Mode: Hybrid, Mount: mounts[v1], Controller: v1}, nil
	}
	return Hierarchy{Mode: V1, Mount: mounts[v1], Controller: v1}, nil
}

// isV2 and isV1 also accept a directory with the files of a hierarchy, so that a copy of a tree can be read.
func isV2(dir string) bool {
	return isFS(dir, unix.CGROUP2_SUPER_MAGIC) || exists(filepath.Join(dir, "cgroup.controllers"))
}

func isV1(dir string) bool {
	return isFS(dir, unix.CGROUP_SUPER_MAGIC) || exists(filepath.Join(dir, "release_agent"))
}

func isFS(dir string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == magic
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// maxControllers is more than the names of all controllers take.
const maxControllers = 4 << 10

func hasWord(file, word string) bool {
	b, _ := boundedfile.ReadFile(file, nil, maxControllers)
	return slices.Contains(strings.Fields(string(b)), word)
}

// cgroupID returns the kernel's id of the cgroup at dir: its inode number, which bpf_get_current_cgroup_id returns on
// v2.
func cgroupID(dir string) (model.CgroupID, error) {
	st, err := boundedfile.Retry(func() (st unix.Stat_t, err error) {
		err = unix.Lstat(dir, &st)
		return st, err
	})
	if err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: unix.ENOTDIR}
	}
	return model.CgroupID(st.Ino), nil
}

type subdir struct {
	name string
	id   model.CgroupID
}

// subdirs lists the directories in dir with getdents64. Their inode numbers are the ids of cgroups, so no lookup by
// name is needed.
func subdirs(dir string) ([]subdir, error) {
	fd, err := boundedfile.Open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var out []subdir
	buf := make([]byte, 8<<10)
	for {
		n, err := boundedfile.Retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return out, &fs.PathError{Op: "getdents64", Path: dir, Err: err}
		}
		if n <= 0 {
			return out, nil
		}
		for e := range boundedfile.Entries(buf[:n]) {
			if name := string(e.Name); e.Type == unix.DT_DIR && name != "." && name != ".." {
				out = append(out, subdir{name, model.CgroupID(e.Inode)})
			}
		}
	}
}

// maxProcCgroup is more than /proc/PID/cgroup has: a line of up to a page per controller of version 1. maxMountinfo has
// room for 4,000 mounts of a page each.
const (
	maxProcCgroup = 64 << 10
	maxMountinfo  = 16 << 20
)

// procCgroup returns the path in the line of /proc/PID/cgroup for the controller ("" for cgroup v2). Lines are
// ID:CONTROLLERS:PATH. A path may contain colons, but no newline. The kernel appends " (deleted)" if the process has
// outlived its cgroup; a cgroup may also have this name.
//
// It runs for each process of a scrape. ParseCgroupFileUnified of containerd/cgroups (v3.1.3) makes a map of all
// hierarchies and fails on a line that it does not understand.
func procCgroup(b []byte, controller string) (path string, ok bool) {
	for line := range bytes.Lines(b) {
		part := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(part) != 3 || !strings.HasPrefix(part[2], "/") {
			continue
		}
		if controller == "" && part[0] == "0" && part[1] == "" ||
			controller != "" && slices.Contains(strings.Split(part[1], ","), controller) {
			return part[2], true
		}
	}
	return "", false
}

// A mountView translates three kinds of paths: in /proc/PID/cgroup, relative to our cgroup namespace; below the mount;
// and in the hierarchy as far as we see it. On most nodes the three are the same.
type mountView struct {
	root string // the mounted directory of the hierarchy, seen from our namespace
	ours string // our namespace's root below the mount, if the mount belongs to an outer namespace
	// blind is the reason why most of the node's processes are in cgroups that we do not see, or nil.
	blind error
}

var errOwnPart = errors.New("the sensor is in a private cgroup namespace, and /sys/fs/cgroup shows only the cgroups of this namespace: " +
	"mount the host's /sys, or share its cgroup namespace (privileged)")

// newMountView reads PROC/self/mountinfo. If our namespace's root lies below the mount's, as in an unprivileged pod on
// cgroup v2, it searches the tree once for our own process, because no file has this path.
func newMountView(procfs string, h Hierarchy) mountView {
	b, err := boundedfile.ReadFile(filepath.Join(procfs, "self/mountinfo"), nil, maxMountinfo)
	if err != nil {
		return mountView{root: "/"}
	}
	v := mountView{root: mountRoot(b, h.Mount)}
	if !isOuter(v.root) {
		b, _ = boundedfile.ReadFile(filepath.Join(procfs, "1/cgroup"), nil, maxProcCgroup)
		if first, ok := procCgroup(b, h.Controller); ok && isOuter(first) {
			v.blind = errOwnPart
		}
		return v
	}
	b, _ = boundedfile.ReadFile(filepath.Join(procfs, "self/cgroup"), nil, maxProcCgroup)
	own, _ := procCgroup(b, h.Controller)
	at := findSelf(h.Mount)
	if at == "" {
		v.blind = fmt.Errorf("private cgroup namespace: the sensor's cgroup was not found below %s: %w", h.Mount, fs.ErrNotExist)
		return v
	}
	v.ours = strings.TrimSuffix(at, strings.TrimSuffix(own, "/"))
	v.ours = cmp.Or(v.ours, "/")
	return v
}

func isOuter(path string) bool { return path == "/.." || strings.HasPrefix(path, "/../") }

// mountRoot returns the root of the last mount at mount, or "/" without a mount.
func mountRoot(mounts []byte, mount string) string {
	root := "/"
	for line := range strings.Lines(string(mounts)) {
		if m, ok := mountinfo.Parse(line); ok && m.Point == filepath.Clean(mount) {
			root = m.Root
		}
	}
	return root
}

// findSelf returns the cgroup below mount whose cgroup.procs has our process, or "".
func findSelf(mount string) string {
	self, found := strconv.Itoa(os.Getpid()), ""
	_ = filepath.WalkDir(mount, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && hasWord(filepath.Join(path, "cgroup.procs"), self) {
			found = cmp.Or(strings.TrimPrefix(path, filepath.Clean(mount)), "/")
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// below returns the path below the mount for a path of /proc/PID/cgroup.
func (v mountView) below(path string) (string, error) {
	switch {
	case v.ours != "":
		return filepath.Join(v.ours, path), nil
	case isOuter(path):
	case v.root == "/" || path == v.root:
		return "/" + strings.TrimPrefix(path[len(v.root):], "/"), nil
	case strings.HasPrefix(path, v.root+"/"):
		return path[len(v.root):], nil
	}
	return "", fmt.Errorf("cgroup %q is not below the mounted %q: share the host's cgroup namespace: %w",
		path, v.root, fs.ErrNotExist)
}

// full returns the hierarchy's own path for a path below the mount.
func (v mountView) full(path string) string {
	if v.ours != "" || v.root == "/" {
		return path
	}
	return strings.TrimSuffix(v.root+path, "/")
}

// fileidKernfs is FILEID_KERNFS of include/linux/exportfs.h: a file handle that is the 64-bit id of a kernfs node.
const fileidKernfs = 0xfe

// pathByID asks the kernel for the path below the mount of a live cgroup. It returns ESTALE if the cgroup does not
// exist. It needs CAP_DAC_READ_SEARCH.
func pathByID(mount *os.File, procfs string, id model.CgroupID) (string, error) {
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, uint64(id)))
	fd, err := unix.OpenByHandleAt(int(mount.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("open cgroup %d by handle: %w", id, err)
	}
	defer unix.Close(fd)
	dir, err := os.Readlink(filepath.Join(procfs, "self/fd", strconv.Itoa(fd)))
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(dir, mount.Name())
	if !ok || path != "" && path[0] != '/' {
		return "", fmt.Errorf("cgroup %d is at %q, not below %s: %w", id, dir, mount.Name(), fs.ErrNotExist)
	}
	if got, err := cgroupID(dir); err != nil || got != id {
		return "", fmt.Errorf("cgroup %d is no longer at %q: %w", id, dir, unix.ESTALE)
	}
	return cmp.Or(path, "/"), nil
}
