// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// A process can set its operations to any address, and all containers of an image
// share a file: a probe in the middle of an instruction, or a return probe where no
// return address is on top of the stack, would break all of them. So only addresses
// are probed at which a function begins according to the file's unwind table
// (.eh_frame_hdr, which stripped files keep).

// errNoFunction means that no function is known to begin at an address.
var errNoFunction = errors.New("no function begins there")

// Pointer encodings of .eh_frame. Linkers write no others.
const (
	ptrU4      = 0x03 // DW_EH_PE_udata4
	ptrPCRel4  = 0x1b // DW_EH_PE_pcrel | DW_EH_PE_sdata4
	ptrDataRel = 0x3b // DW_EH_PE_datarel | DW_EH_PE_sdata4
)

// maxCFI is the number of bytes that are read of an entry of .eh_frame: more than
// its head has.
const maxCFI = 96

// entryRules are the rules for the return address at the beginning of a function:
// on x86 it is on top of the stack, on arm64 in its register.
var entryRules = map[elf.Machine]string{
	elf.EM_X86_64:  "\x0c\x07\x08\x90\x01", // DW_CFA_def_cfa: rsp+8; DW_CFA_offset: rip at cfa-8
	elf.EM_AARCH64: "\x0c\x1f\x00",         // DW_CFA_def_cfa: sp+0
}

// extent is the length of a function and of its prologue, in which the return
// address and the stack pointer do not change.
type extent struct{ size, prologue uint64 }

// function returns the extent of the function that begins at an address.
func (o *object) function(address uint64) (extent, error) {
	var head [12]byte
	at := o.unwind.Vaddr
	if err := o.read(at, head[:]); err != nil {
		return extent{}, fmt.Errorf("%w: no unwind table: %w", errNoFunction, err)
	}
	if head[0] != 1 || head[1] != ptrPCRel4 || head[2] != ptrU4 || head[3] != ptrDataRel {
		return extent{}, fmt.Errorf("%w: unwind table with encodings % x", errNoFunction, head[:4])
	}
	// A sorted table of pairs relative to its section: function, entry.
	low, high := uint64(0), uint64(binary.LittleEndian.Uint32(head[8:]))
	for low < high {
		middle := (low + high) / 2
		var row [8]byte
		if err := o.read(at+12+8*middle, row[:]); err != nil {
			return extent{}, fmt.Errorf("%w: %w", errNoFunction, err)
		}
		switch function := relative(at, row[:4]); {
		case function == address:
			return o.frame(relative(at, row[4:]), address)
		case function < address:
			low = middle + 1
		default:
			high = middle
		}
	}
	return extent{}, errNoFunction
}

func relative(base uint64, b []byte) uint64 {
	return base + uint64(int64(int32(binary.LittleEndian.Uint32(b))))
}

// frame reads a function's entry of .eh_frame.
func (o *object) frame(at, address uint64) (extent, error) {
	b, err := o.entry(at)
	if err != nil {
		return extent{}, err
	}
	if len(b) < 12 || relative(at+8, b[4:8]) != address {
		return extent{}, fmt.Errorf("%w: bad entry", errNoFunction)
	}
	unit, err := o.common(at + 4 - uint64(binary.LittleEndian.Uint32(b)))
	if err != nil {
		return extent{}, err
	}
	size := uint64(binary.LittleEndian.Uint32(b[8:]))
	r := cfi{b: b[12:]}
	r.skip(r.number()) // augmentation
	if r.bad {
		return extent{}, fmt.Errorf("%w: bad entry", errNoFunction)
	}
	// The first instruction contains up to where the rules of the entry hold. A cold
	// part of another function begins with other rules.
	advance := uint64(0)
	switch op := r.byte(); {
	case r.bad, op == 0 && r.zeros():
		return extent{size, size}, nil
	case op>>6 == 1: // DW_CFA_advance_loc
		advance = uint64(op & 0x3f)
	case op == 2: // DW_CFA_advance_loc1
		advance = uint64(r.byte())
	case op == 3: // DW_CFA_advance_loc2
		advance = uint64(r.byte()) | uint64(r.byte())<<8
	case op == 4: // DW_CFA_advance_loc4
		advance = math.MaxUint32
	}
	if advance == 0 || r.bad {
		return extent{}, fmt.Errorf("%w: the code is a part of another function", errNoFunction)
	}
	return extent{size, min(advance*unit, size)}, nil
}

// common reads a common information entry (CIE) and checks it: the rules at the
// beginning of a function and the encoding of addresses. It returns the code
// alignment factor.
func (o *object) common(at uint64) (uint64, error) {
	b, err := o.entry(at)
	if err != nil {
		return 0, err
	}
	r := cfi{b: b}
	r.skip(4)
	version := r.byte()
	augmentation := r.text()
	unit := r.number()
	r.number() // data alignment
	if version == 1 {
		r.byte() // register of the return address
	} else {
		r.number()
	}
	length := r.number()
	if r.bad || length > uint64(len(r.b)) || (version != 1 && version != 3) ||
		unit == 0 || unit > 4 || augmentation == "" {
		return 0, fmt.Errorf("%w: malformed CIE", errNoFunction)
	}
	rules := cfi{b: r.b[length:]}
	r.b = r.b[:length]
	encoding := byte(0)
	for i, c := range []byte(augmentation) {
		switch {
		case c == 'z' && i == 0, c == 'B' && i > 0: // keys of arm64
		case c == 'R':
			encoding = r.byte()
		case c == 'L':
			r.byte()
		case c == 'P':
			if form := r.byte() & 0x0f; form == 0x03 || form == 0x0b {
				r.skip(4)
			} else {
				r.skip(8)
			}
		default: // S: a signal's frame
			return 0, fmt.Errorf("%w: augmentation %q", errNoFunction, augmentation)
		}
	}
	want := entryRules[o.machine]
	if r.bad || encoding != ptrPCRel4 || len(rules.b) < len(want) || string(rules.b[:len(want)]) != want {
		return 0, fmt.Errorf("%w: unexpected unwind rules at the entry", errNoFunction)
	}
	rules.skip(uint64(len(want)))
	if !rules.zeros() {
		return 0, fmt.Errorf("%w: unexpected unwind rules at the entry", errNoFunction)
	}
	return unit, nil
}

// entry reads the beginning of the entry at an address of .eh_frame, without its
// length.
func (o *object) entry(at uint64) ([]byte, error) {
	var length [4]byte
	if err := o.read(at, length[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoFunction, err)
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n < 8 || n == math.MaxUint32 {
		return nil, fmt.Errorf("%w: bad entry", errNoFunction)
	}
	b := make([]byte, min(n, maxCFI))
	if err := o.read(at+4, b); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoFunction, err)
	}
	return b, nil
}

// cfi parses call frame information. bad is set if it ends early.
type cfi struct {
	b   []byte
	bad bool
}

func (r *cfi) skip(n uint64) {
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return
	}
	r.b = r.b[n:]
}

func (r *cfi) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

// number reads an unsigned LEB128 number. It also skips a signed one.
func (r *cfi) number() (n uint64) {
	for shift := 0; shift < 63; shift += 7 {
		c := r.byte()
		n |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			return n
		}
	}
	r.bad = true
	return 0
}

func (r *cfi) text() string {
	text, rest, ok := bytes.Cut(r.b, []byte{0})
	r.b, r.bad = rest, r.bad || !ok
	return string(text)
}

// zeros reports whether only padding is left.
func (r *cfi) zeros() bool { return len(bytes.Trim(r.b, "\x00")) == 0 }
