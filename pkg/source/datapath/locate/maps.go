// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxMaps bounds /proc/PID/maps: some hundred thousand lines.
	maxMaps = 64 << 20
	// maxCode bounds the number of executable mappings of a process.
	maxCode = 8192
)

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	offset     uint64 // of start in the file
	file       FileID
	path       string // in the mount namespace of the process
}

// name is the last part of the path. The kernel marks files that were removed.
func (m *mapping) name() string { return path.Base(strings.TrimSuffix(m.path, " (deleted)")) }

var errMaps = errors.New("not a list of mappings")

// code reads the executable mappings of files of the process, in the order of
// their addresses.
func (p *Process) code() ([]mapping, error) {
	f, err := os.Open(p.path("maps"))
	if err != nil {
		return nil, cmp.Or(p.checkAlive(), err)
	}
	defer f.Close()
	m, err := parseCode(io.LimitReader(f, maxMaps))
	if gone := p.checkAlive(); gone != nil {
		return nil, gone
	}
	if err != nil {
		return nil, fmt.Errorf("mappings of process %d: %w", p.pid, err)
	}
	return m, nil
}

// parseCode parses /proc/PID/maps and returns the executable mappings of files.
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

// FileOffset returns the offset of code of this process in its file, by /proc/self/maps, which
// works for position-independent code too.
func FileOffset(pc uint64) (uint64, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	code, err := parseCode(f)
	if err != nil {
		return 0, err
	}
	m := find(code, pc)
	if m == nil {
		return 0, fmt.Errorf("/proc/self/maps has no code at %#x", pc)
	}
	return pc - m.start + m.offset, nil
}

// eachMapping parses /proc/PID/maps. The kernel writes a newline in a path as \012.
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

// parseMapping parses a line such as
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

// find returns the mapping of an address, or nil.
func find(code []mapping, address uint64) *mapping {
	i := sort.Search(len(code), func(i int) bool { return address < code[i].end })
	if i == len(code) || address < code[i].start {
		return nil
	}
	return &code[i]
}

// open opens the file of a mapping and checks that it is the same file: the process
// may have mapped another one there meanwhile, or moved one to its path. To check,
// it maps the file itself and compares the device and inode in /proc/self/maps.
func (p *Process) open(m *mapping) (*os.File, error) {
	// With O_PATH, as opening a device has effects.
	fd, err := unix.Open(p.path("map_files", strconv.FormatUint(m.start, 16)+"-"+strconv.FormatUint(m.end, 16)),
		unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) { // CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
		fd, err = p.openInRoot(m.path)
	}
	if err != nil {
		return nil, cmp.Or(p.checkAlive(), fmt.Errorf("open %s of process %d: %w", m.path, p.pid, err))
	}
	defer unix.Close(fd)
	if p.CheckFile != nil { // before statfs(2), which asks the file system
		if err := p.CheckFile(fd); err != nil {
			return nil, fmt.Errorf("%s: %w", m.path, err)
		}
	}
	if err := regular(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	f, err := os.Open(p.procfs + "/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	id, err := mappedID(p.procfs, f)
	if err == nil && id != m.file {
		err = fmt.Errorf("%s is no longer the mapped file", m.path)
	}
	if err = cmp.Or(p.checkAlive(), err); err != nil {
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
