// SPDX-License-Identifier: Apache-2.0

package main

// fabric shows the switches of an InfiniBand fabric and their links, as read by one node.
func fabric() dashboard {
	return dashboard{
		uid: "accelscope-fabric", title: "accelscope / Fabric", refresh: "1m", span: "3h",
		description: "The switches of an InfiniBand fabric and their links, as the sensor with --collector.fabric sees them. One " +
			"node for each fabric.",
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
		stat("Switches", "Switches that the fabric has now.", "none", "sum(infiniband_fabric_nodes"+sel(`type="switch"`)+")"),
		stat("Adapters", "Channel adapters in the fabric: one for each port of an HCA, as a rule.", "none",
			"sum(infiniband_fabric_nodes"+sel(`type="ca"`)+")"),
		stat("Links", "Links that are up, those between switches included.", "none", "sum(infiniband_fabric_links"+s+")"),
		stat("Degraded links", "Ports of switches whose link has fewer lanes or a lower speed than both ends are capable of. A link "+
			"between switches counts at both ends.",
			"none", "count(max by (instance, guid, port) (infiniband_switch_port_degraded"+s+") == 1) or vector(0)").above(0, 1),
		stat("Switches without an answer", "Switches that did not answer when their counters were read last. Their counters are "+
			"those of before.", "none",
			"count(infiniband_switch_up"+s+" == 0) or vector(0)").above(0, 1),
		stat("Age of the topology", "Time since the topology was read. It is read every --fabric.interval.", "s",
			"max(time() - infiniband_fabric_discovered_timestamp_seconds"+s+")").above(300, 900),
	}}
}

func fabricHealth() row {
	s := sel()
	return row{"Links and switches", []panel{
		table("Degraded links", "Links with fewer lanes (width) or a lower speed than both ends are capable of, by both ends' names.",
			"none",
			[]string{"switch", "port", "uplink", "uplink_port", "reason"},
			query{
				expr:   by("switch, port, uplink, uplink_port, reason", ends("infiniband_switch_port_degraded"+s+" == 1")),
				legend: "Degraded",
			}),
		table("Links that went down", "Times that links went down in the time that is shown, by both ends' names. Both ends count; "+
			"here is the switch's side. One without an uplink has no link now.", "none",
			[]string{"switch", "port", "uplink", "uplink_port"},
			query{
				expr: top(50, by("switch, port, uplink, uplink_port",
					endsOnce("round(increase(infiniband_switch_port_link_downed_total"+s+"[$__range]))"))+" > 0"),
				legend: "Times",
			}),
		graph("Nodes and links", "What the fabric has. A step down is a switch, an adapter or a link that went.", "none",
			query{expr: "sum by (type) (infiniband_fabric_nodes" + s + ")", legend: "{{type}}"},
			query{expr: "sum(infiniband_fabric_links" + s + ")", legend: "links"}),
		graph("Ports with a link, by switch", "Ports that have a link. A port without a cable has none, and is no fault.", "none",
			query{expr: "bottomk(20, sum by (switch) (" + named("infiniband_switch_port_up"+s) + "))", legend: "{{switch}}"}),
		timeline("Switches that answer", "Whether a switch answered when its counters were read. The 20 worst.",
			map[string]string{"0": "no answer", "1": "answers"},
			query{expr: "bottomk(20, " + by("switch", named("infiniband_switch_up"+s)) + ")", legend: "{{switch}}"}).under(1),
		table("Switches", "When the counters of each switch were read last, and how many of its ports have a link.", "none",
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
		table("Errors in the time that is shown", "Ports that counted errors, as the switch counts them. Symbol errors and "+
			"recoveries are the cable's; remote physical errors "+
			"are another link's; discards are congestion. Counters that are full stand still.", "none",
			[]string{"switch", "port", "uplink", "uplink_port"},
			count("Symbol", "symbol_error"), count("Recovery", "link_error_recovery"), count("Downed", "link_downed"),
			count("Receive", "receive_errors"),
			count("Remote physical", "receive_remote_physical_errors"), count("Discards", "transmit_discards"),
			count("Integrity", "local_link_integrity_errors"), count("Overrun", "excessive_buffer_overrun_errors"),
			count("VL15 dropped", "vl15_dropped")).wide(24).high(9),
		each("Symbol errors", "Symbols per second that were received badly. A few in an hour are normal; a rate is a bad cable or "+
			"transceiver.", "symbol_error", "suffix:/s"),
		each("Packets with errors", "Packets per second that were received with errors.", "receive_errors", "pps"),
		each("Packets that were discarded", "Packets per second that were not sent, as the port was down or congested.",
			"transmit_discards", "pps"),
		each("Link recoveries", "Times per second that the link recovered from errors by itself.", "link_error_recovery", "suffix:/s"),
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
	return row{"Use", []panel{
		graph("Utilization, sent", "Bytes that the port of the switch sends against the data rate of its link. Averages: congestion "+
			"shows in Transmit wait first.",
			"percentunit", used("transmit")),
		graph("Utilization, received", "Bytes that the port of the switch receives against the data rate of its link.", "percentunit",
			used("receive")),
		graph("Transmit wait", "Ticks per second in which a port had data to send and no credits: congestion behind it. The length "+
			"of a tick is the switch's.",
			"suffix: ticks/s", query{
				expr: top(20, by(linkEnds, ends(slow("infiniband_switch_port_transmit_wait_total")))), legend: linkName,
			}),
		graph("Throughput by switch", "Bytes per second that all ports of a switch send.", "Bps",
			query{expr: top(20, by("switch", named(slow("infiniband_switch_port_transmit_data_bytes_total")))), legend: "{{switch}}"}),
		graph("Runs of the tools", "Runs per second of the programs that read the fabric, by how they ended.", "ops",
			query{expr: by("tool, result", slow("infiniband_fabric_queries_total")), legend: "{{tool}} {{result}}"}),
	}}
}
