// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// errNoFabric is the error of a node without a fabric.
var errNoFabric = statusError{errors.New("there is no InfiniBand fabric"), http.StatusNotFound}

// fabricEntry is the fabric: its nodes by GUID, and each link once.
type fabricEntry struct {
	Discovered *time.Time   `json:"discovered"` // null: never
	Nodes      []fabricNode `json:"nodes"`
	Links      []fabricLink `json:"links"`
}

type fabricNode struct {
	GUID    string       `json:"guid"`
	Kind    string       `json:"kind"` // switch, ca, router
	Name    string       `json:"name"`
	LID     uint32       `json:"lid"`     // 0 without a LID
	Queried *time.Time   `json:"queried"` // time of the last counters; null: never
	Error   string       `json:"error"`   // why the counters are not newer
	Ports   []fabricPort `json:"ports"`
}

type fabricPort struct {
	Port     int               `json:"port"`
	Width    int               `json:"width"` // 0 without a link
	Speed    string            `json:"speed"` // empty without a link
	Narrow   *bool             `json:"narrow"`
	Slow     *bool             `json:"slow"`
	Counters map[string]uint64 `json:"counters"` // null: not read
}

type fabricLink struct {
	A      fabricEnd `json:"a"`
	B      fabricEnd `json:"b"`
	Width  int       `json:"width"`
	Speed  string    `json:"speed"`
	Narrow *bool     `json:"narrow"`
	Slow   *bool     `json:"slow"`
}

type fabricEnd struct {
	GUID string `json:"guid"`
	Port int    `json:"port"`
}

// fabricTopology answers /api/v1/fabric.
func fabricTopology(k *Known, _ *http.Request) (any, error) {
	f, missing := k.Facts.Fabric, k.missing(k.Facts.Fabric != nil, "fabric")
	switch {
	case f == nil && missing == nil:
		return nil, errNoFabric
	case f == nil:
		return nil, missing
	}
	out := fabricEntry{Discovered: moment(f.Discovered), Nodes: make([]fabricNode, 0, len(f.Nodes)), Links: []fabricLink{}}
	for i := range f.Nodes {
		out.Nodes = append(out.Nodes, fabricNodeOf(&f.Nodes[i]))
	}
	for _, l := range f.Links() {
		out.Links = append(out.Links, fabricLink{
			A: fabricEnd(l.A), B: fabricEnd(l.B), Width: l.Width, Speed: l.Speed, Narrow: l.Narrow, Slow: l.Slow,
		})
	}
	return out, missing
}

func fabricNodeOf(n *model.FabricNode) fabricNode {
	out := fabricNode{
		GUID: n.GUID, Name: n.Name, LID: n.LID, Queried: moment(n.Queried), Error: n.Error,
		Ports: make([]fabricPort, 0, len(n.Ports)),
	}
	for _, k := range model.FabricKinds {
		if k.Kind == n.Kind {
			out.Kind = k.Word
		}
	}
	for i := range n.Ports {
		p := &n.Ports[i]
		port := fabricPort{Port: p.Number, Width: p.Width, Speed: p.Speed, Narrow: p.Narrow, Slow: p.Slow}
		if p.Counters != nil {
			port.Counters = make(map[string]uint64, len(p.Counters))
			for _, c := range p.Counters {
				port.Counters[c.Name] = c.Value
			}
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}

// moment returns a time in UTC, nil for the zero time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
