// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// maxLibraries is the number of libraries of a process that are opened.
const maxLibraries = 8

// A LibraryName is the name of a shared library without its version, such as libcuda.so, and the functions in it to find.
type LibraryName struct {
	Name      string
	Functions []string
	// Program: the program of a process, whatever its name.
	Program bool
	// Local: the functions may be linked statically, so that only the table of all symbols has them.
	Local bool
	// VersionAfter are texts in the read-only data that are followed by the version.
	VersionAfter []string
}

// Library is a shared library that a process has mapped.
type Library struct {
	File FileID
	Name string // as in LibraryName
	Path string // opens the file; valid until the process is closed
	// Functions has a line for each function of the LibraryName that the library exports, in the same order.
	Functions []LibraryFunction
	Version   string // empty: unknown
}

// LibraryFunction is where an exported function is probed. A function with several versions has several lines.
type LibraryFunction struct {
	Name    string
	Offset  uint64 // see Site
	Stepped bool   // see Site
	Err     error  // why it cannot be probed
}

// Libraries finds shared libraries in processes by the names of their files, and caches their functions by file. Any process
// can give any file such a name, so a file is not trusted any more than a provider. Libraries is safe for concurrent use.
type Libraries struct {
	names []LibraryName

	mu    sync.Mutex
	known map[FileID]knownLibrary
}

type knownLibrary struct {
	version   version
	functions []LibraryFunction
	text      string // its own version
}

// NewLibraries returns a search for libraries with an empty cache.
func NewLibraries(names []LibraryName) *Libraries {
	return &Libraries{names: names, known: map[FileID]knownLibrary{}}
}

// Find returns the libraries that a process has mapped. A file that is no longer the mapped one, or is no ELF file, is left
// out. A hostile process can make the call block as long as it lives.
func (l *Libraries) Find(p *Process) ([]Library, error) {
	code, err := p.code()
	if err != nil {
		return nil, err
	}
	program, _ := os.Readlink(p.path("exe"))
	seen := map[FileID]bool{}
	var found []Library
	var failed error
	for i := range code {
		m := &code[i]
		name := l.match(m.name(), m.path == program)
		if name == nil || seen[m.file] {
			continue
		}
		if len(seen) == maxLibraries {
			failed = errors.Join(failed, fmt.Errorf("process %d has mapped more than %d libraries", p.pid, maxLibraries))
			break
		}
		seen[m.file] = true
		lib, err := l.open(p, m, name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		found = append(found, lib)
	}
	if err := p.checkAlive(); err != nil {
		return nil, err
	}
	return found, failed
}

// match returns the library of a file, such as libcuda.so.570.86.15, nil if it is another file.
func (l *Libraries) match(base string, program bool) *LibraryName {
	for i := range l.names {
		if l.names[i].Program {
			if program {
				return &l.names[i]
			}
			continue
		}
		if rest, ok := strings.CutPrefix(base, l.names[i].Name); ok && (rest == "" || rest[0] == '.') {
			return &l.names[i]
		}
	}
	return nil
}

// open opens a library. The process keeps it open, so that the file that was checked is the one that is probed.
func (l *Libraries) open(p *Process, m *mapping, name *LibraryName) (Library, error) {
	f := p.files[m.file]
	if f == nil {
		var err error
		if f, err = p.open(m); err != nil {
			return Library{}, err
		}
		p.files[m.file] = f
	}
	id, v, err := identify(f, m.file)
	if err != nil {
		return Library{}, err
	}
	l.mu.Lock()
	known, ok := l.known[id]
	l.mu.Unlock()
	if !ok || known.version != v {
		known.version = v
		if known.functions, known.text, err = name.read(f); err != nil {
			return Library{}, fmt.Errorf("%s of process %d: %w", name.Name, p.pid, err)
		}
		l.mu.Lock()
		if len(l.known) >= maxFiles {
			clear(l.known)
		}
		l.known[id] = known
		l.mu.Unlock()
	}
	return Library{
		File: id, Name: name.Name, Path: pathOf(p.procfs, f), Functions: known.functions, Version: known.text,
	}, nil
}

// read finds the functions of a library, and its version.
func (n *LibraryName) read(f io.ReaderAt) ([]LibraryFunction, string, error) {
	o, err := openObject(f)
	if err != nil {
		return nil, "", err
	}
	functions, err := o.exported(n.Functions)
	if n.Local && len(functions) == 0 && (err == nil || errors.Is(err, errNoSymbols)) {
		functions, err = o.local(n.Functions)
	}
	if err != nil || n.VersionAfter == nil {
		return functions, "", err
	}
	return functions, o.version(n.VersionAfter), nil
}

// exported finds the functions that a library exports. Two names of one function are one line, with the first name.
func (o *object) exported(names []string) ([]LibraryFunction, error) {
	table, err := o.symbolTable()
	if err != nil {
		return nil, err
	}
	found := map[string][]uint64{}
	for _, name := range names {
		if found[name], err = table.functions(name); err != nil {
			return nil, err
		}
	}
	return o.places(names, found), nil
}

// local finds functions that a program or library contains without exporting them. A file without symbols has none.
func (o *object) local(names []string) ([]LibraryFunction, error) {
	found, err := o.localFunctions(names)
	if err != nil && !errors.Is(err, errNoSymbols) {
		return nil, err
	}
	return o.places(names, found), nil
}

// libraryArguments is the number of arguments in registers that the programs of libraries read: all.
const libraryArguments = 6

// places returns where functions at addresses are probed.
func (o *object) places(names []string, found map[string][]uint64) []LibraryFunction {
	var out []LibraryFunction
	seen := map[uint64]bool{}
	for _, name := range names {
		for _, address := range found[name] {
			if seen[address] {
				continue
			}
			seen[address] = true
			offset, err := o.offset(address)
			if err != nil {
				out = append(out, LibraryFunction{Name: name, Err: err})
				continue
			}
			at := disassemble(o.file, offset, libraryArguments)
			out = append(out, LibraryFunction{Name: name, Offset: at.offset, Stepped: at.stepped, Err: at.err})
		}
	}
	return out
}
