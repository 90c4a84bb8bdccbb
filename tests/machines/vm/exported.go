// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"path/filepath"
	"slices"
)

// Exported returns the global functions of a kernel's modules, sorted. A module has the name of its file, without
// suffix.
func (k Kernel) Exported(ctx context.Context, modules ...string) ([]string, error) {
	var functions []string
	for _, name := range modules {
		files, err := filepath.Glob(filepath.Join(k.Root, "lib/modules", k.Release, "kernel/drivers/*/*", name+".ko*"))
		if err != nil {
			return nil, err
		}
		if len(files) != 1 {
			return nil, fmt.Errorf("kernel %s has %d modules %s, want 1", k.Release, len(files), name)
		}
		ko, err := readModule(ctx, files[0])
		if err != nil {
			return nil, err
		}
		object, err := elf.NewFile(bytes.NewReader(ko))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", files[0], err)
		}
		symbols, err := object.Symbols()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", files[0], err)
		}
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_BIND(s.Info) == elf.STB_GLOBAL && s.Section != elf.SHN_UNDEF {
				functions = append(functions, s.Name)
			}
		}
	}
	slices.Sort(functions)
	return functions, nil
}
