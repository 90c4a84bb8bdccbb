// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestOneOfTwoFiles: a process maps two files with the functions, and only one of them is probed. Some launches are not counted.
func TestOneOfTwoFiles(t *testing.T) {
	const pid = 7
	probed, other := newTestFile(pid), newTestFile(pid)
	probed.Links[half{}] = nil
	l := &loop{
		kernel: &kernel{refused: make([]error, len(functions))},
		files:  fileSet{locate.FileID{Inode: 1}: probed, locate.FileID{Inode: 2}: other},
	}
	p := &process{linked: linked{uses: true, counting: true}}
	for range 100 { // in each order of the files
		if got := l.gapsOf(pid, p); !slices.Contains(got, model.CollectiveRefused) {
			t.Fatalf("gaps %q: the file without probes is missing", got)
		}
	}
	other.Links[half{}] = nil
	if got := l.gapsOf(pid, p); !slices.Equal(got, []model.CollectiveGap{""}) {
		t.Errorf("gaps %q with probes in both files", got)
	}
}

func newTestFile(pid int) *file {
	f := &file{File: uprobe.NewFile[int](1, false), places: make([]place, 1)}
	f.Paths[pid] = "libnccl.so.2"
	return f
}
