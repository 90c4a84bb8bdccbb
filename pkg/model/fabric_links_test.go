// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestFabricLinks checks that each cable is one link if both ends report it. It has parallel links, a loop, and a link
// with an unknown end.
func TestFabricLinks(t *testing.T) {
	yes, no := true, false
	to := func(guid string, port int) *model.FabricPeer { return &model.FabricPeer{GUID: guid, Port: port} }
	f := model.Fabric{Nodes: []model.FabricNode{
		{GUID: "a", Ports: []model.FabricPort{
			{Number: 1, Peer: to("b", 1)},
			{Number: 2, Width: 4, Speed: "HDR", Peer: to("b", 2), Narrow: &no, Slow: &no},
			{Number: 3, Width: 1, Speed: "SDR"},
			{Number: 4, Peer: to("a", 5)},
			{Number: 5, Peer: to("a", 4)},
			{Number: 6, Peer: to("a", 6)},
		}},
		{GUID: "b", Ports: []model.FabricPort{
			{Number: 1, Width: 2, Speed: "EDR", Peer: to("a", 1), Narrow: &yes},
			{Number: 2, Width: 4, Speed: "HDR", Peer: to("a", 2), Narrow: &no, Slow: &yes},
			{Number: 3, Peer: to("c", 1)},
		}},
	}}
	want := []model.FabricLink{
		{A: *to("a", 1), B: *to("b", 1), Width: 2, Speed: "EDR", Narrow: &yes},
		{A: *to("a", 2), B: *to("b", 2), Width: 4, Speed: "HDR", Narrow: &no, Slow: &yes},
		{A: *to("a", 4), B: *to("a", 5)},
		{A: *to("a", 6), B: *to("a", 6)},
		{A: *to("b", 3), B: *to("c", 1)},
	}
	if d := cmp.Diff(want, f.Links()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if links := (&model.Fabric{}).Links(); links == nil || len(links) > 0 {
		t.Errorf("of nothing: %v", links)
	}
}
