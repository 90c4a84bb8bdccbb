// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// Labels that the panels of HCAs select by.
const (
	dev    = `device=~"$device"`
	ofPort = "instance, device, port"
	onPort = "on (" + ofPort + ")"
)

// hca shows the use of the HCAs of a node by workload, their utilization and their errors.
func hca() dashboard {
	return dashboard{
		uid: "accelscope-hca", title: "accelscope / HCAs", refresh: "30s", span: "1h",
		description: "Use of the RDMA HCAs of a node by workload: bytes, objects and verbs; errors and state of the ports.",
		variables:   []variable{node, device},
		rows:        []row{hcaNow(), hcaUsers(), hcaStorage(), hcaPorts(), hcaVerbs(), hcaDriver(), hcaCgroup()},
	}
}

func hcaNow() row {
	s := sel(dev)
	active := "infiniband_port_state" + sel(dev, `state="active"`)
	return row{"Now", []panel{
		stat("HCAs", "HCAs that the kernel lists, VFs included.", "none", "count(infiniband_device_info"+s+")"),
		stat("Ports that are not active",
			"Ports in a logical state other than active (down, init, armed). A port without a cable counts, too.",
			"none", "count("+active+" == 0) or vector(0)").above(0, 1),
		stat("Workloads", "Workloads that have at least one queue pair now. A workload that only has device nodes is not counted.",
			"none", "count(count by (workload) (container_rdma_resources"+sel(dev, `type="qp"`, `workload!=""`)+" > 0))"),
		stat("Attributed bytes",
			"Share of the bytes on the wire, both directions, that is attributed to workloads. Only HCAs that count "+
				"bytes. The rest is traffic of the kernel, headers, retransmissions, and calls that the sensor cannot see "+
				"(dashboard Sensor).", "percentunit",
			"clamp_max(("+ownedBytes("transmit")+" + "+ownedBytes("receive")+") / (sum("+
				rate("rdma_port_transmit_bytes_total", s)+
				") + sum("+rate("rdma_port_receive_bytes_total", s)+") > 0), 1)").max(1),
		stat("Failed verbs", "Share of the control-path verbs that return an error. libibverbs causes one error (ENOSPC) for each "+
			"context that it opens, which is normal.",
			"percentunit", "sum("+rate("container_rdma_verbs_errors_total", s)+") / (sum("+rate("container_rdma_verbs_total",
				s)+") > 0)").above(0.1, 0.5),
		stat("Port errors", "Errors of all types that the ports counted in the selected time range. A counter that has reached its "+
			"maximum no longer increases.",
			"none", "round(sum(increase(infiniband_port_errors_total"+sel(dev, `type!="receive_switch_relay"`)+"[$__range])))").above(1, 100),
	}}
}

// ownedBytes is the rate of the bytes that workloads transfer in one direction, on HCAs whose ports count bytes. The
// unattributed share is not used in ratios: when a workload ends, it jumps by all bytes of the workload.
func ownedBytes(direction string) string {
	return "(sum(" + rate("container_rdma_"+direction+"_bytes_total", sel(dev, `workload!=""`)) +
		" and on (instance, device) rdma_port_" + direction + "_bytes_total) or vector(0))"
}

func hcaUsers() row {
	by := func(name string, labels ...string) string {
		return "sum by (workload) (" + rate(name, sel(append([]string{dev}, labels...)...)) + ")"
	}
	holds := func(name string, labels ...string) string {
		return "sum by (workload) (" + name + sel(append([]string{dev}, labels...)...) + ")"
	}
	return row{"Use by workload", []panel{
		graph("Transmitted by workload",
			"Bytes per second that each workload sends by RDMA, measured (port, qp_counter, uprobe) or split from the "+
				"bytes of the port by the last survey (survey). If the port counts bytes, the stack is what the port sends. (no "+
				"owner) is the unattributed share; it jumps when an ended workload is removed, because the bytes of the "+
				"workload are then added to it.", "Bps",
			shares(15, by("container_rdma_transmit_bytes_total"), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Received by workload",
			"Bytes per second that each workload receives by RDMA, the data of its RDMA reads included. The target of "+
				"a remote write or read makes no call: its bytes are attributed only where the hardware counts them.", "Bps",
			shares(15, by("container_rdma_receive_bytes_total"), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Queue pairs by workload", "Queue pairs that exist. (no owner): queue pairs of the kernel and of unknown processes.", "none",
			shares(15, holds("container_rdma_resources", `type="qp"`), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Registered memory by workload",
			"Total length of the memory regions that workloads have registered. Memory that is registered twice "+
				"counts twice, so this is not the amount of pinned memory.", "bytes", shares(15, holds("container_rdma_registered_bytes"),
				"{{workload}}")...).stacked().leads(workloadLink),
		graph("Objects on the device by type", "RDMA objects of all types, those of the kernel included.", "none",
			query{expr: "sum by (type) (container_rdma_resources" + sel(dev) + ")", legend: "{{type}}"}),
		table("Workloads by HCA", "Workloads that have queue pairs or registered memory now, by HCA.", "none", []string{"instance", "device", "workload"},
			query{
				expr:   owner(top(50, "sum by (instance, device, workload) (container_rdma_resources"+sel(dev, `type="qp"`)+") > 0")),
				legend: "Queue pairs",
			},
			query{
				expr:   owner(top(50, "sum by (instance, device, workload) (container_rdma_registered_bytes"+sel(dev)+") > 0")),
				legend: "Registered", unit: "bytes",
			}),
	}}
}

// hcaStorage shows the users in the kernel, such as storage.
func hcaStorage() row {
	kernel := sel(dev, `workload=~"kernel:.+"`)
	moved := func(direction string) string {
		return top(20, "sum by (workload) ("+rate("container_rdma_"+direction+"_bytes_total", kernel)+")")
	}
	objects := func(typ string) string {
		return top(50, "sum by (instance, device, workload) (container_rdma_resources"+
			sel(dev, `workload=~"kernel:.+"`, `type="`+typ+`"`)+") > 0")
	}
	return row{"Storage and other users in the kernel", []panel{
		graph("Bytes of kernel users",
			"Bytes per second of NFS, NVMe-oF, SMB, Lustre and others on HCAs that each uses alone: sent above zero, received below. Beside "+
				"another user of the HCA they have no value: their bytes are then part of (no owner).", "Bps",
			query{expr: moved("transmit"), legend: "{{workload}} sent"}, query{expr: moved("receive"), legend: "{{workload}} received", below: true}),
		table("HCAs of kernel users",
			"Connections of the connection manager that have a queue pair, and protection domains. IPoIB and SMC make their queue pairs otherwise.",
			"none", []string{"instance", "device", "workload"},
			query{expr: objects("qp"), legend: "Queue pairs"}, query{expr: objects("pd"), legend: "Protection domains"}),
	}}
}

func hcaPorts() row {
	s := sel(dev)
	speed := "(rdma_port_bond_rate_bytes_per_second" + s + " or infiniband_port_rate_bytes_per_second" + s + ")"
	used := func(direction string) string {
		return top(20, rate("rdma_port_"+direction+"_bytes_total", s)+" / "+onPort+" ("+speed+" > 0)")
	}
	withVFs := func(direction string) string {
		of := "rdma_port_" + direction + "_bytes_total"
		vfs := "sum by (instance, pf_device, port) (" + rate(of, sel()) + " * on (instance, device) group_left (pf_device) " +
			"max by (instance, device, pf_device) (infiniband_device_info" + sel(`pf_device!=""`) + "))"
		return top(20, "(sum by ("+ofPort+") ("+rate(of, s)+") + "+onPort+
			` label_replace(`+vfs+`, "device", "$1", "pf_device", "(.+)")) / `+onPort+" sum by ("+ofPort+") ("+speed+" > 0)")
	}
	// Without states in which no port of a node stays.
	state := func(name, label, without string) string {
		return " * " + onPort + " group_left (" + label + ") label_replace(" + name + sel(dev, `state!~"`+without+`"`) +
			` == 1, "` + label + `", "$1", "state", "(.*)")`
	}
	counted := sel(dev, `type!="receive_switch_relay"`) // only switches relay
	const legend = "{{instance}} {{device}}/{{port}}"
	ofDriver := func(errors string) query { // without counters/
		return query{expr: top(20, rate("rdma_port_"+errors+"_total", s)), legend: legend + " " + strings.ReplaceAll(errors, "_", " ")}
	}
	return row{"Ports", []panel{
		graph("Port throughput and link rate",
			"Bytes per second on the wire, headers included: sent above zero, received below. Dashed: the data rate "+
				"of the link, or of the active legs of a bond. Ports without values are in accelscope doctor, with the reason.", "Bps",
			query{expr: top(10, rate("rdma_port_transmit_bytes_total", s)), legend: legend + " sent"},
			query{expr: top(10, rate("rdma_port_receive_bytes_total", s)), legend: legend + " received", below: true},
			query{expr: top(10, speed), legend: legend + " link", dashed: true}),
		graph("Port utilization",
			"Bytes on the wire divided by the data rate of the link: sent above zero, received below. Drivers count by "+
				"function: dashed lines are PFs with their VFs, of which some bytes may stay within the HCA. These are "+
				"averages: bursts that fill a link for milliseconds do not show here; waiting for credits shows in Transmit wait.", "percentunit",
			query{expr: used("transmit"), legend: legend + " sent"},
			query{expr: used("receive"), legend: legend + " received", below: true},
			query{expr: withVFs("transmit"), legend: legend + " with VFs sent", dashed: true},
			query{expr: withVFs("receive"), legend: legend + " with VFs received", below: true, dashed: true}),
		graph("Errors by type",
			"Errors per second that the ports counted, by type. A counter that has reached its maximum no longer "+
				"increases: clear it with the vendor's tools. Each retraining of a link adds some errors.", "suffix:/s",
			query{
				expr:   top(20, "sum by (instance, device, port, type) ("+rate("infiniband_port_errors_total", counted)+")"),
				legend: legend + " {{type}}",
			},
			ofDriver("transmit_errors"), ofDriver("receive_errors"), ofDriver("transmit_discards"), ofDriver("receive_discards")).above(0, 1),
		graph("Transmit wait",
			"Ticks per second in which the port had data to send but no flow control credits. The vendor defines the "+
				"length of a tick: compare ports of the same model, or a port with its own past.", "suffix: ticks/s",
			query{expr: top(20, rate("infiniband_port_transmit_wait_total", s)), legend: legend}),
		table("Links", "State, link layer and data rate of each port (the 500 slowest). A rate below that of ports of the same "+
			"model indicates a degraded link.", "Bps", []string{"instance", "device", "port", "state", "physical", "link_layer", "speed"},
			query{
				expr: "bottomk(500, " + by(ofPort+", state, physical, link_layer, speed", speed+state("infiniband_port_state", "state", "nop|active_defer")+
					state("infiniband_port_physical_state", "physical", "sleep|phy_test")+" * "+onPort+" group_left (link_layer, speed) "+
					"infiniband_port_info"+s) + ")",
				legend: "Rate",
			}),
		timeline("Port state",
			"Logical state of each port (the 50 worst at each time). A port can be physically up and not active, for "+
				"example before it is configured.",
			map[string]string{"0": "not active", "1": "active"},
			query{expr: "bottomk(50, sum by (" + ofPort + ") (infiniband_port_state" + sel(dev, `state="active"`) + "))", legend: legend}).under(1),
	}}
}

func hcaVerbs() row {
	s := sel(dev)
	return row{"Verbs (control path: system calls, not work requests)", []panel{
		graph("Verbs by kind",
			"Control-path verbs per second, failed ones included. Posting and polling are not included, except on "+
				"Soft-RoCE and other software HCAs.", "ops", query{
				expr:   top(20, "sum by (verb) ("+rate("container_rdma_verbs_total", s)+")"),
				legend: "{{verb}}",
			}),
		graph("Failed verbs by errno",
			"Control-path verbs per second that returned an error. ENOSPC of query_device is normal: libibverbs "+
				"causes one for each context that it opens.", "ops", query{
				expr: top(20, "sum by (verb, errno) ("+rate("container_rdma_verbs_errors_total", s)+")"), legend: "{{verb}} {{errno}}",
			}),
		heatmap("Latency of verbs",
			"Duration of control-path verbs in the kernel, all verbs together. The limit of each classic bucket is "+
				"four times the previous one; a server that stores native histograms shows their finer buckets.", "s", buckets("container_rdma_verbs_duration_seconds", s)),
		graph("Latency of verbs, p50 and p99",
			"Quantiles by verb, over all workloads. Classic buckets limit the precision to a factor of four, native "+
				"ones to a factor of two.",
			"s", query{expr: top(10, "("+quantile("0.5", "verb", "container_rdma_verbs_duration_seconds", s)+")"), legend: "p50 " +
				"{{verb}}"},
			query{expr: top(10, "("+quantile("0.99", "verb", "container_rdma_verbs_duration_seconds", s)+")"), legend: "p99 {{verb}}"}),
	}}
}

func hcaDriver() row {
	counters := func(names ...string) (out []query) {
		for _, name := range names {
			out = append(out, query{
				expr: top(10, rate("rdma_port_"+name+"_total", sel(dev))+" > 0"), legend: "{{instance}} {{device}}/{{port}} " + name,
			})
		}
		return out
	}
	return row{"Congestion and retransmission (all drivers, where they count it)", []panel{
		graph("Congestion: CNP and ECN",
			"Congestion notifications that the HCA sent and received, and packets that switches marked (ECN), per "+
				"second. RoCE only. Some are normal under load; a persistently high rate is not.", "pps",
			counters("cnp_sent", "cnp_handled", "ecn_marked")...),
		graph("Out of buffer, out of sequence, retransmissions",
			"Events per second that slow RDMA down: requests that arrived before a receive was posted "+
				"(out_of_buffer, and rnr at the sender), and packets that were lost and sent again.", "pps",
			counters("out_of_buffer", "rnr", "out_of_sequence", "retransmitted", "timeouts", "adaptive_retransmissions",
				"slow_restart")...),
	}}
}

func hcaCgroup() row {
	held := func(name string) []query {
		return []query{{expr: owner(top(20, "sum by (workload) ("+name+sel(dev)+")")), legend: "{{workload}}"}}
	}
	return row{"RDMA cgroup controller", []panel{
		graph("HCA handles by workload",
			"Verbs contexts that the rdma cgroup controller charges to the workload. Not available where the "+
				"controller is not enabled.",
			"none", held("container_rdma_hca_handles")...),
		graph("HCA objects by workload",
			"RDMA objects that the rdma cgroup controller charges to the workload and rdma.max limits. The controller "+
				"does not distinguish types.",
			"none", held("container_rdma_hca_objects")...),
	}}
}
