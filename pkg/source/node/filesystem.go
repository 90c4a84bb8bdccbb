// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// What node_exporter leaves out unless told otherwise.
var (
	notMountPoints = regexp.MustCompile(
		`^/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)`)
	notFilesystems = func() map[string]bool {
		set := map[string]bool{}
		for name := range strings.FieldsSeq("autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs " +
			"fusectl hugetlbfs iso9660 mqueue nsfs overlay proc procfs pstore rpc_pipefs securityfs selinuxfs squashfs " +
			"erofs sysfs tracefs") {
			set[name] = true
		}
		return set
	}()
)

// The most mount points that are shown, and that are asked at the same time,
// those that hang included.
const (
	maxMounts  = 4096
	maxAskings = 256
)

// mountReader asks the kernel about each mount point of the node.
type mountReader struct {
	reader
	procfs, root string
	statfs       func(path string, st *unix.Statfs_t) error

	raw    []byte // mountinfo, as it was parsed last
	mounts []*mount
	askers chan struct{}
}

// mount is a mount point; it is asked by no more than one goroutine.
type mount struct {
	model.Filesystem // without figures
	path             string
	asked            atomic.Bool
}

// reply is what one mount point answered.
type reply struct {
	index int
	st    unix.Statfs_t
	err   error
}

func newMountReader(procfs, root string) *mountReader {
	return &mountReader{
		procfs: procfs, root: filepath.Clean(root),
		statfs: unix.Statfs, askers: make(chan struct{}, maxAskings),
	}
}

func (m *mountReader) read(_ time.Time, n *model.Node) error {
	b, err := m.file(m.procfs + "/1/mountinfo")
	if err != nil { // that of the first process is hidden
		b, err = m.file(m.procfs + "/self/mountinfo")
	}
	if err != nil {
		return err
	}
	if m.mounts == nil || !bytes.Equal(b, m.raw) {
		if err := m.parse(b); err != nil {
			return err
		}
		m.raw = append(m.raw[:0], b...)
	}
	n.Filesystems = m.ask()
	return nil
}

// parse keeps the mounts that are still there, so that one that hangs is not
// asked again.
func (m *mountReader) parse(b []byte) error {
	old := make(map[model.Filesystem]*mount, len(m.mounts))
	for _, k := range m.mounts {
		old[k.Filesystem] = k
	}
	m.mounts = []*mount{}
	seen := map[[3]string]bool{}
	for len(b) > 0 && len(m.mounts) < maxMounts {
		var line []byte
		line, b = cutLine(b)
		f, err := parseMount(line)
		if err != nil {
			return err
		}
		f.MountPoint = belowRoot(f.MountPoint, m.root)
		if notFilesystems[f.Type] || notMountPoints.MatchString(f.MountPoint) {
			continue
		}
		path := filepath.Join(m.root, f.MountPoint)
		f.Device, f.MountPoint, f.Type = clean(f.Device), clean(f.MountPoint), clean(f.Type)
		key := [3]string{f.Device, f.MountPoint, f.Type}
		if seen[key] { // mounted twice: only the first is shown
			continue
		}
		seen[key] = true
		k := old[f]
		if k == nil {
			k = &mount{Filesystem: f, path: path}
		}
		m.mounts = append(m.mounts, k)
	}
	return nil
}

// belowRoot is how the node calls a mount point that its own root is mounted
// above.
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

// parseMount parses a line of mountinfo:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseMount(line []byte) (model.Filesystem, error) {
	before, after, ok := strings.Cut(string(line), " - ")
	own, super := strings.Split(before, " "), strings.SplitN(after, " ", 3)
	if !ok || len(own) < 6 || len(super) < 3 {
		return model.Filesystem{}, fmt.Errorf("mountinfo: %w: %.80q", errMalformed, line)
	}
	major, minor, ok := strings.Cut(own[2], ":")
	if !ok {
		return model.Filesystem{}, fmt.Errorf("mountinfo: %w: %.80q", errMalformed, line)
	}
	readOnly := false
	for option := range strings.SplitSeq(own[5]+","+super[2], ",") {
		readOnly = readOnly || option == "ro" || option == "emergency_ro"
	}
	return model.Filesystem{
		Device: super[1], MountPoint: unescape.Replace(own[4]), Type: super[0],
		Major: major, Minor: minor, ReadOnly: readOnly,
	}, nil
}

// unescape is what node_exporter undoes of the kernel's escapes.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t")

// ask asks all mount points at once, each in a goroutine: the server of a
// network file system, or a disk, may never answer. Those that have not within
// the time hang, and are left alone until they do.
func (m *mountReader) ask() []model.Filesystem {
	replies := make(chan reply, len(m.mounts))
	timer := time.NewTimer(patience)
	defer timer.Stop()
	out := make([]model.Filesystem, len(m.mounts))
	waiting, full := 0, len(m.askers) == maxAskings
	for i, k := range m.mounts {
		out[i] = k.Filesystem
		out[i].Error = errHangs.Error()
		if full || k.asked.Load() {
			continue
		}
		select {
		case m.askers <- struct{}{}:
		case <-timer.C: // all of them hang
			full = true
			timer.Reset(0)
			continue
		}
		waiting++
		k.asked.Store(true)
		go func() {
			r := reply{index: i}
			r.err = m.statfs(k.path, &r.st)
			k.asked.Store(false)
			<-m.askers
			replies <- r // has room for all
		}()
	}
	for ; waiting > 0; waiting-- {
		select {
		case r := <-replies:
			r.into(&out[r.index])
			continue
		default:
		}
		select {
		case r := <-replies:
			r.into(&out[r.index])
		case <-timer.C:
			return out
		}
	}
	return out
}

func (r *reply) into(f *model.Filesystem) {
	if r.err != nil {
		f.Error = r.err.Error()
		return
	}
	f.Error = ""
	size := float64(r.st.Bsize)
	f.Size, f.Free, f.Available = float64(r.st.Blocks)*size, float64(r.st.Bfree)*size, float64(r.st.Bavail)*size
	f.FileNodes, f.FreeNodes = float64(r.st.Files), float64(r.st.Ffree)
}
