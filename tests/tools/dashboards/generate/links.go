// SPDX-License-Identifier: Apache-2.0

package main

const portName = "{{instance}} {{device}}/{{port}}"

// links shows the links of ports, the worst first: pause, error correction, flaps, modules and PCIe.
func links() dashboard {
	return dashboard{
		uid: "accelscope-links", title: "accelscope / Links", refresh: "1m", span: "6h",
		description: "Links of the ports of HCAs, the worst first: pause, error correction and bit errors, flaps, modules and their lanes, PCIe.",
		variables:   []variable{node, device},
		rows:        []row{linksNow(), linksWorst(), linksPause(), linksFEC(), linksHistory(), linksModules(), linksLanes(), linksPCIe()},
	}
}

// grown returns the increase of a counter in the selected time range.
func grown(name string, labels ...string) string {
	return "increase(" + name + sel(append([]string{dev}, labels...)...) + "[$__range])"
}

// rawBitErrors is the ratio of bits that error correction has corrected, of those that the link carries.
func rawBitErrors() string {
	s := sel(dev)
	return "max by (" + ofPort + ") (" + rate("rdma_port_fec_corrected_bit_errors_total", s) + ") / " + onPort +
		" (8 * infiniband_port_rate_bytes_per_second" + s + " > 0)"
}

func linksNow() row {
	s := sel(dev)
	return row{"Now", []panel{
		stat("Ports that are not active", "Ports in a logical state other than active. A port without a cable counts, too.", "none",
			"count(infiniband_port_state"+sel(dev, `state="active"`)+" == 0) or vector(0)").above(0, 1),
		stat("Flaps", "Losses of the carrier that ended, of all links in the selected time range. Setting an interface down is none.", "none",
			"round(sum("+grown("rdma_port_link_flaps_total")+"))").above(1, 3),
		stat("Longest pause", "Share of the time that the most affected direction and priority of a link is stopped now.", "percentunit",
			"max("+rate("rdma_port_pause_seconds_total", s)+")").above(0.05, 0.2),
		stat("Pause storms", "Pauses that NICs ended because they were too long, in the selected time range. Warnings do not count.", "none",
			"round(sum("+grown("rdma_port_pause_storm_events_total", `type!="warning"`)+"))").above(0, 1),
		stat("Uncorrectable blocks", "Blocks that error correction could not repair, in the selected time range. Training of a link causes some.",
			"none", "round(sum("+grown("rdma_port_fec_uncorrectable_blocks_total")+"))").above(1, 100),
		stat("Module alarms", "Modules with a value beyond the alarm limits of their manufacturer, or that have failed.", "none",
			"count(max by ("+ofPort+") (abs(rdma_port_module_alarm"+s+") >= 2 or rdma_port_module_fault"+s+" == 1)) or vector(0)").above(0, 1),
	}}
}

// linksWorst is a table of ports. The number of their problems is first, and sorts it.
func linksWorst() row {
	s := sel(dev)
	is := func(problem, expr string) string {
		return `label_replace(max by (` + ofPort + `) (` + expr + `), "problem", "` + problem + `", "device", ".*")`
	}
	problems := is("down", "infiniband_port_state"+sel(dev, `state="active"`)+" == bool 0") +
		" or " + is("flaps", grown("rdma_port_link_flaps_total")+" > bool 0") +
		" or " + is("pause", rate("rdma_port_pause_seconds_total", s)+" > bool 0.05") +
		" or " + is("storms", grown("rdma_port_pause_storm_events_total", `type!="warning"`)+" > bool 0") +
		" or " + is("uncorrectable", grown("rdma_port_fec_uncorrectable_blocks_total")+" > bool 0") +
		" or " + is("module", "abs(rdma_port_module_alarm"+s+") > bool 0") +
		" or " + is("gid", "rdma_port_roce_v2_gid_missing"+s)
	worst := func(expr string) string { return top(200, "max by ("+ofPort+") ("+expr+")") }
	paused := func(direction string) string {
		return worst(rate("rdma_port_pause_seconds_total", sel(dev, `direction="`+direction+`"`)))
	}
	return row{"Ports, worst first", []panel{
		table("Ports", "Ports (200 at most) by the number of their problems in the selected time range: not active, flaps, paused for more "+
			"than a twentieth of the time now, pause storms, uncorrectable blocks, warnings or alarms of the module, no RoCE v2 GID. Empty: "+
			"the driver does not report it.", "none", []string{"instance", "device", "port"},
			query{expr: top(200, "sum by ("+ofPort+") ("+problems+")"), legend: "Problems"},
			query{expr: worst("infiniband_port_state" + sel(dev, `state="active"`)), legend: "Active"},
			query{expr: worst("infiniband_port_rate_bytes_per_second" + s), legend: "Rate", unit: "Bps"},
			query{expr: worst("round(" + grown("rdma_port_link_flaps_total") + ")"), legend: "Flaps"},
			query{expr: paused("receive"), legend: "Paused by the switch", unit: "percentunit"},
			query{expr: paused("transmit"), legend: "Pauses the switch", unit: "percentunit"},
			query{expr: worst("round(" + grown("rdma_port_fec_uncorrectable_blocks_total") + ")"), legend: "Uncorrectable blocks"},
			query{expr: top(200, rawBitErrors()), legend: "Raw bit error ratio"},
			query{expr: top(200, "min by ("+ofPort+") (rdma_port_module_margin_ratio"+s+")"), legend: "Margin of the module", unit: "percentunit"},
		).wide(24).high(10).sorted("Problems"),
	}}
}

func linksPause() row {
	direction := func(d string) string {
		return top(15, rate("rdma_port_pause_seconds_total", sel(dev, `direction="`+d+`"`)))
	}
	frames := func(d string) string {
		return top(15, rate("rdma_port_pause_frames_total", sel(dev, `direction="`+d+`"`)))
	}
	const legend = portName + " {{priority}}"
	return row{"Pause", []panel{
		graph("Time paused", "Share of the time that a priority was stopped: by the switch above zero (congestion in the fabric), by this port "+
			"below (the host or PCIe is too slow). Drivers with durations only: mlx5, bnxt_en, ionic.", "percentunit",
			query{expr: direction("receive"), legend: legend + " by the switch"},
			query{expr: direction("transmit"), legend: legend + " by the port", below: true}),
		graph("Pause frames", "Pause frames per second, received above zero, sent below. The priority global is pause of the whole link.", "pps",
			query{expr: frames("receive"), legend: legend + " received"},
			query{expr: frames("transmit"), legend: legend + " sent", below: true}),
		graph("Pause storms", "Storms and warnings of storms in the interval. error: the NIC ended a pause and drops packets instead.", "none",
			query{
				expr:   top(20, "increase(rdma_port_pause_storm_events_total"+sel(dev)+"[$__rate_interval])"),
				legend: portName + " {{type}}",
			}),
		table("Flow control", "Priorities with flow control (PFC), what the port trusts for the priority of a packet, and traffic classes. Ports of a "+
			"fabric should be equal.", "none", []string{"pfc", "trust", "traffic_classes", "bandwidth"},
			query{expr: "count by (pfc, trust, traffic_classes, bandwidth) (rdma_port_dcb_info" + sel(dev) + ")", legend: "Ports"}),
	}}
}

func linksFEC() row {
	s := sel(dev)
	return row{"Error correction", []panel{
		graph("Raw bit error ratio", "Bits with errors before correction, of those that the link carries. Drivers that count bits only: mlx5, bnxt_en. "+
			"Compare a port with its past and with others: normal values differ by the kind of link.", "none",
			query{expr: top(20, rawBitErrors()), legend: portName}),
		graph("Corrected blocks", "Blocks per second that error correction repaired. Normal on fast links.", "ops",
			query{expr: top(20, rate("rdma_port_fec_corrected_blocks_total", s)), legend: portName}),
		graph("Uncorrectable blocks", "Blocks in the interval that error correction could not repair: packets were lost. Training of a link causes some.",
			"none", query{
				expr: top(20, "increase(rdma_port_fec_uncorrectable_blocks_total"+s+"[$__rate_interval])"), legend: portName,
			}).above(1, 10),
		table("Modes", "Ports by their active mode of error correction. Both ends of a link must have the same.", "none", []string{"mode"},
			query{expr: "count by (mode) (rdma_port_fec_info" + s + ")", legend: "Ports"}),
	}}
}

func linksHistory() row {
	s := sel(dev)
	return row{"History of links", []panel{
		graph("Flaps", "Losses of the carrier that ended, in the interval. The sensor compares the kernel's counter, so short ones count.", "none",
			query{expr: top(20, "increase(rdma_port_link_flaps_total"+s+"[$__rate_interval]) > 0 or rdma_port_link_flaps_total"+s+" * 0"), legend: portName}),
		timeline("Port state", "Logical state of each port (the 50 worst at each time).",
			map[string]string{"0": "not active", "1": "active"},
			query{expr: "bottomk(50, sum by (" + ofPort + ") (infiniband_port_state" + sel(dev, `state="active"`) + "))", legend: portName}).under(1),
		table("Why links are down", "What drivers report of links that are down now.", "none",
			[]string{"instance", "device", "port", "netdev", "reason", "detail"},
			query{expr: top(100, by(ofPort+", netdev, reason, detail", "rdma_port_link_down_reason"+s)), legend: "Down"}),
		table("Last changes", "Time since the carrier changed last (the 50 latest), and how often it has been lost. Empty if it has not changed since the sensor started.",
			"none", []string{"instance", "device", "port", "netdev"},
			query{
				expr: "bottomk(50, max by (" + ofPort + ", netdev) (time() - rdma_port_link_changed_timestamp_seconds" + s + "))", legend: "Changed before", unit: "s",
			},
			query{expr: top(200, "max by ("+ofPort+", netdev) (rdma_port_carrier_down_total"+s+")"), legend: "Losses of the carrier"},
			query{expr: top(200, "max by ("+ofPort+", netdev) (rdma_port_link_down_events_total"+s+")"), legend: "Physical losses"}),
	}}
}

func linksModules() row {
	s := sel(dev)
	return row{"Modules", []panel{
		graph("Temperature", "Temperature of modules, the warmest. UFM isolates ports from 70 °C on; usual modules alarm at 80 °C.", "celsius",
			query{expr: top(20, "rdma_port_module_temperature_celsius"+s), legend: portName}),
		graph("Margin to alarms", "Distance of the worst values to the alarm limits of the module: 50 % is the middle, 0 the limit.", "percentunit",
			query{expr: "bottomk(20, rdma_port_module_margin_ratio" + s + ")", legend: portName + " {{value}}"}),
		table("Warnings and alarms", "Values beyond the limits of the module: 1 and 2 are too high, -1 and -2 too low; 2 is an alarm.", "none",
			[]string{"instance", "device", "port", "value"},
			query{expr: top(100, by(ofPort+", value", "rdma_port_module_alarm"+s+" != 0")), legend: "Alarm"}),
		table("Types", "Modules by type, vendor and part number.", "none", []string{"type", "vendor", "part_number", "technology", "length_meters"},
			query{expr: "count by (type, vendor, part_number, technology, length_meters) (rdma_port_module_info" + s + ")", legend: "Modules"}),
	}}
}

func linksLanes() row {
	s := sel(dev)
	const legend = portName + " lane {{lane}}"
	light := func(direction string) string {
		return "10 * log10(1000 * (rdma_port_module_" + direction + "_power_watts" + s + " > 0))"
	}
	return row{"Lanes of modules (--link.module-lanes)", []panel{
		graph("Received light", "Optical power that each lane receives, the 40 weakest. Lanes without light have no value.", "suffix: dBm",
			query{expr: "bottomk(40, " + light("receive") + ")", legend: legend}),
		graph("Transmitted light", "Optical power that each lane transmits, the 40 weakest.", "suffix: dBm",
			query{expr: "bottomk(40, " + light("transmit") + ")", legend: legend}),
		graph("Laser bias", "Bias current of each lane, the 40 highest. It rises while a laser ages.", "suffix: mA",
			query{expr: top(40, "1000 * rdma_port_module_bias_amperes"+s), legend: legend}),
	}}
}

func linksPCIe() row {
	s := sel(dev)
	return row{"PCIe links of HCAs", []panel{
		table("PCIe links", "Lanes and speed of the PCIe links of HCAs, as parts of what HCA and slot support (the 200 worst).", "percentunit",
			[]string{"instance", "device"},
			query{
				expr: "bottomk(200, max by (instance, device) (rdma_device_pcie_link_width_lanes" + s +
					" / rdma_device_pcie_link_max_width_lanes" + s + "))", legend: "Lanes",
			},
			query{
				expr: "bottomk(200, max by (instance, device) (rdma_device_pcie_link_transfers_per_second" + s +
					" / rdma_device_pcie_link_max_transfers_per_second" + s + "))", legend: "Speed",
			}),
		graph("PCIe errors", "Errors per second that the HCA and the port above it detected, by severity.", "ops",
			query{
				expr:   top(20, rate("rdma_device_pcie_aer_errors_total", s)),
				legend: "{{instance}} {{device}} {{severity}}",
			}),
	}}
}
