// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

var rdmaModules = []string{"ib_core", "ib_uverbs"}

// ErrTypes is the error of hooks that need type information of RDMA modules.
var ErrTypes = fmt.Errorf("%w: type information of RDMA modules", model.ErrUnsupported)

// Structures are the structures of RDMA modules that the programs of a hook read.
type Structures int

// The structures of a hook.
const (
	NoStructures Structures = iota
	// CoreStructures are the structures of include/rdma, which the kernel image also describes.
	CoreStructures
	// UverbsStructures adds the structures that only the type information of modules describes.
	UverbsStructures
)

func (k *Kernel) readable(s Structures) error {
	switch {
	case s != NoStructures && k.refused != nil:
		return k.refused
	case s == UverbsStructures && len(k.Modules) == 0:
		return fmt.Errorf("%w: this kernel has none (CONFIG_DEBUG_INFO_BTF_MODULES)", ErrTypes)
	}
	return nil
}

// Flags of /sys/module/NAME/taint (Documentation/admin-guide/tainted-kernels.rst): built out of tree, loaded by force,
// unsigned.
const (
	foreignFlags = "OFE"
	forcedFlag   = "F"
)

// loadModules reads the types of the RDMA modules from the kernel. For a module without BTF, it reads a file in dir,
// which may be empty.
//
// Out-of-tree modules, such as MLNX_OFED and DOCA-OFED, have their own structure layouts. The types of the kernel image
// apply only to modules of the kernel's own build.
func (k *Kernel) loadModules(sysfs, dir string) {
	var errs []error
	for _, name := range rdmaModules {
		spec, isFile, err := k.loadModule(sysfs, dir, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if spec != nil {
			k.Modules = append(k.Modules, spec)
		}
		k.files = k.files || isFile
	}
	if err := errors.Join(errs...); err != nil {
		k.refused = fmt.Errorf("%w: %w", ErrTypes, err)
	}
}

// loadModule returns the types of a module, or nil if only the kernel image describes it.
func (k *Kernel) loadModule(sysfs, dir, name string) (spec *btf.Spec, isFile bool, err error) {
	state := filepath.Join(sysfs, "module", name)
	// This file is missing if the module is built in or not loaded.
	taint, err := boundedfile.ReadOnce(filepath.Join(state, "taint"), make([]byte, 64))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, false, err
	}
	flags := string(bytes.TrimSpace(taint))
	// The BTF of a module that was loaded by force may belong to another kernel.
	if !strings.Contains(flags, forcedFlag) {
		// Kernels before 5.11 have no BTF of modules.
		if f, err := os.Open(filepath.Join(sysfs, "kernel/btf", name)); err == nil {
			defer f.Close() //nolint:errcheck // only read
			if spec, err := btf.LoadSplitSpecFromReader(f, k.Types); err == nil {
				return spec, false, nil
			}
		}
	}
	var fileErr error
	if dir != "" {
		note, _ := boundedfile.ReadOnce(filepath.Join(state, "notes", buildIDNote), make([]byte, 256))
		if spec, fileErr = readTypes(filepath.Join(dir, name), note); fileErr == nil {
			return spec, true, nil
		}
	}
	if strings.ContainsAny(flags, foreignFlags) {
		err := fmt.Errorf("not the kernel's own build (taint %s), and its structures may differ from those of the kernel", flags)
		if fileErr != nil {
			err = fmt.Errorf("%w; %w", err, fileErr)
		}
		return nil, false, err
	}
	return nil, false, nil
}

// buildIDNote is the section with the build ID. Its content is the same in the file of a module and in sysfs.
const buildIDNote = ".note.gnu.build-id"

// readTypes reads the types that pahole has added to the file of a module. The build ID must match the loaded module.
func readTypes(path string, note []byte) (*btf.Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	file, err := elf.NewFile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	section := file.Section(buildIDNote)
	if section == nil {
		return nil, fmt.Errorf("%s: no build ID", path)
	}
	own, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: build ID: %w", path, err)
	}
	if !bytes.Equal(own, note) {
		return nil, fmt.Errorf("%s is of another build of the module: build ID %s, loaded is %s", path, buildID(own), buildID(note))
	}
	spec, err := btf.LoadSpecFromReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// buildID returns the ID in a note: a header of 12 bytes, "GNU\0", the ID.
func buildID(note []byte) string {
	const header = 16
	if len(note) <= header {
		return "none"
	}
	return hex.EncodeToString(note[header:])
}
