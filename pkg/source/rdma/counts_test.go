// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestObjectCounts: each chosen device is asked for all its objects, and a failing device is missing. The kernel is a
// FAKE.
func TestObjectCounts(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	n := newNetlink(Options{Sysfs: tr.Path("")})
	n.enabled, n.deadline = true, 10*time.Second
	n.isSysfs = func(string) bool { return true }
	var mu sync.Mutex
	var asked []uint32
	n.dial = fake(t, func(r []byte) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		var answer [][]byte
		switch native.Uint16(r[4:]) {
		case nldev.MessageType(nldev.CmdGet):
			answer = [][]byte{getReply(2, "mlx5_2", 1), getReply(3, "mlx5_3", 2), hca.Done()}
		case nldev.MessageType(nldev.CmdResGet):
			a := netlink.Parse(r[unix.SizeofNlMsghdr:])
			details := false
			var index uint32
			for a.Next() {
				switch a.Type {
				case nldev.AttrDevIndex:
					index = a.U32()
				case nldev.AttrDetails:
					details = a.U8() == 1
				}
			}
			if a.Err != nil || !details {
				t.Errorf("request without the queue pairs of drivers: %v", a.Err)
			}
			asked = append(asked, index)
			answer = [][]byte{counted(index, "mlx5", uint64(index))}
			if index == 3 {
				answer = [][]byte{hca.Failure(unix.EINVAL)}
			}
		}
		for i := range answer {
			answer[i] = bytes.Clone(answer[i])
			copy(answer[i][8:12], r[8:12])
		}
		return answer
	})
	counts, err := n.ObjectCounts(t.Context())
	want := map[model.ObjectTable]uint64{{Index: 2, Type: model.PD}: 2, {Index: 2, Type: model.QP}: 3}
	if !maps.Equal(counts, want) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v, %v; want %v and EINVAL", counts, err, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, []uint32{2, 3}) {
		t.Errorf("asked %v", asked)
	}
}
