// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// own selects the chosen workloads.
const own = `namespace=~"$namespace",workload=~"$workload"`

// workloads shows the use of HCAs, GPUs, CPU and memory by a namespace or a workload.
func workloads() dashboard {
	return dashboard{
		uid: "accelscope-workloads", title: "accelscope / Namespaces and workloads", refresh: "30s", span: "1h",
		description: "Use of RDMA, GPUs, CPU and memory by namespaces and workloads, with the latencies and errors of RDMA.",
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
		table("Workloads", "The 50 largest workloads of each column. An empty cell is zero, not collected, or not among the 50 "+
			"largest. Of workloads that are counted in surveys only, bytes are included that the port counts.", "none",
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
		table("Jobs of the selected workloads", "Jobs and the number of their workloads on the selected nodes.", "none",
			[]string{"namespace", "job_kind", "job_name"},
			query{
				expr:   top(50, "count by (namespace, job_kind, job_name) (accelscope_workload_info"+sel(own, `job_name!=""`)+")"),
				legend: "Workloads",
			}).leadsTo("Show this job", jobLink),
		each("Registered memory", "Memory registered for RDMA, by workload.", "bytes",
			by("workload", "container_rdma_registered_bytes"+sel(own))),
		graph("RDMA objects by type", "RDMA objects of the selected workloads, all together.", "none",
			query{expr: by("type", "container_rdma_resources"+sel(own)), legend: "{{type}}"}),
		graph("Registered memory by location",
			"Location of the registered memory: host, gpu (GPUDirect), dmabuf (a buffer of another device), device (memory of "+
				"the HCA), unknown (registered before the sensor started, or not reported by the kernel). Without gpu and "+
				"unknown, no selected workload uses GPUDirect.", "bytes", query{
				expr:   by("memory", "container_rdma_registered_bytes"+sel(own)),
				legend: "{{memory}}",
			}).stacked(),
		graph("RDMA objects created",
			"Queue pairs (of DevX: devx_obj) and memory regions created per second. A persistently high rate means that workloads set up connections or "+
				"memory again and again.",
			"ops",
			query{expr: by("type", rate("container_rdma_objects_created_total", sel(own, `type=~"qp|mr|devx_obj"`))), legend: "{{type}}"}),
	}}
}

func dataPath() row {
	s := sel(own)
	const done = "container_rdma_completion_duration_seconds"
	return row{"Data path", []panel{
		graph("Bytes by method", "Bytes per second that the selected workloads send (above zero) and receive (below), by method of "+
			"measurement. No byte is counted by two methods.", "Bps",
			query{expr: by("method", rate("container_rdma_transmit_bytes_total", s)), legend: "sent, {{method}}"},
			query{expr: by("method", rate("container_rdma_receive_bytes_total", s)), legend: "received, {{method}}", below: true}),
		graph("Bytes by workload",
			"Bytes per second, sent above zero, received below. Dashed: sent and received bytes of a workload of which some are "+
				"not counted, a lower bound; the table beside it has the reasons.", "Bps",
			query{expr: owner(top(15, by("workload", counted("transmit", s)))), legend: "{{workload}} sent"},
			query{expr: owner(top(15, by("workload", counted("receive", s)))), legend: "{{workload}} received", below: true},
			query{expr: top(15, by("workload", lowerBound(s))), legend: "{{workload}}, at least", dashed: true}),
		table("Workloads whose bytes are not all counted",
			"Workloads that used an HCA in the selected time range, and the reasons why their bytes are missing or are lower "+
				"bounds: see container_rdma_datapath_coverage in the reference of metrics.", "none",
			[]string{"workload", "instance", "device", "reason"},
			query{
				expr: top(100, "count by (workload, instance, device, reason) (last_over_time(container_rdma_datapath_coverage"+s+
					"[$__range]) == 0)"),
				legend: "Containers",
			}),
		graph("Bytes by switch port",
			"Bytes per second that workloads send to the switch port of their HCA. A node with --collector.fabric reads the "+
				"fabric for all nodes. HCAs with several links are left out.",
			"Bps", query{
				expr: owner(top(15, by("workload, uplink, uplink_port", rate("container_rdma_transmit_bytes_total", s)+
					" * on (instance, device) group_left (node_guid) ("+deviceGUIDs()+
					") * on (node_guid) group_left (uplink, uplink_port) ("+onlyLinks()+")"))),
				legend: "{{workload}} → {{uplink}}/{{uplink_port}}",
			}),
		graph("Work requests by opcode",
			"Work requests posted per second. Needs --rdma.datapath. Requests that bypass ibv_post_send are not seen.", "ops",
			query{expr: by("opcode", rate("container_rdma_work_requests_total", s)), legend: "{{opcode}}"}),
		graph("Time from post to completion, p50 and p99",
			"Time from the post of a signaled work request until its completion is polled. It includes the network, "+
				"the remote side, and the time until the workload polls.", "s",
			query{expr: top(10, "("+quantile("0.5", "workload, opcode", done, s)+")"), legend: "p50 {{workload}} {{opcode}}"},
			query{expr: top(10, "("+quantile("0.99", "workload, opcode", done, s)+")"), legend: "p99 {{workload}} {{opcode}}"}),
		heatmap("Time from post to completion", "The same durations as a heatmap, for the selected workloads together.", "s", buckets(done, s)),
		graph("Completion errors by status",
			"Completions with an error per second, as polled by the workloads. After the first error of a queue pair, "+
				"its other requests complete with wr_flush_error.",
			"ops", query{
				expr: top(20, by("workload, status", rate("container_rdma_completion_errors_total", s))), legend: "{{workload}} " +
					"{{status}}",
			}).above(0, 0.001),
	}}
}

// uncovered are the workloads and HCAs with bytes that are not counted. The reason unattributed is of earlier bytes only: rates are complete.
const uncovered = " on (instance, workload, container_id, device) (container_rdma_datapath_coverage{reason!=\"unattributed\"} == 0)"

// counted is the rate of bytes of workloads whose bytes are all counted.
func counted(direction, selector string) string {
	return rate("container_rdma_"+direction+"_bytes_total", selector) + " unless" + uncovered
}

// lowerBound is the rate of bytes of the other workloads, one series for each direction.
func lowerBound(selector string) string {
	of := func(direction string) string {
		return "label_replace(" + rate("container_rdma_"+direction+"_bytes_total", selector) + " and" + uncovered +
			`, "direction", "` + direction + `", "workload", ".*")`
	}
	return of("transmit") + " or " + of("receive")
}

// deviceGUIDs are the node GUIDs of HCAs. The fabric lists no VFs: a VF has the GUID of its PF.
func deviceGUIDs() string {
	const pf = `infiniband_device_info{node_guid=~"0x.+",pf_device=""}`
	return "max by (instance, device, node_guid) (" + pf + ") or " +
		`max by (instance, device, pf_device) (infiniband_device_info{pf_device!=""}) * on (instance, pf_device) group_left (node_guid) ` +
		`max by (instance, pf_device, node_guid) (label_replace(` + pf + `, "pf_device", "$1", "device", "(.*)"))`
}

// onlyLinks are the links of the HCAs that have only one. The bytes of a workload are known by HCA, not by port.
func onlyLinks() string {
	const links = `max by (node_guid, uplink, uplink_port) (label_replace(infiniband_hca_uplink_info, "node_guid", "$1", "guid", "(.*)"))`
	return links + " unless on (node_guid) count by (node_guid) (" + links + ") > 1"
}

func controlPath() row {
	s := sel(own)
	const took = "container_rdma_verbs_duration_seconds"
	return row{"Verbs (control path)", []panel{
		each("Verbs by workload", "Control-path verbs per second.", "ops", by("workload", rate("container_rdma_verbs_total", s))),
		graph("Failed verbs", "Control-path verbs per second that return an error.", "ops",
			query{expr: top(20, by("workload, verb, errno", rate("container_rdma_verbs_errors_total", s))), legend: "{{workload}} " +
				"{{verb}} {{errno}}"}),
		graph("Latency of verbs, p50 and p99",
			"Quantiles over all verbs of a workload. It is normal that the registration of a large memory region "+
				"takes long. Needs the recording rules.", "s",
			query{expr: top(10, verbsQuantile("0.5", "workload", s)), legend: "p50 {{workload}}"},
			query{expr: top(10, verbsQuantile("0.99", "workload", s)), legend: "p99 {{workload}}"}),
		table("Latency of verbs over the selected time range",
			"p99 and number of calls of each verb of a workload, over the selected time range.",
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
		each("GPU memory", "GPU memory that the processes of the workload have allocated.", "bytes",
			by("workload", "container_gpu_memory_used_bytes"+s)),
		each("GPUs in use",
			"Use of the compute units, summed over GPUs: 1 is one GPU used all of the time. MIG instances and virtual "+
				"GPUs do not report it.", "none",
			by("workload", "container_gpu_utilization_ratio"+sel(own, `engine=~"sm|cu"`))),
		table("Allocated but idle GPUs",
			"GPUs that are allocated to a workload without a process on them now. Workloads that have just started or "+
				"are about to end are included.", "none",
			[]string{"namespace", "workload", "instance", "gpu_id", "uuid"}, query{expr: idle(own), legend: "Allocated"}),
		graph("Opens of device nodes",
			"Opens of the device nodes of HCAs and GPUs per second. denied: refused by the device cgroup, which does "+
				"not allow the container to use the device.",
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
		each("CPU throttling",
			"Share of the periods of the CPU quota in which the workload was throttled. Threads that poll RDMA must "+
				"not be throttled.", "percentunit",
			by("workload", rate("container_cpu_cfs_throttled_periods_total", s))+" / "+by("workload",
				rate("container_cpu_cfs_periods_total", s))),
		each("Memory", "Working set, which the kubelet uses for evictions.", "bytes", by("workload", "container_memory_working_set_bytes"+s)),
		each("Memory relative to its limit", "Working set divided by the memory limit, for workloads that have a limit.", "percentunit",
			by("workload", "container_memory_working_set_bytes"+s)+" / ("+by("workload", "container_spec_memory_limit_bytes"+s)+" > "+
				"0)").above(0.9, 0.97),
		graph("Network (not RDMA)",
			"Bytes per second on the interfaces of pods: sent above zero, received below. Pods in the node's network "+
				"namespace have none.", "Bps",
			query{expr: top(15, by("workload", rate("container_network_transmit_bytes_total", s))), legend: "{{workload}} sent"},
			query{
				expr: top(15, by("workload", rate("container_network_receive_bytes_total", s))), legend: "{{workload}} received",
				below: true,
			}),
		graph("OOM kills and restarts", "OOM kills and container restarts in the last five minutes.", "none",
			query{expr: top(15, by("workload", "increase(container_oom_events_total"+s+"[5m])")), legend: "{{workload}} OOM kills"},
			query{expr: top(15, by("workload", "increase(container_restarts_total"+s+"[5m])")), legend: "{{workload}} restarts"}),
	}}
}

// idle are GPUs that are allocated to a workload without processes on them. GPUs whose processes are not collected are
// not idle.
func idle(labels ...string) string {
	return by("namespace, workload, instance, gpu_id, uuid", "container_gpu_allocated"+sel(labels...)+
		" and on (instance, workload, container_id, uuid) container_gpu_processes"+sel(labels...)+" == 0")
}
