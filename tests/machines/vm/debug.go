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
)

// DebugKernel is Linux 6.1 with lockdep, KASAN, and reports of code that sleeps where it must not. Debian has no package
// of such a kernel, so it is built from Debian's source of 6.1.
const DebugKernel = "6.1-debug"

// debugConfig are the options of the debug kernel; others are off, because each costs minutes of building.
//
//go:embed debug.config
var debugConfig []byte

//go:embed debug.go
var debugRecipe []byte

// buildDebugKernel returns the debug kernel, which is built once, in half an hour of a CPU, and kept beside 6.1.
// Processes may call it at the same time.
func buildDebugKernel(ctx context.Context) (Kernel, error) {
	base, err := FetchKernel(ctx, "6.1")
	if err != nil {
		return Kernel{}, err
	}
	hash := sha256.Sum256(append(debugRecipe, debugConfig...))
	dir := filepath.Join(base.Root, "debug-"+hex.EncodeToString(hash[:8]))
	if err := once(dir, func() error { return makeDebugKernel(ctx, base, dir) }); err != nil {
		return Kernel{}, fmt.Errorf("kernel %s: %w", DebugKernel, err)
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return Kernel{}, err
	}
	return Kernel{
		Version: DebugKernel, Suite: base.Suite, Release: string(release), Image: filepath.Join(dir, "vmlinuz"), Root: dir,
	}, nil
}

// makeDebugKernel makes the directory that buildDebugKernel returns.
func makeDebugKernel(ctx context.Context, base Kernel, dir string) error {
	source, err := os.MkdirTemp(base.Root, "debug-source-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(source)
	if err := unpackSource(ctx, base, nil, source); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, "debug.config"), debugConfig, 0o644); err != nil {
		return err
	}
	// Without the environment: if make runs the test, MAKEFLAGS contains make's own variables.
	if _, err := output(ctx, source, "env", "-i", "PATH="+os.Getenv("PATH"), "sh", "-ec", `
		build() { nice make -s -j2 "$@"; }
		build KCONFIG_ALLCONFIG=debug.config allnoconfig
		build bzImage modules
		build INSTALL_MOD_PATH=done INSTALL_MOD_STRIP=1 modules_install
		cp arch/x86/boot/bzImage done/vmlinuz
		printf %s "$(make -s kernelrelease)" > done/release`); err != nil {
		return err
	}
	return os.Rename(filepath.Join(source, "done"), dir)
}
