// SPDX-License-Identifier: Apache-2.0

package model

import "strings"

// PCIBridge is a bridge above a function: a root port, or a port of a switch.
type PCIBridge struct {
	Address string // 0000:15:01.0
	ID      string // vendor and device: 10de:22b1; empty if unknown
	ACS     ACS
}

// ACS is the Access Control Services capability of a bridge. It decides whether peers below the bridge reach each other
// directly.
type ACS struct {
	State   ACSState
	Control ACSControl // valid for ACSPresent
}

// ACSState is the state of the capability. "" means unknown: reading needs CAP_SYS_ADMIN.
type ACSState string

// The states of the capability.
const (
	ACSUnknown ACSState = ""
	ACSAbsent  ACSState = "absent"
	ACSPresent ACSState = "present"
)

// ACSControl is the ACS Control Register (PCI_ACS_CTRL of include/uapi/linux/pci_regs.h).
type ACSControl uint16

// The bits for requests and completions between peers.
const (
	ACSTranslationBlocking ACSControl = 1 << 1 // requests with a translated address are blocked
	ACSRequestRedirect     ACSControl = 1 << 2 // requests to peers go upstream
	ACSCompletionRedirect  ACSControl = 1 << 3 // completions to peers go upstream
	ACSEgressControl       ACSControl = 1 << 5 // a vector of the port decides to which ports requests go
	ACSDirectTranslated    ACSControl = 1 << 6 // requests with a translated address go directly
)

// acsNames are lspci's names of the bits.
var acsNames = [...]string{"SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"}

// String returns the names of the set bits, as lspci prints them, or "none". Reserved bits are left out.
func (c ACSControl) String() string {
	var set []string
	for bit, name := range acsNames {
		if c>>bit&1 != 0 {
			set = append(set, name)
		}
	}
	if set == nil {
		return "none"
	}
	return strings.Join(set, ",")
}

// Defined returns the register without reserved bits.
func (c ACSControl) Defined() uint16 { return uint16(c) & (1<<len(acsNames) - 1) }

// Matches reports whether the register matches a pattern of the kernel's parameter pci=config_acs=: a character for
// each bit, bit 0 last: 1, 0, or x for any.
func (c ACSControl) Matches(pattern string) bool {
	for i, want := range pattern {
		bit := len(pattern) - 1 - i
		if set := c>>bit&1 != 0; want == '1' && !set || want == '0' && set {
			return false
		}
	}
	return true
}
