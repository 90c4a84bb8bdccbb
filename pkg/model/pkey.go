// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// PKey is an entry of an InfiniBand port's P_Key table: membership in a partition.
type PKey struct {
	Index     int
	Partition uint16 // without the membership bit
	Full      bool   // a full member communicates with all members, a limited member only with full members
}

// DefaultPartition contains each port of a subnet; the subnet manager is reached through it.
const DefaultPartition = 0x7fff

// LacksDefaultPartition reports whether the port has no P_Key of the default partition.
func (p *Port) LacksDefaultPartition() bool {
	return !slices.ContainsFunc(p.PKeys, func(k PKey) bool { return k.Partition == DefaultPartition })
}
