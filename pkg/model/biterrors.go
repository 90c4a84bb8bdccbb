// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// BitErrors are the bit errors of a port since they were cleared, as the HCA's firmware counts them. Values that the
// firmware does not report are nil or unknown.
type BitErrors struct {
	Device string // empty for a physical function without an HCA, and Port is 0
	Port   int
	Netdev string    // empty if the port has no network interface
	Read   time.Time // when the firmware was asked

	FEC, Speed, Width string // the active values, in the tool's words
	// Raw is the ratio of bits with errors before the correction, Effective after it. Symbol is the ratio of symbols,
	// on InfiniBand only.
	Raw, Effective, Symbol        Optional
	EffectiveErrors, SymbolErrors *uint64
	LaneErrors                    []uint64 // bits with errors before the correction, by lane
	Age                           Optional // seconds since the errors were cleared
}
