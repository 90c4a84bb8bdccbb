// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// versionsFlags make a library of testdata/versions.c.
func versionsFlags(style string) []string {
	return []string{
		"-shared", "-fPIC", "-O2", "-Wl,--version-script=testdata/versions.map", "-Wl,--hash-style=" + style,
	}
}

// TestSymbols compares the functions of libraries, by each kind of hash table, with what package debug/elf reads.
func TestSymbols(t *testing.T) {
	paths := []string{library(t, "libc.so.6"), library(t, "libibverbs.so.1")}
	for _, style := range []string{"gnu", "sysv", "both"} {
		paths = append(paths, compile(t, "versions", versionsFlags(style)...))
	}
	for _, path := range paths {
		o, file := openLibrary(t, path)
		table, err := o.symbolTable()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		parsed, err := elf.NewFile(file)
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := parsed.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]uint64{}
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF {
				want[s.Name] = append(want[s.Name], s.Value)
			} else if want[s.Name] == nil {
				want[s.Name] = nil
			}
		}
		want["cuMemAlloc_v2"] = nil
		functions := 0
		for name, addresses := range want {
			got, err := table.functions(name)
			slices.Sort(got)
			slices.Sort(addresses)
			if err != nil || !slices.Equal(got, addresses) {
				t.Errorf("%s: %s at %x, %v; want %x", path, name, got, err, addresses)
			}
			functions += len(addresses)
		}
		t.Logf("%s: %d functions", path, functions)
		if functions < 4 {
			t.Errorf("%s: %d functions", path, functions)
		}
	}
}

// TestLibraries finds a library that this process has mapped, by its name.
func TestLibraries(t *testing.T) {
	built := compile(t, "versions", versionsFlags("gnu")...)
	dir := t.TempDir()
	text, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"libfake.so.12.3": text, "libfaker.so.1": text, "libfake.so": bytes.Repeat([]byte("no library"), 1000), "other": text,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
		mapExecutable(t, path)
	}
	deleted := filepath.Join(dir, "libfake.so.2")
	if err := os.WriteFile(deleted, text, 0o755); err != nil {
		t.Fatal(err)
	}
	mapExecutable(t, deleted)
	if err := os.Remove(deleted); err != nil {
		t.Fatal(err)
	}
	o, _ := openLibrary(t, built)
	l := NewLibraries([]LibraryName{{Name: "libfake.so", Functions: []string{"reserve", "allocate", "alias", "table", "malloc", "absent"}}})
	for range 2 { // read, and from the cache
		found, err := l.Find(self(t))
		if err == nil || !strings.Contains(err.Error(), "ELF") {
			t.Errorf("the file that is no library: %v", err)
		}
		if len(found) != 2 {
			t.Fatalf("%+v, %v", found, err)
		}
		for _, lib := range found {
			opened, err := os.ReadFile(lib.Path)
			if err != nil || !bytes.Equal(opened, text) {
				t.Errorf("%+v: %v", lib, err)
			}
			places := map[string]int{}
			for _, f := range lib.Functions {
				address, err := o.address(f.Offset)
				if err = errors.Join(err, f.Err); err != nil {
					t.Errorf("%+v: %v", f, err)
				}
				if _, err := o.function(address); err != nil && f.Stepped {
					t.Errorf("%+v: %v", f, err)
				}
				places[f.Name]++
			}
			if want := map[string]int{"reserve": 1, "allocate": 2}; !maps.Equal(places, want) {
				t.Errorf("%v, want %v", places, want)
			}
		}
	}
}

// TestManyLibraries: a process cannot make the sensor open any number of files.
func TestManyLibraries(t *testing.T) {
	built, err := os.ReadFile(compile(t, "versions", versionsFlags("gnu")...))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range maxLibraries + 3 {
		path := filepath.Join(dir, "libfake.so."+string(rune('a'+i)))
		if err := os.WriteFile(path, built, 0o755); err != nil {
			t.Fatal(err)
		}
		mapExecutable(t, path)
	}
	p := self(t)
	found, err := NewLibraries([]LibraryName{{Name: "libfake.so", Functions: []string{"reserve"}}}).Find(p)
	if len(found) != maxLibraries || len(p.files) != maxLibraries || err == nil {
		t.Errorf("%d libraries, %d open files, %v", len(found), len(p.files), err)
	}
	if errors.Is(err, model.ErrAbsent) {
		t.Error(err)
	}
}
