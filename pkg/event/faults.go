// SPDX-License-Identifier: Apache-2.0

package event

import (
	"cmp"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// faults remembers the last fault that was sent.
type faults struct{ last uint64 }

// update returns an event for each fault since the last update. Faults from before the sensor's start would be sent
// again after each restart and are left out.
func (f *faults) update(a attribution.Attribution) (events []model.Event) {
	for i := range a.FaultHistory {
		r := &a.FaultHistory[i]
		if r.ID <= f.last {
			continue
		}
		f.last = r.ID
		if r.Earlier {
			continue
		}
		o := &r.Owner
		events = append(events, model.Event{
			Type: model.EventFault, Time: r.Time, Fault: r.Fault,
			Device: cmp.Or(r.HCA, r.FaultDevice.UUID, r.PCIAddress),
			Container: model.Container{
				ID: o.ContainerID, Namespace: o.Namespace, Pod: o.Pod, Name: o.Container,
			},
			Workload: o.Workload,
		})
	}
	return events
}

// faultAttrs returns the attributes of a fault and of its owner, if known.
func faultAttrs(ev *model.Event) []attribute.KeyValue {
	f, c := ev.Fault, &ev.Container
	attrs := []attribute.KeyValue{
		attribute.String(attrFaultDriver, string(f.Driver)),
		attribute.String(attrFaultCode, f.Code),
		attribute.String(attrFaultAddress, f.PCIAddress),
		attribute.String(attrFaultText, f.Text),
	}
	optional := func(is bool, attr attribute.KeyValue) {
		if is {
			attrs = append(attrs, attr)
		}
	}
	optional(f.GPUInstance != "", attribute.String(attrFaultInstance, f.GPUInstance))
	optional(f.Severity != "", attribute.String(attrFaultSeverity, string(f.Severity)))
	optional(f.Repeated > 0, attribute.Int64(attrFaultRepeated, int64(f.Repeated)))
	optional(f.Recovered, attribute.Bool(attrFaultRecovered, true))
	condition := verdict.OfFault(f)
	optional(condition != "", attribute.String(attrVerdict, condition))
	optional(f.PID > 0, semconv.ProcessPID(f.PID))
	optional(ev.Workload != "", attribute.String(attrWorkload, ev.Workload))
	optional(c.ID != "", semconv.ContainerID(c.ID))
	optional(c.Namespace != "", semconv.K8SNamespaceName(c.Namespace))
	optional(c.Pod != "", semconv.K8SPodName(c.Pod))
	optional(c.Pod != "" && c.Name != "", semconv.K8SContainerName(c.Name))
	return attrs
}

func faultSentence(ev *model.Event) string {
	f := ev.Fault
	subject := fmt.Sprintf("%s %s", f.Driver, valid(ev.Device))
	switch {
	case f.Recovered:
		return fmt.Sprintf("%s recovered: %s", subject, f.Code)
	case ev.Workload != "":
		return fmt.Sprintf("%s logged fault %s of %s", subject, f.Code, valid(ev.Workload))
	}
	return fmt.Sprintf("%s logged fault %s", subject, f.Code)
}
