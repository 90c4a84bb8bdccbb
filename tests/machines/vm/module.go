// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed driver/hca.h
var hcaHeader []byte

// BuildModule compiles a kernel module from one C file, which may include hca.h, and returns the path of NAME.ko for
// NAME.c. The module is kept in the cache, so the guest has it under the same path. Processes may call BuildModule at
// the same time.
func BuildModule(ctx context.Context, kernel Kernel, source string) (path string, err error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	name := strings.TrimSuffix(filepath.Base(source), ".c")
	hash := sha256.Sum256(slices.Concat(text, hcaHeader))
	path = filepath.Join(kernel.Root, "modules", name+"-"+hex.EncodeToString(hash[:8]), name+".ko")
	return path, once(path, func() error {
		tools, err := fetchToolchain(ctx, kernel)
		if err != nil {
			return err
		}
		tmp, err := tools.mkdir()
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		for file, text := range map[string][]byte{name + ".c": text, "hca.h": hcaHeader, "Makefile": []byte("obj-m := " + name + ".o\n")} {
			if err := os.WriteFile(filepath.Join(tmp, file), text, 0o644); err != nil {
				return err
			}
		}
		if err := tools.build(ctx, tmp); err != nil {
			return fmt.Errorf("module %s for kernel %s: %w", name, kernel.Release, err)
		}
		return os.Rename(filepath.Join(tmp, name+".ko"), path)
	})
}
