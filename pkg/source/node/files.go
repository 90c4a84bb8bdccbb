// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// Size limits of a file in procfs, and of a file in sysfs (128 bytes, as in node_exporter).
const (
	maxProc = 16 << 20
	maxSys  = 128
)

var errMalformed = errors.New("malformed")

type reader struct{ buffer []byte }

// file returns the content of a file of procfs, valid until the next call.
func (r *reader) file(path string) ([]byte, error) {
	return r.read(func(buf []byte) ([]byte, error) { return boundedfile.ReadFile(path, buf, maxProc) })
}

// fileBelow is file of a path of the node's root directory.
func (r *reader) fileBelow(root, path string) ([]byte, error) {
	return r.read(func(buf []byte) ([]byte, error) { return boundedfile.ReadFileBelow(root, path, buf, maxProc) })
}

func (r *reader) read(read func(buf []byte) ([]byte, error)) ([]byte, error) {
	if r.buffer == nil {
		r.buffer = make([]byte, 16<<10)
	}
	b, err := read(r.buffer)
	if err == nil {
		r.buffer = b[:cap(b)]
	}
	return b, err
}

// attribute returns the content of a file of sysfs. It does not retry after EAGAIN.
func attribute(path string, buf *[maxSys]byte) ([]byte, error) {
	return boundedfile.ReadOnce(path, buf[:])
}

func number(path string) (uint64, error) {
	var buf [maxSys]byte
	b, err := attribute(path, &buf)
	if err != nil {
		return 0, err
	}
	v, ok := parseUint(bytes.TrimSpace(b))
	if !ok {
		return 0, fmt.Errorf("%s: %w: %.40q", path, errMalformed, b)
	}
	return v, nil
}

// unparsed returns an error if a parser skipped all lines of a file.
func unparsed(file string, read int, skipped *boundedfile.Skipped) error {
	if read == 0 && skipped.Lines > 0 {
		return fmt.Errorf("%s: %w: %s", file, errMalformed, skipped)
	}
	return nil
}

func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\n"))
	return line, rest
}

func cutField(b []byte) (field, rest []byte) {
	start := 0
	for start < len(b) && (b[start] == ' ' || b[start] == '\t') {
		start++
	}
	end := start
	for end < len(b) && b[end] != ' ' && b[end] != '\t' {
		end++
	}
	return b[start:end], b[end:]
}

func parseUint(b []byte) (uint64, bool) {
	v, err := strconv.ParseUint(string(b), 10, 64)
	return v, err == nil
}

// parseUints parses at most len(values) numbers of a line, and returns how many it found.
func parseUints(b []byte, values []uint64) (int, bool) {
	for i := range values {
		var field []byte
		if field, b = cutField(b); len(field) == 0 {
			return i, true
		}
		v, ok := parseUint(field)
		if !ok {
			return i, false
		}
		values[i] = v
	}
	return len(values), true
}

func parseFloat(b []byte) (float64, bool) {
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}
