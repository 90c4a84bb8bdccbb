// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/mountinfo"
)

// Mount points and file systems that node_exporter leaves out by default.
var (
	notMountPoints = regexp.MustCompile(
		`^/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)`)
	notFilesystems = strings.Fields("autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs fusectl " +
		"hugetlbfs iso9660 mqueue nsfs overlay proc procfs pstore rpc_pipefs securityfs selinuxfs squashfs erofs sysfs tracefs")
)

const maxMounts = 4096

// mountReader calls statfs for each mount point of the node.
type mountReader struct {
	reader
	procfs, root string
	statfs       func(path string, st *unix.Statfs_t) error // path is the node's path

	raw     []byte // last mountinfo that was parsed
	mounts  []mount
	parsed  int                 // parsed lines of raw
	skipped boundedfile.Skipped // skipped lines of raw
	// Calls for the mount points of a device or server, which is the key: if a call hangs, no other call is made.
	local, remote hang.Group[string, struct{}]
}

type mount struct {
	model.Filesystem // without values
	path             string
	answering        string // the device or server that answers statfs
	isRemote         bool
}

func newMountReader(procfs, root string) *mountReader {
	root = filepath.Clean(root)
	return &mountReader{
		procfs: procfs, root: root,
		statfs: statfsBelow(root),
		local:  hang.Group[string, struct{}]{Limit: hang.MaxHanging / 2},
		remote: hang.Group[string, struct{}]{Limit: hang.MaxHanging / 2},
	}
}

func (m *mountReader) read(_ time.Time, n *reading) error {
	skipped := n.skipped.In("mountinfo")
	b, err := m.file(m.procfs + "/1/mountinfo")
	if err != nil { // the first process's file is not readable
		b, err = m.file(m.procfs + "/self/mountinfo")
	}
	if err != nil {
		return err
	}
	if m.mounts == nil || !bytes.Equal(b, m.raw) {
		m.parse(b)
		m.raw = append(m.raw[:0], b...)
	}
	*skipped = m.skipped
	if err := unparsed("mountinfo", m.parsed, skipped); err != nil {
		return err
	}
	n.Filesystems = m.statfsAll()
	return nil
}

func (m *mountReader) parse(b []byte) {
	m.mounts, m.parsed, m.skipped = []mount{}, 0, boundedfile.Skipped{}
	seen := map[[3]string]bool{}
	for len(b) > 0 && len(m.mounts) < maxMounts {
		var line []byte
		line, b = cutLine(b)
		f, ok := parseMount(line)
		if !ok {
			m.skipped.Add(line)
			continue
		}
		m.parsed++
		f.MountPoint = belowRoot(f.MountPoint, m.root)
		if slices.Contains(notFilesystems, f.Type) || notMountPoints.MatchString(f.MountPoint) {
			continue
		}
		path := f.MountPoint
		answering, isRemote := answeringOf(&f)
		f.Device, f.MountPoint, f.Type = clean(f.Device), clean(f.MountPoint), clean(f.Type)
		key := [3]string{f.Device, f.MountPoint, f.Type}
		if seen[key] { // mounted twice: only the first is listed
			continue
		}
		seen[key] = true
		m.mounts = append(m.mounts, mount{f, path, answering, isRemote})
	}
}

// belowRoot returns the path of a mount point on the node, if the root of the node is mounted at root.
func belowRoot(path, root string) string {
	rest, ok := strings.CutPrefix(path, root)
	switch {
	case root == "/" || !ok:
		return path
	case rest == "":
		return "/"
	case rest[0] != '/':
		return path
	}
	return rest
}

func parseMount(line []byte) (model.Filesystem, bool) {
	m, ok := mountinfo.Parse(string(line))
	readOnly := false
	for option := range strings.SplitSeq(m.Options+","+m.SuperOptions, ",") {
		readOnly = readOnly || option == "ro" || option == "emergency_ro"
	}
	return model.Filesystem{
		Device: m.Source, MountPoint: m.Point, Type: m.Type, Major: m.Major, Minor: m.Minor, ReadOnly: readOnly,
	}, ok
}

func fill(f *model.Filesystem, st *unix.Statfs_t, err error) {
	switch {
	case errors.Is(err, hang.ErrStuck):
		f.Error = errHangs.Error()
	case err != nil:
		f.Error = err.Error()
	default:
		size := float64(st.Frsize) // the unit of the blocks; Bsize is the unit of I/O
		if st.Frsize <= 0 {        // as in the C library
			size = float64(st.Bsize)
		}
		f.Size, f.Free, f.Available = float64(st.Blocks)*size, float64(st.Bfree)*size, float64(st.Bavail)*size
		f.FileNodes, f.FreeNodes = float64(st.Files), float64(st.Ffree)
	}
}
