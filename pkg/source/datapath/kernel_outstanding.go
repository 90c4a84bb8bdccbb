// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
)

// outstanding calls f with the state of each queue pair that has a ring and did not fail. One that is created or destroyed
// meanwhile may be missing.
func (k *kernel) outstanding(f func(*gen.DatapathOutstanding)) error {
	err := iterate(link.IterOptions{
		Program: k.object.Program(gen.DatapathProgListOutstanding), Map: k.object.Coll.Maps[gen.DatapathMapQueues],
	}, f)
	if err != nil {
		return fmt.Errorf("iterator over queue pairs: %w", err)
	}
	return nil
}
