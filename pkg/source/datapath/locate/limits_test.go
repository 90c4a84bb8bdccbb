// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"
)

// whole is an object whose only segment is the file.
func whole(b []byte) *object {
	return &object{file: bytes.NewReader(b), machine: elf.EM_X86_64, loads: []elf.Prog64{{Filesz: uint64(len(b))}}}
}

// words encodes numbers of 32 bits.
func words(n ...uint32) (b []byte) {
	for _, w := range n {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// TestSegments: a file may have maxSegments segments.
func TestSegments(t *testing.T) {
	for _, n := range []int{maxSegments, maxSegments + 1} {
		b := tiny()
		binary.LittleEndian.PutUint64(b[32:], uint64(len(b))) // Phoff
		binary.LittleEndian.PutUint16(b[56:], uint16(n))
		b = append(b, b[64:64+3*56]...)
		b = append(b, make([]byte, 56*(n-3))...)
		if _, err := openObject(bytes.NewReader(b)); (err == nil) != (n == maxSegments) {
			t.Errorf("%d segments: %v", n, err)
		}
	}
}

// TestTags: of a dynamic section, maxDynamic entries are read.
func TestTags(t *testing.T) {
	var b []byte
	for i := range uint32(maxDynamic + 8) {
		b = append(b, words(0x1000+i, 0, i, 0)...)
	}
	o := whole(b)
	o.dynamic.Filesz = uint64(len(b))
	if tags, err := o.tags(); err != nil || len(tags) != maxDynamic {
		t.Errorf("%d tags, %v", len(tags), err)
	}
}

// TestVersions: a provider's private version is found among maxVersions versions, and not behind them.
func TestVersions(t *testing.T) {
	for _, n := range []int{maxVersions, maxVersions + 1} {
		names := uint32(0x50 + 16 + 16*n)
		b := words(uint32(elf.DT_VERNEED), 0, 0x50, 0, uint32(elf.DT_VERNEEDNUM), 0, 1, 0, uint32(elf.DT_STRTAB), 0, names, 0,
			uint32(elf.DT_STRSZ), 0, 0x20, 0, 0, 0, 0, 0)
		b = append(b, words(1|0xffff<<16, 0, 16, 0)...)
		for range n - 1 {
			b = append(b, words(0, 0, 0, 16)...)
		}
		b = append(b, words(0, 0, 1, 0)...)
		b = append(b, "\x00"+privateVersion+"34\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
		o := whole(b)
		o.dynamic.Filesz = 0x50
		if _, err := o.provider(); (err == nil) != (n == maxVersions) {
			t.Errorf("behind %d versions: %v", n-1, err)
		}
	}
}

// TestNotes: of a segment of notes, maxNotes bytes are read.
func TestNotes(t *testing.T) {
	id := strings.Repeat("i", 20)
	b := append(words(4, 20, noteBuildID), "GNU\x00"+id...)
	o := whole(append(b, make([]byte, maxNotes)...))
	o.notes = []elf.Prog64{{Filesz: 1 << 40}}
	if got := o.build(); got != id {
		t.Errorf("build id %q", got)
	}
}

// TestEntry: of an entry of .eh_frame, maxCFI bytes are read.
func TestEntry(t *testing.T) {
	b, err := whole(append(words(1<<20), make([]byte, maxCFI)...)).entry(0)
	if err != nil || len(b) != maxCFI {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestLongFunction: of a function, maxFunction bytes are read.
func TestLongFunction(t *testing.T) {
	b := append(tiny(), make([]byte, maxFunction)...)
	binary.LittleEndian.PutUint64(b[64+32:], uint64(len(b))) // Filesz
	binary.LittleEndian.PutUint32(b[0x264:], 1<<20)          // the size of the function
	if p := disassemble(bytes.NewReader(b), 0x200, pathArguments); p.err != nil {
		t.Error(p.err)
	}
}

// TestChain: a chain of a hash table may have maxChain symbols.
func TestChain(t *testing.T) {
	for _, n := range []uint32{maxChain, maxChain + 1} {
		old := words(1, n+1, 1, 0)  // a bucket, n+1 symbols; the first of the chain is 1
		gnu := words(1, 1, 0, 0, 1) // a bucket, no Bloom filter
		for i := range n {
			next, end := (i+2)%(n+1), (i+1)/n
			old = append(old, words(next)...)
			gnu = append(gnu, words(gnuHash("f")&^1|end)...)
		}
		for name, table := range map[string]symbolTable{
			"DT_HASH": {object: whole(old)}, "DT_GNU_HASH": {object: whole(append(make([]byte, 8), gnu...)), gnuHash: 8},
		} {
			if found, err := table.lookUp("f"); (err == nil) != (n == maxChain) || err == nil && len(found) != maxChain {
				t.Errorf("%s of %d symbols: %d, %v", name, n, len(found), err)
			}
		}
	}
}
