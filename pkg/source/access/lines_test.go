// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
)

// FuzzLine inserts a line into /proc/devices: the drivers of the other lines do not change.
func FuzzLine(f *testing.F) {
	linetest.Fuzz(f, []linetest.Parser{{
		Name: "devices", Text: "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n226 drm\n231 infiniband_verbs\n\nBlock devices:\n  8 sd\n",
		Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for major, driver := range majorsOf(b) {
				out[fmt.Sprint(major)] = driver
			}
			return out
		},
		Replaces: func(line, _ string) bool { return strings.TrimSpace(line) == "Block devices:" },
	}})
}
