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
	"syscall"
)

// suites maps kernel versions to Debian releases. The release of 7 is still in development, and has the current 7.x.
var suites = map[string]string{
	"5.10": "bullseye",
	"6.1":  "bookworm",
	"6.12": "trixie",
	"7":    "forky",
}

// Kernel is a Debian kernel, downloaded and unpacked, not installed.
type Kernel struct {
	Version string // as requested: "6.1"
	Release string // as uname -r prints it: "6.1.0-56-amd64"
	Image   string // path of vmlinuz
	Root    string // directory with lib/modules/Release
}

// FetchKernel returns the newest Debian kernel of a version ("5.10", "6.1", "6.12" or "7").
// It is downloaded once, by apt and from the mirror that this machine is configured for, and kept in the cache
// (see CacheDir); remove the cache to get a newer one. Processes may call it at the same time.
func FetchKernel(ctx context.Context, version string) (Kernel, error) {
	suite, ok := suites[version]
	if !ok {
		return Kernel{}, fmt.Errorf("kernel %q: want 5.10, 6.1, 6.12 or 7", version)
	}
	cache, err := CacheDir()
	if err != nil {
		return Kernel{}, err
	}
	dir := filepath.Join(cache, "kernels", version)
	unlock, err := Lock(dir + ".lock")
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()

	if k, err := unpacked(dir, version); err == nil {
		return k, nil
	}
	if err := download(ctx, dir, suite); err != nil {
		return Kernel{}, fmt.Errorf("kernel %s of Debian %s: %w", version, suite, err)
	}
	return unpacked(dir, version)
}

// CacheDir is where kernels and built programs are kept between runs: $ACCELSCOPE_CACHE, or accelscope in the
// user's cache directory. The guest sees it under the same path.
func CacheDir() (string, error) {
	if dir := os.Getenv("ACCELSCOPE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory (set ACCELSCOPE_CACHE): %w", err)
	}
	return filepath.Join(dir, "accelscope"), nil
}

// unpacked returns the kernel in dir if its image has the checksum that download wrote as its last step.
func unpacked(dir, version string) (Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("%s: %d kernel images, want 1", dir, len(images))
	}
	want, err := os.ReadFile(filepath.Join(dir, "sha256"))
	if err != nil {
		return Kernel{}, err
	}
	got, err := checksum(images[0])
	if err != nil {
		return Kernel{}, err
	}
	if got != string(want) {
		return Kernel{}, fmt.Errorf("%s: checksum differs from the downloaded one", images[0])
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{Version: version, Release: release, Image: images[0], Root: dir}, nil
}

// download replaces dir by the unpacked kernel package of a Debian suite.
func download(ctx context.Context, dir, suite string) error {
	r, err := openRepository(ctx, filepath.Dir(dir), suite)
	if err != nil {
		return err
	}
	defer r.close()
	names, err := r.depends(ctx, "linux-image-amd64", `linux-image-[0-9]\S*`)
	if err != nil {
		return err
	}
	if len(names) != 1 {
		return fmt.Errorf("linux-image-amd64 depends on %d kernels: %q", len(names), names)
	}
	// Since forky the package of the image is empty: it depends on those that have the image, the modules, and the list
	// of those that are built in.
	parts, err := r.depends(ctx, names[0], `linux-(binary|modules|base)-[0-9]\S*`)
	if err != nil {
		return err
	}
	names = append(names, parts...)
	root, err := r.unpack(ctx, names)
	if err != nil {
		return err
	}
	image, err := place(root)
	if err != nil {
		return fmt.Errorf("%v: %w", names, err)
	}
	// Since trixie modules are under usr/lib, where kmod finds them through the merged-usr link only.
	if _, err := os.Stat(filepath.Join(root, "lib")); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	release := strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
	if _, err := output(ctx, root, "depmod", "-b", root, release); err != nil {
		return err
	}
	sum, err := checksum(image)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "sha256"), []byte(sum), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(root, dir)
}

// place returns the path of the kernel image below root, boot/vmlinuz-RELEASE. Since forky the package has it next to
// its modules.
func place(root string) (string, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil {
		return "", err
	}
	beside, err := filepath.Glob(filepath.Join(root, "usr/lib/modules/*/vmlinuz"))
	if err != nil {
		return "", err
	}
	if len(images)+len(beside) != 1 {
		return "", fmt.Errorf("%d kernel images, want 1", len(images)+len(beside))
	}
	if len(images) == 1 {
		return images[0], nil
	}
	image := filepath.Join(root, "boot/vmlinuz-"+filepath.Base(filepath.Dir(beside[0])))
	if err := os.Mkdir(filepath.Dir(image), 0o755); err != nil {
		return "", err
	}
	return image, os.Rename(beside[0], image)
}

func checksum(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// Lock takes an exclusive lock on a file, which it creates, and returns a function that releases the lock: tests of two
// packages that run at the same time must not build the same files.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
