// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// CDIDir is a directory with CDI specifications. Symbolic links, absolute links too, are resolved below Root.
type CDIDir struct {
	Root string // where the sensor sees the node's file system, or a part of it
	Path string // below Root
}

// Limits of CDI specifications. A node with 8 GPUs has some 100 KiB, and a driver writes a file for each claim.
const (
	maxSpecs    = 4096 // per directory
	maxSpecSize = 1 << 20
)

// specifications holds the CDI devices of the node. A file is read again when it has changed.
type specifications struct {
	dirs  []CDIDir
	files map[string]specFile // by path

	// The following fields belong to one answer of the kubelet.
	used    bool                // a claim has a CDI device
	devices map[string][]string // device nodes by qualified name; nil until the directories are read
	err     error               // of directories and files
	missing string              // first device without a specification
}

// specFile is a file with its devices, or with the reason why it has no devices.
type specFile struct {
	version fileVersion
	devices map[string][]string
	err     error
}

// fileVersion differs after any change of a file.
type fileVersion struct {
	device, inode    uint64
	size             int64
	modified, status unix.Timespec
}

func newSpecifications(dirs []CDIDir) *specifications {
	if dirs == nil {
		dirs = []CDIDir{{"/", "etc/cdi"}, {"/", "var/run/cdi"}}
	}
	return &specifications{dirs: dirs}
}

func (s *specifications) begin() { s.used, s.devices, s.err, s.missing = false, nil, nil, "" }

// nodes returns the device nodes of CDI devices, or nil if all specifications lack them.
func (s *specifications) nodes(names []string) (nodes []string) {
	if len(names) == 0 { // the driver does not use CDI
		return nil
	}
	s.used = true
	if s.devices == nil {
		s.read()
	}
	for _, name := range names {
		found, ok := s.devices[name]
		if !ok && s.missing == "" {
			s.missing = name
		}
		nodes = append(nodes, found...)
	}
	return nodes
}

// state returns the state of the specifications, and false if claims have no CDI devices.
func (s *specifications) state() (model.DeviceState, bool) {
	state := model.DeviceState{Device: "cdi", State: model.StateOK}
	err := s.err
	if s.missing != "" {
		err = errors.Join(fmt.Errorf("no CDI specification has the claimed device %q", short(s.missing)), err)
	}
	if err != nil {
		state.State, state.Reason = model.StateFailed, short(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return state, s.used
}

// read reads the changed files of all directories. A device of a later directory replaces a device of the same name.
// Two devices of the same name in a directory are an error, as for runtimes.
func (s *specifications) read() {
	s.devices = map[string][]string{}
	files := map[string]specFile{}
	var errs []error
	for _, dir := range s.dirs {
		found, err := s.readDir(dir, files)
		maps.Copy(s.devices, found)
		errs = append(errs, err)
	}
	s.files, s.err = files, errors.Join(errs...)
}

// readDir adds the files of a directory to files and returns their devices. A missing directory has no devices.
func (s *specifications) readDir(dir CDIDir, files map[string]specFile) (map[string][]string, error) {
	if _, err := os.Stat(dir.Root); err != nil {
		return nil, fmt.Errorf("CDI: %w", err)
	}
	names, err := specNames(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("CDI: %w", err)
	}
	devices, conflicts := map[string][]string{}, map[string]bool{}
	var errs []error
	for _, name := range names {
		path := filepath.Join(dir.Root, dir.Path, name)
		f := readSpec(dir.Root, filepath.Join(dir.Path, name), s.files[path])
		files[path] = f
		if f.err != nil {
			errs = append(errs, fmt.Errorf("CDI: %s: %w", path, f.err))
		}
		for device, nodes := range f.devices {
			if _, twice := devices[device]; twice {
				conflicts[device] = true
			}
			devices[device] = nodes
		}
	}
	for device := range conflicts {
		delete(devices, device)
		errs = append(errs, fmt.Errorf("CDI: %s: several files have the device %q", filepath.Join(dir.Root, dir.Path), device))
	}
	return devices, errors.Join(errs...)
}

func specNames(dir CDIDir) ([]string, error) {
	fd, err := boundedfile.OpenBelow(dir.Root, dir.Path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), dir.Path)
	defer f.Close() //nolint:errcheck // only read
	names, err := f.Readdirnames(maxSpecs + 1)
	switch {
	case len(names) > maxSpecs:
		return nil, fmt.Errorf("%s: more than %d files", dir.Path, maxSpecs)
	case len(names) == 0: // Readdirnames returns io.EOF
		return nil, nil
	case err != nil:
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return filepath.Ext(name) != ".json" && filepath.Ext(name) != ".yaml"
	})
	slices.Sort(names)
	return names, nil
}

// readSpec returns a file, or last if the file has not changed. It opens regular files only: opening a device node has
// effects.
func readSpec(root, path string, last specFile) specFile {
	fd, err := boundedfile.OpenBelow(root, path, unix.O_PATH)
	if err != nil {
		return specFile{err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return specFile{err: err}
	}
	f := specFile{version: fileVersion{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}}
	switch {
	case f.version == last.version:
		return last
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		f.err = errors.New("not a regular file")
		return f
	case st.Size > maxSpecSize:
		f.err = fmt.Errorf("larger than %d bytes", maxSpecSize)
		return f
	}
	text, err := boundedfile.ReadFile("/proc/self/fd/"+strconv.Itoa(fd), nil, maxSpecSize)
	if err != nil {
		return specFile{err: err}
	}
	f.devices, f.err = parseSpec(text)
	return f
}
