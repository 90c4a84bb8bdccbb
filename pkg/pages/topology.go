// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/web"
)

// Positions in the picture: of the NUMA nodes, the host bridges, the ports below them, the devices and the workloads, and the height of
// a line.
const (
	nodeX, bridgeX, portX, deviceX, workloadX = 8, 90, 206, 352, 646
	nodeW, bridgeW, portW, deviceW            = 66, 100, 122, 242
	mapWidth                                  = 1010
	lineHeight                                = 20
	boxGap                                    = 8
	maxUsers                                  = 4 // workloads of a device that are shown
)

// topology is the picture of the placement of the node: from the left NUMA nodes, host bridges, the PCIe ports below them, devices and
// workloads. Devices below one port reach each other without the CPU.
type topology struct {
	Width, Height int
	// WorkloadX and EndX are where the names of workloads begin, and where what is right of them ends.
	WorkloadX, EndX int
	Nodes           []box
	Bridges         []box
	Ports           []box
	Devices         []deviceBox
	Lines           []line
}

type box struct {
	X, Y, W, H int
	Text       string
	About      string // second line
}

type line struct {
	X1, Y1, X2, Y2 int
	Bad            bool
}

type deviceBox struct {
	box
	Link string
	PCIe string
	Kind placement.Kind
	Bad  string // what is degraded, empty if nothing is
	// Users are the workloads that use the device, More the number of those for which there is no room.
	Users []user
	More  int
}

type user struct {
	Y           int
	Text, Link  string
	Direct      string // whether it uses GPUDirect on the HCA
	Used        bool   // it does
	X1, Y1, Tip int
}

// topologyOf draws the placement. Figures of devices and workloads come from the other views.
func topologyOf(k *api.Known, devices []overview.Device, rows []overview.Row) topology {
	p := k.Placement.Placement()
	users := usersOf(k, p, devices, rows)
	order := make([]int, len(p.Devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &p.Devices[i], &p.Devices[j]
		return cmp.Or(cmp.Compare(len(a.NUMANode), len(b.NUMANode)), cmp.Compare(a.NUMANode, b.NUMANode), slices.Compare(a.Path, b.Path))
	})
	t := topology{Width: mapWidth, WorkloadX: workloadX + 8, EndX: mapWidth - 5}
	y := 10
	for n, i := range order {
		d := &p.Devices[i]
		newNode := n == 0 || p.Devices[order[n-1]].NUMANode != d.NUMANode
		newBridge := newNode || !equalTo(1, p.Devices[order[n-1]].Path, d.Path)
		if newNode && n > 0 {
			y += 2 * boxGap
		}
		if newNode {
			text := "NUMA " + format.Escape(d.NUMANode)
			if d.NUMANode == "" {
				text = "no NUMA"
			}
			t.Nodes = append(t.Nodes, box{nodeX, y, nodeW, 0, text, ""})
		}
		if newBridge {
			t.Bridges = append(t.Bridges, box{bridgeX, y, bridgeW, 0, part(d.Path, 0, "no place"), ""})
		}
		if newBridge || !equalTo(2, p.Devices[order[n-1]].Path, d.Path) {
			t.Ports = append(t.Ports, portBox(d, y))
		}
		b := deviceBoxOf(d, find(devices, d), users[i], y)
		t.Devices = append(t.Devices, b)
		middle := b.Y + b.H/2
		t.Lines = append(t.Lines, line{portX + portW, middle, deviceX, middle, d.Degraded()})
		for _, boxes := range [][]box{t.Nodes, t.Bridges, t.Ports} {
			last := &boxes[len(boxes)-1]
			last.H = b.Y + b.H - last.Y
		}
		y += b.H + boxGap
	}
	for _, b := range t.Bridges {
		t.Lines = append(t.Lines, line{nodeX + nodeW, b.Y + b.H/2, bridgeX, b.Y + b.H/2, false})
	}
	for _, b := range t.Ports {
		t.Lines = append(t.Lines, line{bridgeX + bridgeW, b.Y + b.H/2, portX, b.Y + b.H/2, false})
	}
	t.Height = y + 2
	return t
}

// equalTo reports whether two paths begin with the same n parts.
func equalTo(n int, a, b []string) bool { return slices.Equal(a[:min(n, len(a))], b[:min(n, len(b))]) }

func part(path []string, i int, without string) string {
	if i >= len(path) {
		return without
	}
	return format.Escape(path[i])
}

// portBox is the root port above a device. A switch is below it if there is more between them.
func portBox(d *placement.Device, y int) box {
	const direct = 3 // host bridge, root port, function
	b := box{portX, y, portW, 0, part(d.Path, 1, "no PCIe port"), ""}
	if len(d.Path) > direct {
		b.About = "PCIe switch"
	}
	return b
}

// find returns the figures of a device of the placement.
func find(devices []overview.Device, d *placement.Device) *overview.Device {
	for i := range devices {
		if devices[i].Device == keyOf(d) {
			return &devices[i]
		}
	}
	return &overview.Device{}
}

// keyOf returns the name by which the views know a device: the name of an HCA, the UUID of a GPU.
func keyOf(d *placement.Device) string {
	if d.Kind == placement.GPU {
		return d.UUID
	}
	return d.Name
}

func deviceBoxOf(d *placement.Device, figures *overview.Device, users []user, y int) deviceBox {
	b := deviceBox{
		box: box{
			deviceX, y, deviceW, 2*lineHeight + 6, deviceName(overview.Kind(d.Kind), d.Name, string(d.Vendor), d.Name),
			modelOf(figures),
		},
		Link: web.DeviceLink(keyOf(d)), Kind: d.Kind, PCIe: linkText(d),
	}
	bad := []string{}
	if d.Degraded() {
		bad = append(bad, "PCIe link")
	}
	for _, p := range figures.Ports {
		if p.State != "ACTIVE" && p.State != "" {
			bad = append(bad, fmt.Sprintf("port %d %s", p.Number, format.Escape(p.State)))
		}
	}
	bad = append(bad, figures.Problems...)
	b.Bad = strings.Join(bad, ", ")
	if d.Active && d.Rate > 0 {
		b.About = fmt.Sprintf("%.4g Gb/s %s", d.Rate/1e9, format.Escape(d.LinkLayer))
	}
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
		u := &users[i]
		u.Y = y + 3 + i*lineHeight + lineHeight/2
		u.X1, u.Y1, u.Tip = deviceX+deviceW, y+b.H/2, workloadX
	}
	b.Users = users
	return b
}

// linkText returns the speed and the width of a PCIe link, and what both ends support if it is more.
func linkText(d *placement.Device) string {
	l := &d.Link
	if l.Width == 0 || l.Speed == 0 {
		return ""
	}
	width, speed := fmt.Sprintf("x%d", l.Width), fmt.Sprintf("%.4g", l.Speed/1e9)
	if l.Width < l.MaxWidth {
		width += fmt.Sprintf(" of x%d", l.MaxWidth)
	}
	if l.Speed < l.MaxSpeed {
		speed += fmt.Sprintf(" of %.4g", l.MaxSpeed/1e9)
	}
	return "PCIe " + width + ", " + speed + " GT/s"
}

// usersOf returns the workloads that use each device, the busiest first. The row of a part of a GPU is one of the GPU.
func usersOf(k *api.Known, p *placement.Placement, devices []overview.Device, rows []overview.Row) [][]user {
	whole := map[string]string{}
	for i := range devices {
		whole[devices[i].Device] = cmp.Or(devices[i].Parent, devices[i].Device)
	}
	at := make(map[overview.Key]*overview.Row, len(rows))
	for i := range rows {
		key := rows[i].Key()
		key.Device = whole[key.Device]
		at[key] = &rows[i]
	}
	direct := map[int]placement.GPUDirect{}
	for i := range p.Workloads {
		direct[p.Workloads[i].Owner] = p.Workloads[i].GPUDirect
	}
	users := make([][]user, len(p.Devices))
	for i, owners := range p.Owners {
		d := &p.Devices[i]
		load := make(map[int]float64, len(owners))
		row := func(owner int) *overview.Row {
			o := &k.Shares.Owners[owner]
			if r := at[overview.Key{Workload: o.Workload, ContainerID: o.ContainerID, Device: keyOf(d)}]; r != nil {
				return r
			}
			return &overview.Row{}
		}
		for _, owner := range owners {
			r := row(owner)
			load[owner] = max(perSecond(r.Transmit), perSecond(r.Receive), value(r.Utilization))
		}
		busiest := slices.Clone(owners)
		slices.SortStableFunc(busiest, func(a, b int) int { return -cmp.Compare(load[a], load[b]) })
		for n, owner := range busiest {
			if n >= maxUsers {
				users[i] = append(users[i], make([]user, len(busiest)-n)...) // they are only counted
				break
			}
			o := &k.Shares.Owners[owner]
			u := user{Text: userText(o.Workload, row(owner)), Link: web.WorkloadLink(o.Workload, o.ContainerID)}
			if d.Kind == placement.HCA {
				u.direct(direct[owner])
			}
			users[i] = append(users[i], u)
		}
	}
	return users
}

// userText is the name of a workload with the memory that it uses of a GPU, or its queue pairs on an HCA.
func userText(workload string, r *overview.Row) string {
	text := format.Owner(workload)
	switch {
	case r.Kind == overview.GPU:
		text += "  " + web.Optional(r.Memory, format.Size)
	case r.QueuePairs != nil:
		text += fmt.Sprintf("  %d QPs", *r.QueuePairs)
	}
	return text
}

// direct marks whether the workload uses GPUDirect. It is not marked if that is not known, or the workload has no GPU.
func (u *user) direct(d placement.GPUDirect) {
	switch d {
	case placement.GPUDirectUsed:
		u.Direct, u.Used = "GPUDirect", true
	case placement.GPUDirectUnused:
		u.Direct = "no GPUDirect"
	}
}
