// SPDX-License-Identifier: Apache-2.0

package procfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestOtherNetwork(t *testing.T) {
	procfs := t.TempDir()
	if err := OtherNetwork(procfs); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(procfs, "1/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(procfs, "1/ns/net")
	for target, other := range map[string]bool{"/proc/self/ns/net": false, "/proc/self/ns/mnt": true} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if err := OtherNetwork(procfs); (err != nil) != other {
			t.Errorf("%s: %v", target, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}
