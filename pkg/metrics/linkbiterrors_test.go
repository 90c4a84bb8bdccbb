// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// bitErrorFacts returns an InfiniBand port, an Ethernet port that is down, and a PF without an HCA.
func bitErrorFacts() model.Snapshot {
	n := func(v uint64) *uint64 { return &v }
	return model.Snapshot{
		Links: []model.Link{}, LinkFlaps: []model.LinkFlap{},
		BitErrors: []model.BitErrors{
			{
				Device: "mlx5_0", Port: 1, Read: time.Unix(1700000000, 0), FEC: "Standard_LL_RS-FEC - RS(271,257)", Speed: "IB-NDR", Width: "4x",
				Raw: model.Some(2e-9), Effective: model.Some(0), Symbol: model.Some(3e-16), EffectiveErrors: n(7), SymbolErrors: n(2),
				LaneErrors: []uint64{210001, 0}, Age: model.Some(74070),
			},
			{Device: "mlx5_1", Port: 1, Netdev: "eth1", Read: time.Unix(1700000001, 0)},
			{Netdev: "eth2", Read: time.Unix(1700000002, 0), EffectiveErrors: n(1)},
		},
		DeviceStates: []model.DeviceState{{Source: "link", Device: "0000:a1:00.0", State: model.StateFailed, Reason: "mlxlink: no answer in 10s"}},
	}
}
