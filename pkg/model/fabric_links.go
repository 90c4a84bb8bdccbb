// SPDX-License-Identifier: Apache-2.0

package model

// FabricLink is a link with both of its ends.
type FabricLink struct {
	A, B         FabricPeer // in the order of Nodes and Ports
	Width        int        // see FabricPort
	Speed        string
	Narrow, Slow *bool // true if either end reports it
}

// Links returns each link of the fabric once, even if both ends report it.
func (f *Fabric) Links() []FabricLink {
	type cable struct{ a, b FabricPeer }
	links := []FabricLink{}
	seen := map[cable]int{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for j := range n.Ports {
			p := &n.Ports[j]
			if p.Peer == nil {
				continue
			}
			here := FabricPeer{GUID: n.GUID, Port: p.Number}
			if at, ok := seen[cable{*p.Peer, here}]; ok {
				l := &links[at]
				l.Narrow, l.Slow = either(l.Narrow, p.Narrow), either(l.Slow, p.Slow)
				if l.Width == 0 {
					l.Width, l.Speed = p.Width, p.Speed
				}
				continue
			}
			seen[cable{here, *p.Peer}] = len(links)
			links = append(links, FabricLink{A: here, B: *p.Peer, Width: p.Width, Speed: p.Speed, Narrow: p.Narrow, Slow: p.Slow})
		}
	}
	return links
}

// either returns whether a or b is true, nil if both are nil.
func either(a, b *bool) *bool {
	if a == nil || b != nil && *b {
		return b
	}
	return a
}
