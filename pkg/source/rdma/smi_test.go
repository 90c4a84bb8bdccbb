// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestManagementDevice: a management device has no uverbs device, and still the node is complete.
func TestManagementDevice(t *testing.T) {
	n := &node{uverbs: map[string]sysfs.CharDevice{"mlx5_0": {Name: "uverbs0"}}, devices: map[string]nldev.Device{}}
	for _, d := range []nldev.Device{{Name: "mlx5_0"}, {Name: "smi1", SMI: true, Parent: "mlx5_0"}, {Name: "later"}} {
		n.devices[d.Name] = d
	}
	s := &Source{devices: []*device{{name: "mlx5_0"}, {name: "smi1"}}}
	if !s.complete(n, true) {
		t.Error("a management device without uverbs device is missing")
	}
	s.devices = append(s.devices, &device{name: "later"})
	if s.complete(n, true) {
		t.Error("a device of another type without uverbs device is not missing")
	}
}

// TestFindManagement: without netlink, the place of a device decides.
func TestFindManagement(t *testing.T) {
	hca := func(name, verbs, pci, layer string, sub bool) model.HCA {
		return model.HCA{
			Name: name, CharDevice: verbs, PCIAddress: pci, NodeType: "CA", Subfunction: sub, Ports: []model.Port{{Number: 1, LinkLayer: layer}},
		}
	}
	hcas := []model.HCA{
		hca("mlx5_0", "uverbs0", "0000:0b:00.0", "InfiniBand", false),
		hca("smi1", "", "0000:0b:00.0", "InfiniBand", false),
		hca("alone", "", "0000:0c:00.0", "InfiniBand", false),
		hca("roce", "", "0000:0b:00.0", "Ethernet", false),
		hca("sf", "", "0000:0b:00.0", "InfiniBand", true),
		hca("virtual", "", "", "InfiniBand", false),
	}
	findManagement(hcas)
	got := map[string]string{}
	for i := range hcas {
		if h := &hcas[i]; h.Parent != "" {
			got[h.Name] = h.Parent
		}
	}
	if diff := cmp.Diff(map[string]string{"smi1": "mlx5_0"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestIncompleteNode: if a uverbs device does not come, the search does not stay at every 15 s.
func TestIncompleteNode(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1000)
	tr.Remove("class/infiniband_verbs")
	now := time.Unix(1000, 0)
	s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
	reads := map[*node]bool{}
	for range 240 {
		mustRead(t, s)
		reads[s.node] = true
		now = now.Add(nodeRetry)
	}
	if n := len(reads); n < nodeTries || n > 20 {
		t.Errorf("%d readings in an hour", n)
	}
}
