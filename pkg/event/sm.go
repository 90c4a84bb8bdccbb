// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/accelscope/accelscope/pkg/model"
)

// subnetManagers remembers the last subnet manager of each InfiniBand port, by its LID.
type subnetManagers map[smPort]string

type smPort struct {
	device string
	port   int
}

// update returns an event for each port that has another subnet manager than before. A port that has none keeps the last one. It forgets
// the ports of HCAs that are gone; hcas is nil if none was read.
func (m *subnetManagers) update(hcas []model.HCA, now time.Time) (events []model.Event) {
	if hcas == nil {
		return nil
	}
	last := *m
	next := subnetManagers{}
	for i := range hcas {
		h := &hcas[i]
		for j := range h.Ports {
			p := &h.Ports[j]
			key := smPort{h.Name, p.Number}
			before, lid := last[key], p.SMLID
			if v, err := strconv.ParseUint(lid, 0, 16); p.LinkLayer != "InfiniBand" || err != nil || v == 0 {
				lid = before
			}
			if lid == "" {
				continue
			}
			next[key] = lid
			if before != "" && before != lid {
				events = append(events, model.Event{
					Type: model.EventSM, Time: now, Device: h.Name, SMChange: &model.SMChange{Port: p.Number, From: before, To: lid},
				})
			}
		}
	}
	*m = next
	return events
}

func smAttrs(c *model.SMChange) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Int(attrLinkPort, c.Port), attribute.String(attrSMFrom, valid(c.From)), attribute.String(attrSMTo, valid(c.To)),
	}
}

// smSentence describes the change in one sentence.
func smSentence(ev *model.Event) string {
	c := ev.SMChange
	return fmt.Sprintf("port %d of %s changed from the subnet manager at LID %s to that at LID %s",
		c.Port, valid(ev.Device), valid(c.From), valid(c.To))
}
