// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var nodeNotes = []string{
	"Names, labels, types and values are node_exporter's.",
	"`node_cpu_all_seconds_total`: the sum over CPUs; node_exporter lacks it.",
	"`node_cpu_guest_seconds_total` is part of the modes `user` and `nice`. It is excluded by default: `--metrics.exclude=` " +
		"includes it.",
	"`node_filesystem_device_error`: 1: the file system's other series are absent.",
	"`node_network_speed_bytes`: -125000 means unknown.",
	"`node_rapl_<zone>_joules_total` starts again at the zone's limit.",
	"`node_hwmon_<property>`: `temp_celsius`, `fan_rpm`, `in_volts`, `curr_amps`, `power_watt`, `freq_freq_mhz`, and their " +
		"limits and alarms.",
}

// nodeMetrics returns node_exporter's metrics of the node, with the same names, labels, types and values. A test of
// cmd/accelscope compares them.
func nodeMetrics() []metric {
	rows := slices.Concat(
		nodeSystemMetrics(),
		nodeMemoryMetrics(),
		nodeDiskMetrics(),
		nodeFilesystemMetrics(),
		nodeNetworkMetrics(),
		hwmonMetrics(),
	)
	for i := range rows {
		emit := rows[i].emit
		rows[i].emit = func(v *view, b *exposition.Builder) {
			if v.facts.Node != nil {
				emit(v, b)
			}
		}
	}
	return rows
}

// cpuModes are the first columns of a CPU in /proc/stat, guestModes the last columns.
var (
	cpuModes   = []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}
	guestModes = []string{"user", "nice"}
)

func nodeSystemMetrics() []metric {
	rows := []metric{
		cpuSeconds("node_cpu_seconds_total", "CPU time in the mode.", 0, cpuModes),
		{
			name: "node_cpu_all_seconds_total", typ: counter, labels: []string{"mode"},
			help: "CPU time of all CPUs in the mode.",
			emit: each(cpusOf, func(_ *view, b *exposition.Builder, c *model.CPU) {
				for i, mode := range cpuModes {
					if c.ID == "" {
						b.Value(c.Seconds[i], mode)
					}
				}
			}),
		},
		cpuSeconds("node_cpu_guest_seconds_total", "CPU time of virtual machines, by mode.",
			len(cpuModes), guestModes),
		{
			name: "node_cpu_core_throttles_total", typ: counter, labels: []string{"package", "core"},
			help: "Slowdowns of the core because of heat.",
			emit: each(throttlesOf, func(_ *view, b *exposition.Builder, t *model.Throttle) {
				if t.Core != "" {
					b.Value(float64(t.Count), t.Package, t.Core)
				}
			}),
		},
		{
			name: "node_cpu_package_throttles_total", typ: counter, labels: []string{"package"},
			help: "Slowdowns of the package because of heat.",
			emit: each(throttlesOf, func(_ *view, b *exposition.Builder, t *model.Throttle) {
				if t.Core == "" {
					b.Value(float64(t.Count), t.Package)
				}
			}),
		},
		{
			name: "node_uname_info", typ: gauge,
			labels: []string{"nodename", "release", "version", "machine", "sysname", "domainname"},
			help:   "System information from uname.",
			emit: func(v *view, b *exposition.Builder) {
				if u := v.facts.Node.Uname; u != nil {
					b.Value(1, u.Nodename, u.Release, u.Version, u.Machine, u.Sysname, u.Domainname)
				}
			},
		},
		{
			name: "node_os_info", typ: gauge,
			labels: []string{
				"id", "version_id", "build_id", "id_like", "image_id", "image_version", "name", "pretty_name", "variant",
				"variant_id", "version", "version_codename",
			},
			help: "Name and version of the distribution.",
			emit: func(v *view, b *exposition.Builder) {
				if o := v.facts.Node.OS; o != nil {
					b.Value(1, o.ID, o.VersionID, o.BuildID, o.IDLike, o.ImageID, o.ImageVersion, o.Name, o.PrettyName,
						o.Variant, o.VariantID, o.Version, o.VersionCodename)
				}
			},
		},
		{
			name: "node_os_version", typ: gauge, labels: []string{"id", "id_like", "name"},
			help: "Version number of the distribution.",
			emit: func(v *view, b *exposition.Builder) {
				if o := v.facts.Node.OS; o != nil {
					if version := leadingNumber(o.VersionID); version > 0 {
						b.Value(version, o.ID, o.IDLike, o.Name)
					}
				}
			},
		},
		single("node_os_support_end_timestamp_seconds", gauge, "Unix time when the distribution's support ends.",
			func(v *view) *model.OSRelease { return v.facts.Node.OS },
			func(o *model.OSRelease) model.Optional {
				end, err := time.Parse(time.DateOnly, o.SupportEnd)
				return model.Optional{Value: float64(end.Unix()), Known: err == nil}
			}),
		{
			name: "node_time_seconds", typ: gauge, help: "Unix time of the node.",
			emit: func(v *view, b *exposition.Builder) {
				if t := v.facts.Node.Time; !t.IsZero() {
					b.Value(float64(t.UnixNano()) / 1e9)
				}
			},
		},
		{
			name: "node_time_zone_offset_seconds", typ: gauge, labels: []string{"time_zone"},
			help: "Offset of the time zone from UTC.",
			emit: func(v *view, b *exposition.Builder) {
				if t := v.facts.Node.Time; !t.IsZero() {
					zone, offset := t.Zone()
					b.Value(float64(offset), zone)
				}
			},
		},
		{
			name: "node_time_clocksource_available_info", typ: gauge, labels: []string{"device", "clocksource"},
			help: "Available clock source.",
			emit: each(clocksourcesOf, func(_ *view, b *exposition.Builder, c *model.Clocksource) {
				for _, name := range c.Available {
					b.Value(1, c.Device, name)
				}
			}),
		},
		{
			name: "node_time_clocksource_current_info", typ: gauge, labels: []string{"device", "clocksource"},
			help: "Current clock source.",
			emit: each(clocksourcesOf, func(_ *view, b *exposition.Builder, c *model.Clocksource) {
				b.Value(1, c.Device, c.Current)
			}),
		},
	}
	load := func(name, help string, of func(*model.Load) float64) metric {
		return single(name, gauge, help, func(v *view) *model.Load { return v.facts.Node.Load },
			func(l *model.Load) model.Optional { return model.Some(of(l)) })
	}
	stat := func(name, help string, typ dto.MetricType, of func(*model.Stat) model.Optional) metric {
		return single(name, typ, help, func(v *view) *model.Stat { return v.facts.Node.Stat }, of)
	}
	return append(rows,
		load("node_load1", "Load average over 1 minute.", func(l *model.Load) float64 { return l.One }),
		load("node_load5", "Load average over 5 minutes.", func(l *model.Load) float64 { return l.Five }),
		load("node_load15", "Load average over 15 minutes.", func(l *model.Load) float64 { return l.Fifteen }),
		stat("node_boot_time_seconds", "Unix time of the node's boot.", gauge,
			func(s *model.Stat) model.Optional { return s.BootTime }),
		stat("node_intr_total", "Interrupts served.", counter, func(s *model.Stat) model.Optional { return s.Interrupts }),
		stat("node_context_switches_total", "Context switches.", counter,
			func(s *model.Stat) model.Optional { return s.ContextSwitches }),
		stat("node_forks_total", "Tasks created.", counter, func(s *model.Stat) model.Optional { return s.Forks }),
		stat("node_procs_running", "Running or runnable tasks.", gauge, func(s *model.Stat) model.Optional { return s.Running }),
		stat("node_procs_blocked", "Tasks blocked on I/O.", gauge, func(s *model.Stat) model.Optional { return s.Blocked }),
		pressure("node_pressure_cpu_waiting_seconds_total", "cpu", somePressure),
		pressure("node_pressure_io_waiting_seconds_total", "io", somePressure),
		pressure("node_pressure_io_stalled_seconds_total", "io", fullPressure),
		pressure("node_pressure_memory_waiting_seconds_total", "memory", somePressure),
		pressure("node_pressure_memory_stalled_seconds_total", "memory", fullPressure),
		pressure("node_pressure_irq_stalled_seconds_total", "irq", fullPressure),
	)
}

// leadingNumber returns the number that a text begins with, such as 24.04 for 24.04.1, or 0.
func leadingNumber(s string) float64 {
	end, point := 0, false
	for end < len(s) && ('0' <= s[end] && s[end] <= '9' || s[end] == '.' && !point && end > 0) {
		point = point || s[end] == '.'
		end++
	}
	v, _ := strconv.ParseFloat(s[:end], 64)
	return v
}

// cpuSeconds returns the row of CPU columns, beginning with column first.
func cpuSeconds(name, help string, first int, modes []string) metric {
	return metric{
		name: name, typ: counter, labels: []string{"cpu", "mode"}, help: help,
		emit: each(cpusOf, func(_ *view, b *exposition.Builder, c *model.CPU) {
			for i, mode := range modes {
				if c.ID != "" {
					b.Value(c.Seconds[first+i], c.ID, mode)
				}
			}
		}),
	}
}

func somePressure(p *model.Pressure) *float64 { return p.Some }
func fullPressure(p *model.Pressure) *float64 { return p.Full }

func pressure(name, resource string, of func(*model.Pressure) *float64) metric {
	tasks := "some"
	if strings.Contains(name, "_stalled_") {
		tasks = "all"
	}
	return metric{
		name: name, typ: counter, help: "Time that " + tasks + " tasks waited for " + resource + ".",
		emit: func(v *view, b *exposition.Builder) {
			for i := range v.facts.Node.Pressure {
				if p := &v.facts.Node.Pressure[i]; p.Resource == resource {
					known(b, valueOf(of(p)), nil)
				}
			}
		},
	}
}

func nodeMemoryMetrics() []metric {
	files := func(v *view) *model.Files { return v.facts.Node.Files }
	entropy := func(v *view) *model.Entropy { return v.facts.Node.Entropy }
	figures := func(name, help string, typ dto.MetricType, of func(*model.Node) []model.Figure) metric {
		return metric{name: name, help: help, typ: typ, emit: func(v *view, b *exposition.Builder) {
			for _, f := range of(v.facts.Node) {
				if b.OpenPart(f.Name) {
					b.Value(f.Value)
				}
			}
		}}
	}
	return []metric{
		figures("node_memory_<field>", "Field of /proc/meminfo.", gauge,
			func(n *model.Node) []model.Figure { return n.Memory }),
		figures("node_vmstat_<field>", "Field of /proc/vmstat.", untyped,
			func(n *model.Node) []model.Figure { return n.VM }),
		figures("node_netstat_<field>", "Counter of a network protocol.", untyped,
			func(n *model.Node) []model.Figure { return n.Netstat }),
		figures("node_sockstat_<field>", "Sockets of a protocol by state, or their memory.", gauge,
			func(n *model.Node) []model.Figure { return n.Sockets }),
		single("node_filefd_allocated", gauge, "Open files of all processes.", files,
			func(f *model.Files) model.Optional { return model.Some(f.Allocated) }),
		single("node_filefd_maximum", gauge, "Maximum number of open files of all processes.", files,
			func(f *model.Files) model.Optional { return model.Some(f.Maximum) }),
		single("node_entropy_available_bits", gauge, "Available entropy.", entropy,
			func(e *model.Entropy) model.Optional { return model.Some(float64(e.Available)) }),
		single("node_entropy_pool_size_bits", gauge, "Size of the entropy pool.", entropy,
			func(e *model.Entropy) model.Optional { return model.Some(float64(e.PoolSize)) }),
	}
}
