// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"time"
)

// eventEntry is an event in the life of a container, or of a port. Values that do not apply are empty.
type eventEntry struct {
	Time        time.Time `json:"time"`
	Name        string    `json:"name"`
	Text        string    `json:"text"`
	Workload    string    `json:"workload"`
	ContainerID string    `json:"container_id"`
	Device      string    `json:"device"`
	Reconciled  bool      `json:"reconciled"` // found later, in a list
}

// recentEvents answers /api/v1/events: the last events of the node, of one workload (?workload=), about one device (?device=) or all,
// oldest first.
func recentEvents(k *Known, r *http.Request) (any, error) {
	query := r.URL.Query()
	workload, device := query.Get("workload"), query.Get("device")
	if k.Facts.Events == nil {
		return nil, k.missing(false, "events")
	}
	out := []eventEntry{} // an empty list also while the collector takes no events
	for i := range k.Facts.Events.Recent {
		e := &k.Facts.Events.Recent[i]
		if workload != "" && workload != e.Workload || device != "" && device != e.Device {
			continue
		}
		out = append(out, eventEntry{e.Time.UTC(), e.Name, e.Text, e.Workload, e.ContainerID, e.Device, e.Reconciled})
	}
	return out, nil
}
