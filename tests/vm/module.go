// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BuildModule compiles a kernel module from one C file and returns the path of NAME.ko, where NAME.c is the name of the
// file. The module is kept in the cache, so the guest has it under the same path. The compiler is the one that the
// kernel's headers name: gcc-12 for 6.1. Debian 12 has no compiler for the other kernels. Processes may call BuildModule
// at the same time.
func BuildModule(ctx context.Context, kernel Kernel, source string) (path string, err error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	unlock, err := Lock(kernel.Root + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	name := strings.TrimSuffix(filepath.Base(source), ".c")
	hash := sha256.Sum256(text)
	dir := filepath.Join(kernel.Root, "modules", name+"-"+hex.EncodeToString(hash[:8]))
	path = filepath.Join(dir, name+".ko")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	headers, err := fetchHeaders(ctx, kernel)
	if err != nil {
		return "", fmt.Errorf("headers of kernel %s: %w", kernel.Release, err)
	}
	tmp, err := os.MkdirTemp(kernel.Root, "module-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for file, text := range map[string][]byte{name + ".c": text, "Makefile": []byte("obj-m := " + name + ".o\n")} {
		if err := os.WriteFile(filepath.Join(tmp, file), text, 0o644); err != nil {
			return "", err
		}
	}
	// If make runs the test, MAKEFLAGS contains make's own variables, such as ARCH.
	if _, err := output(ctx, tmp, "env", "-u", "MAKEFLAGS", "make", "-s", "-C", headers, "M="+tmp, "modules"); err != nil {
		return "", fmt.Errorf("module %s for kernel %s: %w", name, kernel.Release, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(filepath.Join(tmp, name+".ko"), path)
}

// fetchHeaders returns the directory that a module of the kernel is built with. The packages linux-headers-RELEASE,
// linux-headers-*-common and linux-kbuild-* are downloaded once and unpacked below the kernel's directory, not installed.
func fetchHeaders(ctx context.Context, kernel Kernel) (string, error) {
	root := filepath.Join(kernel.Root, "headers")
	headers := filepath.Join(root, "usr/src/linux-headers-"+kernel.Release)
	if _, err := os.Stat(headers); err == nil {
		return headers, nil
	}
	r, err := openRepository(ctx, filepath.Dir(kernel.Root), suites[kernel.Version])
	if err != nil {
		return "", err
	}
	defer r.close()
	// The pattern matches linux-headers-RELEASE itself, too, but not the compiler that it depends on.
	names, err := r.depends(ctx, "linux-headers-"+kernel.Release, `linux-(headers|kbuild)-[0-9]\S*`)
	if err != nil {
		return "", fmt.Errorf("%w (the mirror has a newer kernel: remove %s)", err, kernel.Root)
	}
	if len(names) != 3 {
		return "", fmt.Errorf("packages %q, want 3", names)
	}
	unpacked, err := r.unpack(ctx, names)
	if err != nil {
		return "", err
	}
	if err := relocate(filepath.Join(unpacked, "usr/src/linux-headers-"+kernel.Release, "Makefile")); err != nil {
		return "", err
	}
	return headers, os.Rename(unpacked, root)
}

// relocate rewrites the one absolute path of unpacked headers: the Makefile of linux-headers-RELEASE includes that of
// linux-headers-*-common in /usr/src. make runs in the directory of the former. The links to linux-kbuild-* are relative.
func relocate(makefile string) error {
	text, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	const include = "include /usr/src/"
	if strings.Count(string(text), include) != 1 {
		return errors.New(makefile + " does not include a Makefile of /usr/src")
	}
	return os.WriteFile(makefile, []byte(strings.Replace(string(text), include, "include ../", 1)), 0o644)
}
