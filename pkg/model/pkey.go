// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// PKey is an entry of the P_Key table of an InfiniBand port: its membership in a partition.
type PKey struct {
	Index     int
	Partition uint16 // without the bit of the membership
	Full      bool   // a full member, which communicates with all members; a limited member only with full ones
}

// DefaultPartition is the partition that each port of a subnet is in: the subnet manager is reached through it.
const DefaultPartition = 0x7fff

// LacksDefaultPartition reports whether no P_Key of the port is that of the default partition.
func (p *Port) LacksDefaultPartition() bool {
	return !slices.ContainsFunc(p.PKeys, func(k PKey) bool { return k.Partition == DefaultPartition })
}
