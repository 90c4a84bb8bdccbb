// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/top"
)

// Positions in the picture: of the NUMA nodes, the ports above devices, the devices and the workloads, and the height of a line.
const (
	nodeX, portX, deviceX, workloadX = 8, 96, 260, 560
	mapWidth                         = 920
	lineHeight                       = 20
	boxGap                           = 8
	maxUsers                         = 4 // workloads of a device that are shown
)

// topology is the picture of the node: from the left NUMA nodes, PCIe ports, devices and workloads.
type topology struct {
	Width, Height int
	Nodes         []box
	Ports         []box
	Devices       []deviceBox
	Lines         []line
}

type box struct {
	X, Y, W, H int
	Text       string
}

type line struct {
	X1, Y1, X2, Y2 int
	Bad            bool
}

type deviceBox struct {
	box
	Name, Link, About string
	PCIe              string
	Kind              overview.Kind
	Bad               string // what is degraded, empty if nothing is
	Users             []user
	More              int
}

type user struct {
	Y           int
	Text, Link  string
	Direct      bool // has registered GPU memory on the HCA: GPUDirect
	X1, Y1, Tip int
}

// topologyOf arranges devices by NUMA node and by the port above them. Parts of GPUs belong to their GPU.
func topologyOf(devices []overview.Device, rows []overview.Row) topology {
	shownDevices := slices.DeleteFunc(slices.Clone(devices), func(d overview.Device) bool { return d.Parent != "" && d.Parent != d.Device })
	slices.SortStableFunc(shownDevices, func(a, b overview.Device) int {
		return cmp.Or(
			cmp.Compare(len(a.NUMANode), len(b.NUMANode)), cmp.Compare(a.NUMANode, b.NUMANode), cmp.Compare(a.Upstream, b.Upstream),
			cmp.Compare(a.PCIAddress, b.PCIAddress),
		)
	})
	users := usersOf(devices, rows)
	t := topology{Width: mapWidth}
	y := 10
	for i := range shownDevices {
		d := &shownDevices[i]
		newNode := i == 0 || shownDevices[i-1].NUMANode != d.NUMANode
		newPort := newNode || shownDevices[i-1].Upstream != d.Upstream
		if newNode && i > 0 {
			y += 2 * boxGap
		}
		if newNode {
			text := "NUMA " + shown(d.NUMANode)
			if d.NUMANode == "" {
				text = "no NUMA"
			}
			t.Nodes = append(t.Nodes, box{nodeX, y, 72, 0, text})
		}
		if newPort {
			t.Ports = append(t.Ports, box{portX, y, 132, 0, cmp.Or(shown(d.Upstream), "no PCIe port")})
		}
		b := deviceBoxOf(d, users[d.Device], y)
		t.Devices = append(t.Devices, b)
		middle := b.Y + b.H/2
		t.Lines = append(t.Lines, line{portX + 132, middle, deviceX, middle, b.Bad != ""})
		for _, boxes := range [][]box{t.Nodes, t.Ports} {
			last := &boxes[len(boxes)-1]
			last.H = b.Y + b.H - last.Y
		}
		y += b.H + boxGap
	}
	for _, p := range t.Ports {
		t.Lines = append(t.Lines, line{nodeX + 72, p.Y + p.H/2, portX, p.Y + p.H/2, false})
	}
	t.Height = y + 2
	return t
}

func deviceBoxOf(d *overview.Device, users []user, y int) deviceBox {
	b := deviceBox{
		box: box{deviceX, y, 236, 2*lineHeight + 6, ""}, Name: deviceName(d.Kind, d.Device, d.Vendor, d.GPU), Link: deviceLink(d.Device),
		Kind: d.Kind, About: shown(strings.TrimPrefix(d.Name, "NVIDIA ")),
	}
	bad := []string{}
	if d.Link != nil {
		b.PCIe = fmt.Sprintf("PCIe x%d at %.4g GT/s", d.Link.Width, d.Link.Speed/1e9)
		if d.Link.Degraded {
			bad = append(bad, fmt.Sprintf("x%d of x%d lanes", d.Link.Width, d.Link.MaxWidth))
		}
	}
	for _, p := range d.Ports {
		if p.State != "ACTIVE" {
			bad = append(bad, fmt.Sprintf("port %d %s", p.Number, shown(p.State)))
		} else if p.RateBits > 0 {
			b.About = fmt.Sprintf("%.4g Gb/s %s", p.RateBits/1e9, shown(p.LinkLayer))
		}
	}
	bad = append(bad, d.Problems...)
	b.Bad = strings.Join(bad, ", ")
	if len(users) > maxUsers {
		b.More = len(users) - maxUsers
		users = users[:maxUsers]
	}
	lines := len(users)
	if b.More > 0 {
		lines++
	}
	b.H = max(b.H, lines*lineHeight+6)
	if b.Bad != "" {
		b.H = max(b.H, 3*lineHeight+6)
	}
	for i := range users {
		users[i].Y = y + 3 + i*lineHeight + lineHeight/2
		users[i].X1, users[i].Y1, users[i].Tip = deviceX+236, y+b.H/2, workloadX
	}
	b.Users = users
	return b
}

// usersOf returns the workloads of each device, the busiest first; those of parts of a GPU are users of the GPU.
func usersOf(devices []overview.Device, rows []overview.Row) map[string][]user {
	whole := map[string]string{}
	for i := range devices {
		whole[devices[i].Device] = cmp.Or(devices[i].Parent, devices[i].Device)
	}
	sorted := make([]*overview.Row, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		uses := count(r.QueuePairs) > 0 || count(r.Processes) > 0 || r.Allocated || perSecond(r.Transmit) > 0 || perSecond(r.Receive) > 0
		if r.Workload != "" && uses {
			sorted = append(sorted, r)
		}
	}
	slices.SortStableFunc(sorted, func(a, b *overview.Row) int {
		return cmp.Or(-cmp.Compare(max(perSecond(a.Transmit), perSecond(a.Receive), value(a.Utilization)),
			max(perSecond(b.Transmit), perSecond(b.Receive), value(b.Utilization))), cmp.Compare(a.Workload, b.Workload))
	})
	users := map[string][]user{}
	for _, r := range sorted {
		device := whole[r.Device]
		if len(users[device]) >= maxUsers {
			users[device] = append(users[device], user{}) // it is only counted
			continue
		}
		text := owner(r.Workload)
		if r.Kind == overview.GPU {
			text += "  " + optional(r.Memory, top.Size)
		} else if r.QueuePairs != nil {
			text += fmt.Sprintf("  %d QPs", *r.QueuePairs)
		}
		users[device] = append(users[device], user{
			Text: text, Link: workloadLink(r.Workload, r.ContainerID), Direct: r.Registered[model.GPUMemory] > 0,
		})
	}
	return users
}
