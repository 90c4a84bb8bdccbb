// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/accelscope/accelscope/pkg/model"
)

// subnetManagers has the last subnet manager's LID of each InfiniBand port.
type subnetManagers map[smPort]string

type smPort struct {
	device string
	port   int
}

// update returns an event for each port whose subnet manager changed. A port without a subnet manager keeps the last.
// Ports of removed HCAs are forgotten. hcas is nil if HCAs were not read.
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
		attribute.Int(attrLinkPort, c.Port), attribute.String(attrSMFrom, c.From), attribute.String(attrSMTo, c.To),
	}
}

func smSentence(ev *model.Event) string {
	c := ev.SMChange
	return fmt.Sprintf("port %d of %s changed from the subnet manager at LID %s to that at LID %s",
		c.Port, valid(ev.Device), valid(c.From), valid(c.To))
}
