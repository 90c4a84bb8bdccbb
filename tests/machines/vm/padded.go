// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strings"
)

// PaddedModules are out-of-tree RDMA modules: like MLNX_OFED's, their structures have additional members at the
// beginning. They are built from Debian's source of the same kernel.
type PaddedModules struct {
	Plain string // a lib/modules directory whose RDMA modules have no type information
	Typed string // the same with type information
	Types string // type information of the modules in Plain, one file per module
}

// padding is the new member of each structure, by the header that defines the structure. The sensor's programs read
// other members of all these structures.
var padding = map[string][]string{
	"include/rdma/ib_verbs.h": {
		"ib_device_ops", "ib_device", "ib_qp", "ib_cq", "ib_pd", "ib_mr", "ib_srq", "ib_ucontext", "ib_uobject",
	},
	"include/rdma/restrack.h":          {"rdma_restrack_entry"},
	"drivers/infiniband/core/uverbs.h": {"ib_uverbs_file"},
}

const paddingMember = "\n\tunsigned long padding[5];"

//go:embed padded.go
var paddedRecipe []byte

// BuildPadded builds the modules of 6.1.
func BuildPadded(ctx context.Context, kernel Kernel) (PaddedModules, error) {
	const core, rxe = "drivers/infiniband/core", "drivers/infiniband/sw/rxe"
	dir, err := changedModules{
		name:        "padded",
		recipe:      paddedRecipe,
		sources:     []string{core, rxe, "include/rdma", "scripts/extract-vmlinux"},
		change:      padAll,
		directories: []string{core, rxe},
		include:     "include",
		place: func(ctx context.Context, kernel Kernel, source, dir string) error {
			modules, err := filepath.Glob(filepath.Join(source, core, "*.ko"))
			if err != nil {
				return err
			}
			return placePadded(ctx, kernel, append(modules, filepath.Join(source, rxe, "rdma_rxe.ko")), source, dir)
		},
	}.build(ctx, kernel)
	return PaddedModules{
		Plain: filepath.Join(dir, "plain/lib/modules"), Typed: filepath.Join(dir, "typed/lib/modules"), Types: filepath.Join(dir, "types"),
	}, err
}

// padAll adds the padding to the source in a directory.
func padAll(dir string) error {
	for header, structs := range padding {
		if err := pad(filepath.Join(dir, header), structs); err != nil {
			return err
		}
	}
	return nil
}

func pad(header string, structs []string) error {
	for _, name := range structs {
		begin := "\nstruct " + name + " {"
		if err := replaceOnce(header, begin, begin+paddingMember); err != nil {
			return err
		}
	}
	return nil
}

// placePadded makes the directories of PaddedModules below dir.
func placePadded(ctx context.Context, kernel Kernel, modules []string, source, dir string) error {
	types := filepath.Join(dir, "types")
	if err := os.MkdirAll(types, 0o755); err != nil {
		return err
	}
	for _, module := range modules {
		name := strings.TrimSuffix(filepath.Base(module), ".ko")
		if name != "ib_core" && name != "ib_uverbs" {
			continue
		}
		// As deploy/README.md shows it.
		file := filepath.Join(types, name)
		if err := copyFile(file, module); err != nil {
			return err
		}
		if err := run(ctx, dir, []string{"pahole", "-J", file}, []string{"strip", "--strip-debug", file}); err != nil {
			return err
		}
	}
	if err := placeModules(ctx, kernel, filepath.Join(dir, "plain"), modules); err != nil {
		return err
	}
	image, err := output(ctx, source, "sh", "scripts/extract-vmlinux", kernel.Image)
	if err != nil {
		return err
	}
	vmlinux := filepath.Join(source, "vmlinux")
	if err := os.WriteFile(vmlinux, []byte(image), 0o644); err != nil {
		return err
	}
	for _, module := range modules {
		if err := run(ctx, dir, []string{"pahole", "-J", "--btf_base=" + vmlinux, module}); err != nil {
			return err
		}
	}
	return placeModules(ctx, kernel, filepath.Join(dir, "typed"), modules)
}
