// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestListing: a poll reports added, removed and replaced entries, also if the directory itself is replaced.
func TestListing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "class")
	l := newListing(dir)
	defer l.close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	poll := func(what string, changed bool, entries int) {
		t.Helper()
		got, err := l.poll()
		must(err)
		if got != changed || l.entries != entries {
			t.Errorf("%s: changed %v, %d entries, want %v, %d", what, got, l.entries, changed, entries)
		}
		if got, err := l.poll(); got || err != nil || l.entries != entries {
			t.Errorf("%s, second poll: changed %v, %d entries, %v", what, got, l.entries, err)
		}
	}
	poll("no directory", false, 0)
	must(os.MkdirAll(filepath.Join(dir, "mlx5_0"), 0o755))
	poll("first device", true, 1)
	for i := range 500 { // more than fit in one system call
		must(os.Mkdir(filepath.Join(dir, fmt.Sprint("a_device_with_a_long_name_", i)), 0o755))
	}
	poll("many devices", true, 501)
	must(os.Mkdir(filepath.Join(dir, "next"), 0o755))
	must(os.Remove(filepath.Join(dir, "mlx5_0")))
	must(os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "mlx5_0")))
	poll("another device of the same name", true, 501)
	must(os.RemoveAll(dir))
	poll("class removed", true, 0)
	must(os.MkdirAll(filepath.Join(dir, "mlx5_0"), 0o755))
	poll("class back", true, 1)
	must(os.RemoveAll(dir))
	must(os.MkdirAll(filepath.Join(dir, "mlx5_0"), 0o755))
	if _, err := l.poll(); err != nil || l.entries != 1 {
		t.Errorf("class replaced between two polls: %d entries, %v, want 1", l.entries, err)
	}
	must(os.RemoveAll(dir))
	must(os.WriteFile(dir, nil, 0o644))
	if _, err := l.poll(); err == nil {
		t.Error("a file is listed")
	}
}
