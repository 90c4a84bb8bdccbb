// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestFileRoom: an owner may bring maxFilesOfOwner files, all owners maxFiles.
func TestFileRoom(t *testing.T) {
	files := fileSet{}
	for i := range uint64(maxFilesOfOwner) {
		if !files.hasRoom(1) {
			t.Errorf("no room with %d files", i)
		}
		files[locate.FileID{Inode: i}] = &file{File: uprobe.NewFile[int](1, false)}
	}
	if files.hasRoom(1) || !files.hasRoom(2) {
		t.Errorf("with %d files of an owner: room for it %v, for another owner %v", len(files), files.hasRoom(1), files.hasRoom(2))
	}
	for i := len(files); i < maxFiles; i++ {
		files[locate.FileID{Inode: uint64(i)}] = &file{File: uprobe.NewFile[int](model.CgroupID(i), false)}
	}
	if files.hasRoom(1e9) {
		t.Errorf("room with %d files", len(files))
	}
}

// TestManyProcesses: processes beyond maxProcesses are not searched, beyond uprobe.MaxSearches wait for their search, and beyond
// uprobe.MaxAlone are refused probes of their own.
func TestManyProcesses(t *testing.T) {
	l := newLoop(Options{Procfs: "/proc", Logger: zap.NewNop()}, nil, true, nil)
	for i := range maxProcesses {
		l.processes[-1-i] = &process{}
	}
	if !l.observe(os.Getpid()) || l.processes[os.Getpid()] != nil {
		t.Errorf("one more than %d processes is searched", maxProcesses)
	}
	for range uprobe.MaxSearches {
		l.searches.Begin(0, &result{}, func(*result) {})
	}
	if l.startSearches(time.Now()); l.searches.Running() != uprobe.MaxSearches {
		t.Errorf("%d searches at once", l.searches.Running())
	}
	for range uprobe.MaxSearches {
		<-l.searches.Results
	}
	alone := file{File: uprobe.NewFile[int](1, true)}
	for i := range uprobe.MaxAlone {
		alone.Paths[-1-i] = "x"
	}
	l.files[locate.FileID{Inode: 1}] = &alone
	self, err := locate.OpenProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	p := &process{Process: self}
	if l.add(p, &locate.Library{File: locate.FileID{Inode: 2}}, nil); !errors.Is(p.refused, uprobe.ErrAlone) {
		t.Errorf("one more than %d processes: %v", uprobe.MaxAlone, p.refused)
	}
}
