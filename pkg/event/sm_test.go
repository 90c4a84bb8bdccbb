// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

func withSM(lid string) []model.HCA {
	return []model.HCA{
		{Name: "mlx5_0", Ports: []model.Port{{Number: 1, LinkLayer: "InfiniBand", SMLID: lid}}},
		{Name: "mlx5_1", Ports: []model.Port{{Number: 1, LinkLayer: "Ethernet", SMLID: lid}}}, // has no subnet manager
	}
}

// TestSubnetManagers: a change is an event. The loss and return of the same subnet manager, and a new HCA, are not
// events.
func TestSubnetManagers(t *testing.T) {
	var m subnetManagers
	var got []string
	for _, hcas := range [][]model.HCA{
		nil, withSM("0x0"), withSM("0x1"), withSM("0x0"), nil, withSM("0x1"), withSM("0x5"), withSM("0x5"), withSM(""), withSM("0x1"),
		{},
		withSM("0x9"),
	} {
		for _, ev := range m.update(hcas, time.Unix(1, 0)) {
			got = append(got, fmt.Sprint(warns(&ev), ": ", sentence(&ev)))
		}
	}
	want := []string{
		"true: port 1 of mlx5_0 changed from the subnet manager at LID 0x1 to that at LID 0x5",
		"true: port 1 of mlx5_0 changed from the subnet manager at LID 0x5 to that at LID 0x1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestSMChangeEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	var lid atomic.Int64
	lid.Store(1)
	var reads atomic.Int64
	open(t, newWorld(1), quick, Options{
		Endpoint: r.endpoint, Insecure: true,
		Shares: func() attribution.Attribution { return attribution.Attribution{Owners: []identity.Owner{{}}} },
		HCAs: func() []model.HCA {
			reads.Add(1)
			return withSM(fmt.Sprintf("%#x", lid.Load()))
		},
	})
	within(t, waitLimit, func() string { return map[bool]string{false: "no read"}[reads.Load() > 1] })
	lid.Store(7)
	sent := func() (lines []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, record := range r.got {
			if record.Event == "device.sm_change" {
				a := record.Attributes
				lines = append(lines, fmt.Sprint(a["accelscope.device"], " ", a["accelscope.link.port"], " ", a["accelscope.sm.from_lid"], " ", a["accelscope.sm.to_lid"]))
			}
		}
		return lines
	}
	within(t, waitLimit, func() string { return map[bool]string{false: fmt.Sprint(sent())}[len(sent()) > 0] })
	time.Sleep(5 * quick.poll) // a duplicate would arrive
	if d := cmp.Diff([]string{"mlx5_0 1 0x1 0x7"}, sent()); d != "" {
		t.Error(d)
	}
}
