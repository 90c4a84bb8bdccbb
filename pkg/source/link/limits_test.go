// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestManyInterfaces: of the interfaces of a function and the legs of a bond, maxPerDevice are read, and maxInterfaces of a node.
func TestManyInterfaces(t *testing.T) {
	tr := newTree(t)
	for i := range 2 * maxPerDevice {
		tr.write(fmt.Sprintf("function/net/eth%d/ifindex", i), "1")
		tr.write(fmt.Sprintf("class/net/bond0/lower_eth%d/ifindex", i), "1")
	}
	tr.netdev("eth0", 1, "")
	f := &finder{tr.root, nil, make([]byte, 4<<10), map[string]*iface{}}
	if names, legs := f.interfaces(tr.root+"/function"), f.legs("bond0"); len(names) != maxPerDevice || len(legs) != maxPerDevice {
		t.Errorf("%d interfaces and %d legs, want %d", len(names), len(legs), maxPerDevice)
	}
	for i := range maxInterfaces {
		f.found[fmt.Sprint("veth", i)] = &iface{}
	}
	if f.add("eth0", nil, false); len(f.found) != maxInterfaces {
		t.Errorf("%d interfaces, want %d", len(f.found), maxInterfaces)
	}
}

// TestLoop: bonds that are below each other, as when they change during the read.
func TestLoop(t *testing.T) {
	tr := newTree(t)
	for i, name := range []string{"bond0", "bond1"} {
		tr.netdev(name, i, "")
		tr.write("class/net/"+name+"/uevent", "DEVTYPE=bond")
		tr.write("class/net/"+name+fmt.Sprint("/lower_bond", 1-i, "/ifindex"), "1")
	}
	f := &finder{tr.root, nil, make([]byte, 4<<10), map[string]*iface{}}
	if f.lower("bond0", &port{"mlx5_0", 1}, false, "", 0); len(f.found) != 1 {
		t.Errorf("%d interfaces", len(f.found))
	}
}

// TestManyFlaps: the last maxFlaps flaps are kept.
func TestManyFlaps(t *testing.T) {
	s, n := &Source{}, &netdev{}
	for range 2 * maxFlaps {
		s.addFlap(n, model.LinkFlap{})
	}
	if last := s.flaps[len(s.flaps)-1].ID; len(s.flaps) != maxFlaps || last != 2*maxFlaps {
		t.Errorf("%d flaps, the last %d", len(s.flaps), last)
	}
}

// TestManyLanes: a value with more lanes than a port has is no value.
func TestManyLanes(t *testing.T) {
	for _, n := range []int{maxLanes, maxLanes + 1} {
		if got := counts(slices.Repeat([]string{"7"}, n)); (got != nil) != (n == maxLanes) {
			t.Errorf("%s: %v", strings.Repeat("7,", n), got)
		}
	}
}
