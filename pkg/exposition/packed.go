// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/klauspost/compress/flate"
)

// packed writes pages as gzip. As long as a page has the same series as the page before, it compresses only the blocks in
// which a value differs. It keeps compressed blocks and the rows of one page, no text.
type packed struct {
	dialect  dialect
	forms    Forms
	families []Family // of the last page
	blocks   []block  // of the last page, in its order
}

// block is a compressed part of a page.
type block struct {
	end    place
	packed bytes.Buffer // deflate
	length int          // of the text
	sum    uint32       // CRC of the text
	shift  uint32       // for the CRC of the text before it
}

// gzipHeader is the header of RFC 1952: deflate, without a name and a time, of an unknown system.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}

// write appends families to out, as gzip.
func (p *packed) write(out *bytes.Buffer, t *text, families []Family) error {
	if p.dialect != t.dialect || p.forms != t.forms {
		*p = packed{dialect: t.dialect, forms: t.forms}
	}
	last, blocks := p.families, p.blocks
	p.families, p.blocks = nil, nil // a page that is not finished leaves no blocks
	out.Write(gzipHeader)
	sum, length, n := uint32(0), 0, 0
	for at := (place{}); at.family < len(families); n++ {
		to, limit, equal := place{len(families), 0}, flushSize, false
		if n < len(blocks) {
			var alike bool
			if alike, equal = compare(last, families, at, blocks[n].end); alike {
				to, limit = blocks[n].end, math.MaxInt // the blocks after it stay the same
			} else {
				blocks = slices.Delete(blocks, n, len(blocks))
			}
		}
		if n == len(blocks) {
			blocks = append(blocks, block{})
		}
		b := &blocks[n]
		if !equal {
			b.end = t.part(families, at, to, limit)
			if err := b.pack(t.buffer); err != nil {
				return err
			}
		}
		out.Write(b.packed.Bytes())
		at, length, sum = b.end, length+b.length, multiply(sum, b.shift)^b.sum
	}
	end := t.end()
	if err := flate.StatelessDeflate(out, end, true, nil); err != nil {
		return fmt.Errorf("compress metrics: %w", err)
	}
	var trailer [8]byte
	binary.LittleEndian.PutUint32(trailer[:], crc32.Update(sum, crc32.IEEETable, end))
	binary.LittleEndian.PutUint32(trailer[4:], uint32(length+len(end))) // modulo 2^32
	out.Write(trailer[:])
	p.families, p.blocks = families, slices.Delete(blocks, n, len(blocks))
	return nil
}

func (b *block) pack(text []byte) error {
	b.length, b.sum, b.shift = len(text), crc32.ChecksumIEEE(text), shiftOf(len(text))
	b.packed.Reset()
	if err := flate.StatelessDeflate(&b.packed, text, false, nil); err != nil {
		return fmt.Errorf("compress metrics: %w", err)
	}
	return nil
}

// compare compares the rows between two places of two pages: whether they are of the same series, and whether they also
// have the same values.
func compare(last, now []Family, from, to place) (alike, equal bool) {
	equal = true
	for i := from.family; i < to.family || i == to.family && to.row > 0; i++ {
		if i >= len(now) {
			return false, false
		}
		a, b := &last[i], &now[i]
		first, end, whole := 0, len(a.rows), i < to.family
		if i == from.family {
			first = from.row
		}
		if !whole {
			end = to.row
		}
		if *a.name != *b.name || *a.help != *b.help || a.typ != b.typ || whole && end != len(b.rows) || !whole && end >= len(b.rows) {
			return false, false
		}
		for j := first; j < end; j++ {
			x, y := &a.rows[j], &b.rows[j]
			if x.labels != y.labels {
				return false, false
			}
			equal = equal && math.Float64bits(x.value) == math.Float64bits(y.value) && x.since == y.since &&
				(a.typ != histogram || equalDurations(a.histograms[j], b.histograms[j]))
		}
	}
	return true, equal
}

func equalDurations(a, b durations) bool {
	shapeA, sumA, bucketsA := a.in()
	shapeB, sumB, bucketsB := b.in()
	return shapeA == shapeB && sumA == sumB && slices.Equal(bucketsA, bucketsB)
}

// shiftOf returns the factor by which the CRC of a text changes when a text of this length, all zeros, follows it:
// x^(8·length) modulo the polynomial of the CRC. As in zlib's crc32_combine, the highest bit is x^0.
func shiftOf(length int) uint32 {
	const one, x8 = 1 << 31, 1 << 23
	shift, power := uint32(one), uint32(x8)
	for ; length > 0; length >>= 1 {
		if length&1 != 0 {
			shift = multiply(shift, power)
		}
		power = multiply(power, power)
	}
	return shift
}

// multiply returns the product of two polynomials modulo the polynomial of the CRC.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
