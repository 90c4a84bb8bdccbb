// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/tests/tools/child"
)

//go:embed init.sh
var initScript []byte

// bootModules are the modules that the guest needs before it can read /lib/modules; others are loaded with modprobe.
var bootModules = []string{"virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_console", "virtio_net"}

// initramfs returns the path of the initramfs of a kernel: busybox, bootModules and init.sh. It is cached by content.
func initramfs(ctx context.Context, k Kernel) (string, error) {
	hash := sha256.Sum256(fmt.Append(initScript, bootModules))
	image := filepath.Join(k.Root, "initramfs-"+hex.EncodeToString(hash[:8]))
	unlock, err := Lock(k.Root + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}

	tmp, err := os.MkdirTemp("", "initramfs-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w: install the Debian package %s", err, debian["busybox"])
	}
	if err := os.Mkdir(filepath.Join(tmp, "bin"), 0o755); err != nil {
		return "", err
	}
	if err := copyFile(filepath.Join(tmp, "bin/busybox"), busybox); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(tmp, "init"), initScript, 0o755); err != nil {
		return "", err
	}
	modules, err := dependencies(ctx, k)
	if err != nil {
		return "", err
	}
	for i, module := range modules {
		// Numbered, because the order is the order of loading.
		name := fmt.Sprintf("%02d-%s", i, strings.TrimSuffix(filepath.Base(module), ".xz"))
		dst := filepath.Join(tmp, name)
		ko, err := readModule(ctx, module)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(dst, ko, 0o644); err != nil {
			return "", err
		}
	}

	var files bytes.Buffer
	if err := filepath.WalkDir(tmp, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(tmp, path)
		fmt.Fprintln(&files, name)
		return err
	}); err != nil {
		return "", err
	}
	cpio := child.Command(ctx, "cpio", "--quiet", "-o", "-H", "newc")
	cpio.Dir = tmp
	cpio.Stdin = &files
	archive, err := cpio.Output()
	if err != nil {
		return "", fmt.Errorf("cpio (Debian package cpio): %w", err)
	}
	if err := os.WriteFile(image+".tmp", archive, 0o644); err != nil {
		return "", err
	}
	return image, os.Rename(image+".tmp", image)
}

// readModule returns the content of a module's file, which may be compressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	ko, err := output(ctx, "", "xz", "-dc", path)
	return []byte(ko), err
}

// dependencies lists the files of bootModules and of what they need, in the order of loading.
func dependencies(ctx context.Context, k Kernel) ([]string, error) {
	var modules []string
	for _, name := range bootModules {
		out, err := output(ctx, "", "modprobe", "-d", k.Root, "-S", k.Release, "--show-depends", name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			f := strings.Fields(line) // "insmod PATH [PARAMETERS]" or "builtin NAME"
			if len(f) > 1 && f[0] == "insmod" && !slices.Contains(modules, f[1]) {
				modules = append(modules, f[1])
			}
		}
	}
	return modules, nil
}

func copyFile(dst, src string) error {
	b, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	return os.WriteFile(dst, b, 0o755)
}
