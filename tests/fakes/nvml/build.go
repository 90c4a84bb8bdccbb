// SPDX-License-Identifier: Apache-2.0

// Package nvml builds a fake of NVIDIA's management library, libnvidia-ml.so.1, for tests without a GPU. A [Scenario]
// defines its answers; a test may change it while the program runs. The library counts the calls. fake/nvml.c names the
// sources of its behavior.
package nvml

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Library is the name of the file that Build creates.
const Library = "libnvidia-ml.so.1"

// Build compiles the library into dir, which it creates, and returns its path. An old library lacks the functions added
// after R450. Build needs gcc, and go to find the vendor's header in go-nvml.
func Build(ctx context.Context, dir string, old bool) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	_, self, _, _ := runtime.Caller(0)
	here := filepath.Dir(self)
	list := child.Command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml")
	list.Dir = here
	module, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("where is go-nvml: %w", err)
	}
	sources, err := filepath.Glob(filepath.Join(here, "fake", "*.c"))
	if err != nil {
		return "", err
	}
	library := filepath.Join(dir, Library)
	args := []string{
		"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations",
		"-shared", "-fPIC", "-pthread", "-Wl,-soname," + Library,
		"-I" + filepath.Join(strings.TrimSpace(string(module)), "pkg", "nvml"), "-o", library,
	}
	if old {
		args = append(args, "-DOLD_LIBRARY")
	}
	if out, err := child.Command(ctx, "gcc", append(args, sources...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return library, nil
}
