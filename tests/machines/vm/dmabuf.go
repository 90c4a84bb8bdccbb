// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"slices"
)

var (
	//go:embed dmabuf.go
	dmabufRecipe []byte
	//go:embed driver/rxe_dmabuf.c
	rxeDMABuf []byte
	//go:embed driver/rxe_dmabuf.h
	rxeDMABufHeader []byte
)

// BuildDMABuf builds two modules for 6.12 and returns a lib/modules directory with them: an rdma_rxe that registers
// dma-bufs, by the function of ib_uverbs that its parameter dmabuf_function names, and peer memory, by functions of
// MLNX_OFED; and an i915 that is the kernel's vgem under the name of a GPU driver, so that its dma-bufs count as a GPU
// driver's.
func BuildDMABuf(ctx context.Context, kernel Kernel) (string, error) {
	const rxe, vgem = "drivers/infiniband/sw/rxe", "drivers/gpu/drm/vgem"
	dir, err := changedModules{
		name:        "dmabuf",
		recipe:      slices.Concat(dmabufRecipe, rxeDMABuf, rxeDMABufHeader),
		sources:     []string{rxe, vgem},
		directories: []string{rxe, vgem},
		change: func(dir string) error {
			for file, text := range map[string][]byte{
				filepath.Join(rxe, "rxe_dmabuf.c"): rxeDMABuf,
				filepath.Join(rxe, "rxe_dmabuf.h"): rxeDMABufHeader,
				filepath.Join(vgem, "Makefile"):    []byte("obj-m := i915.o\ni915-y := vgem_drv.o vgem_fence.o\n"),
			} {
				if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
					return err
				}
			}
			for _, edit := range []struct{ file, old, text string }{
				{"Makefile", "rdma_rxe-y := \\\n", "rdma_rxe-y := \\\n\trxe_dmabuf.o \\\n"},
				{"rxe_loc.h", "#define RXE_LOC_H\n", "#define RXE_LOC_H\n#include \"rxe_dmabuf.h\"\n"},
				{"rxe_mr.c", "ib_umem_get(", "rxe_umem_get("},
				{
					"rxe_verbs.c", "\t.reg_user_mr = rxe_reg_user_mr,\n",
					"\t.reg_user_mr = rxe_reg_user_mr,\n\t.reg_user_mr_dmabuf = rxe_reg_user_mr_dmabuf,\n",
				},
			} {
				if err := replaceOnce(filepath.Join(dir, rxe, edit.file), edit.old, edit.text); err != nil {
					return err
				}
			}
			return nil
		},
		place: func(ctx context.Context, kernel Kernel, source, dir string) error {
			return placeModules(ctx, kernel, dir, []string{
				filepath.Join(source, rxe, "rdma_rxe.ko"), filepath.Join(source, vgem, "i915.ko"),
			})
		},
	}.build(ctx, kernel)
	return filepath.Join(dir, "lib/modules"), err
}
