// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/web"
	"github.com/accelscope/accelscope/pkg/web/webtest"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// drawn returns the picture of a node, and what it is drawn from.
func drawn(n *fakenode.Node) (topology, api.Known) {
	k := n.Refresh(time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC))
	return topologyOf(&k, k.Recorder.Devices(&k.Facts, &k.Shares), overview.Rows(&k.Facts, &k.Shares)), k
}

// TestPicture compares the picture with the placement, and the texts with what the fake node has: two GPUs and two HCAs below each switch,
// and mlx5_3 with half of its lanes.
func TestPicture(t *testing.T) {
	n := fakenode.New(fakenode.Workloads())
	n.Down[1] = true
	p, k := drawn(n)
	placed := k.Placement.Placement()
	users := 0
	for i := range placed.Devices {
		d := &placed.Devices[i]
		at := slices.IndexFunc(p.Devices, func(b deviceBox) bool { return b.Link == web.DeviceLink(keyOf(d)) })
		if at < 0 {
			t.Errorf("%s %s is not in the picture", d.Kind, d.Name)
			continue
		}
		b := p.Devices[at]
		if len(b.Users) != len(placed.Owners[i]) || b.More != 0 {
			t.Errorf("%s has %d users, want %d", b.Text, len(b.Users), len(placed.Owners[i]))
		}
		users += len(b.Users)
		// The boxes of the NUMA node, the host bridge and the port are beside the device.
		for _, c := range []struct {
			boxes []box
			want  string
		}{{p.Nodes, "NUMA " + d.NUMANode}, {p.Bridges, d.Path[0]}, {p.Ports, d.Path[1]}} {
			beside := slices.IndexFunc(c.boxes, func(a box) bool { return a.Y <= b.Y && b.Y+b.H <= a.Y+a.H })
			if beside < 0 || c.boxes[beside].Text != c.want {
				t.Errorf("%s: %+v, want %s", b.Text, c.boxes, c.want)
			}
		}
	}
	if users == 0 || len(p.Nodes) != 2 || len(p.Bridges) != 4 || len(p.Ports) != 4 || p.Ports[0].About != "PCIe switch" {
		t.Errorf("%d users, %d NUMA nodes, %d bridges, %+v", users, len(p.Nodes), len(p.Bridges), p.Ports)
	}
	texts := map[string]string{}
	for _, b := range p.Devices {
		text := strings.Join([]string{b.About, b.PCIe, b.Bad}, " | ")
		for _, u := range b.Users {
			text += " | " + u.Text + " " + u.Direct
		}
		texts[b.Text] = text
	}
	for device, want := range map[string]string{
		"mlx5_1":   "MT4129 | PCIe x16, 32 GT/s | port 1 DOWN | ml/llama-70b-workers-0/trainer  24 QPs GPUDirect",
		"mlx5_3":   "400 Gb/s InfiniBand | PCIe x8 of x16, 32 GT/s | PCIe link | ml/llama-70b-workers-0/trainer  24 QPs GPUDirect",
		"mlx5_7":   "400 Gb/s InfiniBand | PCIe x16, 32 GT/s |  | serving/mixtral-0/server  12 QPs no GPUDirect",
		"nvidia 5": "H100 80GB HBM3 | PCIe x16, 32 GT/s | thermal_slowdown | ml/llama-70b-workers-1/trainer  55.4 GiB ",
		"nvidia 7": "H100 80GB HBM3 | PCIe x16, 32 GT/s |  | serving/mixtral-0/server  0 B ",
	} {
		if d := cmp.Diff(want, texts[device]); d != "" {
			t.Errorf("%s: %s", device, d)
		}
	}
	bad := 0
	for _, l := range p.Lines {
		if l.Bad {
			bad++
		}
	}
	if bad != 1 {
		t.Errorf("%d lines are degraded links, want the link of mlx5_3", bad)
	}
	// Without a link or a place nothing is invented.
	for i := range k.Facts.PCI {
		k.Facts.PCI[i].Path, k.Facts.PCI[i].Link.Width = nil, 0
	}
	k.Placement = placement.NewRefresh(&k.Facts, &k.Shares)
	p = topologyOf(&k, k.Recorder.Devices(&k.Facts, &k.Shares), nil)
	if p.Ports[0].Text != "no PCIe port" || p.Bridges[0].Text != "no place" || p.Devices[0].PCIe != "" {
		t.Errorf("%+v %+v %+v", p.Ports, p.Bridges, p.Devices[0])
	}
}

// TestCrowdedPicture: of many workloads of a device the busiest are shown, and the others counted.
func TestCrowdedPicture(t *testing.T) {
	p, k := drawn(fakenode.New(fakenode.Crowd(100)))
	hcas := slices.DeleteFunc(p.Devices, func(b deviceBox) bool { return b.Kind != placement.HCA })
	if len(hcas) == 0 {
		t.Error("no HCA")
	}
	for _, b := range hcas {
		if i := slices.IndexFunc(k.Placement.Placement().Devices, func(d placement.Device) bool { return d.Name == b.Text }); len(b.Users) != maxUsers ||
			b.More != len(k.Placement.Placement().Owners[i])-maxUsers {
			t.Errorf("%s: %d users and %d more", b.Text, len(b.Users), b.More)
		}
	}
}

// TestLinkText checks what is shown of a PCIe link.
func TestLinkText(t *testing.T) {
	for want, link := range map[string]model.PCILink{
		"":                              {},
		"PCIe x16, 2.5 of 32 GT/s":      {Speed: 2.5e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16},
		"PCIe x8 of x16, 16 of 32 GT/s": {Speed: 16e9, MaxSpeed: 32e9, Width: 8, MaxWidth: 16},
		"PCIe x4, 8 GT/s":               {Speed: 8e9, Width: 4},
	} {
		if got := linkText(&placement.Device{Link: link}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFresh: what is made once for a refresh is made again for the next one, also for a viewer with a search.
func TestFresh(t *testing.T) {
	n := fakenode.New(fakenode.Workloads())
	at := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	var k api.Known
	h := Handlers(Options{Facts: func() api.Known { return k }, Slots: api.NewSlots(), Version: "v1", MetricsPath: "/metrics"})["GET /{$}"]
	const down = "degraded: port 1 DOWN"
	for i, want := range []bool{false, true, false} {
		n.Down[2] = want
		k = n.Refresh(at.Add(time.Duration(i) * time.Minute))
		for _, target := range []string{"/?q=4711", "/?q=resnet", "/"} {
			if _, body := webtest.Get(t, h, target); strings.Contains(body, down) != want || strings.Contains(body, "RDMAPortDown") != want {
				t.Errorf("refresh %d, %s: the port is down: %v, want %v", i, target, !want, want)
			}
		}
	}
}
