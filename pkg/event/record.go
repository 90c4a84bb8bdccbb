// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

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
	maxValue  = 4096 // bytes of an attribute
	maxLabels = 64   // of a container
	// A container may have thousands of devices; a privileged container has all devices of the node.
	maxDevices = 64
)

// A renderer makes records of entries. It is the processor of its own provider: it keeps what the SDK emits until the
// batch is complete. Events are much smaller than records, so the queue holds events. The SDK adds
// OTEL_RESOURCE_ATTRIBUTES to the resource.
type renderer struct {
	logger otellog.Logger
	batch  []sdklog.Record
}

func newRenderer(o Options, session string) *renderer {
	r := &renderer{}
	attrs := []attribute.KeyValue{
		semconv.ServiceName("accelscope"),
		semconv.ServiceVersion(valid(o.Version)),
		semconv.ServiceInstanceID(session),
	}
	if o.NodeName != "" {
		attrs = append(attrs, semconv.HostName(valid(o.NodeName)), semconv.K8SNodeName(valid(o.NodeName)))
	}
	if o.NodeIP != "" {
		attrs = append(attrs, semconv.HostIP(valid(o.NodeIP)))
	}
	provider := sdklog.NewLoggerProvider(
		sdklog.WithResource(resource.NewWithAttributes(semconv.SchemaURL, attrs...)),
		sdklog.WithProcessor(r),
		sdklog.WithAttributeCountLimit(maxLabels+32),
		sdklog.WithAttributeValueLengthLimit(maxValue),
	)
	r.logger = provider.Logger(scopeName,
		otellog.WithInstrumentationVersion(valid(o.Version)), otellog.WithSchemaURL(semconv.SchemaURL))
	return r
}

// Enabled returns true for every record.
func (r *renderer) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }

// OnEmit adds a record to the batch.
func (r *renderer) OnEmit(_ context.Context, record *sdklog.Record) error {
	r.batch = append(r.batch, record.Clone())
	return nil
}

// Shutdown does nothing.
func (r *renderer) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (r *renderer) ForceFlush(context.Context) error { return nil }

// render returns the records of entries, valid until the next call.
func (r *renderer) render(entries []entry) []sdklog.Record {
	clear(r.batch)
	r.batch = r.batch[:0]
	for i := range entries {
		r.logger.Emit(context.Background(), record(&entries[i]))
	}
	return r.batch
}

func record(e *entry) (r otellog.Record) {
	r.SetTimestamp(e.event.Time)
	r.SetObservedTimestamp(e.observed)
	r.AddAttributes(attribute.Int64(attrSequence, int64(e.seq)))
	if e.resent {
		r.AddAttributes(attribute.Bool(attrResent, true))
	}
	severity, name, body := otellog.SeverityInfo, "", ""
	switch e.kind {
	case happened:
		name, body = nameOf(&e.event), sentence(&e.event)
		if warns(&e.event) {
			severity = otellog.SeverityWarn
		}
		switch {
		case e.event.Fault != nil:
			r.AddAttributes(faultAttrs(&e.event)...)
		case e.event.Flap != nil:
			r.AddAttributes(flapAttrs(e.event.Flap)...)
		case e.event.SMChange != nil:
			r.AddAttributes(smAttrs(e.event.SMChange)...)
		default:
			r.AddAttributes(containerAttrs(&e.event.Container)...)
		}
		r.AddAttributes(eventAttrs(&e.event)...)
	case begin, end:
		name = "container.snapshot.begin"
		body = fmt.Sprintf("snapshot of %d containers", e.count)
		if e.kind == end {
			name, body = "container.snapshot.end", "end of the "+body
		}
		r.AddAttributes(attribute.Int64(attrSnapshot, int64(e.snapshot)), attribute.Int(attrCount, e.count),
			attribute.String(attrReason, e.reason), attribute.Int64(attrLost, int64(e.lost)))
	case member:
		name, body = "container.snapshot", "container "+identity.WorkloadOf(&e.event.Container)+" exists"
		r.AddAttributes(attribute.Int64(attrSnapshot, int64(e.snapshot)))
		r.AddAttributes(containerAttrs(&e.event.Container)...)
		if c := &e.event.Container; c.Status == model.ContainerExited && c.ExitCode != nil {
			r.AddAttributes(semconv.ProcessExitCode(int(*c.ExitCode)))
		}
		if len(e.opened) > 0 {
			r.AddAttributes(attribute.StringSlice(attrOpened, e.opened))
		}
	}
	r.SetEventName(name)
	r.SetSeverity(severity)
	r.SetSeverityText(severity.String())
	r.SetBody(attribute.StringValue(shorten(body, maxValue)))
	return r
}

// containerAttrs returns the attributes of a container without empty fields.
func containerAttrs(c *model.Container) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 24)
	add := func(attr func(string) attribute.KeyValue, value string) {
		if value != "" {
			attrs = append(attrs, attr(valid(value)))
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
		given := make([]string, 0, min(len(c.Devices), maxDevices))
		for _, d := range c.Devices[:min(len(c.Devices), maxDevices)] {
			given = append(given, valid(d))
		}
		attrs = append(attrs, attribute.StringSlice(attrGiven, given))
	}
	keys := slices.Sorted(maps.Keys(c.Labels))
	for _, k := range keys[:min(len(keys), maxLabels)] {
		attrs = append(attrs, semconv.ContainerLabel(valid(k), valid(c.Labels[k])))
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
		attrs = append(attrs, attribute.String(attrDevice, valid(ev.Device)))
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

// valid replaces invalid UTF-8, which would fail the whole batch.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func shorten(s string, limit int) string {
	if len(s) > limit {
		return valid(s[:limit]) + "…"
	}
	return s
}
