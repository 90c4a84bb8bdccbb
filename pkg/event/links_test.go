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

func TestFlapEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	up := time.Unix(1700000000, 0)
	all := []model.LinkFlap{
		{ID: 1, Device: "mlx5_0", Port: 1, Netdev: "eth0", Losses: 1, Down: up.Add(-12500 * time.Millisecond), Up: up, Reason: "no_cable"},
		{ID: 2, Device: "mlx5_0", Port: 1, Netdev: "eth0", Losses: 3, Down: up, Up: up, Reason: "link_training_failure", Detail: "remote_fault"},
		{ID: 3, Netdev: "eth1", Losses: 1, Down: up, Up: up}, // a PF without an HCA
	}
	var shown atomic.Int64
	shown.Store(1)
	open(t, newWorld(1), quick, Options{
		Endpoint: r.endpoint, Insecure: true,
		Shares:    func() attribution.Attribution { return attribution.Attribution{Owners: []identity.Owner{{}}} },
		LinkFlaps: func() []model.LinkFlap { return all[:shown.Load()] },
	})
	sent := func() (lines []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, record := range r.got {
			if record.Event == "device.link_flap" {
				a := record.Attributes
				lines = append(lines, fmt.Sprint(a["accelscope.device"], " ", a["accelscope.link.port"], " ", a["accelscope.link.netdev"], " ",
					a["accelscope.link.losses"], " ", a["accelscope.link.down_seconds"], " ", a["accelscope.link.reason"], " ", a["accelscope.link.detail"]))
			}
		}
		return lines
	}
	within(t, waitLimit, func() string { return map[bool]string{false: fmt.Sprint(sent())}[len(sent()) >= 1] })
	shown.Store(int64(len(all)))
	within(t, waitLimit, func() string { return map[bool]string{false: fmt.Sprint(sent())}[len(sent()) >= len(all)] })
	time.Sleep(5 * quick.poll) // a duplicate would arrive
	if d := cmp.Diff([]string{
		"mlx5_0 1 eth0 1 12.5 no_cable ", "mlx5_0 1 eth0 3 0 link_training_failure remote_fault", "eth1  eth1 1 0  ",
	}, sent()); d != "" {
		t.Error(d)
	}
	var lines []string
	for _, ev := range new(flaps).update(all) {
		lines = append(lines, fmt.Sprint(warns(&ev), ": ", sentence(&ev)))
	}
	if d := cmp.Diff([]string{
		"true: eth0 of mlx5_0 lost its carrier once: no_cable", "true: eth0 of mlx5_0 lost its carrier 3 times: link_training_failure",
		"true: eth1 of eth1 lost its carrier once",
	}, lines); d != "" {
		t.Error(d)
	}
}
