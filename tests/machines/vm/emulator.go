// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// emulatorSuite is the Debian release whose QEMU runs the guests. Before QEMU 8.1 (its commit deba78709ae8, "accel/tcg:
// Always lock pages before translation") an emulated CPU translates code of a page without a lock, while another CPU
// patches it, and then keeps the translation of the old code, for example of a breakpoint. The kernel then crashes with
// "int3" where it attaches an fentry program or a kprobe, or changes a static key, which looks like a fault of a sensor
// that has code patched. Since 8.1 this is rare: only a translation between the invalidation of the old code and the
// store (notdirty_write in accel/tcg/cputlb.c) is stale. TestStorm counts such crashes, and README.md has its results.
const emulatorSuite = "trixie"

// emulatorVar is the environment variable that names another QEMU, such as the machine's own.
const emulatorVar = "ACCELSCOPE_QEMU"

// emulator returns QEMU with arguments. It is downloaded once (38 MB), unpacked with all dependencies, and not
// installed. It runs with the C library of its release, but not in its own root directory, because guests get files of
// the machine.
func emulator(ctx context.Context, args []string) (*exec.Cmd, error) {
	if own := os.Getenv(emulatorVar); own != "" {
		return child.Command(ctx, own, args...), nil
	}
	root, err := fetchEmulator(ctx)
	if err != nil {
		return nil, err
	}
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib/*/ld-linux-*.so.*"))
	if err != nil || len(loaders) != 1 {
		return nil, fmt.Errorf("%s: %d dynamic loaders, want 1: %w", root, len(loaders), err)
	}
	libraries := filepath.Dir(loaders[0])
	command := []string{
		"--library-path", libraries + ":" + filepath.Join(libraries, "pulseaudio"), filepath.Join(root, "usr/bin/qemu-system-x86_64"),
	}
	for _, data := range []string{"usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"} {
		command = append(command, "-L", filepath.Join(root, data))
	}
	cmd := child.Command(ctx, loaders[0], append(command, args...)...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(libraries, "qemu"))
	return cmd, nil
}

// fetchEmulator returns the directory with the files of QEMU.
func fetchEmulator(ctx context.Context) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "emulator-"+emulatorSuite)
	return dir, once(dir, func() error {
		r, err := openRepository(ctx, cache, emulatorSuite)
		if err != nil {
			return err
		}
		defer r.close()
		names, err := r.closure(ctx, []string{"qemu-system-x86"})
		if err == nil && len(names) == 0 {
			err = errors.New("no package qemu-system-x86")
		}
		if err != nil {
			return err
		}
		root, err := r.unpack(ctx, names)
		if err != nil {
			return fmt.Errorf("QEMU of Debian %s: %w", emulatorSuite, err)
		}
		return os.Rename(root, dir)
	})
}
