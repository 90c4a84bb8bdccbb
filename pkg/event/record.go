// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"
	otlplogs "go.opentelemetry.io/proto/otlp/logs/v1"
	otlpresource "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Attributes without a name in the semantic conventions.
const (
	attrSequence       = "accelscope.event.sequence"   // of the record in its session, from 1
	attrResent         = "accelscope.event.resent"     // the record may have arrived before, with the same number
	attrReconciled     = "accelscope.event.reconciled" // derived from a list, not observed
	attrSignal         = "accelscope.exit.signal"      // number of the signal that ended the container
	attrDevice         = "accelscope.device"           // opened device, for example mlx5_0
	attrWorkload       = "accelscope.workload"         // as on metrics
	attrStatus         = "accelscope.container.status" // created, running, paused, exited
	attrHealth         = "accelscope.container.health" // healthy, unhealthy, starting
	attrSandbox        = "accelscope.container.sandbox"
	attrFaultDriver    = "accelscope.fault.driver"
	attrFaultCode      = "accelscope.fault.code"
	attrFaultAddress   = "accelscope.fault.pci_address"
	attrFaultInstance  = "accelscope.fault.gpu_instance"
	attrFaultSeverity  = "accelscope.fault.severity"  // fatal or nonfatal
	attrFaultRepeated  = "accelscope.fault.repeated"  // equal faults before the event was made
	attrFaultRecovered = "accelscope.fault.recovered" // the device has recovered
	attrFaultText      = "accelscope.fault.text"      // as logged
	attrVerdict        = "accelscope.verdict"         // condition that the fault raises, as in verdicts and alerts
	attrLinkPort       = "accelscope.link.port"
	attrLinkNetdev     = "accelscope.link.netdev"
	attrLinkLosses     = "accelscope.link.losses"              // of the carrier
	attrLinkDown       = "accelscope.link.down_seconds"        // from the first loss to the end of the last loss, as noticed
	attrLinkReason     = "accelscope.link.reason"              // why the link was down, as the driver reports it
	attrLinkDetail     = "accelscope.link.detail"              // a closer reason
	attrSMFrom         = "accelscope.sm.from_lid"              // LID of the former subnet manager
	attrSMTo           = "accelscope.sm.to_lid"                // LID of the subnet manager
	attrGiven          = "accelscope.container.devices"        // device nodes from the container's configuration
	attrOpened         = "accelscope.container.opened_devices" // of a snapshot: devices of earlier device_open events
	attrSnapshot       = "accelscope.snapshot.id"              // number of the begin record
	attrCount          = "accelscope.snapshot.count"           // its number of containers
	attrReason         = "accelscope.snapshot.reason"          // start, gap, reconnect
	attrLost           = "accelscope.snapshot.lost"            // lost events of this session before the snapshot
)

const (
	scopeName = "github.com/accelscope/accelscope/pkg/event"
	maxValue  = 4096 // characters of an attribute
	maxLabels = 64   // of a container
	// A container may have thousands of devices; a privileged container has all devices of the node.
	maxDevices = 64
)

// A renderer makes requests of entries. Events are much smaller than records, so the queue holds events.
type renderer struct {
	resource *otlpresource.Resource
	schema   string // of the resource
	scope    *otlpcommon.InstrumentationScope
}

func newRenderer(o Options, session string) *renderer {
	attrs := []attribute.KeyValue{
		semconv.ServiceName("accelscope"),
		semconv.ServiceVersion(o.Version),
		semconv.ServiceInstanceID(session),
	}
	if o.NodeName != "" {
		attrs = append(attrs, semconv.HostName(o.NodeName), semconv.K8SNodeName(o.NodeName))
	}
	if o.NodeIP != "" {
		attrs = append(attrs, semconv.HostIP(o.NodeIP))
	}
	// OTEL_RESOURCE_ATTRIBUTES adds attributes. With another schema than ours, the resource has no schema.
	all, _ := resource.Merge(resource.Environment(), resource.NewWithAttributes(semconv.SchemaURL, attrs...))
	return &renderer{
		resource: &otlpresource.Resource{Attributes: keyValues(all.Attributes())}, schema: all.SchemaURL(),
		scope: &otlpcommon.InstrumentationScope{Name: scopeName, Version: valid(o.Version)},
	}
}

// render returns a request with the records of entries.
func (r *renderer) render(entries []entry) *collogs.ExportLogsServiceRequest {
	records := make([]*otlplogs.LogRecord, len(entries))
	for i := range entries {
		records[i] = record(&entries[i])
	}
	return &collogs.ExportLogsServiceRequest{ResourceLogs: []*otlplogs.ResourceLogs{{
		Resource: r.resource, SchemaUrl: r.schema,
		ScopeLogs: []*otlplogs.ScopeLogs{{Scope: r.scope, SchemaUrl: semconv.SchemaURL, LogRecords: records}},
	}}}
}

func record(e *entry) *otlplogs.LogRecord {
	attrs := []attribute.KeyValue{attribute.Int64(attrSequence, int64(e.seq))}
	add := func(more ...attribute.KeyValue) { attrs = append(attrs, more...) }
	if e.resent {
		add(attribute.Bool(attrResent, true))
	}
	severity, level, name, body := otlplogs.SeverityNumber_SEVERITY_NUMBER_INFO, "INFO", "", ""
	switch e.kind {
	case happened:
		name, body = nameOf(&e.event), sentence(&e.event)
		if warns(&e.event) {
			severity, level = otlplogs.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
		}
		switch {
		case e.event.Fault != nil:
			add(faultAttrs(&e.event)...)
		case e.event.Flap != nil:
			add(flapAttrs(e.event.Flap)...)
		case e.event.SMChange != nil:
			add(smAttrs(e.event.SMChange)...)
		default:
			add(containerAttrs(&e.event.Container)...)
		}
		add(eventAttrs(&e.event)...)
	case begin, end:
		name = "container.snapshot.begin"
		body = fmt.Sprintf("snapshot of %d containers", e.count)
		if e.kind == end {
			name, body = "container.snapshot.end", "end of the "+body
		}
		add(attribute.Int64(attrSnapshot, int64(e.snapshot)), attribute.Int(attrCount, e.count),
			attribute.String(attrReason, e.reason), attribute.Int64(attrLost, int64(e.lost)))
	case member:
		name, body = "container.snapshot", "container "+identity.WorkloadOf(&e.event.Container)+" exists"
		add(attribute.Int64(attrSnapshot, int64(e.snapshot)))
		add(containerAttrs(&e.event.Container)...)
		if c := &e.event.Container; c.Status == model.ContainerExited && c.ExitCode != nil {
			add(semconv.ProcessExitCode(int(*c.ExitCode)))
		}
		if len(e.opened) > 0 {
			add(attribute.StringSlice(attrOpened, e.opened))
		}
	}
	return &otlplogs.LogRecord{
		TimeUnixNano: uint64(max(e.event.Time.UnixNano(), 0)), ObservedTimeUnixNano: uint64(max(e.observed.UnixNano(), 0)), EventName: name,
		SeverityNumber: severity, SeverityText: level, Body: textValue(shorten(valid(body), maxValue)), Attributes: keyValues(attrs),
	}
}

// containerAttrs returns the attributes of a container without empty fields.
func containerAttrs(c *model.Container) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 24)
	add := func(attr func(string) attribute.KeyValue, value string) {
		if value != "" {
			attrs = append(attrs, attr(value))
		}
	}
	own := func(key string) func(string) attribute.KeyValue {
		return func(value string) attribute.KeyValue { return attribute.String(key, value) }
	}
	add(semconv.ContainerID, c.ID)
	add(semconv.ContainerName, c.Name)
	add(semconv.ContainerImageName, c.Image)
	add(semconv.ContainerImageID, c.ImageID)
	add(semconv.ContainerRuntimeName, c.Runtime)
	add(semconv.K8SNamespaceName, c.Namespace)
	add(semconv.K8SPodName, c.Pod)
	add(semconv.K8SPodUID, c.PodUID)
	if c.Pod != "" && !c.Sandbox {
		add(semconv.K8SContainerName, c.Name)
		if c.Restarts != nil {
			attrs = append(attrs, semconv.K8SContainerRestartCount(int(*c.Restarts)))
		}
	}
	if c.Sandbox {
		attrs = append(attrs, attribute.Bool(attrSandbox, true))
	}
	add(own(attrWorkload), identity.WorkloadOf(c))
	add(own(attrStatus), string(c.Status))
	add(own(attrHealth), c.Health)
	if len(c.Devices) > 0 {
		attrs = append(attrs, attribute.StringSlice(attrGiven, c.Devices[:min(len(c.Devices), maxDevices)]))
	}
	labels := map[string]string{} // other names may become equal
	keys := slices.Sorted(maps.Keys(c.Labels))
	for _, k := range keys[:min(len(keys), maxLabels)] {
		labels[valid(k)] = c.Labels[k]
	}
	for k, v := range labels {
		attrs = append(attrs, semconv.ContainerLabel(k, v))
	}
	return attrs
}

func eventAttrs(ev *model.Event) (attrs []attribute.KeyValue) {
	if ev.ExitCode != nil {
		attrs = append(attrs, semconv.ProcessExitCode(int(*ev.ExitCode)))
	}
	if ev.Signal != 0 {
		attrs = append(attrs, attribute.Int(attrSignal, ev.Signal))
	}
	if ev.Device != "" {
		attrs = append(attrs, attribute.String(attrDevice, ev.Device))
	}
	if ev.Reconciled {
		attrs = append(attrs, attribute.Bool(attrReconciled, true))
	}
	return attrs
}

func warns(ev *model.Event) bool {
	return ev.Type == model.EventOOM || ev.Flap != nil || ev.SMChange != nil || ev.Fault != nil && !ev.Fault.Recovered ||
		ev.Type == model.EventExit && ev.ExitCode != nil && *ev.ExitCode != 0
}

// predicates complete the sentences of events that need no further facts.
var predicates = map[model.EventType]string{
	model.EventCreate: " was created", model.EventStart: " started", model.EventPause: " was paused",
	model.EventResume: " resumed", model.EventOOM: " ran out of memory", model.EventExit: " exited",
	model.EventDelete: " was deleted",
}

func nameOf(ev *model.Event) string {
	switch {
	case ev.Fault != nil:
		return "device.fault"
	case ev.Flap != nil:
		return "device.link_flap"
	case ev.SMChange != nil:
		return "device.sm_change"
	}
	return "container." + valid(string(ev.Type))
}

func sentence(ev *model.Event) string {
	subject := "container " + identity.WorkloadOf(&ev.Container)
	switch {
	case ev.Type == model.EventExit && ev.Signal != 0:
		return fmt.Sprintf("%s was ended by signal %d (%s)", subject, ev.Signal, syscall.Signal(ev.Signal))
	case ev.Type == model.EventExit && ev.ExitCode != nil:
		return fmt.Sprintf("%s exited with code %d", subject, *ev.ExitCode)
	case ev.Fault != nil:
		return faultSentence(ev)
	case ev.Flap != nil:
		return flapSentence(ev)
	case ev.SMChange != nil:
		return smSentence(ev)
	case ev.Type == model.EventHealth:
		return subject + " is " + valid(ev.Container.Health)
	case ev.Type == model.EventDevice:
		return subject + " opened " + valid(ev.Device)
	case predicates[ev.Type] != "":
		return subject + predicates[ev.Type]
	}
	return subject + ": " + valid(string(ev.Type))
}

// valid replaces invalid UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func shorten(s string, limit int) string {
	if len(s) > limit {
		return valid(s[:limit]) + "…"
	}
	return s
}
