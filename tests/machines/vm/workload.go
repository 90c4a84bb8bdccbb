// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

//go:embed workload
var workloads embed.FS

// BuildWorkloads compiles the C programs of workload/ and returns their directory: verbs, threads, churn, failures,
// loop, posts, receives, ring, dmabuf, devx, ioctls, uverbs-trace, holdmm, manymaps and forklat, and beside them extended.py. It is in
// the cache, so the guest has it under the same path.
func BuildWorkloads(ctx context.Context) (string, error) {
	sources, err := fs.Sub(workloads, "workload")
	if err != nil {
		return "", err
	}
	names, err := fs.Glob(sources, "*")
	if err != nil {
		return "", err
	}
	return Built("workloads", sources, names, func(dir string) error {
		if _, err := os.Stat("/usr/include/infiniband/verbs.h"); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: install the Debian package libibverbs-dev", err)
		}
		if err := os.CopyFS(dir, sources); err != nil {
			return err
		}
		for _, name := range names {
			program, ok := strings.CutSuffix(name, ".c")
			if !ok {
				continue
			}
			if _, err := output(ctx, dir, "gcc", "-O2", "-Wall", "-o", program, name, "-libverbs", "-lpthread"); err != nil {
				return err
			}
		}
		return nil
	})
}
