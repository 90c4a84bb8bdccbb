// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errNoProvider means that a function is not in a file that may be probed.
var errNoProvider = errors.New("not a verbs provider")

// privateVersion is the prefix of the symbol version of libibverbs that only
// providers need, such as IBVERBS_PRIVATE_34.
const privateVersion = "IBVERBS_PRIVATE_"

// Limits for reading an object. No provider reaches them.
const (
	maxSegments = 64
	maxDynamic  = 1024
	maxVersions = 1024
	maxNotes    = 4096 // bytes of one segment
)

// noteBuildID is NT_GNU_BUILD_ID of include/uapi/linux/elf.h.
const noteBuildID = 3

// object is an ELF file that is not trusted. Package debug/elf is not used, as it
// reads as much as a file claims to contain.
type object struct {
	file    io.ReaderAt
	machine elf.Machine
	loads   []elf.Prog64
	dynamic elf.Prog64
	unwind  elf.Prog64 // PT_GNU_EH_FRAME
	notes   []elf.Prog64
	// the section headers, which a file need not have
	sectionOffset uint64
	sectionNumber int
	sectionNames  int // the section that has the names
}

// openObject reads the headers of a 64-bit ELF file for x86-64 or arm64.
func openObject(file io.ReaderAt) (*object, error) {
	var raw [64]byte
	if _, err := file.ReadAt(raw[:], 0); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoProvider, err)
	}
	var h elf.Header64
	if _, err := binary.Decode(raw[:], binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	machine := elf.Machine(h.Machine)
	switch {
	case string(h.Ident[:4]) != elf.ELFMAG,
		h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64), h.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB):
		return nil, fmt.Errorf("%w: not a 64-bit ELF file", errNoProvider)
	case machine != elf.EM_X86_64 && machine != elf.EM_AARCH64:
		return nil, fmt.Errorf("%w: for %v", errNoProvider, machine)
	case h.Phentsize != 56 || h.Phnum > maxSegments || h.Phoff > 1<<62:
		return nil, fmt.Errorf("%w: %d segments", errNoProvider, h.Phnum)
	}
	o := &object{file: file, machine: machine}
	if h.Shentsize == sectionSize && h.Shoff < 1<<62 {
		o.sectionOffset, o.sectionNumber, o.sectionNames = h.Shoff, int(h.Shnum), int(h.Shstrndx)
	}
	segments := make([]byte, int(h.Phnum)*int(h.Phentsize))
	if _, err := file.ReadAt(segments, int64(h.Phoff)); err != nil {
		return nil, fmt.Errorf("%w: segments: %w", errNoProvider, err)
	}
	for ; len(segments) > 0; segments = segments[h.Phentsize:] {
		var p elf.Prog64
		if _, err := binary.Decode(segments, binary.LittleEndian, &p); err != nil {
			return nil, err
		}
		if p.Off+p.Filesz < p.Off || p.Vaddr+p.Filesz < p.Vaddr || p.Off+p.Filesz > 1<<62 {
			return nil, fmt.Errorf("%w: segments out of range", errNoProvider)
		}
		switch elf.ProgType(p.Type) {
		case elf.PT_LOAD:
			o.loads = append(o.loads, p)
		case elf.PT_DYNAMIC:
			o.dynamic = p
		case elf.PT_GNU_EH_FRAME:
			o.unwind = p
		case elf.PT_NOTE:
			o.notes = append(o.notes, p)
		}
	}
	return o, nil
}

// address returns the address of the executable byte at an offset of the file,
// without relocation.
func (o *object) address(offset uint64) (uint64, error) {
	for _, p := range o.loads {
		if elf.ProgFlag(p.Flags)&elf.PF_X != 0 && p.Off <= offset && offset < p.Off+p.Filesz {
			return offset - p.Off + p.Vaddr, nil
		}
	}
	return 0, fmt.Errorf("%w: no code at offset %#x", errNoProvider, offset)
}

// read fills b with the bytes at an address.
func (o *object) read(address uint64, b []byte) error {
	for _, p := range o.loads {
		if p.Vaddr <= address && address-p.Vaddr < p.Filesz && uint64(len(b)) <= p.Filesz-(address-p.Vaddr) {
			_, err := o.file.ReadAt(b, int64(address-p.Vaddr+p.Off))
			return err
		}
	}
	return fmt.Errorf("nothing at address %#x", address)
}

// provider returns an error unless the object is a verbs provider: it needs the
// private symbols of libibverbs. A provider that is linked statically with
// libibverbs is not recognized. direct reports that it defines symbol versions of its
// own (MLX5_1.0, EFA_1.0), as the providers of rdma-core with a public API do, which
// gives access to the queues.
func (o *object) provider() (direct bool, err error) {
	tags, err := o.tags()
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoProvider, err)
	}
	steps := 0
	var need struct {
		Version, Count  uint16
		File, Aux, Next uint32
	}
	var aux struct {
		Hash             uint32
		Flags, Other     uint16
		Name, NextOffset uint32
	}
	at := tags[elf.DT_VERNEED]
	for range min(tags[elf.DT_VERNEEDNUM], maxVersions) {
		if err := o.decode(at, &need); err != nil {
			return false, fmt.Errorf("%w: %w", errNoProvider, err)
		}
		auxAt := at + uint64(need.Aux)
		for range need.Count {
			if steps++; steps > maxVersions {
				return false, fmt.Errorf("%w: more than %d versions", errNoProvider, maxVersions)
			}
			if err := o.decode(auxAt, &aux); err != nil {
				return false, fmt.Errorf("%w: %w", errNoProvider, err)
			}
			name := make([]byte, len(privateVersion))
			if uint64(aux.Name)+uint64(len(name)) <= tags[elf.DT_STRSZ] &&
				o.read(tags[elf.DT_STRTAB]+uint64(aux.Name), name) == nil && bytes.Equal(name, []byte(privateVersion)) {
				return tags[elf.DT_VERDEFNUM] > 1, nil
			}
			if aux.NextOffset == 0 {
				break
			}
			auxAt += uint64(aux.NextOffset)
		}
		if need.Next == 0 {
			break
		}
		at += uint64(need.Next)
	}
	return false, fmt.Errorf("%w: the file requires no symbol version %s*", errNoProvider, privateVersion)
}

// build returns the build id that the linker made of the content of the file (a note of the name "GNU"), or "".
func (o *object) build() string {
	for _, p := range o.notes {
		notes := make([]byte, min(p.Filesz, maxNotes))
		if _, err := o.file.ReadAt(notes, int64(p.Off)); err != nil {
			continue
		}
		aligned := func(n uint32) uint64 { return (uint64(n) + 3) &^ 3 }
		for len(notes) >= 12 {
			name, desc := binary.LittleEndian.Uint32(notes), binary.LittleEndian.Uint32(notes[4:])
			typ := binary.LittleEndian.Uint32(notes[8:])
			notes = notes[12:]
			if aligned(name)+uint64(desc) > uint64(len(notes)) {
				break
			}
			id := notes[aligned(name):][:desc]
			if typ == noteBuildID && bytes.HasPrefix(notes, []byte("GNU\x00")) {
				return string(id)
			}
			notes = notes[min(aligned(name)+aligned(desc), uint64(len(notes))):]
		}
	}
	return ""
}

// tags reads the dynamic section.
func (o *object) tags() (map[elf.DynTag]uint64, error) {
	tags := map[elf.DynTag]uint64{}
	for i := range min(o.dynamic.Filesz/16, maxDynamic) {
		var d elf.Dyn64
		if err := o.decode(o.dynamic.Vaddr+16*i, &d); err != nil {
			return nil, err
		}
		if elf.DynTag(d.Tag) == elf.DT_NULL {
			break
		}
		tags[elf.DynTag(d.Tag)] = d.Val
	}
	return tags, nil
}

// decode reads a structure at an address.
func (o *object) decode(address uint64, data any) error {
	b := make([]byte, binary.Size(data))
	if err := o.read(address, b); err != nil {
		return err
	}
	_, err := binary.Decode(b, binary.LittleEndian, data)
	return err
}
