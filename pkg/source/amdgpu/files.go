// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// readSome returns the start of a kernel file.
func readSome(name string) ([]byte, error) {
	var buffer [maxAttribute]byte // on the stack: most files are a number
	b, err := boundedfile.ReadFile(name, buffer[:], len(buffer))
	return bytes.Clone(b), err
}

// readNames returns the first names in a directory, unsorted.
func readNames(dir string, limit int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// numbers returns the names that are process ids or file descriptors.
func numbers(names []string) []int {
	list := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			list = append(list, int(n))
		}
	}
	return list
}
