// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
)

// FuzzLine inserts a line into each file: the results of the other lines do not change.
func FuzzLine(f *testing.F) {
	majors := map[uint64]string{195: driverNVIDIA, 226: driverDRM}
	linetest.Fuzz(f, []linetest.Parser{
		{
			Name: "devices.list", Text: "c 1:3 rwm\nc 195:0 rw\nc 195:255 rw\nc 226:128 rwm\n",
			Parse: func(b []byte) map[string]string {
				nodes, _ := allowedNodes(b, majors)
				out := map[string]string{}
				for _, n := range nodes {
					out[n] = ""
				}
				return out
			},
			Replaces: func(line, _ string) bool { // a rule for all devices of a kind names no device
				f := strings.Fields(line)
				return len(f) == 3 && (f[0] == "a" || strings.Contains(f[1], "*"))
			},
		},
		{
			Name: "devices", Text: "Character devices:\n195 nvidia\n226 drm\n511 nvidia-caps\n\nBlock devices:\n  8 sd\n",
			Parse: func(b []byte) map[string]string {
				out := map[string]string{}
				for major, driver := range gpuMajors(b) {
					out[fmt.Sprint(major)] = driver
				}
				return out
			},
			Replaces: func(line, _ string) bool { return strings.HasPrefix(line, "Block devices:") },
		},
	})
}
