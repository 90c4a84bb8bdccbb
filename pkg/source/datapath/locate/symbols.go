// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
)

// maxChain bounds the symbols that are read for one name. A bucket of a hash table has a few.
const maxChain = 4096

// errNoSymbols means that a file has no table of exported symbols.
var errNoSymbols = errors.New("no table of dynamic symbols")

// symbolTable is the table of dynamic symbols of an object with its hash table.
type symbolTable struct {
	*object
	symbols, names, namesSize uint64
	hash, gnuHash             uint64 // addresses of DT_HASH and DT_GNU_HASH, or 0
}

func (o *object) symbolTable() (*symbolTable, error) {
	tags, err := o.tags()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSymbols, err)
	}
	t := &symbolTable{
		object: o, symbols: tags[elf.DT_SYMTAB], names: tags[elf.DT_STRTAB], namesSize: tags[elf.DT_STRSZ],
		hash: tags[elf.DT_HASH], gnuHash: tags[elf.DT_GNU_HASH],
	}
	if t.symbols == 0 || t.names == 0 || t.hash == 0 && t.gnuHash == 0 {
		return nil, errNoSymbols
	}
	return t, nil
}

// functions returns the addresses of the functions with a name: a function may have several versions.
func (t *symbolTable) functions(name string) ([]uint64, error) {
	indexes, err := t.lookUp(name)
	if err != nil {
		return nil, fmt.Errorf("symbol %s: %w", name, err)
	}
	var found []uint64
	for _, i := range indexes {
		address, err := t.function(i, name)
		if err != nil {
			return nil, fmt.Errorf("symbol %s: %w", name, err)
		}
		if address != 0 {
			found = append(found, address)
		}
	}
	return found, nil
}

// function returns the address of a symbol if it is a function with this name that the object defines, otherwise 0.
func (t *symbolTable) function(index uint32, name string) (uint64, error) {
	var s elf.Sym64
	if err := t.decode(t.symbols+elf.Sym64Size*uint64(index), &s); err != nil {
		return 0, err
	}
	if elf.ST_TYPE(s.Info) != elf.STT_FUNC || elf.SectionIndex(s.Shndx) == elf.SHN_UNDEF {
		return 0, nil
	}
	text := make([]byte, len(name)+1)
	if uint64(s.Name)+uint64(len(text)) > t.namesSize || t.read(t.names+uint64(s.Name), text) != nil || string(text) != name+"\x00" {
		return 0, nil
	}
	return s.Value, nil
}

// lookUp returns the indexes of the symbols that may have a name, by the hash table that the object has.
func (t *symbolTable) lookUp(name string) ([]uint32, error) {
	if t.gnuHash != 0 {
		return t.lookUpGNU(name)
	}
	var head struct{ Buckets, Chains uint32 }
	if err := t.decode(t.hash, &head); err != nil || head.Buckets == 0 {
		return nil, fmt.Errorf("%w: DT_HASH", errNoSymbols)
	}
	buckets := t.hash + 8
	chains := buckets + 4*uint64(head.Buckets)
	var indexes []uint32
	i, err := t.word(buckets + 4*uint64(elfHash(name)%head.Buckets))
	for ; err == nil && i != 0 && i < head.Chains; i, err = t.word(chains + 4*uint64(i)) {
		if len(indexes) == maxChain {
			return nil, fmt.Errorf("%w: more than %d symbols in a chain", errNoSymbols, maxChain)
		}
		indexes = append(indexes, i)
	}
	return indexes, err
}

// lookUpGNU uses DT_GNU_HASH: a header, a Bloom filter, buckets with the first symbol of each chain, and the hashes of the
// symbols from the first hashed one on, with the lowest bit set at the end of a chain.
func (t *symbolTable) lookUpGNU(name string) ([]uint32, error) {
	var head struct{ Buckets, First, Bloom, Shift uint32 }
	if err := t.decode(t.gnuHash, &head); err != nil || head.Buckets == 0 {
		return nil, fmt.Errorf("%w: DT_GNU_HASH", errNoSymbols)
	}
	buckets := t.gnuHash + 16 + 8*uint64(head.Bloom)
	hashes := buckets + 4*uint64(head.Buckets)
	hash := gnuHash(name)
	i, err := t.word(buckets + 4*uint64(hash%head.Buckets))
	if err != nil || i < head.First {
		return nil, err
	}
	var indexes []uint32
	for range maxChain {
		h, err := t.word(hashes + 4*uint64(i-head.First))
		if err != nil {
			return nil, err
		}
		if h|1 == hash|1 {
			indexes = append(indexes, i)
		}
		if h&1 != 0 {
			return indexes, nil
		}
		i++
	}
	return nil, fmt.Errorf("%w: more than %d symbols in a chain", errNoSymbols, maxChain)
}

// word reads 32 bits at an address.
func (t *symbolTable) word(address uint64) (uint32, error) {
	var b [4]byte
	err := t.read(address, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// offset returns the offset in the file of the executable byte at an address, the inverse of address.
func (o *object) offset(address uint64) (uint64, error) {
	for _, p := range o.loads {
		if elf.ProgFlag(p.Flags)&elf.PF_X != 0 && p.Vaddr <= address && address-p.Vaddr < p.Filesz {
			return address - p.Vaddr + p.Off, nil
		}
	}
	return 0, fmt.Errorf("%w: no code at address %#x", errNoFunction, address)
}

// elfHash is the hash function of DT_HASH (System V ABI).
func elfHash(name string) uint32 {
	var h uint32
	for i := range len(name) {
		h = h<<4 + uint32(name[i])
		top := h & 0xf0000000
		h = (h ^ top>>24) &^ top
	}
	return h
}

// gnuHash is the hash function of DT_GNU_HASH.
func gnuHash(name string) uint32 {
	h := uint32(5381)
	for i := range len(name) {
		h = h*33 + uint32(name[i])
	}
	return h
}
