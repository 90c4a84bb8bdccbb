// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
)

// Bounds of the cache. A node has a few providers in a few versions.
const (
	maxFiles = 64
	maxSites = 256 // of a file
)

// cachedFile is the cache entry of one version of a file.
type cachedFile struct {
	version version
	name    string // of the file in the process that was located
	build   string // its build id
	refused error  // why it is no provider
	direct  bool   // see Found
	points  map[uint64]point
	found   map[Site]bool // points that are an operation of a process
	used    uint64
}

// point is where the function at an offset is probed, or why it is not.
type point struct {
	offset  uint64
	stepped bool
	err     error
}

// mayBeCached reports whether a mapped file may be in the cache, or be another copy of a provider
// in it, which has the same name. fromCache opens no other file.
func (l *Locator) mayBeCached(m *mapping) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.files[m.file]; known != nil && known.refused == nil || l.hasOverlay() {
		return true
	}
	for _, known := range l.files {
		if known.refused == nil && known.name == m.name() {
			return true
		}
	}
	return false
}

// hasOverlay reports whether a file on overlayfs is cached. Each container maps it
// with a device of its own.
func (l *Locator) hasOverlay() bool {
	for id := range l.files {
		if id.Device == overlayDevice {
			return true
		}
	}
	return false
}

// openProvider opens the file of a mapping and returns an error if it is no
// provider. The Process keeps it open, so that the file that was checked is the one
// that is probed.
func (l *Locator) openProvider(p *Process, m *mapping) (FileID, *cachedFile, string, error) {
	f := p.files[m.file]
	if f == nil {
		var err error
		if f, err = p.open(m); err != nil {
			return FileID{}, nil, "", err
		}
	}
	id, known, err := l.cached(f, m)
	if err != nil {
		if p.files[m.file] == nil {
			f.Close()
		}
		return FileID{}, nil, "", err
	}
	p.files[m.file] = f
	return id, known, pathOf(l.procfs, f), nil
}

// pathOf returns a path of an open file, valid until it is closed.
func pathOf(procfs string, f *os.File) string {
	return procfs + "/self/fd/" + strconv.Itoa(int(f.Fd()))
}

// cached returns the cache entry of a file, which it reads if necessary.
func (l *Locator) cached(f *os.File, m *mapping) (FileID, *cachedFile, error) {
	id, v, err := identify(f, m.file)
	if err != nil {
		return id, nil, err
	}
	l.mu.Lock()
	l.clock++
	known := l.files[id]
	if known != nil {
		known.used = l.clock
	}
	l.mu.Unlock()
	if known == nil || known.version != v {
		known = &cachedFile{version: v, name: m.name(), points: map[uint64]point{}, found: map[Site]bool{}}
		o, err := openObject(f)
		if err == nil {
			known.direct, err = o.provider()
		}
		if isReadError(err) { // not a property of the file
			return id, nil, err
		}
		if known.refused = err; err == nil {
			known.build = o.build()
			l.inherit(id, known, f)
		}
		l.insert(id, known)
	}
	return id, known, known.refused
}

// inherit adds the sites of files of the same build, such as the same package in another image, as
// far as the file has the same functions there: a build id proves nothing.
func (l *Locator) inherit(id FileID, file *cachedFile, f *os.File) {
	if file.build == "" {
		return
	}
	var sites []Site
	l.mu.Lock()
	for _, other := range l.files {
		if other.build == file.build {
			sites = slices.AppendSeq(sites, maps.Keys(other.found))
		}
	}
	l.mu.Unlock()
	for _, s := range sites {
		if len(file.points) >= maxSites || len(file.found) >= maxSites {
			return
		}
		s.File = id
		if l.point(file, f, s.Offset-uint64(s.Skip)) == (point{offset: s.Offset, stepped: s.Stepped}) {
			file.found[s] = true
		}
	}
}

// insert adds a file to the cache. If the cache is full, it removes the entry that was
// not used for the longest time.
func (l *Locator) insert(id FileID, f *cachedFile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files[id] == nil && len(l.files) >= maxFiles {
		var oldest FileID
		age := l.clock + 1
		for id, f := range l.files {
			if f.used < age {
				oldest, age = id, f.used
			}
		}
		delete(l.files, oldest)
	}
	f.used = l.clock
	l.files[id] = f
}

// point returns where the function at an offset of a file is probed.
func (l *Locator) point(known *cachedFile, f *os.File, offset uint64) point {
	l.mu.Lock()
	s, ok := known.points[offset]
	full := len(known.points) >= maxSites
	l.mu.Unlock()
	if ok {
		return s
	}
	s = disassemble(f, offset, pathArguments)
	if !full && !isReadError(s.err) {
		l.mu.Lock()
		known.points[offset] = s
		l.mu.Unlock()
	}
	return s
}

// pathArguments is the number of arguments that the programs of the data path read.
const pathArguments = 4

// disassemble chooses where the function at an offset is probed by programs that read some of its arguments.
func disassemble(f io.ReaderAt, offset uint64, arguments int) point {
	o, err := openObject(f)
	if err != nil {
		return point{err: err}
	}
	address, err := o.address(offset)
	if err != nil {
		return point{err: err}
	}
	extent, err := o.function(address)
	if err != nil {
		return point{err: err}
	}
	code := make([]byte, min(extent.size, maxFunction))
	if err := o.read(address, code); err != nil {
		return point{err: fmt.Errorf("%w: %w", errNoFunction, err)}
	}
	skip, stepped, err := choosePoint(o.machine, code, extent.prologue, arguments)
	return point{offset: offset + skip, stepped: stepped, err: err}
}
