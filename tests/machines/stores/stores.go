// SPDX-License-Identifier: Apache-2.0

// Package stores builds what stores metrics of fleets that outgrow one Prometheus: Thanos and VictoriaMetrics.
package stores

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Thanos returns the path of the program of Thanos, which is built once, in ten minutes.
func Thanos(ctx context.Context) (string, error) {
	return build(ctx, "thanos", "github.com/thanos-io/thanos/cmd/thanos")
}

// Victoria returns the path of a program of VictoriaMetrics, such as victoria-metrics or vmalert, which is built once.
func Victoria(ctx context.Context, name string) (string, error) {
	return build(ctx, "victoria", "github.com/VictoriaMetrics/VictoriaMetrics/app/"+name)
}

// build builds a program of a module in a directory beside this file.
func build(ctx context.Context, module, path string) (string, error) {
	mod, err := child.Command(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	dir := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "tests/machines/stores", module)
	return vm.Built(filepath.Base(path), os.DirFS(dir), []string{"go.mod", "go.sum"}, func(to string) error {
		cmd := child.Command(ctx, "go", "build", "-trimpath", "-tags=slicelabels", "-o", to, path) // as Thanos has to be built
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build of %s: %w: %s", path, err, out)
		}
		return nil
	})
}
