// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// toolchain builds modules of a kernel: the packages of the kernel's Debian release with its headers, the compiler that
// they name, and the programs that they run. The packages are unpacked, not installed; programs run by chroot, with the
// release's own libraries, so a kernel may be newer than this machine's Debian.
type toolchain struct {
	root    string
	headers string // below root
}

// buildTools are the programs of a module build, except those in the dependencies of the headers.
var buildTools = []string{"base-files", "bash", "coreutils", "dash", "findutils", "grep", "make", "mawk", "sed"}

// fetchToolchain returns the tool chain of a kernel, which is downloaded once (80 MB) and kept beside the kernel.
// Processes may call it at the same time.
func fetchToolchain(ctx context.Context, kernel Kernel) (toolchain, error) {
	dir := filepath.Join(kernel.Root, "toolchain")
	t := toolchain{dir, "/usr/src/linux-headers-" + kernel.Release}
	return t, once(dir, func() error {
		r, err := openRepository(ctx, filepath.Dir(kernel.Root), kernel.Suite)
		if err != nil {
			return err
		}
		defer r.close()
		root, err := r.unpackToolchain(ctx, kernel)
		if err != nil {
			return fmt.Errorf("tool chain of kernel %s: %w", kernel.Release, err)
		}
		return os.Rename(root, dir)
	})
}

// unpackToolchain returns a directory with the tool chain of a kernel, as unpack does.
func (r *repository) unpackToolchain(ctx context.Context, kernel Kernel) (root string, err error) {
	name := "linux-headers-" + kernel.Release
	depends, err := r.depends(ctx, name, `linux-(headers|kbuild|compiler)-[0-9a-z]\S*|gcc-[0-9]+`)
	if err != nil {
		return "", fmt.Errorf("%w (the mirror has a newer kernel: remove %s)", err, kernel.Root)
	}
	// The headers themselves depend on the kernel, which nothing here needs.
	headers := regexp.MustCompile(`^linux-headers-`)
	packages, tools := []string{}, buildTools
	for _, name := range depends {
		if headers.MatchString(name) {
			packages = append(packages, name)
		} else {
			tools = append(tools, name)
		}
	}
	if len(packages) != 2 || len(tools) != len(buildTools)+2 {
		return "", fmt.Errorf("%s depends on %q", name, depends)
	}
	tools, err = r.closure(ctx, tools)
	if err != nil {
		return "", err
	}
	root, err = r.unpack(ctx, append(packages, tools...))
	if err != nil {
		return "", err
	}
	// The installation of packages would make these.
	if err := os.Symlink("mawk", filepath.Join(root, "usr/bin/awk")); err != nil {
		return "", err
	}
	null := filepath.Join(root, "dev/null")
	if err := syscall.Mknod(null, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		return "", fmt.Errorf("%s: %w", null, err)
	}
	return root, os.Chmod(null, 0o666)
}

// mkdir creates a temporary directory in which modules can be built. The caller removes it.
func (t toolchain) mkdir() (string, error) { return os.MkdirTemp(filepath.Join(t.root, "tmp"), "") }

// inside returns the path of a file for the programs of the tool chain.
func (t toolchain) inside(path string) string { return strings.TrimPrefix(path, t.root) }

// build builds the modules of a directory, which mkdir returned, with variables of make.
func (t toolchain) build(ctx context.Context, dir string, variables ...string) error {
	if t.inside(dir) == dir {
		return errors.New(dir + " is not in " + t.root)
	}
	// Without the environment: if make runs the test, MAKEFLAGS contains make's own variables, such as ARCH. With
	// procfs, in its own mount namespace: objtool of Linux 7 looks for its stack there.
	args := []string{
		"--mount", "sh", "-c", `mount -t proc proc "$0/proc" && exec chroot "$0" "$@"`,
		t.root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "nice", "make", "-s", "-j2", "-C", t.headers,
		"M=" + t.inside(dir), "modules",
	}
	_, err := output(ctx, dir, "unshare", append(args, variables...)...)
	return err
}
