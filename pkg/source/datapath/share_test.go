// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestSearchShare: the searches of more processes of an owner than may run at once all hang. Searches of another owner run, and of the
// first owner again when some end. Cgroups 1 to 9 have one owner.
func TestSearchShare(t *testing.T) {
	s := newTestSource(Options{Procfs: "/proc", OwnerOf: func(id model.CgroupID) (workload, share model.CgroupID) {
		if id < 10 {
			return id, 1
		}
		return id, id
	}}, func() {})
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	begun := make(chan uint64, 10*uprobe.MaxSearches)
	s.searches.find = func(_ *locate.Process, qp, _ uint64) (locate.Found, error) {
		begun <- qp
		if qp < 10 {
			<-hang
		}
		return locate.Found{}, errors.New("nothing found")
	}
	self, err := locate.OpenProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	await := func(cgroup model.CgroupID) *watched {
		w := &watched{Process: self, cgroup: cgroup}
		w.queue = []attempt{{event: event{qp: uint64(cgroup)}}}
		s.searches.await(w)
		return w
	}
	for i := range 2 * uprobe.MaxSearches {
		await(model.CgroupID(i%9 + 1))
	}
	other := await(10)
	s.searches.start(s.prober.perProcess)
	count := map[uint64]int{}
	for range uprobe.MaxSearchesOfOwner + 1 {
		select {
		case qp := <-begun:
			count[min(qp, 10)/10]++
		case <-time.After(10 * time.Second):
			t.Fatalf("begun: %v of the first owner, %v of the other", count[0], count[1])
		}
	}
	if count[1] != 1 || s.searches.Running() != uprobe.MaxSearchesOfOwner+1 || other.waiting {
		t.Errorf("begun: %v of the first owner, %v of the other", count[0], count[1])
	}
	release()
	for s.searches.Running() > 0 {
		r := <-s.searches.Results
		s.searches.ended(r.of)
		s.searches.start(s.prober.perProcess)
	}
	if len(begun) != 2*uprobe.MaxSearches-uprobe.MaxSearchesOfOwner || len(s.searches.waiting) > 0 || !s.searches.HasRoom(1) {
		t.Errorf("%d begun later, %d wait", len(begun), len(s.searches.waiting))
	}
	self.Close()
}
