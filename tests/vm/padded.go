// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// PaddedModules are out-of-tree RDMA modules, such as those of MLNX_OFED: their structures have members
// that those of the kernel do not have, at the beginning. They are built from Debian's source of the same kernel.
type PaddedModules struct {
	Plain string // a lib/modules directory whose RDMA modules have no type information
	Typed string // the same with type information
	Types string // type information of the modules in Plain, one file per module
}

// padding is the new member of each structure, by the header that defines the structure. The programs of the sensor read
// other members of all of these.
var padding = map[string][]string{
	"include/rdma/ib_verbs.h": {
		"ib_device_ops", "ib_device", "ib_qp", "ib_cq", "ib_pd", "ib_mr", "ib_srq", "ib_ucontext", "ib_uobject",
	},
	"include/rdma/restrack.h":          {"rdma_restrack_entry"},
	"drivers/infiniband/core/uverbs.h": {"ib_uverbs_file"},
}

const paddingMember = "\n\tunsigned long padding[5];"

// sources are the parts of the kernel's source that are unpacked and, except the headers and the script, built.
var sources = []string{"drivers/infiniband/core", "drivers/infiniband/sw/rxe", "include/rdma", "scripts/extract-vmlinux"}

//go:embed padded.go
var recipe []byte // part of the key of the cache

// BuildPadded builds the modules once; they are kept in the cache, so the guest has them under the same paths. Only 6.1 has
// its compiler in Debian 12. Processes may call BuildPadded at the same time. A build takes one to four minutes.
func BuildPadded(ctx context.Context, kernel Kernel) (PaddedModules, error) {
	hash := sha256.Sum256(recipe)
	dir := filepath.Join(kernel.Root, "padded-"+hex.EncodeToString(hash[:8]))
	m := PaddedModules{
		Plain: filepath.Join(dir, "plain/lib/modules"), Typed: filepath.Join(dir, "typed/lib/modules"), Types: filepath.Join(dir, "types"),
	}
	unlock, err := Lock(dir + ".lock")
	if err != nil {
		return m, err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return m, nil
	}
	tmp, err := os.MkdirTemp(kernel.Root, "padded-tmp-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(tmp)
	modules, err := makePadded(ctx, kernel, filepath.Join(tmp, "source"))
	if err == nil {
		err = placePadded(ctx, kernel, modules, filepath.Join(tmp, "source/vmlinux"), filepath.Join(tmp, "done"))
	}
	if err != nil {
		return m, fmt.Errorf("padded modules of kernel %s: %w", kernel.Release, err)
	}
	return m, os.Rename(filepath.Join(tmp, "done"), dir)
}

// makePadded builds the modules in a new directory and returns their files, with debug information. The file vmlinux in the
// directory is the kernel image.
func makePadded(ctx context.Context, kernel Kernel, dir string) ([]string, error) {
	if err := unpackSource(ctx, kernel, dir); err != nil {
		return nil, err
	}
	for header, structs := range padding {
		if err := pad(filepath.Join(dir, header), structs); err != nil {
			return nil, err
		}
	}
	// Locked as in BuildModule.
	unlock, err := Lock(kernel.Root + ".lock")
	if err != nil {
		return nil, err
	}
	headers, err := fetchHeaders(ctx, kernel)
	unlock()
	if err != nil {
		return nil, err
	}
	list := "obj-m := drivers/infiniband/core/ drivers/infiniband/sw/rxe/\n"
	if err := os.WriteFile(filepath.Join(dir, "Kbuild"), []byte(list), 0o644); err != nil {
		return nil, err
	}
	// Headers of the directory come first. Tracepoints include a file by a path relative to a directory of headers.
	include := filepath.Join(dir, "include")
	if _, err := output(ctx, dir, "env", "-u", "MAKEFLAGS", "nice", "make", "-s", "-j2", "-C", headers, "M="+dir,
		"NOSTDINC_FLAGS=-nostdinc -I"+include+" -I"+include+"/rdma", "modules"); err != nil {
		return nil, err
	}
	image, err := output(ctx, dir, "sh", "scripts/extract-vmlinux", kernel.Image)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "vmlinux"), []byte(image), 0o644); err != nil {
		return nil, err
	}
	core, err := filepath.Glob(filepath.Join(dir, "drivers/infiniband/core/*.ko"))
	return append(core, filepath.Join(dir, "drivers/infiniband/sw/rxe/rdma_rxe.ko")), err
}

// packageVersion is in the banner of a kernel image: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)".
var packageVersion = regexp.MustCompile(`Debian (\d\S*) \(`)

// unpackSource unpacks the source of a kernel into a new directory, of the same version as its image.
func unpackSource(ctx context.Context, kernel Kernel, dir string) error {
	image, err := os.ReadFile(kernel.Image)
	if err != nil {
		return err
	}
	version := packageVersion.FindSubmatch(image)
	if version == nil {
		return errors.New(kernel.Image + " does not name the version of its package")
	}
	r, err := openRepository(ctx, filepath.Dir(kernel.Root), suites[kernel.Version])
	if err != nil {
		return err
	}
	defer r.close()
	name := "linux-source-" + kernel.Version
	root, err := r.unpack(ctx, []string{name + "=" + string(version[1])})
	if err != nil {
		return fmt.Errorf("%w (if the mirror has a newer kernel: remove %s)", err, kernel.Root)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	args := []string{"-xJf", filepath.Join(root, "usr/src", name+".tar.xz"), "--strip-components=1"}
	for _, source := range sources {
		args = append(args, name+"/"+source)
	}
	_, err = output(ctx, dir, "tar", args...)
	return err
}

// pad adds the padding to structures in a header.
func pad(header string, structs []string) error {
	text, err := os.ReadFile(header)
	if err != nil {
		return err
	}
	for _, name := range structs {
		begin := "\nstruct " + name + " {"
		if strings.Count(string(text), begin) != 1 {
			return fmt.Errorf("%s does not define struct %s once", header, name)
		}
		text = []byte(strings.Replace(string(text), begin, begin+paddingMember, 1))
	}
	return os.WriteFile(header, text, 0o644)
}

// placePadded makes the directories of PaddedModules below dir.
func placePadded(ctx context.Context, kernel Kernel, modules []string, vmlinux, dir string) error {
	types := filepath.Join(dir, "types")
	if err := os.MkdirAll(types, 0o755); err != nil {
		return err
	}
	for _, module := range modules {
		name := strings.TrimSuffix(filepath.Base(module), ".ko")
		if name != "ib_core" && name != "ib_uverbs" {
			continue
		}
		// As docs/rdma-modules.md shows it.
		file := filepath.Join(types, name)
		if err := copyFile(file, module); err != nil {
			return err
		}
		if err := run(ctx, dir, []string{"pahole", "-J", file}, []string{"strip", "--strip-debug", file}); err != nil {
			return err
		}
	}
	for _, tree := range []string{"plain", "typed"} {
		// Links, so that the kernel's other modules take no space.
		root := filepath.Join(dir, tree)
		release := filepath.Join(root, "lib/modules", kernel.Release)
		updates := filepath.Join(release, "updates") // depmod prefers it
		if err := os.MkdirAll(updates, 0o755); err != nil {
			return err
		}
		own := filepath.Join(kernel.Root, "lib/modules", kernel.Release)
		if err := run(ctx, dir, []string{"cp", "-al", own + "/kernel", release}, []string{"sh", "-c", "cp " + own + "/modules.* " + release}); err != nil {
			return err
		}
		for _, module := range modules {
			file := filepath.Join(updates, filepath.Base(module))
			if err := copyFile(file, module); err != nil {
				return err
			}
			if tree == "typed" {
				if err := run(ctx, dir, []string{"pahole", "-J", "--btf_base=" + vmlinux, file}); err != nil {
					return err
				}
			}
			if err := run(ctx, dir, []string{"strip", "--strip-debug", file}); err != nil {
				return err
			}
		}
		if err := run(ctx, dir, []string{"depmod", "-b", root, kernel.Release}); err != nil {
			return err
		}
	}
	return nil
}

// run runs programs, one after the other, in a directory.
func run(ctx context.Context, dir string, commands ...[]string) error {
	for _, c := range commands {
		if _, err := output(ctx, dir, c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}
