// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestHidden: an HCA that was moved to a network namespace has a state until a search finds it there, also if no search
// does. A removed HCA and a VF have no state.
func TestHidden(t *testing.T) {
	tr := hca.NewTree(t)
	tr.SRIOV("", "")
	tr.Uverbs(41, "mlx5_5", "0000:18:00.1") // a VF
	tr.Uverbs(42, "mlx5_7", "0000:19:00.0")
	tr.Uverbs(43, "mlx5_8", "0000:1a:00.0")
	x := &exclusive{mode: mode(0), shows: map[uint64][][]byte{11: {getReply(2, "mlx5_7", 0xa088c20300000102)}}}
	spaces := []model.Namespace{{Inode: 1, PID: 1, Host: true}, {Inode: 11, PID: 110}}
	now := time.Unix(1000, 0)
	s := movedSource(t, tr, x, &spaces, func(o *Options) { o.Now = func() time.Time { return now } })
	if got := states(mustRead(t, s)); got != "mlx5_0=ok mlx5_7=unsupported mlx5_8=unsupported" {
		t.Errorf("before the search: %s", got)
	}
	settle(t, s)
	if got := states(mustRead(t, s)); got != "mlx5_0=ok mlx5_7=ok mlx5_8=unsupported" {
		t.Errorf("after it: %s", got)
	}
	tr.Remove("class/infiniband_verbs/uverbs43")
	now = now.Add(nodeRetry)
	mustRead(t, s)
	if got := states(mustRead(t, s)); got != "mlx5_0=ok mlx5_7=ok" {
		t.Errorf("without it: %s", got)
	}
	tr.Remove("class/infiniband/mlx5_0")
	spaces = spaces[:1]
	snap, err := s.Read(t.Context())
	if got := states(snap); got != "mlx5_0=unsupported mlx5_7=unsupported" || !errors.Is(err, model.ErrAbsent) {
		t.Errorf("with no other HCA: %s, %v", got, err)
	}
}
