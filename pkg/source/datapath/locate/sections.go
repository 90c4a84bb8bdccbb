// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Limits for reading sections. libtorch_cuda.so has a million symbols.
const (
	maxSections  = 4096
	maxSection   = 512 << 20 // bytes
	maxSymbol    = 64 << 10  // bytes of a name
	maxPositions = 1024      // of names in a table of strings
)

// sections reads the headers of the sections, which a loaded file need not have.
func (o *object) sections() ([]elf.Section64, error) {
	if o.sectionNumber == 0 || o.sectionNumber > maxSections {
		return nil, fmt.Errorf("%w: %d sections", errNoSymbols, o.sectionNumber)
	}
	raw := make([]byte, o.sectionNumber*sectionSize)
	if _, err := o.file.ReadAt(raw, int64(o.sectionOffset)); err != nil {
		return nil, fmt.Errorf("%w: sections: %w", errNoSymbols, err)
	}
	all := make([]elf.Section64, o.sectionNumber)
	if _, err := binary.Decode(raw, binary.LittleEndian, all); err != nil {
		return nil, err
	}
	for i := range all {
		s := &all[i]
		if s.Off > 1<<62 || s.Size > maxSection { // such as a section that has no bytes in the file
			s.Size = 0
		}
	}
	return all, nil
}

// sectionSize is the size of an elf.Section64.
const sectionSize = 64

func (o *object) open(s *elf.Section64) *bufio.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(o.file, int64(s.Off), int64(s.Size)), maxSymbol)
}

// localFunctions returns the addresses of functions by name, from the table of all symbols (SHT_SYMTAB), which a stripped file lacks.
func (o *object) localFunctions(names []string) (map[string][]uint64, error) {
	all, err := o.sections()
	if err != nil {
		return nil, err
	}
	found := map[string][]uint64{}
	i := slices.IndexFunc(all, func(s elf.Section64) bool { return elf.SectionType(s.Type) == elf.SHT_SYMTAB }) // a file has one at most
	if i < 0 || int(all[i].Link) >= len(all) {
		return found, nil
	}
	at := o.positions(&all[all[i].Link], names)
	if len(at) == 0 {
		return found, nil
	}
	r := o.open(&all[i])
	var raw [elf.Sym64Size]byte
	for {
		if _, err := io.ReadFull(r, raw[:]); err != nil {
			return found, nil // the end, or a section beyond the end of the file
		}
		name := at[binary.LittleEndian.Uint32(raw[:])]
		defined := elf.SectionIndex(binary.LittleEndian.Uint16(raw[6:])) != elf.SHN_UNDEF
		if name != "" && defined && elf.ST_TYPE(raw[4]) == elf.STT_FUNC && len(found[name]) < maxChain {
			found[name] = append(found[name], binary.LittleEndian.Uint64(raw[8:]))
		}
	}
}

// positions returns where a table of strings has names. A name may be the end of a longer string.
func (o *object) positions(table *elf.Section64, names []string) map[uint32]string {
	at := map[uint32]string{}
	r := o.open(table)
	for offset := 0; ; {
		text, err := r.ReadSlice(0)
		offset += len(text)
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // a longer symbol than the names, whose end is no name either
			continue
		case err != nil:
			return at
		}
		text = text[:len(text)-1]
		for _, name := range names {
			if bytes.HasSuffix(text, []byte(name)) && len(at) < maxPositions {
				at[uint32(offset-1-len(name))] = name
			}
		}
	}
}

// version returns the version that follows a text in the read-only data (.rodata): digits and dots. Empty: the text is not there.
func (o *object) version(texts []string) string {
	all, err := o.sections()
	if err != nil || o.sectionNames >= len(all) {
		return ""
	}
	names := &all[o.sectionNames]
	for i := range all {
		name := make([]byte, len(rodata))
		if uint64(all[i].Name)+uint64(len(name)) > names.Size {
			continue
		}
		if _, err := o.file.ReadAt(name, int64(names.Off)+int64(all[i].Name)); err != nil || string(name) != rodata {
			continue
		}
		return versionAfter(o.open(&all[i]), texts)
	}
	return ""
}

const rodata = ".rodata\x00"

// maxVersion is the longest version.
const maxVersion = 32

func versionAfter(r io.Reader, texts []string) string {
	const chunk = 1 << 20
	buffer := make([]byte, 0, 2*chunk)
	for {
		n, err := io.ReadFull(r, buffer[len(buffer):min(len(buffer)+chunk, cap(buffer))])
		buffer = buffer[:len(buffer)+n]
		for _, text := range texts {
			for rest := buffer; ; {
				_, after, found := bytes.Cut(rest, []byte(text))
				if !found {
					break
				}
				version := after[:min(len(after), maxVersion)]
				end := bytes.IndexFunc(version, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
				if v := strings.Trim(string(version[:max(end, 0)]), "."); strings.Contains(v, ".") {
					return v
				}
				rest = after
			}
		}
		if err != nil {
			return ""
		}
		kept := min(len(buffer), 256) // a text may be at the border
		buffer = buffer[:copy(buffer, buffer[len(buffer)-kept:])]
	}
}
