// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// Entry is a struct linux_dirent64. Its name is in the buffer of the listing.
type Entry struct {
	Inode uint64
	Type  byte // unix.DT_DIR, unix.DT_LNK, …
	Name  []byte
}

// Entries iterates over the result of getdents64.
func Entries(b []byte) iter.Seq[Entry] {
	const head = 19 // d_ino, d_off, d_reclen, d_type
	return func(yield func(Entry) bool) {
		for rest := b; len(rest) > head; {
			n := int(binary.NativeEndian.Uint16(rest[16:]))
			if n <= head || n > len(rest) {
				return
			}
			name, _, _ := bytes.Cut(rest[head:n], []byte{0})
			if !yield(Entry{binary.NativeEndian.Uint64(rest), rest[18], name}) {
				return
			}
			rest = rest[n:]
		}
	}
}
