// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
)

// write writes a file and its directories.
func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}

// expand replaces a word of a template.
func expand(template, word, by string) string { return strings.ReplaceAll(template, word, by) }
