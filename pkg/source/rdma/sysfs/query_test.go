// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestAsk: PORT_GET replaces the files but the rate's, which is read when the state changes and every RateAge. Files
// replace an answer that fails.
func TestAsk(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1/"
	tr.Put(port+"link_layer", "InfiniBand\n")
	put := func(state, phys, rate, lid string) {
		tr.Put(port+"state", state)
		tr.Put(port+"phys_state", phys)
		tr.Put(port+"rate", rate)
		tr.Put(port+"lid", lid)
		tr.Put(port+"sm_lid", "0x1")
	}
	put("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "0x7")
	d := newTreeDevice(t, tr)
	answer, failure := PortState{State: "ACTIVE", PhysState: "LinkUp", LID: "0x7", SMLID: "0x1"}, error(nil)
	d.ask = func(int) (PortState, error) { return answer, failure }
	check := func(what string, files int, want model.Port) {
		t.Helper()
		before := d.queries.Reader.Calls
		p := d.read().Ports[0]
		got := model.Port{
			State: p.State, PhysState: p.PhysState, RateBits: p.RateBits, Width: p.Width, Speed: p.Speed,
			LID: p.LID, SMLID: p.SMLID, SMChanges: p.SMChanges,
		}
		if want.State != got.State || want.PhysState != got.PhysState || want.RateBits != got.RateBits || want.LID != got.LID ||
			want.SMLID != got.SMLID || want.SMChanges != got.SMChanges {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		const calls = 3 // to open, read and close a file that is not in sysfs
		if n := d.queries.Reader.Calls - before; n != files*calls {
			t.Errorf("%s: %d system calls on files, want %d files", what, n, files)
		}
		if d.links.Bad > 0 || d.links.Good == 0 {
			t.Errorf("%s: %+v", what, d.links)
		}
	}
	up := model.Port{State: "ACTIVE", PhysState: "LinkUp", RateBits: 400e9, LID: "0x7", SMLID: "0x1"}
	d.read()
	check("nothing changed", 0, up)

	put("4: ACTIVE", "5: LinkUp", "200 Gb/sec (4X HDR)", "0x7")
	check("only the rate changed", 0, up)
	d.now = d.now.Add(RateAge)
	slower := up
	slower.RateBits = 200e9
	check("the rate is old", 1, slower)

	put("1: DOWN", "2: Polling", "10 Gb/sec (4X SDR)", "0x7")
	answer = PortState{State: "DOWN", PhysState: "Polling", LID: "0x7", SMLID: "0x0"}
	check("down", 1, model.Port{State: "DOWN", PhysState: "Polling", RateBits: 10e9, LID: "0x7", SMLID: "0x0"})
	answer = PortState{State: "ACTIVE", PhysState: "LinkUp", LID: "0x9", SMLID: "0x2"}
	put("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "0x9")
	check("up with another LID and subnet manager", 1, model.Port{
		State: "ACTIVE", PhysState: "LinkUp", RateBits: 400e9, LID: "0x9", SMLID: "0x2", SMChanges: 1,
	})

	failure = unix.EOPNOTSUPP
	tr.Put(port+"sm_lid", "0x2")
	byFiles := model.Port{State: "ACTIVE", PhysState: "LinkUp", RateBits: 400e9, LID: "0x9", SMLID: "0x2", SMChanges: 1}
	d.read() // opens the files
	check("the kernel has no PORT_GET: files", 3, byFiles)
	failure = nil
	check("it is not asked again", 3, byFiles)
	d.now = d.now.Add(time.Hour)
	check("files, and the LIDs that are old", 5, byFiles)
}
