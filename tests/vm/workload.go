// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed workload
var workloads embed.FS

// BuildWorkloads compiles the C programs of workload/ and returns the directory they are in: verbs, threads, churn,
// failures, loop, posts, dmabuf, devx, ioctls and uverbs-trace, and beside them extended.py. It is in the cache, so the guest has it under
// the same path.
func BuildWorkloads(ctx context.Context) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	entries, err := workloads.ReadDir("workload")
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	sources := make(map[string][]byte)
	for _, e := range entries {
		text, err := workloads.ReadFile("workload/" + e.Name())
		if err != nil {
			return "", err
		}
		sources[e.Name()] = text
		fmt.Fprintf(hash, "%s %d\n%s", e.Name(), len(text), text)
	}
	dir := filepath.Join(cache, "workloads-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	unlock, err := Lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w: install the Debian package libibverbs-dev", err)
	}
	tmp, err := os.MkdirTemp(cache, "workloads-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
			return "", err
		}
	}
	for name := range sources {
		program, ok := strings.CutSuffix(name, ".c")
		if !ok {
			continue
		}
		if _, err := output(ctx, tmp, "gcc", "-O2", "-Wall", "-o", program, name, "-libverbs", "-lpthread"); err != nil {
			return "", err
		}
	}
	return dir, os.Rename(tmp, dir)
}
