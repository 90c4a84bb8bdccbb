// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// FetchPackages returns a directory with the files of Debian packages of another release, without dependencies. They
// are downloaded once and kept in the cache (see CacheDir); remove them there to get newer packages. Processes may call
// it at the same time.
func FetchPackages(ctx context.Context, suite string, names ...string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "packages", suite+"-"+strings.Join(names, "-"))
	return dir, once(dir, func() error {
		r, err := openRepository(ctx, filepath.Dir(dir), suite)
		if err != nil {
			return err
		}
		defer r.close()
		root, err := r.unpack(ctx, names)
		if err != nil {
			return fmt.Errorf("packages of Debian %s: %w", suite, err)
		}
		return os.Rename(root, dir)
	})
}
