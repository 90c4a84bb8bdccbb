// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/accelscope/accelscope/pkg/config"
)

// executeTool replaces this process by accelscope-tool, which gets the same arguments and environment. It returns only errors.
func executeTool(args []string) error {
	self, err := os.Executable() // the file in /proc/self/exe, never a link
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(self), string(config.Tool))
	err = syscall.Exec(path, append([]string{path}, args...), os.Environ())
	return fmt.Errorf("execute %s, which is in the same package and image as %s: %w", path, self, err)
}
