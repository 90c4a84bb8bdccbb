// SPDX-License-Identifier: Apache-2.0

package main

// fabric shows the switches of an InfiniBand fabric and their links, as read by one node.
func fabric() dashboard {
	return dashboard{
		uid: "accelscope-fabric", title: "accelscope / Fabric", refresh: "1m", span: "3h",
		description: "Switches and links of an InfiniBand fabric, as read by the sensor with --collector.fabric. One node per fabric " +
			"needs this flag.",
		variables: []variable{node, fswitch},
		rows:      []row{fabricNow(), fabricHealth(), fabricErrors(), fabricUse()},
	}
}

const (
	linkName = "{{switch}}/{{port}} → {{uplink}}/{{uplink_port}}"
	linkEnds = "instance, guid, port, switch, uplink, uplink_port"
)

// slow is the rate of a counter that is read every --fabric.interval instead of at each scrape. Over a range of less
// than a few intervals it would be zero, and then too high.
func slow(name string) string { return "rate(" + name + sel() + "[5m])" }

// ends adds the names of both ends of the link of a port.
func ends(expr string) string {
	return "(" + expr + ") * on (instance, guid, port) group_left (switch, uplink, uplink_port) infiniband_switch_uplink_info" +
		sel(`switch=~"$switch"`)
}

// endsOnce is ends for queries over past values. A port may have no link now; it then adds only the name of the switch.
func endsOnce(expr string) string {
	return ends(expr) + " or " + named("("+expr+") unless on (instance, guid, port) infiniband_switch_uplink_info"+sel())
}

// named adds the name of the switch of a port, or of the switch itself.
func named(expr string) string {
	return "(" + expr + ") * on (instance, guid) group_left (switch) infiniband_switch_info" + sel(`switch=~"$switch"`)
}

func fabricNow() row {
	s := sel()
	return row{"Now", []panel{
		stat("Switches", "Switches in the fabric now.", "none", "sum(infiniband_fabric_nodes"+sel(`type="switch"`)+")"),
		stat("Adapters", "Channel adapters in the fabric: usually one for each port of an HCA.", "none",
			"sum(infiniband_fabric_nodes"+sel(`type="ca"`)+")"),
		stat("Links", "Links that are up, links between switches included.", "none", "sum(infiniband_fabric_links"+s+")"),
		stat("Degraded links",
			"Ports of switches with fewer lanes or a lower speed than both ends of the link support. A link between "+
				"switches counts at both ends.",
			"none", "count(max by (instance, guid, port) (infiniband_switch_port_degraded"+s+") == 1) or vector(0)").above(0, 1),
		stat("Unresponsive switches",
			"Switches that did not answer at the last read of their counters. Their counters keep the values of an "+
				"earlier read.", "none",
			"count(infiniband_switch_up"+s+" == 0) or vector(0)").above(0, 1),
		stat("Age of the topology", "Time since the topology was read. It is read every --fabric.interval.", "s",
			"max(time() - infiniband_fabric_discovered_timestamp_seconds"+s+")").above(300, 900),
	}}
}

func fabricHealth() row {
	s := sel()
	return row{"Links and switches", []panel{
		table("Degraded links", "Links with fewer lanes (width) or a lower speed than both ends support, with the names of both ends.",
			"none",
			[]string{"switch", "port", "uplink", "uplink_port", "reason"},
			query{
				expr:   by("switch, port, uplink, uplink_port, reason", ends("infiniband_switch_port_degraded"+s+" == 1")),
				legend: "Degraded",
			}),
		table("Links that went down",
			"How often links went down in the selected time range, as counted by the switch, with the names of both "+
				"ends. A port without an uplink has no link now.", "none",
			[]string{"switch", "port", "uplink", "uplink_port"},
			query{
				expr: top(50, by("switch, port, uplink, uplink_port",
					endsOnce("round(increase(infiniband_switch_port_link_downed_total"+s+"[$__range]))"))+" > 0"),
				legend: "Times",
			}),
		graph("Nodes and links", "Nodes and links of the fabric. A drop means that a switch, an adapter or a link was lost.", "none",
			query{expr: "sum by (type) (infiniband_fabric_nodes" + s + ")", legend: "{{type}}"},
			query{expr: "sum(infiniband_fabric_links" + s + ")", legend: "links"}),
		graph("Ports with a link, by switch",
			"Ports that have a link (the 20 switches with the fewest). A port without a cable has no link, which is "+
				"not a fault.", "none",
			query{expr: "bottomk(20, sum by (switch) (" + named("infiniband_switch_port_up"+s) + "))", legend: "{{switch}}"}),
		timeline("Switches that answer", "Whether each switch answered when its counters were read (the 20 worst).",
			map[string]string{"0": "no answer", "1": "answers"},
			query{expr: "bottomk(20, " + by("switch", named("infiniband_switch_up"+s)) + ")", legend: "{{switch}}"}).under(1),
		table("Switches", "Time of the last read of each switch's counters, and the number of its ports that have a link.", "none",
			[]string{"switch", "guid"},
			query{expr: "bottomk(50, max by (switch, guid) (" + named("infiniband_switch_queried_timestamp_seconds"+s+" * "+
				"1000") + "))", legend: "Read", unit: "dateTimeAsIso"},
			query{expr: by("switch, guid", named("infiniband_switch_port_up"+s)), legend: "Ports with a link"}),
	}}
}

func fabricErrors() row {
	s := sel()
	count := func(legend, name string) query {
		return query{
			expr: top(30, by("switch, port, uplink, uplink_port",
				endsOnce("round(increase(infiniband_switch_port_"+name+"_total"+s+"[$__range]))"))+" > 0"),
			legend: legend,
		}
	}
	each := func(title, description, name, unit string) panel {
		return graph(title, description, unit, query{
			expr: top(20, by(linkEnds, ends(slow("infiniband_switch_port_"+name+"_total")))), legend: linkName,
		})
	}
	return row{"Errors by port, with the names of both ends", []panel{
		table("Errors in the selected time range",
			"Errors that the ports of switches counted. Symbol errors and recoveries indicate a bad cable, remote "+
				"physical errors a fault of another link, discards congestion. A counter that has reached its maximum no "+
				"longer increases.", "none",
			[]string{"switch", "port", "uplink", "uplink_port"},
			count("Symbol", "symbol_error"), count("Recovery", "link_error_recovery"), count("Downed", "link_downed"),
			count("Receive", "receive_errors"),
			count("Remote physical", "receive_remote_physical_errors"), count("Discards", "transmit_discards"),
			count("Integrity", "local_link_integrity_errors"), count("Overrun", "excessive_buffer_overrun_errors"),
			count("VL15 dropped", "vl15_dropped")).wide(24).high(9),
		each("Symbol errors",
			"Symbols per second that were received with errors. A few per hour are normal; a steady rate indicates a "+
				"bad cable or transceiver.", "symbol_error", "suffix:/s"),
		each("Packets with errors", "Packets per second that were received with errors.", "receive_errors", "pps"),
		each("Discarded packets", "Packets per second that were not sent because the port was down or congested.",
			"transmit_discards", "pps"),
		each("Link recoveries", "Completed link error recoveries per second.", "link_error_recovery", "suffix:/s"),
	}}
}

func fabricUse() row {
	s := sel()
	speed := "(infiniband_switch_port_rate_bytes_per_second" + s + " > 0)"
	used := func(direction string) query {
		return query{
			expr: top(20, by(linkEnds, ends(slow("infiniband_switch_port_"+direction+"_data_bytes_total")+" / on (instance, guid, "+
				"port) "+speed))),
			legend: linkName,
		}
	}
	return row{"Utilization", []panel{
		graph("Utilization, sent",
			"Bytes that the switch port sends, divided by the data rate of its link. These are averages: congestion "+
				"shows in Transmit wait first.",
			"percentunit", used("transmit")),
		graph("Utilization, received", "Bytes that the switch port receives, divided by the data rate of its link.", "percentunit",
			used("receive")),
		graph("Transmit wait",
			"Ticks per second in which a port had data to send but no flow control credits: the receiving side is "+
				"congested. The switch defines the length of a tick.",
			"suffix: ticks/s", query{
				expr: top(20, by(linkEnds, ends(slow("infiniband_switch_port_transmit_wait_total")))), legend: linkName,
			}),
		graph("Throughput by switch", "Bytes per second that all ports of a switch send.", "Bps",
			query{expr: top(20, by("switch", named(slow("infiniband_switch_port_transmit_data_bytes_total")))), legend: "{{switch}}"}),
		graph("Runs of infiniband-diags",
			"Runs per second of the infiniband-diags programs that read the fabric, by program and result.", "ops",
			query{expr: by("tool, result", slow("infiniband_fabric_queries_total")), legend: "{{tool}} {{result}}"}),
	}}
}
