// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestPartlyProbed: a process maps two files with the functions, and not all of them are probed, or known. Some launches are not counted.
func TestPartlyProbed(t *testing.T) {
	const pid = 7
	first, second := newTestFile(pid), newTestFile(pid)
	first.Links[half{}] = nil
	l := &loop{files: fileSet{locate.FileID{Inode: 1}: first, locate.FileID{Inode: 2}: second}}
	p := &process{linked: linked{uses: true, counting: true}}
	gaps := func(what string, want ...model.CollectiveGap) {
		t.Helper()
		for range 100 { // in each order of the files
			if got := l.gapsOf(pid, p); !slices.Equal(got, want) {
				t.Fatalf("%s: gaps %q, want %q", what, got, want)
			}
		}
	}
	gaps("one file without probes", "", model.CollectiveRefused)
	second.Links[half{}] = nil
	gaps("both probed", "")
	second.places = append(second.places, place{})
	gaps("one function without a probe yet", "", model.CollectiveRefused)
	second.places = second.places[:1]
	p.incomplete = true
	gaps("a file that could not be read", "", model.CollectiveRefused)
}

func newTestFile(pid int) *file {
	f := &file{File: uprobe.NewFile[int](1, false), places: make([]place, 1)}
	f.Paths[pid] = "libnccl.so.2"
	return f
}
