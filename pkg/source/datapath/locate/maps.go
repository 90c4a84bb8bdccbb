// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxMaps bounds /proc/PID/maps: some hundred thousand lines.
	maxMaps = 64 << 20
	// maxCode bounds how many pieces of executable files a process has mapped.
	maxCode = 8192
)

// A mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	offset     uint64 // of start in the file
	file       FileID
	path       string // in the process's view, and only fit to open it
}

var errMaps = errors.New("not a list of mappings")

// code reads which executable pieces of files the process has mapped, in the
// order of their addresses.
func (p *Process) code() ([]mapping, error) {
	f, err := os.Open(p.path("maps"))
	if err != nil {
		return nil, cmp.Or(p.alive(), err)
	}
	defer f.Close()
	m, err := parseCode(io.LimitReader(f, maxMaps))
	if gone := p.alive(); gone != nil {
		return nil, gone
	}
	if err != nil {
		return nil, fmt.Errorf("mappings of process %d: %w", p.pid, err)
	}
	return m, nil
}

// parseCode gives the executable mappings of files of /proc/PID/maps.
func parseCode(r io.Reader) ([]mapping, error) {
	var code []mapping
	err := eachMapping(r, func(m mapping, perms string) error {
		if perms[2] != 'x' || m.file.Inode == 0 {
			return nil
		}
		if len(code) == maxCode {
			return fmt.Errorf("more than %d of code: %w", maxCode, errMaps)
		}
		code = append(code, m)
		return nil
	})
	return code, err
}

// eachMapping parses /proc/PID/maps; the text of perms stays valid for the call.
// The kernel writes a newline in a name as \012.
func eachMapping(r io.Reader, f func(m mapping, perms string) error) error {
	b := bufio.NewReaderSize(r, 32<<10) // a line holds a path: up to a page
	last := uint64(0)
	for {
		line, err := b.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errMaps, err)
		}
		m, perms, ok := parseMapping(string(line[:len(line)-1]))
		if !ok || m.start < last {
			return errMaps
		}
		last = m.end
		if err := f(m, perms); err != nil {
			return err
		}
	}
}

// parseMapping reads a line such as
//
//	7f0a1000-7f0a5000 r-xp 00002000 fe:00 10135473     /usr/lib/librxe-rdmav34.so
func parseMapping(line string) (m mapping, perms string, ok bool) {
	addresses, rest, _ := strings.Cut(line, " ")
	perms, rest, _ = strings.Cut(rest, " ")
	offset, rest, _ := strings.Cut(rest, " ")
	device, rest, _ := strings.Cut(rest, " ")
	inode, path, _ := strings.Cut(rest, " ")
	start, end, _ := strings.Cut(addresses, "-")
	major, minor, _ := strings.Cut(device, ":")

	ok = len(perms) == 4
	number := func(s string, base, bits int) uint64 {
		n, err := strconv.ParseUint(s, base, bits)
		ok = ok && err == nil
		return n
	}
	m.start, m.end = number(start, 16, 64), number(end, 16, 64)
	m.offset = number(offset, 16, 64)
	m.file.Device = unix.Mkdev(uint32(number(major, 16, 32)), uint32(number(minor, 16, 32)))
	m.file.Inode = number(inode, 10, 64)
	m.path = strings.TrimLeft(path, " ")
	return m, perms, ok && m.start < m.end && m.offset+(m.end-m.start) >= m.offset
}

// find gives the mapping of an address, nil if there is none.
func find(code []mapping, address uint64) *mapping {
	i, found := slices.BinarySearchFunc(code, address, func(m mapping, a uint64) int {
		switch {
		case m.end <= a:
			return -1
		case m.start > a:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &code[i]
}

// open opens the file of a mapping, and makes sure that it is that very file: the
// process may have mapped another one there meanwhile, or moved one to its path.
// What the kernel tells of a mapping of ours must be what it tells of theirs.
func (p *Process) open(m *mapping) (*os.File, error) {
	// Not opened before it is known what it is: to open a device does something.
	fd, err := unix.Open(p.path("map_files", strconv.FormatUint(m.start, 16)+"-"+strconv.FormatUint(m.end, 16)),
		unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) { // CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
		fd, err = p.openInRoot(m.path)
	}
	if err != nil {
		return nil, cmp.Or(p.alive(), fmt.Errorf("open %s of process %d: %w", m.path, p.pid, err))
	}
	defer unix.Close(fd)
	if err := regular(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	f, err := os.Open(p.procfs + "/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	id, err := mappedID(p.procfs, f)
	if err == nil && id != m.file {
		err = fmt.Errorf("%s is no longer what was mapped", m.path)
	}
	if err = cmp.Or(p.alive(), err); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openInRoot finds a path as the process sees it. It needs CAP_SYS_PTRACE.
func (p *Process) openInRoot(path string) (int, error) {
	root, err := os.Open(p.path("root"))
	if err != nil {
		return -1, err
	}
	defer root.Close()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	return unix.Openat2(int(root.Fd()), strings.ReplaceAll(path, `\012`, "\n"), how)
}

// regular refuses what is not a plain file, and FUSE: its server can let a reader
// wait as long as it likes, the kernel that puts a probe into it included.
func regular(fd int) error {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: not a regular file", errNoProvider)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type == unix.FUSE_SUPER_MAGIC {
		return fmt.Errorf("%w: on FUSE", errNoProvider)
	}
	return nil
}

// mappedID is how /proc/PID/maps tells a file. stat(2) differs on overlayfs, btrfs
// and others, so it is mapped to see.
func mappedID(procfs string, f *os.File) (FileID, error) {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return FileID{}, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	defer unix.Munmap(page) //nolint:errcheck // ours
	own, err := os.Open(procfs + "/self/maps")
	if err != nil {
		return FileID{}, err
	}
	defer own.Close()
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
	var id FileID
	err = eachMapping(own, func(m mapping, _ string) error {
		if m.start <= address && address < m.end {
			id = m.file
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return id, nil
	}
	return FileID{}, cmp.Or(err, errMaps)
}

// A version of a file: with an inode's number that was used again, or other
// content, comes another time of change.
type version struct {
	size   int64
	change unix.Timespec
}

const (
	// overlaid is the device of files on overlayfs: the containers of one image
	// share files, and their probes, below different devices.
	overlaid = ^uint64(0)
	// atHandleFID is AT_HANDLE_FID: a handle that identifies and opens nothing.
	atHandleFID = 0x200
)

var handleSeed = maphash.MakeSeed()

// identify says which file a probe would be put into, and its version; mapped is
// what maps tells.
func identify(f *os.File, mapped FileID) (FileID, version, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return mapped, version{}, err
	}
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return mapped, version{}, err
	}
	v := version{size: st.Size, change: st.Ctim}
	if fs.Type == unix.BTRFS_SUPER_MAGIC {
		// maps tells the device of the file system, where inode numbers are of a
		// subvolume: those of two images are the same.
		return FileID{Device: uint64(st.Dev), Inode: st.Ino}, v, nil
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC || st.Ctim.Nsec == 0 { // an image that is mounted twice is two files
		return mapped, v, nil
	}
	// The handle holds that of the file below. Before there were such handles (6.6)
	// maps told of the file below.
	handle, _, err := unix.NameToHandleAt(int(f.Fd()), "", unix.AT_EMPTY_PATH|atHandleFID)
	if err != nil {
		return mapped, v, nil
	}
	var h maphash.Hash
	h.SetSeed(handleSeed)
	h.Write(handle.Bytes()) // with the generation of the inode: one that is used again differs
	return FileID{Device: overlaid, Inode: h.Sum64()}, v, nil
}
