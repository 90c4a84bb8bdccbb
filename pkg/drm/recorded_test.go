// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecorded parses outputs of real machines (testdata/README.md).
func TestRecorded(t *testing.T) {
	const clock = 7655183225
	for name, want := range map[string]Client{
		"i915": {
			Driver: "i915", PCIAddress: "0000:00:02.0", ID: 39, Memory: map[string]uint64{"system0": 6044 << 10, "stolen-system0": 0},
			Engines: map[string]Engine{"render": {Busy: 346249}, "copy": {}, "video": {Capacity: 2}, "video-enhance": {}},
		},
		"xe": {
			Driver: "xe", PCIAddress: "0000:03:00.0", ID: 3,
			Memory: map[string]uint64{"system": 0, "gtt": 192 << 10, "vram0": 23992 << 10, "stolen": 0},
			Engines: map[string]Engine{
				"rcs": {Cycles: 28257900, Clock: clock}, "bcs": {Clock: clock}, "vcs": {Clock: clock, Capacity: 2},
				"vecs": {Clock: clock, Capacity: 2}, "ccs": {Clock: clock, Capacity: 4},
			},
		},
		"xe-lunar-lake": {
			Driver: "xe", PCIAddress: "0000:00:02.0", ID: 607,
			Engines: map[string]Engine{"rcs": {Cycles: 29821070, Clock: 5044293186233}, "ccs": {Cycles: 571, Clock: 5044293186233}},
		},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".fdinfo"))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := ParseFdinfo(text)
		if d := cmp.Diff(want, got); d != "" || !ok {
			t.Errorf("%s: %v (-want +got)\n%s", name, ok, d)
		}
	}
}
