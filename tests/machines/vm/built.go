// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Built returns the path in the cache of the result of build for the files in dir, a file or a directory: name, and a
// checksum of the files. Each version is built once, at another path that is then renamed.
func Built(name string, dir fs.FS, files []string, build func(path string) error) (string, error) {
	sum := sha256.New()
	for _, name := range files {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, fmt.Sprintf("%s-%x", name, sum.Sum(nil)[:8]))
	return path, once(path, func() error {
		if err := os.RemoveAll(path + ".new"); err != nil { // of a build that was ended
			return err
		}
		if err := build(path + ".new"); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	})
}

// once calls create if there is no file or directory at path; it creates the parent directory. Processes wait for each other.
func once(path string, create func() error) error {
	unlock, err := Lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return create()
}
