// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/mountinfo"
)

const (
	// maxMountinfo bounds /proc/PID/mountinfo, maxMount one line of it.
	maxMountinfo = 16 << 20
	maxMount     = 1 << 20
	// resolveCached is RESOLVE_CACHED of include/uapi/linux/openat2.h.
	resolveCached = 0x20
)

// errNoLower means that the file behind a file on overlayfs is not known.
var errNoLower = errors.New("not a file of an image")

// KeepLower opens the file behind a provider that the process maps through overlayfs, if it is in a lower directory: the
// file of the image. All containers of the image map that file. A probe belongs to it (the kernel registers probes by
// d_real_inode), so a probe that is attached through it stays when the container ends. An open file on the overlay would
// keep the mounts of the container in use instead.
//
// path opens the provider. root is the root directory of the machine: lower directories that an overlay has in another mount
// namespace are not found.
func (p *Process) KeepLower(root, path string) (*Kept, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return nil, err
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return nil, errNoLower
	}
	lowers, err := p.lowers(f)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for _, lower := range lowers {
		k, err := p.openLower(dir, lower)
		if err != nil {
			continue
		}
		if same, err := isLower(p.procfs, f, k.file); err == nil && same {
			return k, nil
		}
		k.Close()
	}
	return nil, errNoLower
}

// lowers returns the paths that a file on overlayfs may have in the lower directories of its mount.
func (p *Process) lowers(f *os.File) ([]string, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return nil, err
	}
	path, err := os.Readlink(pathOf(p.procfs, f)) // in the mount namespace of the file
	if err != nil {
		return nil, err
	}
	mounts, err := os.Open(p.path("mountinfo"))
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	m, err := findOverlay(io.LimitReader(mounts, maxMountinfo), st.Mnt_id)
	if err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(m.point, "/")+"/")
	if !ok {
		return nil, fmt.Errorf("%w: %s is not below %s", errNoLower, path, m.point)
	}
	paths := m.lowers
	for i := range paths {
		paths[i] = filepath.Join(paths[i], m.root, rest)
	}
	return paths, nil
}

// overlayMount is a mount of overlayfs: the directory of the file system that is mounted, the directory on which it is, and its
// lower directories as far as their paths are known.
type overlayMount struct {
	root, point string
	lowers      []string
}

// findOverlay finds a mount of overlayfs in /proc/PID/mountinfo, which has lines such as
//
//	412 345 0:52 / /usr rw,relatime - overlay overlay rw,lowerdir=/layers/2/fs:/layers/1/fs,upperdir=/layers/3/fs,workdir=…
//
// Relative paths belong to the directory in which the runtime has its layers.
func findOverlay(r io.Reader, id uint64) (overlayMount, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxMount)
	for lines.Scan() {
		m, ok := mountinfo.Parse(lines.Text())
		if !ok || m.ID != strconv.FormatUint(id, 10) {
			continue
		}
		if m.Type != "overlay" {
			break
		}
		found := overlayMount{root: m.Root, point: m.Point}
		upper := ""
		var lowers []string
		for option := range strings.SplitSeq(m.SuperOptions, ",") {
			switch name, value, _ := strings.Cut(option, "="); name {
			case "lowerdir", "lowerdir+":
				lowers = append(lowers, strings.Split(value, ":")...)
			case "upperdir":
				upper = value
			}
		}
		for _, lower := range lowers { // the kernel allows 500
			if lower != "" && !filepath.IsAbs(lower) { // of containerd, for images with many layers
				lower = filepath.Join(filepath.Dir(filepath.Dir(upper)), lower)
			}
			if filepath.IsAbs(lower) {
				found.lowers = append(found.lowers, mountinfo.Unescape(lower))
			}
		}
		return found, nil
	}
	if err := lines.Err(); err != nil {
		return overlayMount{}, fmt.Errorf("mountinfo: %w", err)
	}
	return overlayMount{}, errNoLower
}

// openLower opens a regular file below a directory. It does not wait for a file system (RESOLVE_CACHED): while an overlay shows the
// file, the kernel has all names of its path in memory.
func (p *Process) openLower(root *os.File, path string) (*Kept, error) {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolveCached,
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := regular(fd); err != nil {
		return nil, err
	}
	return Keep(p.procfs, p.procfs+"/self/fd/"+strconv.Itoa(fd))
}

// isLower reports whether a file on overlayfs is the other file. A process that mounts an overlay itself chooses where its lower
// directories are, so the paths prove nothing.
func isLower(procfs string, f, lower *os.File) (bool, error) {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &a), unix.Fstat(int(lower.Fd()), &b)); err != nil {
		return false, err
	}
	// A file that was copied up has the handle of the lower file, and another change time. With metacopy, the lower
	// directory has the attributes only, and another file has the blocks.
	// Without nanoseconds, identify takes the files of two containers for two files.
	if versionOf(&a) != versionOf(&b) || a.Blocks != b.Blocks || a.Ctim.Nsec == 0 {
		return false, nil
	}
	handle, _, err := unix.NameToHandleAt(int(f.Fd()), "", unix.AT_EMPTY_PATH|atHandleFID)
	if err != nil { // before 6.6, /proc/PID/maps has the lower file
		return sameMapped(procfs, f, lower)
	}
	own, _, err := unix.NameToHandleAt(int(lower.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return false, err
	}
	return containsHandle(handle.Bytes(), own.Type(), own.Bytes()), nil
}

// sameMapped reports whether /proc/PID/maps has the same device and inode for two files.
func sameMapped(procfs string, f, other *os.File) (bool, error) {
	a, err := mappedID(procfs, f)
	if err != nil {
		return false, err
	}
	b, err := mappedID(procfs, other)
	return a == b, err
}

// containsHandle reports whether the handle of a file on overlayfs contains the handle of a lower file (struct ovl_fh of
// fs/overlayfs/overlayfs.h): three bytes of padding, version, magic number, length, flags, type, UUID of the file system, handle.
func containsHandle(overlay []byte, typ int32, lower []byte) bool {
	const padding, magic, length, flags, kind, handle = 3, 4, 5, 6, 7, 24
	const upper = 1 << 2 // OVL_FH_FLAG_PATH_UPPER
	return len(overlay) >= handle && overlay[padding] == 0 && overlay[magic] == 0xfb && overlay[flags]&upper == 0 &&
		padding+int(overlay[length]) == len(overlay) && int32(overlay[kind]) == typ &&
		len(lower) > 0 && bytes.Equal(overlay[handle:], lower)
}
