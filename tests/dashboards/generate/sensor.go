// SPDX-License-Identifier: Apache-2.0

package main

// sensor shows the state of the sensors, their cost, and the data that they lost.
func sensor() dashboard {
	return dashboard{
		uid: "accelscope-sensor", title: "accelscope / Sensor", refresh: "1m", span: "6h",
		description: "Whether the sensors are well, what they cost, and what they cannot attribute.",
		variables:   []variable{node},
		rows:        []row{sensorNow(), sensorState(), sensorCost(), sensorBlind(), sensorProbes()},
	}
}

func sensorNow() row {
	s := sel()
	share := func(total, unowned string) string { return "sum(" + unowned + ") / (sum(" + total + ") > 0)" }
	return row{"Now", []panel{
		stat("Sensors", "Sensors that were scraped.", "none", "count(accelscope_build_info"+s+")"),
		stat("Sources that failed or hang", "Sources in state failed or stuck. Absent and unsupported ones are not counted: not "+
			"every node has everything.", "none",
			"sum(accelscope_source_state"+sel(`state=~"failed|stuck"`)+")").above(0, 1),
		stat("Devices not read", "Devices that a source cannot read: failed, stuck, or quarantined.", "none",
			"sum(accelscope_device_state"+sel(`state=~"failed|stuck|quarantined"`)+") or vector(0)").above(0, 1),
		stat("Queue pairs without an owner", "Part of the queue pairs that nobody is known to own, the kernel's own among them (each "+
			"HCA has some).", "percentunit",
			share("container_rdma_resources"+sel(`type="qp"`), "container_rdma_resources"+sel(`type="qp"`, `workload=""`))),
		stat("Losses", "Events that could not be recorded in the time that is shown, for want of room.", "none",
			"sum(increase(accelscope_probe_lost_total"+s+"[$__range]))").above(1, 100),
		stat("Slowest scrape", "How long the slowest scrape takes now, as Prometheus measures it.", "s",
			"max(scrape_duration_seconds"+s+" and on (instance, job) accelscope_build_info)").above(1, 5),
	}}
}

func sensorState() row {
	s := sel()
	return row{"Sources", []panel{
		table("Sources that are not ok", "State of sources other than ok. accelscope doctor, on the node, says why, and what helps.",
			"none",
			[]string{"instance", "source", "state"},
			query{expr: top(100, by("instance, source, state", "accelscope_source_state"+sel(`state!="ok"`)+" == 1")), legend: "Is"}),
		graph("Sources by state", "Number of sources in each state, of all sensors. A step from ok to failed or stuck is worth a "+
			"look.", "none",
			query{expr: "sum by (state) (accelscope_source_state" + s + ")", legend: "{{state}}"}),
		table("Devices that are not ok", "State of single devices in a source: a bad device costs its own series.", "none",
			[]string{"instance", "source", "device", "state"},
			query{
				expr:   top(100, by("instance, source, device, state", "accelscope_device_state"+sel(`state!="ok"`)+" == 1")),
				legend: "Is",
			}),
		graph("Age of what sources say", "How long ago a source answered last. The largest, by source. Those that are asked at each "+
			"scrape are young.", "s",
			query{expr: "max by (source) (accelscope_source_age_seconds" + s + ")", legend: "{{source}}"}).above(30, 120),
		graph("Answers of sources", "How long the last answer took. The largest, by source.", "s",
			query{expr: "max by (source) (accelscope_source_duration_seconds" + s + ")", legend: "{{source}}"}),
		table("Builds", "Versions that run.", "none", []string{"version", "revision", "goversion"},
			query{expr: "count by (version, revision, goversion) (accelscope_build_info" + s + ")", legend: "Sensors"}),
	}}
}

func sensorCost() row {
	s := sel()
	const mine = " and on (instance, job) accelscope_build_info"
	return row{"What it costs", []panel{
		graph("CPU of the sensor", "CPUs that the process uses, user and system. What probes cost the processes that they watch is "+
			"below.", "none",
			query{expr: top(20, rate("process_cpu_seconds_total", s)+mine), legend: "{{instance}}"}),
		graph("Memory of the sensor", "Resident memory. BPF maps are the kernel's, and not in it.", "bytes",
			query{expr: top(20, "process_resident_memory_bytes"+s+mine), legend: "{{instance}}"}),
		graph("Scrapes", "How long scrapes take, as Prometheus measures it.", "s",
			query{expr: top(20, "scrape_duration_seconds"+s+mine), legend: "{{instance}}"}),
		graph("Series", "Samples of a scrape: what a sensor costs Prometheus.", "none",
			query{expr: top(20, "scrape_samples_scraped"+s+mine), legend: "{{instance}}"}),
		graph("Probes of the data path: part of CPU time", "Part of its CPU time that probes took of the process of which it was "+
			"most, by workload; dashed: the budget. "+
			"Only with --rdma.datapath.", "percentunit",
			query{expr: owner(top(20, "max by (workload) (accelscope_budget_spent_ratio"+s+")")), legend: "{{workload}}"},
			query{expr: "min(accelscope_budget_limit_ratio" + s + " < Inf)", legend: "budget", dashed: true}),
		graph("Probes of the data path: CPU time", "CPUs that probes take of all processes of a workload.", "none",
			query{expr: owner(top(20, by("workload", rate("accelscope_datapath_spent_seconds_total", s)))), legend: "{{workload}}"}),
		graph("Threads and goroutines", "Threads that grow in number hang in system calls: a driver that does not answer.", "none",
			query{expr: top(10, "go_threads"+s+mine), legend: "{{instance}} threads"},
			query{expr: top(10, "go_goroutines"+s+mine), legend: "{{instance}} goroutines"}),
	}}
}

func sensorBlind() row {
	s := sel()
	unowned := func(name string, labels ...string) string {
		return "sum by (instance) (" + name + sel(append(labels, `workload=""`)...) + ")"
	}
	whole := func(name string, labels ...string) string {
		return "(sum by (instance) (" + name + sel(labels...) + ") > 0)"
	}
	const memory = "container_gpu_memory_used_bytes"
	wire := "sum by (instance) (" + rate("infiniband_port_transmit_data_bytes_total", s) + ")"
	owned := "(sum by (instance) (" + rate("container_rdma_transmit_bytes_total", sel(`workload!=""`)) +
		" and on (instance, device) infiniband_port_transmit_data_bytes_total) or 0 * " + wire + ")"
	return row{"What it does not see", []panel{
		graph("Bytes without an owner", "Part of the bytes that ports send that nobody is known to own; of HCAs that count bytes. "+
			"Where several workloads share an HCA, bytes have owners only with "+
			"--rdma.datapath or counters of queue pairs.", "percentunit",
			query{expr: top(20, "1 - clamp_max("+owned+" / ("+wire+" > 0), 1)"), legend: "{{instance}}"}).max(1),
		graph("Queue pairs without an owner", "Part of the queue pairs that nobody is known to own. The kernel's own are some.",
			"percentunit",
			query{
				expr:   top(20, unowned("container_rdma_resources", `type="qp"`)+" / "+whole("container_rdma_resources", `type="qp"`)),
				legend: "{{instance}}",
			}).max(1),
		graph("GPU memory without an owner", "Part of the GPU memory in use that no process of a known workload has.", "percentunit",
			query{expr: top(20, unowned(memory)+" / "+whole(memory)), legend: "{{instance}}"}).max(1),
		graph("Cgroups without a name", "Cgroups per second that the kernel's counters speak of and that never got a name. Very "+
			"short-lived ones.", "ops",
			query{expr: top(20, rate("accelscope_unresolved_cgroups_total", s)), legend: "{{instance}}"}),
		graph("Losses by reason", "Events per second that could not be recorded, by reason: maps that are full.", "ops",
			query{expr: top(20, by("reason", rate("accelscope_probe_lost_total", s))), legend: "{{reason}}"}),
		graph("Contexts that were probed late", "Verbs contexts per second that could send before their provider was probed: their "+
			"first calls are not counted.", "ops",
			query{expr: top(20, rate("accelscope_datapath_late_total", s)), legend: "{{instance}}"}),
	}}
}

func sensorProbes() row {
	s := sel()
	return row{"Probes, names, events", []panel{
		table("Hooks in the kernel", "How the hooks are attached: number of sensors by hook, tier and state. Absent: there is no "+
			"device to watch, or none is wanted.", "none",
			[]string{"hook", "tier", "state"},
			query{expr: "sum by (hook, tier, state) (accelscope_probe_hook_state" + s + " == 1)", legend: "Sensors"}),
		graph("BPF maps, fullest", "Part of the entries of BPF maps that are in use. A map that is full loses what is new: "+
			"--probe.map-entries, --probe.max-objects.", "percentunit",
			query{
				expr:   top(20, "accelscope_probe_map_entries"+s+" / (accelscope_probe_map_capacity"+s+" > 0)"),
				legend: "{{instance}} {{map}}",
			}).max(1).above(0.8, 0.95),
		graph("Probes of the data path", "Processes that are watched, and probes that are attached.", "none",
			query{expr: "sum(accelscope_datapath_processes" + s + ")", legend: "processes"},
			query{expr: "sum(accelscope_datapath_probes" + s + ")", legend: "probes"}),
		graph("Events", "Event records per second that the OpenTelemetry Collector took, and those that were lost, by reason. Only "+
			"with --events.otlp-endpoint.", "ops",
			query{expr: "sum(" + rate("accelscope_events_sent_total", s) + ")", legend: "sent"},
			query{expr: by("reason", rate("accelscope_events_dropped_total", s)), legend: "lost, {{reason}}"}),
		graph("Queue of events", "Part of the queue that is in use. Above three quarters only exits and OOM kills get in.", "percentunit",
			query{
				expr:   top(20, "accelscope_events_queued"+s+" / accelscope_events_queue_capacity"+s),
				legend: "{{instance}}",
			}).max(1).above(0.5, 0.75),
	}}
}
