// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestRecent keeps the last events for viewers without a collector: lives of containers and events of ports, but no
// faults.
func TestRecent(t *testing.T) {
	t.Parallel()
	w := newWorld(0)
	e := begun(t, w, quick, Options{Endpoint: freePort(t), Insecure: true})
	within(t, waitLimit, func() string { return map[bool]string{false: "not started"}[started(e)] })
	last := func() (lines []string) {
		for _, r := range e.Stats().Recent {
			lines = append(lines, strings.Join([]string{r.Name, r.Workload, r.ContainerID[:min(len(r.ContainerID), 3)], r.Device, r.Text}, "|"))
		}
		return lines
	}
	if got := e.Stats().Recent; got == nil || len(got) > 0 {
		t.Errorf("before the first event: %v", got)
	}
	id := w.create()
	w.exit(id, 3)
	e.offer(model.Event{Type: model.EventFault, Fault: &model.Fault{}, Device: "mlx5_0"}, time.Now())
	e.offer(model.Event{Type: model.EventFlap, Device: "mlx5_0", Flap: &model.LinkFlap{Netdev: "eth0", Losses: 1}}, time.Now())
	e.offer(model.Event{Type: model.EventSM, Device: "mlx5_1", SMChange: &model.SMChange{Port: 1, From: "1", To: "2"}}, time.Now())
	want := []string{
		"container.create|train/job-1/worker|000||container train/job-1/worker was created", "container.start|train/job-1/worker|000||container train/job-1/worker started",
		"container.exit|train/job-1/worker|000||container train/job-1/worker exited with code 3",
		"device.link_flap|||mlx5_0|eth0 of mlx5_0 lost its carrier once",
	}
	got := last()
	if d := cmp.Diff(want, got[:min(len(got), len(want))]); d != "" || len(got) != 5 || !strings.HasPrefix(got[4], "device.sm_change|||mlx5_1|") {
		t.Errorf("%s\n%q", d, got)
	}
	for i := range 3 * maxRecent {
		e.offer(model.Event{Type: model.EventDevice, Device: strings.Repeat("x", 10_000), Container: model.Container{ID: fmt.Sprint(i), Name: "\xff"}}, time.Now())
	}
	kept := e.Stats().Recent
	if len(kept) != maxRecent || kept[0].ContainerID != fmt.Sprint(2*maxRecent) || kept[maxRecent-1].ContainerID != fmt.Sprint(3*maxRecent-1) {
		t.Errorf("%d events are kept, from %s on", len(kept), kept[0].ContainerID)
	}
	if one := kept[0]; len(one.Device) > maxRecentText+3 || len(one.Text) > maxRecentText+3 || strings.ToValidUTF8(one.Text, "") != one.Text {
		t.Errorf("a long event: %d and %d bytes", len(one.Device), len(one.Text))
	}
	kept[0].Name = "changed"
	if e.Stats().Recent[0].Name == "changed" {
		t.Error("viewers share the events")
	}
}
