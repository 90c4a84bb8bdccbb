// SPDX-License-Identifier: Apache-2.0

package vf

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLibraryVFs compares the figures of virtual functions with the figures that vishvananda/netlink parses from the
// same reply. That library skips the GUIDs.
func TestLibraryVFs(t *testing.T) {
	recorded, err := os.ReadFile("testdata/6.1/getlink_vf.bin")
	if err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string][]byte{
		"recorded": recorded,
		"made":     newLink("0000:18:00.0", 2, vfInfo(0, [4]uint64{1, 2, 3, 4}, 5, 6), vfInfo(1, [4]uint64{7, 8, 9, 10})),
	} {
		t.Run(name, func(t *testing.T) {
			payload := message[unix.SizeofNlMsghdr:]
			ours, err := parseLink(payload)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := netlink.LinkDeserialize(nil, payload)
			if err != nil {
				t.Fatal(err)
			}
			want := link{parent: theirs.Attrs().ParentDev, count: len(theirs.Attrs().Vfs), listed: true}
			for i, v := range theirs.Attrs().Vfs {
				want.vfs = append(want.vfs, functionOf{
					listed: true, nodeGUID: ours.vfs[i].nodeGUID, portGUID: ours.vfs[i].portGUID,
					rxBytes: v.RxBytes, txBytes: v.TxBytes, rxPackets: v.RxPackets, txPackets: v.TxPackets,
				})
			}
			if d := cmp.Diff(want, ours, cmp.AllowUnexported(link{}, functionOf{})); d != "" {
				t.Errorf("(-netlink +ours):\n%s", d)
			}
		})
	}
}

// TestLibraryLinks requests each network interface of this machine from its kernel, as vishvananda/netlink does.
func TestLibraryLinks(t *testing.T) {
	f := New("", time.Minute)
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // other tests add interfaces meanwhile
		t.Fatal(err)
	}
	same := 0
	for _, theirs := range links {
		a := theirs.Attrs()
		ours, err := f.askInterface(a.Name, len(a.Vfs), time.Now().Add(time.Minute))
		if errors.Is(err, unix.ENODEV) {
			continue // other tests remove interfaces meanwhile
		}
		if err != nil || ours.parent != a.ParentDev || ours.count != len(a.Vfs) {
			t.Errorf("%s: %+v, %v; netlink reports parent %q and %d functions", a.Name, ours, err, a.ParentDev, len(a.Vfs))
		}
		same++
	}
	if same == 0 {
		t.Error("no interface")
	}
	if _, err := f.askInterface("none0", 0, time.Now().Add(time.Minute)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no such interface: %v", err)
	}
}
