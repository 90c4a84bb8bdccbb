// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// debian names the package of each program that some installations lack.
var debian = map[string]string{
	"busybox":  "busybox-static",
	"cpio":     "cpio",
	"depmod":   "kmod",
	"modprobe": "kmod",
	"gcc":      "gcc",
	"pahole":   "dwarves",
	"xz":       "xz-utils",
}

// output runs a program in a directory and returns its standard output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := child.Command(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) && debian[name] != "" {
		return "", fmt.Errorf("%w: install the Debian package %s", err, debian[name])
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
