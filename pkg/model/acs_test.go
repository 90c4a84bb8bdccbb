// SPDX-License-Identifier: Apache-2.0

package model

import "testing"

// TestACSControl has the names of lspci -vv, and the kernel's pattern of 7 bits, bit 0 last.
func TestACSControl(t *testing.T) {
	for control, want := range map[ACSControl]string{
		0:      "none",
		0x80:   "none", // reserved
		0x1:    "SrcValid",
		0x2:    "TransBlk",
		0x1d:   "SrcValid,ReqRedir,CmpltRedir,UpstreamFwd",
		0x60:   "EgressCtrl,DirectTrans",
		0xff:   "SrcValid,TransBlk,ReqRedir,CmpltRedir,UpstreamFwd,EgressCtrl,DirectTrans",
		0xff80: "none",
	} {
		if got := control.String(); got != want {
			t.Errorf("%#x: %s, want %s", uint16(control), got, want)
		}
	}
	if got := ACSControl(0xff5d).Defined(); got != 0x5d {
		t.Errorf("Defined: %#x, want 0x5d", got)
	}
	for _, c := range []struct {
		control ACSControl
		pattern string
		want    bool
	}{
		{0x1d, "0011101", true},
		{0x1d, "xx111x1", true},
		{0x1d, "xxxxxxx", true},
		{0x1d, "0011100", false},
		{0x1d, "0011111", false},
		{0x1d, "1xxxxxx", false},
		{0x40, "1xxxxxx", true},
		{0x40, "0xxxxxx", false},
		{0, "0000000", true},
	} {
		if got := c.control.Matches(c.pattern); got != c.want {
			t.Errorf("%#x matches %s: %t", uint16(c.control), c.pattern, got)
		}
	}
	for control, bit := range map[ACSControl]int{
		ACSTranslationBlocking: 0x2, ACSRequestRedirect: 0x4, ACSCompletionRedirect: 0x8, ACSEgressControl: 0x20, ACSDirectTranslated: 0x40,
	} { // include/uapi/linux/pci_regs.h
		if int(control) != bit {
			t.Errorf("%s: %#x, want %#x", control, int(control), bit)
		}
	}
}
