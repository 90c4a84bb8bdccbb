// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// own selects the chosen workloads.
const own = `namespace=~"$namespace",workload=~"$workload"`

// workloads shows the use of HCAs, GPUs, CPU and memory by a namespace or a workload.
func workloads() dashboard {
	return dashboard{
		uid: "accelscope-workloads", title: "accelscope / Namespaces and workloads", refresh: "30s", span: "1h",
		description: "What namespaces and workloads do with RDMA and GPUs, how well it goes, and what CPU and memory they use.",
		variables:   []variable{node, namespace, workload},
		rows:        []row{summary(), dataPath(), controlPath(), workloadGPUs(), workloadHost()},
	}
}

// by sums by labels.
func by(labels, expr string) string { return "sum by (" + labels + ") (" + expr + ")" }

// each is a graph of the largest workloads, one series for each.
func each(title, description, unit, expr string) panel {
	return graph(title, description, unit, query{expr: owner(top(20, expr)), legend: "{{workload}}"})
}

func summary() row {
	s := sel(own, `workload!=""`)
	const w = "namespace, workload"
	column := func(legend, unit, expr string) query { return query{expr: top(50, expr), legend: legend, unit: unit} }
	return row{"Overview", []panel{
		table("Workloads", "The largest workloads by what they hold and move now. An empty cell is not collected, or none. Sampled "+
			"bytes are not in it.", "none",
			[]string{"namespace", "workload"},
			column("QPs", "none", by(w, "container_rdma_resources"+sel(own, `workload!=""`, `type="qp"`))+" > 0"),
			column("Registered", "bytes", by(w, "container_rdma_registered_bytes"+s)+" > 0"),
			column("Sent", "Bps", by(w, rate("container_rdma_transmit_bytes_total", s))+" > 0"),
			column("Received", "Bps", by(w, rate("container_rdma_receive_bytes_total", s))+" > 0"),
			column("Verbs", "ops", by(w, rate("container_rdma_verbs_total", s))+" > 0"),
			column("GPU memory", "bytes", by(w, "container_gpu_memory_used_bytes"+s)+" > 0"),
			column("CPU", "none", by(w, rate("container_cpu_usage_seconds_total", s))+" > 0.001"),
			column("Memory", "bytes", by(w, "container_memory_working_set_bytes"+s)+" > 0"),
		).wide(24).high(9),
		each("Registered memory", "Memory registered for RDMA, by workload.", "bytes",
			by("workload", "container_rdma_registered_bytes"+sel(own))),
		graph("RDMA objects by type", "Objects that the chosen workloads hold, all together.", "none",
			query{expr: by("type", "container_rdma_resources"+sel(own)), legend: "{{type}}"}),
		graph("Registered memory by place", "Where the registered memory lies: host, gpu (GPUDirect), dmabuf (a buffer of another "+
			"device). No gpu here means that no "+
			"GPUDirect is used.", "bytes", query{
			expr:   by("memory", "container_rdma_registered_bytes"+sel(own)),
			legend: "{{memory}}",
		}).stacked(),
		graph("RDMA objects made", "Objects made per second, by type. Many of a kind mean that something is set up again and again.",
			"ops",
			query{expr: by("type", rate("container_rdma_objects_created_total", sel(own))), legend: "{{type}}"}),
	}}
}

func dataPath() row {
	s := sel(own)
	const done = "container_rdma_completion_duration_seconds"
	return row{"Data path", []panel{
		graph("Bytes by method", "Bytes per second that the chosen workloads send (above zero) and receive, by how it is known. No "+
			"byte is in two methods.", "Bps",
			query{expr: by("method", rate("container_rdma_transmit_bytes_total", s)), legend: "sent, {{method}}"},
			query{expr: by("method", rate("container_rdma_receive_bytes_total", s)), legend: "received, {{method}}", below: true}),
		graph("Bytes by workload", "Bytes per second, sent above zero, received below.", "Bps",
			query{expr: owner(top(15, by("workload", rate("container_rdma_transmit_bytes_total", s)))), legend: "{{workload}} sent"},
			query{
				expr: owner(top(15, by("workload", rate("container_rdma_receive_bytes_total", s)))), legend: "{{workload}} received",
				below: true,
			}),
		graph("Sampled bytes by workload", "Estimates, of workloads whose calls are watched in windows (--rdma.datapath=budget). "+
			"Never to be added to exact bytes.",
			"Bps", query{
				expr:   top(15, by("workload", rate("container_rdma_transmit_bytes_sampled_total", s))),
				legend: "{{workload}} sent",
			},
			query{expr: top(15, by("workload", rate("container_rdma_receive_bytes_sampled_total", s))), legend: "{{workload}} " +
				"received", below: true}),
		graph("Work requests by opcode", "Work requests per second that were posted. Needs --rdma.datapath; what bypasses "+
			"ibv_post_send is not seen.", "ops",
			query{expr: by("opcode", rate("container_rdma_work_requests_total", s)), legend: "{{opcode}}"}),
		graph("From post to completion, p50 and p99", "How long signaled work requests took until their completion was polled: the "+
			"network, the other side, and how "+
			"often the workload polls.", "s",
			query{expr: top(10, "("+quantile("0.5", "workload, opcode", done, s)+")"), legend: "p50 {{workload}} {{opcode}}"},
			query{expr: top(10, "("+quantile("0.99", "workload, opcode", done, s)+")"), legend: "p99 {{workload}} {{opcode}}"}),
		heatmap("From post to completion", "The same durations, of the chosen workloads together.", "s", buckets(done, s)),
		graph("Completion errors by status", "Completions per second that the workloads polled with an error. wr_flush_error follows "+
			"the first error of a queue pair.",
			"ops", query{
				expr: top(20, by("workload, status", rate("container_rdma_completion_errors_total", s))), legend: "{{workload}} " +
					"{{status}}",
			}).above(0, 0.001),
		graph("Part of the time that is watched", "1: every call is counted. Less: in windows, and the figures are in the sampled "+
			"families.", "percentunit",
			query{expr: "bottomk(20, min by (workload, calls) (accelscope_datapath_sampling_ratio" + s + "))", legend: "{{workload}} " +
				"{{calls}}"}).max(1),
	}}
}

func controlPath() row {
	s := sel(own)
	const took = "container_rdma_verbs_duration_seconds"
	return row{"Verbs (control path)", []panel{
		each("Verbs by workload", "Control-path verbs per second.", "ops", by("workload", rate("container_rdma_verbs_total", s))),
		graph("Verbs that fail", "Control-path verbs per second that return an error.", "ops",
			query{expr: top(20, by("workload, verb, errno", rate("container_rdma_verbs_errors_total", s))), legend: "{{workload}} " +
				"{{verb}} {{errno}}"}),
		graph("Latency of verbs, p50 and p99", "Quantiles over all verbs of a workload. A registration of much memory takes long by "+
			"nature.", "s",
			query{expr: top(10, "("+quantile("0.5", "workload", took, s)+")"), legend: "p50 {{workload}}"},
			query{expr: top(10, "("+quantile("0.99", "workload", took, s)+")"), legend: "p99 {{workload}}"}),
		table("Latency of verbs over the time shown", "p99 and number of each verb of a workload, over the whole time that is shown.",
			"s",
			[]string{"workload", "verb"},
			query{expr: top(50, "("+strings.ReplaceAll(quantile("0.99", "workload, verb", took, s), "$__rate_interval",
				"$__range")+")"), legend: "p99"},
			query{
				expr: top(50, by("workload, verb", "round(increase(container_rdma_verbs_total"+s+"[$__range]))")), legend: "Calls",
				unit: "short",
			}),
	}}
}

func workloadGPUs() row {
	s := sel(own)
	return row{"GPUs", []panel{
		each("GPU memory", "Memory that the processes of the workload have on GPUs.", "bytes",
			by("workload", "container_gpu_memory_used_bytes"+s)),
		each("GPUs in use", "Use of the compute units, summed over GPUs: 1 is one GPU all of the time. MIG instances and virtual "+
			"GPUs do not report it.", "none",
			by("workload", "container_gpu_utilization_ratio"+sel(own, `engine=~"sm|cu"`))),
		table("Given and not used", "GPUs that a workload was given and on which it has no process now. A job that has just begun, "+
			"or ends, is one, too.", "none",
			[]string{"namespace", "workload", "instance", "gpu_id", "uuid"}, query{expr: idle(own), legend: "Given"}),
		graph("Opens of device nodes", "Opens per second of the nodes of HCAs and GPUs. Denied: by the device cgroup, so that the "+
			"container was not given the device.",
			"ops", query{
				expr: top(20, by("workload, class, result", rate("container_device_opens_total", s))), legend: "{{workload}} " +
					"{{class}} {{result}}",
			}),
	}}
}

func workloadHost() row {
	s := sel(own)
	return row{"CPU, memory, network", []panel{
		each("CPU", "CPUs that the workload uses.", "none", by("workload", rate("container_cpu_usage_seconds_total", s))),
		each("CPU quota used up", "Part of the periods of the CPU quota in which it was used up. Threads that poll RDMA must not be "+
			"throttled.", "percentunit",
			by("workload", rate("container_cpu_cfs_throttled_periods_total", s))+" / "+by("workload",
				rate("container_cpu_cfs_periods_total", s))),
		each("Memory", "Working set: what the kubelet evicts by.", "bytes", by("workload", "container_memory_working_set_bytes"+s)),
		each("Memory against its limit", "Working set against the limit; of workloads that have one.", "percentunit",
			by("workload", "container_memory_working_set_bytes"+s)+" / ("+by("workload", "container_spec_memory_limit_bytes"+s)+" > "+
				"0)").above(0.9, 0.97),
		graph("Network (not RDMA)", "Bytes per second on the interfaces of pods, sent above zero. Pods in the node's network have "+
			"none.", "Bps",
			query{expr: top(15, by("workload", rate("container_network_transmit_bytes_total", s))), legend: "{{workload}} sent"},
			query{
				expr: top(15, by("workload", rate("container_network_receive_bytes_total", s))), legend: "{{workload}} received",
				below: true,
			}),
		graph("OOM kills and restarts", "In the last five minutes.", "none",
			query{expr: top(15, by("workload", "increase(container_oom_events_total"+s+"[5m])")), legend: "{{workload}} OOM kills"},
			query{expr: top(15, by("workload", "increase(container_restarts_total"+s+"[5m])")), legend: "{{workload}} restarts"}),
	}}
}

// idle are GPUs that are allocated to a workload without processes on them.
func idle(labels ...string) string {
	return by("namespace, workload, instance, gpu_id, uuid", "container_gpu_allocated"+sel(labels...)+
		" unless on (instance, workload, container_id, uuid) container_gpu_processes"+sel(labels...)+" > 0")
}
