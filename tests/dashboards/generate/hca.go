// SPDX-License-Identifier: Apache-2.0

package main

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
		description: "Who uses the RDMA HCAs of a node: bytes, objects, verbs, errors, links.",
		variables:   []variable{node, device},
		rows:        []row{hcaNow(), hcaUsers(), hcaPorts(), hcaVerbs(), hcaDriver(), hcaCgroup()},
	}
}

func hcaNow() row {
	s := sel(dev)
	active := "infiniband_port_state" + sel(dev, `state="active"`)
	return row{"Now", []panel{
		stat("HCAs", "HCAs that the kernel knows, VFs included.", "none", "count(infiniband_device_info"+s+")"),
		stat("Ports that are not active", "Ports whose logical state is another than active: down, init, armed. A port without a "+
			"cable is one of them.",
			"none", "count("+active+" == 0) or vector(0)").above(0, 1),
		stat("Workloads", "Workloads that hold a queue pair now. One that only has device nodes, and uses none, is not counted.",
			"none", "count(count by (workload) (container_rdma_resources"+sel(dev, `type="qp"`, `workload!=""`)+" > 0))"),
		stat("Bytes with an owner", "Part of the bytes on the wire, both directions, that are known to be of a workload; of HCAs "+
			"that count bytes. What is missing is "+
			"the kernel's, headers, retransmissions, and calls that nothing sees: see the sensor's dashboard.", "percentunit",
			"clamp_max(("+ownedBytes("transmit")+" + "+ownedBytes("receive")+") / (sum("+
				rate("infiniband_port_transmit_data_bytes_total", s)+
				") + sum("+rate("infiniband_port_receive_data_bytes_total", s)+") > 0), 1)").max(1),
		stat("Verbs that fail", "Part of the control-path verbs that return an error. libibverbs tries one that fails (ENOSPC) for "+
			"each context that it opens.",
			"percentunit", "sum("+rate("container_rdma_verbs_errors_total", s)+") / (sum("+rate("container_rdma_verbs_total",
				s)+") > 0)").above(0.1, 0.5),
		stat("Port errors", "Errors of all types that the ports counted in the time that is shown. Counters that have reached their "+
			"highest value stand still.",
			"none", "round(sum(increase(infiniband_port_errors_total"+s+"[$__range])))").above(1, 100),
	}}
}

// ownedBytes is the rate of the bytes that workloads transfer in one direction, on HCAs whose ports count bytes. The
// unattributed share is not used in ratios: when a workload ends, it jumps by all bytes of the workload.
func ownedBytes(direction string) string {
	return "(sum(" + rate("container_rdma_"+direction+"_bytes_total", sel(dev, `workload!=""`)) +
		" and on (instance, device) infiniband_port_" + direction + "_data_bytes_total) or vector(0))"
}

func hcaUsers() row {
	by := func(name string, labels ...string) string {
		return "sum by (workload) (" + rate(name, sel(append([]string{dev}, labels...)...)) + ")"
	}
	holds := func(name string, labels ...string) string {
		return "sum by (workload) (" + name + sel(append([]string{dev}, labels...)...) + ")"
	}
	return row{"Who uses the HCA", []panel{
		graph("Transmitted by workload", "Bytes per second that each workload sends by RDMA, exact methods only (port, qp_counter, "+
			"uprobe). With counters of the port "+
			"the stack is what the port sends; (no owner) is what nobody is known to own; it jumps when a "+
			"workload is gone for good, by all that this has moved. Samples are not in it.", "Bps",
			shares(15, by("container_rdma_transmit_bytes_total"), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Received by workload", "Bytes per second that each workload receives by RDMA, what it reads included. The target of a "+
			"remote write or read does "+
			"nothing itself: its bytes have an owner only where hardware counts them.", "Bps",
			shares(15, by("container_rdma_receive_bytes_total"), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Queue pairs by workload", "Queue pairs that exist. (no owner) are the kernel's own, and those whose process is not "+
			"known.", "none",
			shares(15, holds("container_rdma_resources", `type="qp"`), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Registered memory by workload", "Length of the memory regions that workloads have registered. Memory that is "+
			"registered twice counts twice; it is "+
			"not what is pinned.", "bytes", shares(15, holds("container_rdma_registered_bytes"),
			"{{workload}}")...).stacked().leads(workloadLink),
		graph("Objects on the device by type", "RDMA objects of all types, those of the kernel included.", "none",
			query{expr: "sum by (type) (rdma_resources" + sel(dev) + ")", legend: "{{type}}"}),
		table("Who holds it now", "Workloads with a queue pair now, by HCA.", "none", []string{"instance", "device", "workload"},
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

func hcaPorts() row {
	s := sel(dev)
	speed := "infiniband_port_rate_bytes_per_second" + s
	used := func(direction string) string {
		return top(20, rate("infiniband_port_"+direction+"_data_bytes_total", s)+" / "+onPort+" ("+speed+" > 0)")
	}
	state := func(name, label string) string {
		return " * " + onPort + " group_left (" + label + `) label_replace(` + name + s + ` == 1, "` + label + `", "$1", "state", "(.*)")`
	}
	const legend = "{{instance}} {{device}}/{{port}}"
	return row{"Ports", []panel{
		graph("Port throughput against its link", "Bytes per second on the wire, sent above zero, received below; dashed: what the "+
			"link is capable of. Headers are "+
			"included. Drivers that count no bytes (Soft-RoCE before Linux 6.13) have none.", "Bps",
			query{expr: top(10, rate("infiniband_port_transmit_data_bytes_total", s)), legend: legend + " sent"},
			query{expr: top(10, rate("infiniband_port_receive_data_bytes_total", s)), legend: legend + " received", below: true},
			query{expr: top(10, speed), legend: legend + " link", dashed: true}),
		graph("Port utilization", "Bytes on the wire against the data rate of the link, sent above zero, received below. Averages: "+
			"bursts that fill a link for "+
			"milliseconds do not show; waiting for credits does, in Transmit wait.", "percentunit",
			query{expr: used("transmit"), legend: legend + " sent"},
			query{expr: used("receive"), legend: legend + " received", below: true}),
		graph("Errors by type", "Errors per second that the ports counted, by type. Counters that stop at their highest value show "+
			"nothing any more: clear them "+
			"with the vendor's tools. A link that is trained again counts some.", "suffix:/s",
			query{
				expr:   top(20, "sum by (instance, device, port, type) ("+rate("infiniband_port_errors_total", s)+")"),
				legend: legend + " {{type}}",
			}).above(0, 1),
		graph("Transmit wait", "Ticks per second in which the port had data to send and no credits. The length of a tick is the "+
			"vendor's: compare ports of one "+
			"kind, and one port with its past.", "suffix: ticks/s",
			query{expr: top(20, rate("infiniband_port_transmit_wait_total", s)), legend: legend}),
		table("Links", "State, link layer and speed of every port (the 500 slowest), and what the link is capable of. A width or speed that is less "+
			"than others of its kind is a "+
			"degraded link.", "Bps", []string{"instance", "device", "port", "state", "physical", "link_layer", "speed"},
			query{
				expr: "bottomk(500, " + by(ofPort+", state, physical, link_layer, speed", speed+state("infiniband_port_state", "state")+
					state("infiniband_port_physical_state", "physical")+" * "+onPort+" group_left (link_layer, speed) "+
					"infiniband_port_info"+s) + ")",
				legend: "Rate",
			}),
		timeline("Port state", "Whether each port was active; 50 at a moment, the worst first. The logical state: a port may be up physically, and not be configured.",
			map[string]string{"0": "not active", "1": "active"},
			query{expr: "bottomk(50, sum by (" + ofPort + ") (infiniband_port_state" + sel(dev, `state="active"`) + "))", legend: legend}).under(1),
	}}
}

func hcaVerbs() row {
	s := sel(dev)
	return row{"Verbs (control path: system calls, not work requests)", []panel{
		graph("Verbs by kind", "Control-path verbs per second, those that failed included. What posts and polls is not among them, "+
			"but for Soft-RoCE and other "+
			"software HCAs.", "ops", query{
			expr:   top(20, "sum by (verb) ("+rate("container_rdma_verbs_total", s)+")"),
			legend: "{{verb}}",
		}),
		graph("Verbs that fail, by errno", "Control-path verbs per second that returned an error. ENOSPC of query_device is "+
			"libibverbs's way to ask: one for each "+
			"context.", "ops", query{
			expr: top(20, "sum by (verb, errno) ("+rate("container_rdma_verbs_errors_total", s)+")"), legend: "{{verb}} {{errno}}",
		}),
		heatmap("Latency of verbs", "How long control-path verbs took in the kernel, all together. Classic buckets, each four times "+
			"the one before; a server that "+
			"stores native histograms shows those.", "s", buckets("container_rdma_verbs_duration_seconds", s)),
		graph("Latency of verbs, p50 and p99", "Quantiles by verb, of all workloads. Classic buckets make them coarse, to a factor "+
			"of four at worst; native ones to two.",
			"s", query{expr: top(10, "("+quantile("0.5", "verb", "container_rdma_verbs_duration_seconds", s)+")"), legend: "p50 " +
				"{{verb}}"},
			query{expr: top(10, "("+quantile("0.99", "verb", "container_rdma_verbs_duration_seconds", s)+")"), legend: "p99 {{verb}}"}),
	}}
}

func hcaDriver() row {
	counters := func(names ...string) (out []query) {
		for _, name := range names {
			out = append(out, query{
				expr: top(10, rate("rdma_stat_"+name, sel(dev))+" > 0"), legend: "{{instance}} {{device}}/{{port}} " + name,
			})
		}
		return out
	}
	return row{"Counters of the driver (names of mlx5; needs --metrics.compat=lens, the default)", []panel{
		graph("Congestion: CNP and ECN", "Congestion notifications that the HCA sent and handled, and packets marked by switches, "+
			"per second. RoCE only. They are "+
			"normal under load; a storm of them is not.", "pps",
			counters("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")...),
		graph("Out of buffer, out of sequence, retransmissions", "What makes RDMA slow: receives that were not posted in time "+
			"(out_of_buffer), packets that were "+
			"lost on the way and sent again. Per second.", "pps",
			counters("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
				"roce_adp_retrans")...),
	}}
}

func hcaCgroup() row {
	held := func(name string) []query {
		return []query{{expr: owner(top(20, "sum by (workload) ("+name+sel(dev)+")")), legend: "{{workload}}"}}
	}
	return row{"RDMA cgroup controller", []panel{
		graph("HCA handles by workload", "Verbs contexts that the rdma cgroup controller charges to the workload. Absent where the "+
			"controller is not enabled.",
			"none", held("container_rdma_hca_handles")...),
		graph("HCA objects by workload", "RDMA objects that the rdma cgroup controller charges to the workload: what rdma.max "+
			"limits. It knows no types.",
			"none", held("container_rdma_hca_objects")...),
	}}
}
