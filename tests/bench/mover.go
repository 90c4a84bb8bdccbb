// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// moving is the number of counters of a port that change between two scrapes: bytes, packets and waits of a busy port.
const moving = 15

// A moved counter is an open file of a fake HCA.
type moved struct {
	file  *os.File
	value uint64
}

// newMover returns a function that increases the counters that move, and a function that closes their files. The files
// are written in place and values only become longer, so that no reader finds an empty file.
func newMover(m fixtures.Manifest) (move func() error, stop func(), err error) {
	var all []*moved
	stop = func() {
		for _, c := range all {
			_ = c.file.Close()
		}
	}
	for _, h := range m.HCAs {
		for _, name := range slices.Sorted(maps.Keys(h.Counters))[:min(moving, len(h.Counters))] {
			path := filepath.Join(m.Dir, h.PortDir, "counters", name)
			c := &moved{}
			b, err := os.ReadFile(path)
			if err == nil {
				_, err = fmt.Sscan(string(b), &c.value)
			}
			if err == nil {
				c.file, err = os.OpenFile(path, os.O_WRONLY, 0)
			}
			if err != nil {
				return nil, stop, err
			}
			all = append(all, c)
		}
	}
	return func() error {
		for i, c := range all {
			c.value += 1000 + uint64(i)
			if _, err := c.file.WriteAt(fmt.Appendln(nil, c.value), 0); err != nil {
				return err
			}
		}
		return nil
	}, stop, nil
}
