// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"bytes"
	"iter"
	"strconv"
	"strings"
	"time"
)

// record is a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).
type record struct {
	sequence  uint64
	sinceBoot time.Duration // without the time in suspend
	// continued is the flag c: the text was printed with KERN_CONT. NVIDIA's driver also prints complete lines with it,
	// so the record may stand alone.
	continued bool
	text      string // other bytes than printable ASCII have the form \xNN
	// pciAddress is the PCI device in DEVICE=+pci:…, which the kernel adds for dev_printk. Text cannot contain it.
	pciAddress string
}

// records splits the result of a read into records, with their lines KEY=value. A read of /dev/kmsg returns one record.
func records(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			end := 0
			for {
				line := bytes.IndexByte(b[end:], '\n')
				if line < 0 {
					end = len(b)
					break
				}
				if end += line + 1; end == len(b) || b[end] != ' ' {
					break
				}
			}
			if !yield(b[:end]) {
				return
			}
			b = b[end:]
		}
	}
}

// parseRecord parses a record that the kernel itself wrote. It returns false for records of user space, with their
// sequence number: their facility is never 0.
func parseRecord(b []byte) (r record, ok bool) {
	header, rest, ok := strings.Cut(string(b), ";")
	fields := strings.Split(header, ",")
	if !ok || len(fields) < 4 {
		return r, false
	}
	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	sequence, err2 := strconv.ParseUint(fields[1], 10, 64)
	microseconds, err3 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || microseconds < 0 || microseconds > maxUptime.Microseconds() {
		return r, false
	}
	r.sequence, r.sinceBoot = sequence, time.Duration(microseconds)*time.Microsecond
	if facility := priority >> 3; facility != 0 {
		return r, false
	}
	r.continued = fields[3] == "c"
	lines := strings.Split(rest, "\n")
	r.text = lines[0]
	for _, line := range lines[1:] {
		if address, is := strings.CutPrefix(line, " DEVICE=+pci:"); is {
			r.pciAddress = strings.ToLower(address)
		}
	}
	return r, true
}

// maxUptime is more than any machine runs, and keeps sums of times from overflowing.
const maxUptime = 100 * 365 * 24 * time.Hour
