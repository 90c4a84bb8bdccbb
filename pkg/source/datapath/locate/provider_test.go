// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// library is a file of Debian's multiarch directory.
func library(t testing.TB, name string) string {
	t.Helper()
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	path, err := filepath.EvalSymlinks(filepath.Join("/usr/lib", triplet, name))
	if err != nil {
		t.Fatalf("%v: make deps", err)
	}
	return path
}

func openLibrary(t testing.TB, path string) (*object, *os.File) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	o, err := openObject(f)
	if err != nil {
		t.Fatal(err)
	}
	return o, f
}

func TestProvider(t *testing.T) {
	providers, _ := filepath.Glob(library(t, "libibverbs") + "/*-rdmav*.so")
	if len(providers) < 10 {
		t.Fatalf("%d providers: make deps", len(providers))
	}
	for _, path := range providers {
		o, _ := openLibrary(t, path)
		direct, err := o.provider()
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "lib"), "-")
		// Those for which Debian 12 has a header with ...dv_ functions: /usr/include/infiniband/*dv.h.
		if want := slices.Contains([]string{"efa", "mana", "mlx4", "mlx5"}, name); direct != want {
			t.Errorf("%s: direct access %v, want %v", path, direct, want)
		}
	}
	for _, path := range []string{library(t, "libc.so.6"), library(t, "libibverbs.so.1"), library(t, "librdmacm.so.1"), "/bin/bash"} {
		o, _ := openLibrary(t, path)
		if _, err := o.provider(); !errors.Is(err, errNoProvider) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, data := range []string{"", "\x7fELF", "#!/bin/sh\n", strings.Repeat("x", 4096)} {
		if _, err := openObject(strings.NewReader(data)); !errors.Is(err, errNoProvider) {
			t.Errorf("%.8q: %v", data, err)
		}
	}
}

// instruction is a line of objdump -d.
type instruction struct {
	text string
	next uint64
}

var objdumpLine = regexp.MustCompile(`^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *(?:\t(.*))?$`)

// objdump uses a different disassembler than we do.
func objdump(t *testing.T, path string) map[uint64]instruction {
	t.Helper()
	out, err := child.Command(context.Background(), "objdump", "-d", "-w", path).Output()
	if err != nil {
		t.Fatalf("objdump %s: %v", path, err)
	}
	code := map[uint64]instruction{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if m := objdumpLine.FindStringSubmatch(s.Text()); m != nil {
			address, _ := strconv.ParseUint(m[1], 16, 64)
			code[address] = instruction{text: m[3], next: address + uint64(len(strings.Fields(m[2])))}
		}
	}
	return code
}

// addressTaken returns the functions that a library's data points to; its operations are among them.
func addressTaken(t *testing.T, path string) []uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, relocations := f.Section(".text"), f.Section(".rela.dyn")
	data, err := relocations.Data()
	if err != nil {
		t.Fatal(err)
	}
	var addresses []uint64
	for ; len(data) >= 24; data = data[24:] {
		addend := binary.LittleEndian.Uint64(data[16:])
		if elf.R_X86_64(binary.LittleEndian.Uint32(data[8:])) == elf.R_X86_64_RELATIVE && text.Addr <= addend && addend < text.Addr+text.Size {
			addresses = append(addresses, addend)
		}
	}
	return addresses
}

var (
	mayWrite = regexp.MustCompile(`^(endbr64|nop|cmp|test)`)
	pure     = regexp.MustCompile(`^(mov|lea|xor|and|or|add|sub|sh|sar).*,%(e|r)?(ax|al|r?(8|9|10|11)[dwb]?)( .*)?$`)
	pushed   = regexp.MustCompile(`^(push +%r|nop$|xchg +%ax,%ax|j[a-z]+ +[0-9a-f])`)
)

// TestPointsOfRealProviders compares each function that the data of a provider points to with the output of objdump:
// the probe point is the start of an instruction of an emulated kind, and the instructions before it have no side
// effects.
func TestPointsOfRealProviders(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("disassembles x86")
	}
	for _, name := range []string{"libibverbs/librxe-rdmav34.so", "libmlx5.so.1", "libefa.so.1", "libibverbs/libirdma-rdmav34.so", "libibverbs/libbnxt_re-rdmav34.so"} {
		path := library(t, name)
		code := objdump(t, path)
		o, f := openLibrary(t, path)
		functions, emulates, steps := 0, 0, 0
		for _, address := range addressTaken(t, path) {
			extent, err := o.function(address)
			if address == initFini(t, path, address) {
				continue
			}
			if err != nil {
				t.Errorf("%s %#x: %v", name, address, err)
				continue
			}
			functions++
			s := disassemble(f, offsetInFile(t, o, address), pathArguments)
			if s.err != nil {
				t.Errorf("%s %#x: %v: %v", name, address, code[address].text, s.err)
				continue
			}
			at := address + s.offset - offsetInFile(t, o, address)
			if at >= address+extent.prologue {
				t.Errorf("%s %#x: point at %#x, beyond what begins it", name, address, at)
			}
			if s.stepped {
				steps++
				if at != address {
					t.Errorf("%s %#x: steps at %#x", name, address, at)
				}
				continue
			}
			emulates++
			if !pushed.MatchString(code[at].text) {
				t.Errorf("%s %#x: not emulated: %q", name, address, code[at].text)
			}
			for before := address; before != at; before = code[before].next {
				if i, ok := code[before]; !ok || before > at || (!mayWrite.MatchString(i.text) && !pure.MatchString(i.text)) {
					t.Errorf("%s %#x: passes %#x %q", name, address, before, i.text)
					break
				}
			}
		}
		t.Logf("%s: %d functions, %d emulated, %d stepped", name, functions, emulates, steps)
		if functions < 15 || emulates < functions/2 {
			t.Errorf("%s: %d functions, %d emulated", name, functions, emulates)
		}
	}
}

func offsetInFile(t *testing.T, o *object, address uint64) uint64 {
	t.Helper()
	for _, p := range o.loads {
		if p.Vaddr <= address && address < p.Vaddr+p.Filesz {
			return address - p.Vaddr + p.Off
		}
	}
	t.Fatalf("%#x is in no segment", address)
	return 0
}

// initFini returns the address if .init_array or .fini_array has it: every library has such functions of the startup
// code, which have no unwind entry.
func initFini(t *testing.T, path string, address uint64) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, _ := f.Section(".rela.dyn").Data()
	for ; len(data) >= 24; data = data[24:] {
		if binary.LittleEndian.Uint64(data[16:]) != address {
			continue
		}
		for _, name := range []string{".init_array", ".fini_array"} {
			s := f.Section(name)
			if s != nil && s.Addr <= binary.LittleEndian.Uint64(data) && binary.LittleEndian.Uint64(data) < s.Addr+s.Size {
				return address
			}
		}
	}
	return 0
}

// TestFunctionStartsOnly: an address that a process names must be the start of a function. In the middle of an instruction
// a breakpoint would break all processes that map the file, and in the cold part of a function the return address is
// not on top of the stack.
func TestFunctionStartsOnly(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only for x86")
	}
	path := library(t, "libmlx5.so.1")
	_, f := openLibrary(t, path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o, err := openObject(bytes.NewReader(data)) // a million reads follow
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.Command(context.Background(), "readelf", "-wF", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	// readelf's table of rows: an entry whose first row has another CFA than rsp+8 is not the start of a function.
	header := regexp.MustCompile(`FDE cie=[0-9a-f]+ pc=([0-9a-f]+)\.\.([0-9a-f]+)`)
	begins := map[uint64]bool{}
	cold := 0
	var start uint64
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if m := header.FindStringSubmatch(s.Text()); m != nil {
			if start != 0 {
				begins[start] = true // the entry has only the rows of the CIE
			}
			start, _ = strconv.ParseUint(m[1], 16, 64)
			continue
		}
		if fields := strings.Fields(s.Text()); start != 0 && len(fields) > 1 && strings.HasSuffix(fields[1], "+8") && fields[0] != "LOC" {
			begins[start], start = fields[1] == "rsp+8", 0
		} else if start != 0 && len(fields) > 1 && fields[0] != "LOC" {
			begins[start], start = false, 0
			cold++
		}
	}
	if len(begins) < 500 || cold < 5 {
		t.Fatalf("%d entries, %d of them cold parts: the test checks nothing", len(begins), cold)
	}
	text, _ := elf.Open(path)
	defer text.Close()
	section := text.Section(".text")
	for address := section.Addr; address < section.Addr+section.Size; address++ {
		_, err := o.function(address)
		if (err == nil) != begins[address] {
			t.Fatalf("%#x: %v, readelf says %v", address, err, begins[address])
		}
		if err != nil && !errors.Is(err, errNoFunction) {
			t.Fatalf("%#x: %v", address, err)
		}
	}
	if s := disassemble(f, 0, pathArguments); !errors.Is(s.err, errNoProvider) {
		t.Errorf("the head of the file: %v", s.err)
	}
}

// tiny is the minimal provider: a function starts at 0x200, and its cold part is at 0x208.
func tiny() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0x300)
	h := elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1},
		Machine: uint16(elf.EM_X86_64), Phoff: 64, Phentsize: 56, Phnum: 3,
	}
	put := func(at int, data any) { _, _ = binary.Encode(b[at:], le, data) }
	put(0, h)
	put(64, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: 0x300},
		{Type: uint32(elf.PT_DYNAMIC), Off: 0xf0, Vaddr: 0xf0, Filesz: 5 * 16},
		{Type: uint32(elf.PT_GNU_EH_FRAME), Off: 0x220, Vaddr: 0x220, Filesz: 0x1c},
	})
	put(0xf0, []elf.Dyn64{
		{Tag: int64(elf.DT_VERNEED), Val: 0x150},
		{Tag: int64(elf.DT_VERNEEDNUM), Val: 1},
		{Tag: int64(elf.DT_STRTAB), Val: 0x180},
		{Tag: int64(elf.DT_STRSZ), Val: 0x20},
		{},
	})
	put(0x150, []uint32{1 | 1<<16, 0, 16, 0, 0, 2 << 16, 1, 0})
	copy(b[0x180:], "\x00"+privateVersion+"34")
	copy(b[0x200:], "\x55\xc3")
	// .eh_frame_hdr at 0x220, .eh_frame at 0x240
	put(0x220, []int32{0x3b031b01, 0x1c, 2, 0x200 - 0x220, 0x258 - 0x220, 0x208 - 0x220, 0x270 - 0x220})
	put(0x240, []uint32{20, 0})
	copy(b[0x248:], "\x01zR\x00\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01")
	put(0x258, []int32{20, 0x25c - 0x240, 0x200 - 0x260, 2})
	copy(b[0x268:], "\x00\x41\x0e\x10")
	put(0x270, []int32{20, 0x274 - 0x240, 0x208 - 0x278, 2})
	copy(b[0x280:], "\x00\x0e\x10\x41")
	return b
}

func TestTiny(t *testing.T) {
	change := func(at int, bytes string) func([]byte) { return func(b []byte) { copy(b[at:], bytes) } }
	for name, c := range map[string]struct {
		change               func([]byte)
		foreign, no, refused bool
	}{
		"as it is":          {change: func([]byte) {}},
		"32 bits":           {change: change(4, "\x01"), refused: true},
		"big endian":        {change: change(5, "\x02"), refused: true},
		"for S390":          {change: change(18, "\x16"), refused: true},
		"65535 segments":    {change: change(56, "\xff\xff"), refused: true},
		"segments nowhere":  {change: change(32, "\xff\xff\xff\x7f"), refused: true},
		"segment overflows": {change: change(64+8, "\xff\xff\xff\xff\xff\xff\xff\xff"), refused: true},
		"another version":   {change: change(0x181, "IBVERBS_1.1\x00"), foreign: true},
		"no version":        {change: change(0xf8+16, "\x00"), foreign: true},
		"string outside":    {change: change(0x128, "\x08"), foreign: true},
		"no unwind table":   {change: change(64+2*56, "\x00"), no: true},
		"other encodings":   {change: change(0x221, "\x1c"), no: true},
		"of a signal":       {change: change(0x24a, "S"), no: true},
		"other CFA":         {change: change(0x253, "\x10"), no: true},
		"other stack":       {change: change(0x252, "\x06"), no: true},
		"cold":              {change: change(0x268, "\x00\x0e\x10\x41"), no: true},
		"step of nothing":   {change: change(0x268, "\x00\x40\x0e\x10"), no: true},
		"of elsewhere":      {change: change(0x260, "\xa1"), no: true},
	} {
		b := tiny()
		c.change(b)
		o, err := openObject(bytes.NewReader(b))
		if (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if _, err := o.provider(); (err != nil) != c.foreign {
			t.Errorf("%s: %v", name, err)
		}
		got, err := o.function(0x200)
		if c.no != errors.Is(err, errNoFunction) || (err == nil && got != extent{2, 1}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if _, err := o.function(0x208); !errors.Is(err, errNoFunction) {
			t.Errorf("%s: the cold part: %v", name, err)
		}
	}
}

// FuzzObject parses files that a container may have written.
func FuzzObject(f *testing.F) {
	f.Add(tiny(), uint32(0x200))
	f.Add([]byte(elf.ELFMAG), uint32(0))
	f.Fuzz(func(_ *testing.T, data []byte, offset uint32) {
		o, err := openObject(bytes.NewReader(data))
		if err != nil {
			return
		}
		_, _ = o.provider()
		if table, err := o.symbolTable(); err == nil {
			_, _ = table.functions("cuMemAlloc_v2")
		}
		if address, err := o.address(uint64(offset)); err == nil {
			_, _ = o.function(address)
			_, _ = o.frame(address, address)
		}
	})
}
