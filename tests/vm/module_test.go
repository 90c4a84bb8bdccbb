// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRelocate(t *testing.T) {
	makefile := filepath.Join(t.TempDir(), "Makefile")
	if err := os.WriteFile(makefile, []byte("include /usr/src/linux-headers-6.1.0-56-common/Makefile\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := relocate(makefile); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(makefile)
	if err != nil {
		t.Fatal(err)
	}
	if want := "include ../linux-headers-6.1.0-56-common/Makefile\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := relocate(makefile); err == nil {
		t.Error("no error for a Makefile without the absolute path")
	}
}
