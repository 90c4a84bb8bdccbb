// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestASICSerial: the serial number of an AMD GPU is the unique id, as in amd-smi, and not the number of the board.
func TestASICSerial(t *testing.T) {
	for want, g := range map[string]model.GPU{
		"165":                {Vendor: model.NVIDIA, UUID: "GPU-0", Serial: "165"},
		"0xD1CC3F11CFDD5112": {Vendor: model.AMD, UUID: "d1cc3f11cfdd5112", Serial: "692231000131"},
		"0x01CC3F11CFDD5112": {Vendor: model.AMD, UUID: "01cc3f11cfdd5112:3", Parent: "01cc3f11cfdd5112", Serial: "692231000131"},
		"":                   {Vendor: model.AMD, UUID: "0000:c1:00.0"},
	} {
		if got := asicSerial(&g); got != want {
			t.Errorf("%s: %q, want %q", g.UUID, got, want)
		}
	}
}
