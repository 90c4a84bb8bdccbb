// SPDX-License-Identifier: Apache-2.0

package event

import (
	"cmp"
	"fmt"

	"go.opentelemetry.io/otel/attribute"

	"github.com/accelscope/accelscope/pkg/model"
)

// flaps remembers which flaps were sent.
type flaps struct{ last uint64 }

// update returns an event for each flap since the last update.
func (f *flaps) update(history []model.LinkFlap) (events []model.Event) {
	for i := range history {
		l := &history[i]
		if l.ID <= f.last {
			continue
		}
		f.last = l.ID
		events = append(events, model.Event{Type: model.EventFlap, Time: l.Up, Device: cmp.Or(l.Device, l.Netdev), Flap: l})
	}
	return events
}

func flapAttrs(l *model.LinkFlap) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String(attrLinkNetdev, l.Netdev),
		attribute.Int64(attrLinkLosses, int64(l.Losses)),
		attribute.Float64(attrLinkDown, l.Up.Sub(l.Down).Seconds()),
	}
	if l.Port > 0 {
		attrs = append(attrs, attribute.Int(attrLinkPort, l.Port))
	}
	if l.Reason != "" {
		attrs = append(attrs, attribute.String(attrLinkReason, l.Reason))
	}
	if l.Detail != "" {
		attrs = append(attrs, attribute.String(attrLinkDetail, l.Detail))
	}
	return attrs
}

// flapSentence describes a flap in one sentence.
func flapSentence(ev *model.Event) string {
	l, times := ev.Flap, "once"
	if l.Losses > 1 {
		times = fmt.Sprint(l.Losses, " times")
	}
	text := fmt.Sprintf("%s of %s lost its carrier %s", valid(l.Netdev), valid(ev.Device), times)
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}
