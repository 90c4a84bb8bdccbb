// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestLocalFunctions compares functions of programs that export none with what package debug/elf reads. A stripped program has none,
// and still the version.
func TestLocalFunctions(t *testing.T) {
	names := []string{"reserve", "preserve", "allocate", "absent", "puts"}
	for name, flags := range map[string][]string{
		"dynamic": {"-O2"}, "static": {"-O2", "-static"}, "stripped": {"-O2", "-s"}, "stripped static": {"-O2", "-static", "-s"},
	} {
		o, file := openLibrary(t, compile(t, "local", flags...))
		got, err := o.localFunctions(names)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		parsed, err := elf.NewFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]uint64{}
		symbols, err := parsed.Symbols()
		if stripped := strings.HasPrefix(name, "stripped"); (err != nil) != stripped {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range symbols {
			if slices.Contains(names, s.Name) && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF {
				want[s.Name] = append(want[s.Name], s.Value)
			}
		}
		if len(symbols) > 0 && (len(want["reserve"]) != 1 || len(want["preserve"]) != 1 || len(want["allocate"]) != 1) {
			t.Fatalf("%s: debug/elf finds %v", name, want)
		}
		for _, n := range names {
			if !slices.Equal(got[n], want[n]) {
				t.Errorf("%s: %s at %x, want %x", name, n, got[n], want[n])
			}
		}
		if v := o.version([]string{"Other version ", "Fake version "}); v != "2.28.9" {
			t.Errorf("%s: version %q", name, v)
		}
		if v := o.version([]string{"Absent version "}); v != "" {
			t.Errorf("%s: another version: %q", name, v)
		}
	}
}

// TestVersionAfter: a text without a version, a version across the border of two reads, and one at the end.
func TestVersionAfter(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"NCCL version \x00NCCL version 2.1.5\x00", "2.1.5"},
		{strings.Repeat("x", 1<<20-7) + "NCCL version 2.1.5\x00", "2.1.5"},
		{strings.Repeat("x", 1<<20-16) + "NCCL version 2.1.5\x00", "2.1.5"},
		{"NCCL version 2\x00", ""},
		{"NCCL version 2.1.5", ""},
		{"", ""},
	} {
		if got := versionAfter(strings.NewReader(c.text), []string{"NCCL version "}); got != c.want {
			t.Errorf("%.40q: %q, want %q", c.text, got, c.want)
		}
	}
}

// TestArguments: a probe is not moved beyond an instruction that overwrites an argument that programs read.
func TestArguments(t *testing.T) {
	for code, arguments := range map[string]int{"4d 89 c8 55": 5, "45 31 c9 55": 6} { // mov r8, r9; xor r9d, r9d; push rbp
		for _, read := range []int{4, 5, 6} {
			offset, stepped, err := choosePoint(elf.EM_X86_64, unhex(t, code), 4, read)
			if stepped != (read >= arguments) || (offset > 0) == stepped || err != nil {
				t.Errorf("%s, %d arguments: %d, %v, %v", code, read, offset, stepped, err)
			}
		}
	}
}

// FuzzSections: section headers of a hostile file.
func FuzzSections(f *testing.F) {
	f.Add([]byte{}, uint64(0), uint16(1), uint16(0))
	f.Add(bytes.Repeat([]byte{2, 0, 0, 0}, 64), uint64(64), uint16(4), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, at uint64, n, names uint16) {
		o := &object{file: bytes.NewReader(b), sectionOffset: at % (1 << 62), sectionNumber: int(n), sectionNames: int(names)}
		if _, err := o.localFunctions([]string{"a"}); err != nil && !errors.Is(err, errNoSymbols) {
			t.Error(err)
		}
		o.version([]string{"a"})
	})
}
