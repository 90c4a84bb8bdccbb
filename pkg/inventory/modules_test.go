// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// newPorts returns a node with two HCAs with a module each.
func newPorts(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.state["link"] = model.StateOK
	n.facts.Links = []model.Link{n.port("mlx5_0", "eth0", "SN1"), n.port("mlx5_1", "eth1", "SN2")}
	n.want()
	return n
}

// port returns port 1 of an HCA, with a link and a module that was read before the refresh.
func (n *node) port(hca, netdev, serial string) model.Link {
	return model.Link{
		Device: hca, Port: 1, Netdev: netdev, Read: n.now, Carrier: &model.Carrier{Up: true, Admin: true},
		Module: &model.LinkModule{Serial: serial, Read: n.now},
	}
}

// pull removes the module from a port, as the next reading sees it.
func (n *node) pull(link int) {
	n.now = n.now.Add(time.Minute)
	n.facts.Links = slices.Clone(n.facts.Links)
	f := &n.facts.Links[link]
	f.Carrier = &model.Carrier{Admin: true, Changed: n.now.Add(-10 * time.Second)}
	f.Module = &model.LinkModule{Problem: model.ModuleUnreadable, Read: n.now}
}

// TestModule: a module is missed at run time, across restarts of the sensor and the node, under its HCA's new name,
// until it returns.
func TestModule(t *testing.T) {
	n := newPorts(t)
	seen := n.facts.Links[1].Module.Read
	n.pull(1)
	n.want("module 0x2/1 SN2")
	since := n.now
	n.restart()
	n.want("module 0x2/1 SN2")
	n.put("proc/sys/kernel/random/boot_id", "b2")
	n.restart()
	n.facts.HCAs, n.facts.Links[1].Device = []model.HCA{n.facts.HCAs[0], hca("rail1", "0x2", "0000:29:00.0")}, "rail1"
	n.facts.Links[1].Netdev = "net1"
	n.want("module 0x2/1 SN2")
	m := n.refresh().Missing[0]
	if !m.Seen.Equal(seen) || !m.Since.Equal(since) {
		t.Errorf("seen %v, since %v", m.Seen, m.Since)
	}
	m.Seen, m.Since = time.Time{}, time.Time{}
	if want := (model.MissingDevice{
		Kind: model.KindModule, ID: "0x2/1 SN2", Slot: "0x2/1", Name: "rail1", Port: 1, Serial: "SN2", Rebooted: true,
	}); m != want {
		t.Errorf("%+v", m)
	}
	n.facts.Links[1] = n.port("rail1", "net1", "SN2")
	n.want()
	if n.logged("is missing") != 1 || n.logged("is back") != 1 {
		t.Errorf("%v", n.log.All())
	}
}

// TestModuleRestarted: a module that is pulled while the sensor does not run is missed after its driver was asked.
func TestModuleRestarted(t *testing.T) {
	n := newPorts(t)
	n.put("proc/sys/kernel/random/boot_id", "b2")
	n.restart()
	links := n.facts.Links
	n.facts.Links = []model.Link{{Device: "mlx5_0", Port: 1, Netdev: "eth0"}, {Device: "mlx5_1", Port: 1, Netdev: "eth1"}}
	n.want()
	n.facts.Links = links
	n.pull(0)
	n.want("module 0x1/1 SN1")
}

// TestModuleIsNotMissing: a module is missing only if its EEPROM cannot be read while the interface is set up and has
// no carrier, at run time and after a restart. Each change is made to a port without its module.
func TestModuleIsNotMissing(t *testing.T) {
	for name, change := range map[string]func(*node, *model.Link){
		"with a carrier":             func(_ *node, f *model.Link) { f.Carrier.Up = true },
		"set down":                   func(_ *node, f *model.Link) { f.Carrier.Admin, f.Carrier.SetDown = false, "eth1" },
		"of an unknown carrier":      func(_ *node, f *model.Link) { f.Carrier = nil },
		"permission":                 func(_ *node, f *model.Link) { f.Module.Problem = model.ModuleForbidden },
		"incomplete":                 func(_ *node, f *model.Link) { f.Module.Problem = model.ModuleIncomplete },
		"no serial number":           func(_ *node, f *model.Link) { f.Module.Problem = "" },
		"modules are not read":       func(_ *node, f *model.Link) { f.Module = nil },
		"not read since it was lost": func(n *node, f *model.Link) { f.Carrier.Changed = n.now },
		"not read since it was seen": func(_ *node, f *model.Link) {
			f.Module.Read, f.Carrier.Changed = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), time.Time{}
		},
		"not listed":      func(n *node, _ *model.Link) { n.facts.Links = n.facts.Links[:1] },
		"no HCA is known": func(n *node, _ *model.Link) { n.facts.HCAs, n.state["rdma"] = nil, model.StateFailed },
		"failed":          func(n *node, _ *model.Link) { n.state["link"] = model.StateFailed },
		"stuck":           func(n *node, _ *model.Link) { n.state["link"] = model.StateStuck },
		"switched off":    func(n *node, _ *model.Link) { delete(n.state, "link") },
		"stuck interface": func(n *node, _ *model.Link) {
			n.facts.DeviceStates = []model.DeviceState{{Source: "link", Device: "eth1", State: model.StateStuck}}
		},
		"replaced":    func(n *node, f *model.Link) { *f = n.port("mlx5_1", "eth1", "SN3") },
		"moved":       func(n *node, _ *model.Link) { n.facts.Links[0] = n.port("mlx5_0", "eth0", "SN2") },
		"excluded":    func(n *node, _ *model.Link) { n.facts.HCAs, n.facts.Links = n.facts.HCAs[:1], n.facts.Links[:1] },
		"became a VF": func(n *node, _ *model.Link) { n.facts.HCAs[1].VF = true },
	} {
		t.Run(name, func(t *testing.T) {
			n := newPorts(t)
			n.pull(1)
			n.facts.HCAs = slices.Clone(n.facts.HCAs)
			change(n, &n.facts.Links[1])
			modules := func() {
				t.Helper()
				for _, m := range n.compare() {
					if strings.HasPrefix(m, "module") {
						t.Errorf("%s is missing", m)
					}
				}
			}
			modules()
			n.restart()
			modules()
		})
	}
}

// TestModuleUnknown: a missing module becomes unknown without data. Missing modules stay missing while a source does
// not work, and are missing again when the state is known.
func TestModuleUnknown(t *testing.T) {
	n := newPorts(t)
	n.pull(1)
	n.want("module 0x2/1 SN2")
	for _, state := range []model.State{model.StateFailed, model.StateStuck} {
		n.state["link"] = state
		n.want("module 0x2/1 SN2")
	}
	n.state["link"] = model.StateOK
	links := n.facts.Links
	for name, change := range map[string]func(*model.Link){
		"set down":             func(f *model.Link) { f.Carrier = &model.Carrier{} },
		"modules are not read": func(f *model.Link) { f.Module = nil },
		"permission":           func(f *model.Link) { f.Module = &model.LinkModule{Problem: model.ModuleForbidden} },
	} {
		n.facts.Links = slices.Clone(links)
		change(&n.facts.Links[1])
		n.restart()
		if got := n.compare(); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
		if got := n.i.Accept(n.now, nil); len(got) != 0 {
			t.Errorf("%s: accepted %q", name, got)
		}
		n.facts.Links = links
		n.want("module 0x2/1 SN2")
	}
	hcas := n.facts.HCAs
	n.facts.HCAs, n.facts.Links = hcas[:1], links[:1]
	n.want("hca 0x2") // once
	n.facts.HCAs, n.facts.Links = hcas, links
	n.want("module 0x2/1 SN2")
	n.pull(1)
	n.facts.Links[1].Carrier.Up = true // the port is in use
	n.want()
}

// TestModuleForgotten: a module that was replaced or moved is not missed when its new port is empty, too.
func TestModuleForgotten(t *testing.T) {
	n := newPorts(t)
	n.pull(1)
	n.facts.Links[0] = n.port("mlx5_0", "eth0", "SN2")
	n.want() // SN2 replaced SN1 and moved
	n.pull(0)
	n.want("module 0x1/1 SN2")
	n.facts.Links[1] = n.port("mlx5_1", "eth1", "SN4")
	n.want("module 0x1/1 SN2")
	n.facts.Links[0] = n.port("mlx5_0", "eth0", "SN3")
	n.want()
	n.pull(0)
	n.restart()
	n.want("module 0x1/1 SN3")
}

// TestCable: both ends of a cable, and the ports of a two-port module, have one serial number. The pulled end is
// missing.
func TestCable(t *testing.T) {
	n := newPorts(t)
	n.facts.Links = []model.Link{n.port("mlx5_0", "eth0", "SN9"), n.port("mlx5_1", "eth1", "SN9")}
	n.want()
	n.now = n.now.Add(time.Minute)
	n.facts.Links = []model.Link{n.port("mlx5_0", "eth0", "SN9"), n.port("mlx5_1", "eth1", "SN9")}
	n.want()
	n.pull(1)
	n.want("module 0x2/1 SN9")
	n.restart()
	n.want("module 0x2/1 SN9")
}

// TestModulePorts: an interface is one port, whatever its HCAs. Legs of a bond with one HCA are separate ports, and a
// module in a leg is where it was. A module without a serial number is not remembered.
func TestModulePorts(t *testing.T) {
	n := newPorts(t)
	vf := hca("mlx5_9", "0x9", "0000:18:00.2")
	vf.VF = true
	n.facts.HCAs = append(slices.Clip(n.facts.HCAs), hca("a0", "0x8", ""), hca("mlx5_2", "0x3", "0000:19:00.1"), vf)
	n.facts.Links = append([]model.Link{n.port("a0", "eth0", "SN1"), n.port("mlx5_9", "eth0", "SN1")}, n.facts.Links...)
	n.facts.Links = append(n.facts.Links, n.port("", "eth7", "SN7"), n.port("mlx5_2", "eth2", ""))
	n.want()
	if len(n.i.devices) != 8 { // 2 GPUs, 4 HCAs, 2 modules
		t.Errorf("%d devices", len(n.i.devices))
	}
	n.facts.HCAs = slices.Delete(slices.Clone(n.facts.HCAs), 3, 4)
	n.facts.Links = []model.Link{n.port("mlx5_0", "eth0", "SN1"), n.port("mlx5_1", "eth1", "SN2"), n.port("mlx5_1", "eth2", "SN3")}
	n.want("hca 0x3 *")
	n.pull(1)
	n.pull(2)
	n.want("hca 0x3 *", "module 0x2/1/eth1 SN2", "module 0x2/1/eth2 SN3")
	if len(n.i.devices) != 9 {
		t.Errorf("%d devices", len(n.i.devices))
	}
}

// TestModuleAccepted: a module is accepted by serial number, ID, port or HCA, and no longer missed; a returned module
// is missed again.
func TestModuleAccepted(t *testing.T) {
	for _, name := range []string{"SN2", "0x2/1 SN2", "0x2/1", "mlx5_1"} {
		n := newPorts(t)
		n.pull(0)
		n.pull(1)
		n.want("module 0x1/1 SN1", "module 0x2/1 SN2")
		if got := n.i.Accept(n.now, []string{name}); len(got) != 1 || got[0] != "module mlx5_1 0x2/1 SN2 is missing" {
			t.Errorf("%s: %q", name, got)
		}
		n.restart()
		n.want("module 0x1/1 SN1", "module 0x2/1 SN2 *")
		n.facts.Links[1] = n.port("mlx5_1", "eth1", "SN2")
		n.want("module 0x1/1 SN1")
		n.pull(1)
		n.want("module 0x1/1 SN1", "module 0x2/1 SN2")
	}
}

// TestModuleFile: a file without modules is used, and a sensor that does not know modules finds its devices.
func TestModuleFile(t *testing.T) {
	n := newNode(t)
	n.restart()
	path := filepath.Join(n.o.Dir, fileName)
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "module") || !strings.Contains(string(text), `"version": 1`) {
		t.Fatalf("%v: %s", err, text)
	}
	n.state["link"] = model.StateOK
	n.facts.Links = []model.Link{n.port("mlx5_0", "eth0", "SN1")}
	n.facts.GPUs = n.facts.GPUs[:1]
	n.want("gpu GPU-b")
	n.restart()
	text, err = os.ReadFile(path)
	devices, modules, ok := strings.Cut(string(text), `"modules": [`)
	if err != nil || !ok || strings.Contains(devices, "module") || strings.Count(modules, `"id"`) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	many, err := encode(n.i.owner, slices.Repeat([]*device{n.i.devices[key{model.KindModule, "0x1/1 SN1"}]}, maxModules+1))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		string(many),
		strings.Replace(string(text), `"hca"`, `"module"`, 1), strings.Replace(string(text), `"module"`, `"hca"`, 1),
		strings.Replace(string(text), `"SN1"`, `"`+strings.Repeat("x", 999)+`"`, 1),
	} {
		if _, err := decode([]byte(wrong), n.i.owner); !errors.Is(err, errCorrupt) {
			t.Errorf("%v: %s", err, wrong)
		}
	}
}

// TestModuleBound: modules do not take the room of GPUs, HCAs or present modules.
func TestModuleBound(t *testing.T) {
	n := newPorts(t)
	links := n.facts.Links
	for k := range maxModules + maxDevices {
		n.now = n.now.Add(time.Minute)
		n.facts.HCAs = append(slices.Clip(n.facts.HCAs[:2]), hca("mlx5_2", fmt.Sprint("0x3", k), "0000:1a:00.0"))
		n.facts.Links = append(slices.Clip(links), n.port("mlx5_2", "eth2", fmt.Sprint("SN", k)))
		n.compare()
	}
	modules := 0
	for _, d := range n.i.devices {
		if d.Kind == model.KindModule {
			modules++
		}
	}
	if modules != maxModules || len(n.i.devices) != maxModules+5 {
		t.Errorf("%d modules of %d devices", modules, len(n.i.devices))
	}
	n.facts.Links = slices.Clone(n.facts.Links)
	for k := range n.facts.Links {
		n.pull(k)
	}
	n.facts.GPUs = nil
	n.want("gpu GPU-a", "gpu GPU-b", "module 0x1/1 SN1", "module 0x2/1 SN2", "module 0x3767/1 SN767")
	n.restart()
	n.want("gpu GPU-a", "gpu GPU-b", "module 0x1/1 SN1", "module 0x2/1 SN2", "module 0x3767/1 SN767")
}
