// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"encoding/json"
	"fmt"
)

// View is the state of a receiver that follows docs/rest.md: it drops duplicate records, replaces its state by each
// complete snapshot, and applies other records.
type View struct {
	Session    string
	Containers map[string]Record // by id; the last record of each
	// Exits are the exit records by container id, over all sessions.
	Exits map[string][]Record
	// Opened are the devices that each container opened, from events and snapshots.
	Opened map[string]map[string]bool
	// Missing is the number of missing sequence numbers over all sessions, Lost the lost events in the snapshots.
	Missing, Lost int64
	Duplicates    int
	Snapshots     int // complete ones
	// Wrong lists violations of the protocol.
	Wrong []string

	last   int64
	lost   int64          // of this session
	resent map[int64]bool // records of this session that were marked as sent again
	staged map[string]Record
	count  int64
}

// Replay applies records in the order in which they arrived, from one node.
func Replay(records []Record) *View {
	v := &View{Containers: map[string]Record{}, Exits: map[string][]Record{}, Opened: map[string]map[string]bool{}}
	for i := range records {
		v.apply(records[i])
	}
	return v
}

func (v *View) wrong(format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
}

func (v *View) apply(r Record) {
	seq := r.Int("accelscope.event.sequence")
	if session := r.Resource["service.instance.id"]; session != v.Session {
		v.Session, v.last, v.lost, v.staged, v.resent = session, 0, 0, nil, map[int64]bool{}
	}
	if seq == 1 && r.Event != "container.snapshot.begin" {
		v.wrong("a session begins with %s", r.Event)
	}
	if r.Attributes["accelscope.event.resent"] == "true" {
		v.resent[seq] = true
	}
	if seq <= v.last {
		// The first copy may arrive later, from an abandoned connection.
		if !v.resent[seq] {
			v.wrong("record %d after %d, and no copy of it is marked as sent again", seq, v.last)
		}
		v.Duplicates++
		return
	}
	v.Missing += seq - v.last - 1
	v.last = seq

	id := r.Attributes["container.id"]
	switch r.Event {
	case "container.snapshot.begin":
		v.staged, v.count = map[string]Record{}, r.Int("accelscope.snapshot.count")
		lost := r.Int("accelscope.snapshot.lost") // of the session up to this snapshot
		v.Lost += lost - v.lost
		v.lost = lost
	case "container.snapshot":
		if v.staged != nil {
			v.staged[id] = r
		}
		var opened []string
		_ = json.Unmarshal([]byte(r.Attributes["accelscope.container.opened_devices"]), &opened) // or the attribute is missing
		v.open(id, opened...)
	case "container.snapshot.end":
		if v.staged == nil || int64(len(v.staged)) != v.count {
			v.staged = nil // a part is missing: another snapshot follows
			return
		}
		v.Containers, v.staged = v.staged, nil
		v.Snapshots++
	case "container.delete":
		delete(v.Containers, id)
	case "container.device_open":
		v.open(id, r.Attributes["accelscope.device"])
	case "device.fault", "device.link_flap", "device.sm_change": // of a device, not of a container's life
	default:
		if r.Event == "container.exit" {
			v.Exits[id] = append(v.Exits[id], r)
		}
		v.Containers[id] = r
	}
}

func (v *View) open(id string, devices ...string) {
	if v.Opened[id] == nil {
		v.Opened[id] = map[string]bool{}
	}
	for _, d := range devices {
		v.Opened[id][d] = true
	}
}
