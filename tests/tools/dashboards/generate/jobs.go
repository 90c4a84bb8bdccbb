// SPDX-License-Identifier: Apache-2.0

package main

// jobName selects jobs by name. Jobs of Slurm are in no namespace.
var jobName = variable{
	"job_name", "Job", `label_values(accelscope_workload_info{instance=~"$node",namespace=~"$namespace",job_name!=""}, job_name)`, ".+",
}

// Links from a row of a table: to a job, and to the node of a member.
const (
	jobLink = "/d/accelscope-jobs?${datasource:queryparam}&var-namespace=${__data.fields.namespace}" +
		"&var-job_name=${__data.fields.job_name}"
	nodeLink = "/d/accelscope-hca?${datasource:queryparam}&var-node=${__data.fields.instance}"
)

// jobs shows jobs over all their nodes, and their members compared with each other.
func jobs() dashboard {
	return dashboard{
		uid: "accelscope-jobs", title: "accelscope / Jobs", refresh: "30s", span: "1h",
		description: "Jobs over all their nodes: GPUs given and used, bytes, latency and errors, and the member that differs from the others.",
		variables:   []variable{node, namespace, jobName},
		rows:        []row{jobTotals(), jobEnergy(), jobMembers(), jobCollectives(), jobGraphs()},
	}
}

const (
	inNamespace = `namespace=~"$namespace"`
	memberOf    = "instance, namespace, workload"
	rankOf      = memberOf + ", communicator, rank"
	jobOf       = "namespace, job_kind, job_name"
)

// members has each workload of the selected jobs, with labels of its job, always 1. "topk": a container that was started again
// has two for a moment.
func members(labels string) string {
	return "topk by (instance, workload) (1, max by (instance, workload, " + labels + ") (accelscope_workload_info" +
		sel(inNamespace, `job_name=~"$job_name"`) + "))"
}

// member is the sum of each member of the selected jobs.
func member(expr string) string {
	return by(memberOf, expr) + " * on (instance, workload) group_left (job_name) " + members("job_name")
}

// total is the sum of each selected job over all its members.
func total(expr string) string {
	return by(jobOf, by(memberOf, expr)+" * on (instance, workload) group_left (job_kind, job_name) "+members("job_kind, job_name"))
}

// selected has the rate of a counter of workloads.
func selected(counter string) string { return rate(counter, sel(inNamespace, `workload!=""`)) }

// given are the GPUs of workloads, each once. Idle GPUs have no process.
func given() string {
	return "max by (" + memberOf + ", uuid) (container_gpu_allocated" + sel(inNamespace, `workload!=""`) + ")"
}

func unused() string {
	return "max by (" + memberOf + ", uuid) (container_gpu_allocated" + sel(inNamespace, `workload!=""`) +
		" and on (instance, workload, container_id, uuid) container_gpu_processes" + sel(inNamespace) + " == 0)"
}

// failures are failed verbs and completions with errors. No two of their series have the same labels, so "or" drops none.
func failures() string {
	return by(memberOf, selected("container_rdma_verbs_errors_total")+" or "+selected("container_rdma_completion_errors_total"))
}

// memberQuantile is the p99 of a histogram of each member.
func memberQuantile(histogram string) string {
	return "(" + quantile("0.99", memberOf, histogram, sel(inNamespace, `workload!=""`)) +
		") * on (instance, workload) group_left (job_name) " + members("job_name")
}

// memberVerbs is the p99 of the verbs of each member, by a recording rule.
func memberVerbs() string {
	return "max by (" + memberOf + ") (" + verbsP99 + sel(inNamespace, `workload!=""`) + ") * on (instance, workload) group_left (job_name) " +
		members("job_name")
}

const completions = "container_rdma_completion_duration_seconds"

// outlier is how many times a member is slower than the median of its job: by the p99 of its completions, or else by the bytes that
// it sends. 1 is the median.
func outlier() string {
	median := func(expr string) string { return "quantile by (namespace, job_name) (0.5, " + expr + ")" }
	latency, sent := memberQuantile(completions), member(selected("container_rdma_transmit_bytes_total"))
	const matching = " / on (namespace, job_name) group_left () "
	return "(" + latency + ")" + matching + median(latency) +
		" or on (instance, workload) 1 / ((" + sent + ")" + matching + "(" + median(sent) + " > 0) > 0)"
}

func jobTotals() row {
	column := func(legend, unit, expr string) query { return query{expr: top(50, expr), legend: legend, unit: unit} }
	return row{"Jobs", []panel{
		table("Jobs", "The 50 largest jobs of each column, over all selected nodes. An empty cell is zero, not collected, or not "+
			"among the 50 largest. Idle GPUs have no process of the job. The name is that of the controller of the pods, or of their labels, "+
			"which their author can write.", "none",
			[]string{"namespace", "job_kind", "job_name"},
			column("Nodes", "none", "count by ("+jobOf+") (count by (instance, "+jobOf+") (accelscope_workload_info"+
				sel(inNamespace, `job_name=~"$job_name"`)+"))"),
			column("GPUs", "none", total(given())),
			column("Idle GPUs", "none", total(unused())),
			column("Sent", "Bps", total(selected("container_rdma_transmit_bytes_total"))),
			column("Received", "Bps", total(selected("container_rdma_receive_bytes_total"))),
			column("Errors", "ops", total(failures())+" > 0"),
		).wide(24).high(8).leadsTo("Show this job", jobLink),
	}}
}

// jobEnergy shows watts, and kWh of the shown time.
func jobEnergy() row {
	const gpus, cpus = "container_gpu_energy_joules_total", "container_cpu_energy_joules_total"
	idle := "(" + selected(gpus) + " and on (instance, workload, container_id, uuid) container_gpu_processes" + sel(inNamespace) + " == 0)"
	kWh := func(legend, expr string) query { return query{expr: top(50, total(expr)), legend: legend} }
	used := func(counter string) string {
		return "increase(" + counter + sel(inNamespace, `workload!=""`) + "[$__range]) / 3.6e6"
	}
	return row{"Energy", []panel{
		graph("Power of jobs", "Power of GPUs, of GPUs without a process of the job (held idle), and of CPUs with their memory. Idle CPUs, fans "+
			"and the rest of a node are nobody's.", "watt",
			query{expr: top(15, total(selected(gpus))), legend: "{{namespace}} {{job_name}} GPUs"},
			query{expr: top(15, total(idle)), legend: "{{namespace}} {{job_name}} held idle"},
			query{expr: top(15, total(selected(cpus))), legend: "{{namespace}} {{job_name}} CPUs"}),
		table("Energy of jobs", "kWh in the shown time. Held idle: the part of GPUs without a process of the job.", "kwatth",
			[]string{"namespace", "job_kind", "job_name"},
			kWh("GPUs", used(gpus)), kWh("Held idle", "sum_over_time("+idle+"[$__range:1m]) / 6e4"), kWh("CPUs", used(cpus)),
		).leadsTo("Show this job", jobLink),
	}}
}

func jobMembers() row {
	column := func(legend, unit, expr string) query { return query{expr: top(200, expr), legend: legend, unit: unit} }
	return row{"Members", []panel{
		table("Members, the outlier first",
			"The containers of the selected jobs. Times the median: how many times as long the completions of the member take (p99) as those "+
				"of the median member of the job; without --rdma.datapath, how many times as much as the member the median member sends. "+
				"p99 verbs needs the recording rules. Choose one job.", "none",
			[]string{"job_name", "workload", "namespace", "instance"},
			column("Times the median", "none", outlier()),
			column("p99 completion", "s", memberQuantile(completions)),
			column("p99 verbs", "s", memberVerbs()),
			column("Sent", "Bps", member(selected("container_rdma_transmit_bytes_total"))),
			column("Received", "Bps", member(selected("container_rdma_receive_bytes_total"))),
			column("Errors", "ops", member(failures())),
			column("HCAs", "none", member("count by ("+memberOf+`, device) (container_rdma_resources`+
				sel(inNamespace, `workload!=""`, `type="qp"`)+" > 0) > bool 0")),
			column("GPUs", "none", member(given())),
			column("Idle GPUs", "none", member(unused())),
			column("GPUs in use", "none", member("container_gpu_utilization_ratio"+sel(inNamespace, `workload!=""`, `engine=~"sm|cu"`))),
		).wide(24).high(12).leadsTo("Show the HCAs of the node", nodeLink).sorted("Times the median"),
		table("HCAs of the members", "The HCAs on which members of the selected jobs have queue pairs.", "none",
			[]string{"job_name", "workload", "namespace", "instance", "device"},
			query{expr: top(200, "sum by ("+memberOf+", device) (container_rdma_resources"+sel(inNamespace, `workload!=""`, `type="qp"`)+
				" > 0) * on (instance, workload) group_left (job_name) "+members("job_name")), legend: "QPs"},
		).leadsTo("Show the HCAs of the node", nodeLink),
		table("GPUs of the members", "The GPUs that members of the selected jobs were given, with the number of their processes on them.", "none",
			[]string{"job_name", "workload", "namespace", "instance", "gpu_id", "uuid"},
			query{expr: top(200, "max by ("+memberOf+", gpu_id, uuid) (container_gpu_allocated"+sel(inNamespace, `workload!=""`)+
				") * on (instance, workload) group_left (job_name) "+members("job_name")), legend: "Given"},
			query{expr: top(200, "max by ("+memberOf+", gpu_id, uuid) (container_gpu_processes"+sel(inNamespace, `workload!=""`)+
				") * on (instance, workload) group_left (job_name) "+members("job_name")), legend: "Processes"},
		).leadsTo("Show the HCAs of the node", nodeLink),
	}}
}

// ranks has each rank of the selected jobs in a communicator.
func ranks(expr string) string {
	return "max by (" + rankOf + ") (" + expr + ") * on (instance, workload) group_left (job_name) " + members("job_name")
}

// launches sums what a rank launches over its operations.
func launches(expr string) string { return "sum without (library, operation) (" + expr + ")" }

// behind is how many launches fewer than another rank each rank has, of the ranks whose counts are complete: other counts do not compare,
// nor if launches are counted in the communicator "other". The root of a broadcast, and either end of a transfer, may launch less.
func behind() string {
	launched := launches("container_collective_launches_total" + sel(inNamespace, `workload!=""`, `operation!~"broadcast|recv|scatter|send"`))
	without := "0 * sum without (library, nranks, parent, version) (container_collective_communicator_info" + sel(inNamespace, `workload!=""`) + ")"
	complete := func(expr string) string {
		return "((" + expr + ") and on (instance, workload, container_id) container_collective_coverage" + sel(inNamespace, `reason="complete"`) +
			" unless on (instance, workload, container_id) container_collective_launches_total" + sel(inNamespace, `communicator="other"`) + ")"
	}
	return "max by (communicator) (" + complete(launched) + ") - on (communicator) group_right () " + complete(launched+" or "+without)
}

func jobCollectives() row {
	const last, late = "container_collective_last_launch_timestamp_seconds", "container_collective_late_seconds_total"
	column := func(legend, unit, expr string) query {
		return query{expr: top(200, ranks(expr)), legend: legend, unit: unit}
	}
	each := func(title, description, unit, expr string) panel {
		return graph(title, description, unit,
			query{expr: top(20, ranks(expr)), legend: "{{instance}} {{workload}} rank {{rank}} in {{communicator}}"}).leads(workloadLink)
	}
	return row{"Collectives", []panel{
		table("Ranks, the last to launch first", "Ranks of communicators of the selected jobs. Launches behind: fewer launches than the rank with "+
			"most, of operations that all ranks call alike, and of ranks whose counts are complete. While a job runs, ranks on other nodes differ by what they launched between two scrapes. "+
			"Last launch: its age, by the clock of the node.", "none",
			[]string{"job_name", "communicator", "rank", "workload", "namespace", "instance"},
			column("Last launch", "s", "time() - "+last+sel(inNamespace, `workload!=""`)),
			column("Launches behind", "none", behind()),
			column("Launches", "ops", launches(selected("container_collective_launches_total"))),
			column("Late", "percentunit", selected(late)),
		).wide(24).high(8).leadsTo("Show the HCAs of the node", nodeLink).sorted("Last launch"),
		each("Late by rank", "Part of the time by which the host of a rank launches later than the first rank of the communicator on the node.",
			"percentunit", selected(late)),
		graph("Wait per receive by member", "Mean time in which a posted receive was the oldest work request of a queue pair. The others wait for "+
			"the member that waits clearly least. Needs the recording rules and --rdma.datapath.", "s",
			query{expr: top(20, "max by ("+memberOf+") (instance_workload_communicator:container_rdma_receive_wait_seconds:mean2m"+
				sel(inNamespace)+") * on (instance, workload) group_left (job_name) "+members("job_name")), legend: "{{instance}} {{workload}}"},
		).leads(workloadLink),
	}}
}

func jobGraphs() row {
	each := func(title, description, unit, expr string) panel {
		return graph(title, description, unit, query{expr: top(20, expr), legend: "{{instance}} {{workload}}"}).leads(workloadLink)
	}
	return row{"Over time", []panel{
		graph("Bytes of jobs", "Bytes per second that the selected jobs send (above zero) and receive (below), over all nodes.", "Bps",
			query{expr: top(15, total(selected("container_rdma_transmit_bytes_total"))), legend: "{{namespace}} {{job_name}} sent"},
			query{
				expr: top(15, total(selected("container_rdma_receive_bytes_total"))), legend: "{{namespace}} {{job_name}} received",
				below: true,
			}),
		graph("GPUs of jobs", "GPUs that the selected jobs were given, and those of them without a process of the job.", "none",
			query{expr: top(15, total(given())), legend: "{{namespace}} {{job_name}} given", dashed: true},
			query{expr: top(15, total(unused())), legend: "{{namespace}} {{job_name}} idle"}),
		each("Sent by member", "Bytes per second that members of the selected jobs send.", "Bps",
			member(selected("container_rdma_transmit_bytes_total"))),
		each("p99 of completions by member", "Time from the post of a signaled work request until its completion is polled. Needs "+
			"--rdma.datapath.", "s", memberQuantile(completions)),
		each("p99 of verbs by member", "Quantiles over all verbs of a member. Needs the recording rules.", "s", memberVerbs()),
		each("Errors by member", "Failed verbs and completions with errors, per second.", "ops", member(failures())),
		each("GPUs in use by member", "Use of the compute units, summed over GPUs: 1 is one GPU used all of the time.",
			"none", member("container_gpu_utilization_ratio"+sel(inNamespace, `workload!=""`, `engine=~"sm|cu"`))),
	}}
}
