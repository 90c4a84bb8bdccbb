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

// changedModules are modules of a kernel, built from a changed copy of Debian's source of the same kernel.
type changedModules struct {
	name    string   // of the directory in the cache
	recipe  []byte   // what the modules depend on: part of the name of the directory
	sources []string // the parts of the source that are unpacked
	// change changes the source in a directory.
	change func(dir string) error
	// directories are the directories of the source that contain the modules.
	directories []string
	// include is a directory of headers that precede the kernel's own, or "".
	include string
	// place puts the modules, which were built in the directory source, into the directory dir.
	place func(ctx context.Context, kernel Kernel, source, dir string) error
}

//go:embed source.go
var sourceRecipe []byte

// build returns the directory that place has filled. It is kept in the cache, so the guest has it under the same path.
// Processes may call build at the same time. A build takes one to four minutes.
func (c changedModules) build(ctx context.Context, kernel Kernel) (dir string, err error) {
	hash := sha256.Sum256(append(sourceRecipe, c.recipe...))
	dir = filepath.Join(kernel.Root, c.name+"-"+hex.EncodeToString(hash[:8]))
	return dir, once(dir, func() error { return c.make(ctx, kernel, dir) })
}

// make makes the directory that build returns.
func (c changedModules) make(ctx context.Context, kernel Kernel, dir string) error {
	tools, err := fetchToolchain(ctx, kernel)
	if err != nil {
		return err
	}
	source, err := tools.mkdir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(source)
	if err := c.compile(ctx, kernel, tools, source); err != nil {
		return fmt.Errorf("%s modules of kernel %s: %w", c.name, kernel.Release, err)
	}
	tmp, err := os.MkdirTemp(kernel.Root, c.name+"-tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	done := filepath.Join(tmp, "done")
	if err := os.Mkdir(done, 0o755); err != nil {
		return err
	}
	if err := c.place(ctx, kernel, source, done); err != nil {
		return fmt.Errorf("%s modules of kernel %s: %w", c.name, kernel.Release, err)
	}
	return os.Rename(done, dir)
}

func (c changedModules) compile(ctx context.Context, kernel Kernel, tools toolchain, dir string) error {
	if err := unpackSource(ctx, kernel, c.sources, dir); err != nil {
		return err
	}
	if err := c.change(dir); err != nil {
		return err
	}
	list := "obj-m := " + strings.Join(c.directories, "/ ") + "/\n"
	if err := os.WriteFile(filepath.Join(dir, "Kbuild"), []byte(list), 0o644); err != nil {
		return err
	}
	if c.include == "" {
		return tools.build(ctx, dir)
	}
	// Tracepoints include a file by a path relative to a directory of headers.
	include := tools.inside(filepath.Join(dir, c.include))
	return tools.build(ctx, dir, "NOSTDINC_FLAGS=-nostdinc -I"+include+" -I"+include+"/rdma")
}

// packageVersion is in the banner of a kernel image: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)".
var packageVersion = regexp.MustCompile(`Debian (\d\S*) \(`)

// unpackSource unpacks parts of the source of a kernel into a directory, of the same version as its image.
func unpackSource(ctx context.Context, kernel Kernel, sources []string, dir string) error {
	image, err := os.ReadFile(kernel.Image)
	if err != nil {
		return err
	}
	version := packageVersion.FindSubmatch(image)
	if version == nil {
		return errors.New(kernel.Image + " does not name the version of its package")
	}
	r, err := openRepository(ctx, filepath.Dir(kernel.Root), kernel.Suite)
	if err != nil {
		return err
	}
	defer r.close()
	name := "linux-source-" + kernel.Version
	root, err := r.unpack(ctx, []string{name + "=" + string(version[1])})
	if err != nil {
		return fmt.Errorf("%w (if the mirror has a newer kernel: remove %s)", err, kernel.Root)
	}
	args := []string{"-xJf", filepath.Join(root, "usr/src", name+".tar.xz"), "--strip-components=1"}
	for _, source := range sources {
		args = append(args, name+"/"+source)
	}
	_, err = output(ctx, dir, "tar", args...)
	return err
}

// replaceOnce replaces a text of a file that contains it once.
func replaceOnce(file, old, text string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(content), old); n != 1 {
		return fmt.Errorf("%s contains %q %d times, want once", file, old, n)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(content), old, text, 1)), 0o644)
}

// placeModules makes the directory lib/modules below root, with all modules of a kernel, some of them replaced.
func placeModules(ctx context.Context, kernel Kernel, root string, modules []string) error {
	// Links, so that the kernel's other modules take no space.
	release := filepath.Join(root, "lib/modules", kernel.Release)
	updates := filepath.Join(release, "updates") // depmod prefers it
	if err := os.MkdirAll(updates, 0o755); err != nil {
		return err
	}
	own := filepath.Join(kernel.Root, "lib/modules", kernel.Release)
	if err := run(ctx, root, []string{"cp", "-al", own + "/kernel", release}, []string{"sh", "-c", "cp " + own + "/modules.* " + release}); err != nil {
		return err
	}
	for _, module := range modules {
		file := filepath.Join(updates, filepath.Base(module))
		if err := copyFile(file, module); err != nil {
			return err
		}
		if err := run(ctx, root, []string{"strip", "--strip-debug", file}); err != nil {
			return err
		}
	}
	return run(ctx, root, []string{"depmod", "-b", root, kernel.Release})
}

func run(ctx context.Context, dir string, commands ...[]string) error {
	for _, c := range commands {
		if _, err := output(ctx, dir, c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}
