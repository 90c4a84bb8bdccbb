// SPDX-License-Identifier: Apache-2.0

package main

// sensor shows the state of the sensors, their cost, and the data that they lost.
func sensor() dashboard {
	return dashboard{
		uid: "accelscope-sensor", title: "accelscope / Sensor", refresh: "1m", span: "6h",
		description: "State and cost of the sensors, and the data that they lost or could not attribute.",
		variables:   []variable{node},
		rows:        []row{sensorNow(), sensorState(), sensorCost(), sensorBlind(), sensorProbes()},
	}
}

// withoutShares selects the losses that accelscope_workload_lost_total does not have.
func withoutShares() string { return sel(`reason!~".*_share"`) }

func sensorNow() row {
	s := sel()
	lostShares := "accelscope_workload_lost_total" + s // a series begins with its first loss
	share := func(total, unowned string) string { return "sum(" + unowned + ") / (sum(" + total + ") > 0)" }
	return row{"Now", []panel{
		stat("Sensors", "Sensors that Prometheus scrapes.", "none", "count(accelscope_build_info"+s+")"),
		stat("Failed or stuck sources",
			"Sources in state failed or stuck. Absent and unsupported sources are not counted: not every node has all "+
				"hardware.", "none",
			"sum(accelscope_source_state"+sel(`state=~"failed|stuck"`)+") or vector(0)").above(0, 1),
		stat("Unreadable devices", "Devices that a source cannot read (state failed, stuck, blocked or quarantined).", "none",
			"sum(accelscope_device_state"+sel(`state=~"failed|stuck|blocked|quarantined"`)+") or vector(0)").above(0, 1),
		stat("Unattributed queue pairs",
			"Share of the queue pairs that is attributed to no workload. The kernel's own queue pairs are included: "+
				"each HCA has some.", "percentunit",
			share("container_rdma_resources"+sel(`type="qp"`), "container_rdma_resources"+sel(`type="qp"`, `workload=""`))),
		stat("Lost events", "Events that the probes could not record in the selected time range, because a map was full.", "none",
			"sum(increase(accelscope_probe_lost_total"+withoutShares()+"[$__range])) + (sum("+lostShares+" unless "+lostShares+
				" offset $__range or increase("+lostShares+"[$__range])) or vector(0))").above(1, 100),
		stat("Slowest scrape", "Duration of the slowest scrape now, as measured by Prometheus.", "s",
			"max(scrape_duration_seconds"+s+" and on (instance, job) accelscope_build_info)").above(1, 5),
	}}
}

func sensorState() row {
	s := sel()
	return row{"Sources", []panel{
		table("Sources that are not ok",
			"Sources in a state other than ok. Run accelscope doctor on the node for the reason and the remedy.",
			"none",
			[]string{"instance", "source", "state"},
			query{expr: top(100, by("instance, source, state", "accelscope_source_state"+sel(`state!="ok"`)+" == 1")), legend: "Active"}),
		graph("Sources by state",
			"Number of sources in each state, over all sensors. Investigate a change from ok to failed or stuck.", "none",
			query{expr: "sum by (state) (accelscope_source_state" + s + ")", legend: "{{state}}"}),
		table("Devices that are not ok", "Devices in a state other than ok. An unreadable device affects only its own series.", "none",
			[]string{"instance", "source", "device", "state"},
			query{
				expr:   top(100, by("instance, source, device, state", "accelscope_device_state"+sel(`state!="ok"`)+" == 1")),
				legend: "Active",
			}),
		graph("Age of source data",
			"Time since the last answer of each source, maximum over the sensors. Sources that are read at each "+
				"scrape have a low age.", "s",
			query{expr: "max by (source) (accelscope_source_age_seconds" + s + ")", legend: "{{source}}"}).above(30, 120),
		table("Builds", "Versions of the sensors.", "none", []string{"version", "revision", "goversion"},
			query{expr: "count by (version, revision, goversion) (accelscope_build_info" + s + ")", legend: "Sensors"}),
	}}
}

func sensorCost() row {
	s := sel()
	const mine = " and on (instance, job) accelscope_build_info"
	return row{"Cost", []panel{
		graph("CPU of the sensor",
			"CPUs that the process uses, user and system. The cost of probes in the watched processes is shown below.", "none",
			query{expr: top(20, rate("process_cpu_seconds_total", s)+mine), legend: "{{instance}}"}),
		graph("Memory of the sensor", "Resident memory of the process. BPF maps are memory of the kernel and not included.", "bytes",
			query{expr: top(20, "process_resident_memory_bytes"+s+mine), legend: "{{instance}}"}),
		graph("Scrape duration", "Duration of scrapes, as measured by Prometheus.", "s",
			query{expr: top(20, "scrape_duration_seconds"+s+mine), legend: "{{instance}}"}),
		graph("Samples per scrape", "Samples in each scrape: the cost of a sensor for Prometheus.", "none",
			query{expr: top(20, "scrape_samples_scraped"+s+mine), legend: "{{instance}}"}),
		graph("Data path probes: share of CPU time",
			"Share of its CPU time that a process spends in probes, for the most affected process of each workload. "+
				"Dashed: the budget. Only with --rdma.datapath.", "percentunit",
			query{expr: owner(top(20, "max by (workload) (accelscope_budget_spent_ratio"+s+")")), legend: "{{workload}}"},
			query{expr: "min(accelscope_budget_limit_ratio" + s + " < Inf)", legend: "budget", dashed: true}),
		graph("Data path probes: CPU time", "CPUs that the probes use in all processes of a workload.", "none",
			query{expr: owner(top(20, by("workload", rate("accelscope_datapath_spent_seconds_total", s)))), legend: "{{workload}}"}),
		graph("Threads", "Threads of the sensor. A growing number indicates system calls that hang because a driver does not answer.", "none",
			query{expr: top(10, "go_threads"+s+mine), legend: "{{instance}}"}),
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
	wire := "sum by (instance) (" + rate("rdma_port_transmit_bytes_total", s) + ")"
	owned := "(sum by (instance) (" + rate("container_rdma_transmit_bytes_total", sel(`workload!=""`)) +
		" and on (instance, device) rdma_port_transmit_bytes_total) or 0 * " + wire + ")"
	return row{"Unattributed use and losses", []panel{
		graph("Unattributed bytes",
			"Share of the bytes sent by ports that is attributed to no workload. Only HCAs that count bytes. If "+
				"several workloads share an HCA, bytes are attributed only with --rdma.datapath or counters of queue "+
				"pairs.", "percentunit",
			query{expr: top(20, "1 - clamp_max("+owned+" / ("+wire+" > 0), 1)"), legend: "{{instance}}"}).max(1),
		graph("Unattributed queue pairs",
			"Share of the queue pairs that is attributed to no workload. The kernel's own queue pairs are included.",
			"percentunit",
			query{
				expr:   top(20, unowned("container_rdma_resources", `type="qp"`)+" / "+whole("container_rdma_resources", `type="qp"`)),
				legend: "{{instance}}",
			}).max(1),
		graph("Unattributed GPU memory", "Share of the GPU memory in use that belongs to no process of a known workload.", "percentunit",
			query{expr: top(20, unowned(memory)+" / "+whole(memory)), legend: "{{instance}}"}).max(1),
		graph("Cgroups without a name",
			"Cgroups per second that have kernel counters but never got a name. Usually, they exist only briefly.", "ops",
			query{expr: top(20, rate("accelscope_unresolved_cgroups_total", s)), legend: "{{instance}}"}),
		graph("Lost events by reason",
			"Events per second that the probes could not record, by reason. The reason is usually a full map. The first loss of a "+
				"workload that has its share of a map (_share) is in Lost events only.", "ops",
			query{
				expr: top(20, by("reason", rate("accelscope_probe_lost_total", withoutShares()))+" or "+
					by("reason", rate("accelscope_workload_lost_total", s))),
				legend: "{{reason}}",
			}),
		graph("Contexts probed late",
			"Verbs contexts per second that could send before their provider was probed. Their first calls are not "+
				"counted.", "ops",
			query{expr: top(20, rate("accelscope_datapath_late_total", s)), legend: "{{instance}}"}),
	}}
}

func sensorProbes() row {
	s := sel()
	return row{"Probes and events", []panel{
		table("Hooks in the kernel",
			"Number of sensors by hook, tier and state. absent: there is no device to watch, or the hook is disabled.", "none",
			[]string{"hook", "tier", "state"},
			query{expr: "sum by (hook, tier, state) (accelscope_probe_hook_state" + s + " == 1)", legend: "Sensors"}),
		graph("Fullest BPF maps", "Share of the entries of BPF maps that are in use. A full map loses new entries: raise "+
			"--probe.map-entries, --probe.max-objects or --rdma.datapath-max-contexts.", "percentunit",
			query{
				expr:   top(20, "accelscope_probe_map_entries"+s+" / (accelscope_probe_map_capacity"+s+" > 0)"),
				legend: "{{instance}} {{map}}",
			}).max(1).above(0.8, 0.95),
		graph("Data path probes", "Number of watched processes and of attached probes.", "none",
			query{expr: "sum(accelscope_datapath_processes" + s + ")", legend: "processes"},
			query{expr: "sum(accelscope_datapath_probes" + s + ")", legend: "probes"}),
		graph("Events", "Event records per second that the OpenTelemetry Collector accepted, and those that were lost, by reason. "+
			"Only with --events.otlp-endpoint.", "ops",
			query{expr: "sum(" + rate("accelscope_events_sent_total", s) + ")", legend: "sent"},
			query{expr: by("reason", rate("accelscope_events_dropped_total", s)), legend: "lost, {{reason}}"}),
		graph("Event queue", "Share of the event queue that is in use. Above three quarters, only exits and OOM kills are queued.", "percentunit",
			query{
				expr:   top(20, "accelscope_events_queued"+s+" / accelscope_events_queue_capacity"+s),
				legend: "{{instance}}",
			}).max(1).above(0.5, 0.75),
	}}
}
