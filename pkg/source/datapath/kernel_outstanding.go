// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
)

// outstanding calls f with the state of each queue pair that has a ring and did not fail. One that is created or destroyed
// meanwhile may be missing.
func (k *kernel) outstanding(f func(*gen.DatapathOutstanding)) error {
	raw, err := readIterator(link.IterOptions{
		Program: k.programs[gen.DatapathProgListOutstanding], Map: k.object.Coll.Maps[gen.DatapathMapQueues],
	})
	if err != nil {
		return fmt.Errorf("iterator over queue pairs: %w", err)
	}
	var o gen.DatapathOutstanding
	for len(raw) >= binary.Size(o) {
		n, err := binary.Decode(raw, binary.NativeEndian, &o)
		if err != nil {
			return err
		}
		raw = raw[n:]
		f(&o)
	}
	return nil
}
