// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Kernel is a Debian kernel, downloaded and unpacked, not installed.
type Kernel struct {
	Version string // as requested: "6.1"
	Suite   string // Debian's release: "bookworm"
	Release string // as uname -r prints it: "6.1.0-56-amd64"
	Image   string // path of vmlinuz
	Root    string // directory with lib/modules/Release
}

// FetchKernel returns the pinned Debian kernel of a version ("5.10", "6.1", "6.12" or "7"). If the mirror has dropped
// it, FetchKernel returns the newest kernel, and says so on standard error, in a line that the summary of a stage
// shows. The kernel is downloaded once, by apt from this machine's mirror, and kept in the cache (see CacheDir).
// Processes may call FetchKernel at the same time. The kernel "6.1-debug" is built (buildDebugKernel).
func FetchKernel(ctx context.Context, version string) (Kernel, error) {
	if version == DebugKernel {
		return buildDebugKernel(ctx)
	}
	p, err := findPin(version)
	if err != nil {
		return Kernel{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Kernel{}, err
	}
	// A directory per pin: guests of another checkout may run on another kernel.
	dir := filepath.Join(cache, "kernels", version+"-"+p.version())
	unlock, err := Lock(dir + ".lock")
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()

	k, err := unpacked(dir, p)
	if err != nil {
		if err := download(ctx, dir, p); err != nil {
			return Kernel{}, fmt.Errorf("kernel %s of Debian %s: %w", version, p.suite, err)
		}
		if k, err = unpacked(dir, p); err != nil {
			return Kernel{}, err
		}
	}
	return k, warn(os.Stderr, dir, p)
}

// insteadFile contains the version of a kernel that is not the pinned kernel.
const insteadFile = "instead"

var warned sync.Map // kernels that this process has reported as not pinned

// warn says once that the kernel in dir is not the pinned kernel.
func warn(to io.Writer, dir string, p pin) error {
	version, err := os.ReadFile(filepath.Join(dir, insteadFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, again := warned.LoadOrStore(dir, true); again {
		return nil
	}
	_, err = fmt.Fprintf(to, "stage: kernel %s is %s, not the pinned %s, which the mirror no longer has: make raise-kernels\n",
		p.kernel, version, p.version())
	return err
}

// CacheDir is where kernels and built programs are kept between runs: $ACCELSCOPE_CACHE, or accelscope in the user's
// cache directory. The guest sees it under the same path.
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
func unpacked(dir string, p pin) (Kernel, error) {
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
	return Kernel{Version: p.kernel, Suite: p.suite, Release: release, Image: images[0], Root: dir}, nil
}

func download(ctx context.Context, dir string, p pin) error {
	r, err := openRepository(ctx, filepath.Dir(dir), p.suite)
	if err != nil {
		return err
	}
	defer r.close()
	return r.install(ctx, dir, p)
}

// install replaces dir by the pinned kernel, or the newest, unpacked.
func (r *repository) install(ctx context.Context, dir string, p pin) error {
	chosen, err := r.choose(ctx, p)
	if err != nil {
		return err
	}
	names := chosen.installed()
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
	if chosen.version() != p.version() {
		if err := os.WriteFile(filepath.Join(root, insteadFile), []byte(chosen.version()), 0o644); err != nil {
			return err
		}
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

// place returns the path of the kernel image below root, boot/vmlinuz-RELEASE. Since forky the package has it beside
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
// packages must not build the same files at the same time.
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
