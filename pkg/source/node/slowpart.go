// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
)

// errHangs is the error of a part or mount point without an answer. The text is the value of node_exporter's label
// device_error.
var errHangs = errors.New("mountpoint timeout")

// slowPart is a part that may hang in a driver. A late result is discarded.
type slowPart struct {
	part
	call    hang.Call[reading]
	pending *hang.Pending[reading] // nil if an earlier call has not returned
}

func (p *slowPart) start(now time.Time) {
	limit := callTimeout + callTimeout/4 // longer than the limit of a mount point
	p.pending = p.call.Start(limit, func() (reading, error) {
		var n reading
		err := p.read(now, &n)
		return n, err
	})
}

func (p *slowPart) wait(ctx context.Context, n *reading) error {
	got, err := p.pending.Wait(ctx)
	if errors.Is(err, hang.ErrStuck) {
		return errHangs
	}
	n.skipped = got.skipped
	if got.Filesystems != nil {
		n.Filesystems = got.Filesystems
	}
	if got.NetDevs != nil {
		n.NetDevs = got.NetDevs
	}
	if got.NetClasses != nil {
		n.NetClasses = got.NetClasses
	}
	if got.Chips != nil {
		n.Chips = got.Chips
	}
	if got.Energy != nil {
		n.Energy, n.EnergyRead = got.Energy, got.EnergyRead
	}
	return err
}
