// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var containerNotes = []string{
	"Names and units are cAdvisor's.",
	"`container_cpu_usage_seconds_total`: `cpu` is always `total`.",
	"`container_cpu_energy_joules_total`: `package` or `dram`, [divided](../docs/limits.md#energy-of-cpus).",
	"`container_spec_cpu_quota` and the `container_cpu_cfs` families are absent without a CPU quota. " +
		"`container_spec_cpu_shares` is converted from cgroup v2's weight.",
	"`container_memory_failures_total`: `scope` is `container` or `hierarchy` (with all cgroups below). On cgroup v2 both are " +
		"equal.",
	"The `container_network` families count on the interfaces of the pod, or of a container without a pod. Absent in the " +
		"node's network namespace.",
	"`container_start_time_seconds`: from the runtime, else the cgroup.",
	"`container_state`: `created`, `running`, `paused`, `exited`. `container_health`: `healthy`, `unhealthy`, `starting`.",
}

// containerMetrics returns the resource usage of workloads with cAdvisor's names and units, and the state that runtimes
// and the kubelet report.
func containerMetrics() []metric {
	return slices.Concat(cpuMetrics(), memoryMetrics(), ioMetrics(), pressureMetrics(), networkMetrics(), lifeMetrics())
}

func cpuMetrics() []metric {
	// cAdvisor exports these metrics only if there is a quota.
	limited := func(of func(*model.Usage) model.Optional) func(*model.Usage) model.Optional {
		return func(u *model.Usage) model.Optional {
			if !u.CPU.Quota.Known || math.IsInf(u.CPU.Quota.Value, 1) {
				return model.Optional{}
			}
			return of(u)
		}
	}
	return []metric{
		{
			name: "container_cpu_usage_seconds_total", typ: counter, owned: true, labels: []string{"cpu"},
			help: "CPU time used.",
			emit: each(usagesOf, func(v *view, b *exposition.Builder, s *attribution.UsageShare) {
				used(v, b, s, s.CPU.Total, "total")
			}),
		},
		usage("container_cpu_user_seconds_total", counter, "CPU time used in user mode.",
			func(u *model.Usage) model.Optional { return u.CPU.User }),
		usage("container_cpu_system_seconds_total", counter, "CPU time used in the kernel.",
			func(u *model.Usage) model.Optional { return u.CPU.System }),
		usage("container_cpu_cfs_periods_total", counter, "Elapsed periods of the CPU quota.",
			limited(func(u *model.Usage) model.Optional { return u.CPU.Periods })),
		usage("container_cpu_cfs_throttled_periods_total", counter, "Periods with the CPU quota used up.",
			limited(func(u *model.Usage) model.Optional { return u.CPU.ThrottledPeriods })),
		usage("container_cpu_cfs_throttled_seconds_total", counter,
			"Time that tasks waited for the next quota period.",
			limited(func(u *model.Usage) model.Optional { return u.CPU.Throttled })),
		{
			name: "container_cpu_energy_joules_total", typ: counter, owned: true, labels: []string{"domain", "method"},
			help: "Energy of CPU packages or their memory, by the workload's part of the time of all CPUs.",
			emit: each(cpuEnergyOf, func(v *view, b *exposition.Builder, s *attribution.CPUEnergyShare) {
				b.Since(s.Since).Share(float64(s.Microjoules)/1e6, v.owners[s.Owner], string(s.Domain), string(s.Method))
			}),
		},
		usage("container_spec_cpu_quota", gauge, "CPU quota of a period, in microseconds.",
			limited(func(u *model.Usage) model.Optional { return u.CPU.Quota })),
		usage("container_spec_cpu_period", gauge, "Length of a quota period, in microseconds.",
			func(u *model.Usage) model.Optional { return u.CPU.Period }),
		usage("container_spec_cpu_shares", gauge, "CPU shares.",
			func(u *model.Usage) model.Optional { return u.CPU.Shares }),
	}
}

func memoryMetrics() []metric {
	memory := func(name, help string, of func(*model.MemoryUsage) model.Optional) metric {
		return usage(name, gauge, help, func(u *model.Usage) model.Optional { return of(&u.Memory) })
	}
	return []metric{
		memory("container_memory_usage_bytes", "Memory charged, including page cache.",
			func(m *model.MemoryUsage) model.Optional { return m.Usage }),
		memory("container_memory_max_usage_bytes", "Highest memory usage.",
			func(m *model.MemoryUsage) model.Optional { return m.Peak }),
		memory("container_memory_working_set_bytes",
			"Memory usage without inactive page cache, the kubelet's value for eviction.",
			func(m *model.MemoryUsage) model.Optional { return m.WorkingSet }),
		memory("container_memory_rss", "Anonymous memory, in bytes.",
			func(m *model.MemoryUsage) model.Optional { return m.RSS }),
		memory("container_memory_cache", "Page cache charged, in bytes.",
			func(m *model.MemoryUsage) model.Optional { return m.Cache }),
		memory("container_memory_swap", "Swap used, in bytes.",
			func(m *model.MemoryUsage) model.Optional { return m.Swap }),
		memory("container_memory_mapped_file", "Files mapped into memory, in bytes.",
			func(m *model.MemoryUsage) model.Optional { return m.MappedFile }),
		memory("container_memory_kernel_usage", "Kernel memory, in bytes.",
			func(m *model.MemoryUsage) model.Optional { return m.Kernel }),
		memory("container_spec_memory_limit_bytes", "Memory limit, 0 for none.",
			func(m *model.MemoryUsage) model.Optional { return zeroForNone(m.Limit) }),
		memory("container_spec_memory_swap_limit_bytes",
			"Limit of swap (cgroup v2) or of memory and swap (v1), 0 for none.",
			func(m *model.MemoryUsage) model.Optional { return zeroForNone(m.SwapLimit) }),
		memory("container_spec_memory_reservation_limit_bytes",
			"Protected memory (memory.min of cgroup v2) or soft limit (v1), 0 for none.",
			func(m *model.MemoryUsage) model.Optional { return zeroForNone(m.Reservation) }),
		// Untyped, because the name of a counter must end in _total.
		usage("container_memory_failcnt", untyped, "Times that the memory limit was hit.",
			func(u *model.Usage) model.Optional { return u.Memory.LimitHits }),
		usage("container_oom_events_total", counter, "Processes killed because memory ran out.",
			func(u *model.Usage) model.Optional { return u.Memory.OOMKills }),
		{
			name: "container_memory_failures_total", typ: counter, owned: true, labels: []string{"failure_type", "scope"},
			help: "Page faults, by type (pgfault, pgmajfault) and scope.",
			emit: each(usagesOf, func(v *view, b *exposition.Builder, s *attribution.UsageShare) {
				m := &s.Memory
				used(v, b, s, m.Faults, "pgfault", "container")
				used(v, b, s, m.MajorFaults, "pgmajfault", "container")
				used(v, b, s, m.FaultsBelow, "pgfault", "hierarchy")
				used(v, b, s, m.MajorFaultsBelow, "pgmajfault", "hierarchy")
			}),
		},
	}
}

func ioMetrics() []metric {
	disk := func(name, help string, of func(*model.DeviceIO) model.Optional) metric {
		return metric{
			name: name, typ: counter, owned: true, labels: []string{"device"}, help: help,
			emit: each(usagesOf, func(v *view, b *exposition.Builder, s *attribution.UsageShare) {
				for i := range s.IO {
					used(v, b, s, of(&s.IO[i]), s.IO[i].Device)
				}
			}),
		}
	}
	return []metric{
		disk("container_fs_reads_bytes_total", "Bytes read from the block device.",
			func(d *model.DeviceIO) model.Optional { return d.ReadBytes }),
		disk("container_fs_writes_bytes_total", "Bytes written to the block device.",
			func(d *model.DeviceIO) model.Optional { return d.WriteBytes }),
		disk("container_fs_reads_total", "Reads from the block device.",
			func(d *model.DeviceIO) model.Optional { return d.Reads }),
		disk("container_fs_writes_total", "Writes to the block device.",
			func(d *model.DeviceIO) model.Optional { return d.Writes }),
		{
			name: "container_blkio_device_usage_total", typ: counter, owned: true,
			// The first three labels distinguish series, see labelKey.
			labels: []string{"major", "minor", "operation", "device"},
			help:   "Bytes moved on the block device, by operation (Read, Write, Discard).",
			emit: each(usagesOf, func(v *view, b *exposition.Builder, s *attribution.UsageShare) {
				for i := range s.IO {
					d := &s.IO[i]
					major, minor := strconv.Itoa(int(d.Major)), strconv.Itoa(int(d.Minor))
					used(v, b, s, d.ReadBytes, major, minor, "Read", d.Device)
					used(v, b, s, d.WriteBytes, major, minor, "Write", d.Device)
					used(v, b, s, d.DiscardBytes, major, minor, "Discard", d.Device)
				}
			}),
		},
		usage("container_processes", gauge, "Processes of the workload.",
			func(u *model.Usage) model.Optional { return u.Processes }),
		usage("container_threads", gauge, "Threads of the workload.",
			func(u *model.Usage) model.Optional { return u.Threads }),
		usage("container_threads_max", gauge, "Maximum number of threads, 0 for no limit.",
			func(u *model.Usage) model.Optional { return zeroForNone(u.ThreadsMax) }),
	}
}

func pressureMetrics() []metric {
	pressure := func(what, help string, of func(*model.Usage) model.Optional) metric {
		return usage("container_pressure_"+what+"_seconds_total", counter, help+".", of)
	}
	return []metric{
		pressure("cpu_waiting", "Time that some task waited for a CPU",
			func(u *model.Usage) model.Optional { return u.CPU.Waiting }),
		pressure("cpu_stalled", "Time that all tasks waited for a CPU",
			func(u *model.Usage) model.Optional { return u.CPU.Stalled }),
		pressure("memory_waiting", "Time that some task waited for memory",
			func(u *model.Usage) model.Optional { return u.Memory.Waiting }),
		pressure("memory_stalled", "Time that all tasks waited for memory",
			func(u *model.Usage) model.Optional { return u.Memory.Stalled }),
		pressure("io_waiting", "Time that some task waited for block devices",
			func(u *model.Usage) model.Optional { return u.IOWaiting }),
		pressure("io_stalled", "Time that all tasks waited for block devices",
			func(u *model.Usage) model.Optional { return u.IOStalled }),
	}
}

func networkMetrics() []metric {
	network := func(what, help string, of func(*model.Interface) uint64) metric {
		return metric{
			name: "container_network_" + what + "_total", typ: counter, owned: true, labels: []string{"interface"},
			help: help + " on the interface.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.scope.networks {
					for i := range s.Interfaces {
						b.Share(float64(of(&s.Interfaces[i])), v.owners[s.Owner], s.Interfaces[i].Name)
					}
				}
			},
		}
	}
	return []metric{
		network("receive_bytes", "Bytes received", func(i *model.Interface) uint64 { return i.ReceiveBytes }),
		network("receive_packets", "Packets received", func(i *model.Interface) uint64 { return i.ReceivePackets }),
		network("receive_errors", "Errors while receiving", func(i *model.Interface) uint64 { return i.ReceiveErrors }),
		network("receive_packets_dropped", "Packets dropped while receiving",
			func(i *model.Interface) uint64 { return i.ReceiveDropped }),
		network("transmit_bytes", "Bytes sent", func(i *model.Interface) uint64 { return i.TransmitBytes }),
		network("transmit_packets", "Packets sent", func(i *model.Interface) uint64 { return i.TransmitPackets }),
		network("transmit_errors", "Errors while sending", func(i *model.Interface) uint64 { return i.TransmitErrors }),
		network("transmit_packets_dropped", "Packets dropped while sending",
			func(i *model.Interface) uint64 { return i.TransmitDropped }),
	}
}

// used adds a series if the value is known.
func used(v *view, b *exposition.Builder, s *attribution.UsageShare, f model.Optional, values ...string) {
	if f.Known {
		b.Since(s.Since).Share(f.Value, v.owners[s.Owner], values...)
	}
}

func usage(name string, typ dto.MetricType, help string, of func(*model.Usage) model.Optional) metric {
	return metric{
		name: name, typ: typ, owned: true, help: help,
		emit: each(usagesOf, func(v *view, b *exposition.Builder, s *attribution.UsageShare) {
			used(v, b, s, of(s.Usage))
		}),
	}
}

// zeroForNone replaces an infinite limit by 0, as cAdvisor does.
func zeroForNone(f model.Optional) model.Optional {
	if math.IsInf(f.Value, 1) {
		f.Value = 0
	}
	return f
}
