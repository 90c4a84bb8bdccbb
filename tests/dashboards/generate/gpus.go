// SPDX-License-Identifier: Apache-2.0

package main

// gpus shows the use of the GPUs by workload, allocated GPUs that are idle, and GPUs with problems.
func gpus() dashboard {
	return dashboard{
		uid: "accelscope-gpus", title: "accelscope / GPUs", refresh: "30s", span: "1h",
		description: "GPUs and parts of GPUs (MIG instances, partitions): who uses them, who was given one and does not, health.",
		variables:   []variable{node, gpu, namespace, workload},
		rows:        []row{gpuNow(), gpuUsers(), gpuHealth(), gpuErrors(), gpuState(), gpuLinks()},
	}
}

const (
	chosen  = `uuid=~"$gpu"`
	gpuName = "{{instance}} GPU {{gpu_id}}"
)

// gpuGraph is a graph of the GPUs with the largest values, one series for each.
func gpuGraph(title, description, unit, expr, legend string) panel {
	return graph(title, description, unit, query{expr: top(20, expr), legend: legend})
}

func gpuNow() row {
	s := sel(chosen)
	return row{"Now", []panel{
		stat("GPUs", "GPUs, without the parts of those that are cut into some (MIG instances, partitions).", "none",
			"count(gpu_info"+sel(chosen, `parent_uuid=""`)+")"),
		stat("Not healthy", "GPUs that have any of the problems that are looked for; see What is wrong.", "none",
			"count(gpu_health"+s+" == 0) or vector(0)").above(0, 1),
		stat("Given to workloads", "GPUs, or parts, that a workload was given: by the kubelet, as a device node, or because Docker "+
			"was asked for it.", "none",
			"count(count by (instance, uuid) (container_gpu_allocated"+s+")) or vector(0)"),
		stat("Given and idle", "Workloads that were given a GPU and have no process on it now, by GPU. Time-slicing may count a GPU "+
			"twice.", "none",
			"count("+idle(chosen, own)+") or vector(0)").above(1, 8),
		stat("Memory in use", "Part of the memory of all GPUs that is allocated. MIG instances are in that of their GPU.", "percentunit",
			"sum(gpu_memory_used_bytes"+s+" and on (instance, uuid) gpu_info"+sel(`parent_uuid=""`)+") / sum(gpu_memory_total_bytes"+s+
				" and on (instance, uuid) gpu_info"+sel(`parent_uuid=""`)+")").max(1),
		stat("XIDs", "Errors that NVIDIA's driver reported in the time that is shown, by GPU and code; those of applications included (13, 31, 43).",
			"none",
			"count(gpu_xid_last_timestamp_seconds"+s+" > time() - $__range_s) or vector(0)").above(1, 10),
	}}
}

func gpuUsers() row {
	s := sel(chosen, own)
	return row{"Who uses them", []panel{
		graph("Memory by workload", "Memory that the processes of each workload have allocated. (no owner): contexts of the driver, "+
			"and processes that no workload is "+
			"known of. MIG instances are counted with their GPU's workloads.", "bytes",
			shares(15, by("workload", "container_gpu_memory_used_bytes"+s), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Compute in use by workload", "GPUs' worth of compute units in use, summed over GPUs: 1 is one GPU all of the time. "+
			"NVIDIA: sm, AMD: cu. What MIG "+
			"instances do, no driver reports by process.", "none",
			shares(15, by("workload", "container_gpu_utilization_ratio"+sel(chosen, own, `engine=~"sm|cu"`)),
				"{{workload}}")...).stacked().leads(workloadLink),
		graph("Engines by workload", "Use of each engine by the processes of a workload, in the last --gpu.process-interval.",
			"percentunit", query{
				expr: owner(top(20, by("workload, engine", "container_gpu_utilization_ratio"+s)+" > 0")), legend: "{{workload}} {{engine}}",
			}),
		table("Given and not used", "Workloads that were given a GPU and have no process on it now. A job that has just begun, or "+
			"ends, is one, too.", "none",
			[]string{"instance", "namespace", "workload", "gpu_id", "uuid"}, query{expr: top(50, idle(chosen, own)), legend: "Given"}),
		table("Who is on which GPU", "Processes, memory and compute by GPU and workload, whether it asked for the GPU or not.", "none",
			[]string{"instance", "gpu_id", "workload"},
			query{expr: owner(top(100, by("instance, gpu_id, workload", "container_gpu_processes"+s)+" > 0")), legend: "Processes"},
			query{
				expr: owner(top(100, by("instance, gpu_id, workload", "container_gpu_memory_used_bytes"+s)+" > 0")), legend: "Memory",
				unit: "bytes",
			},
			query{
				expr: owner(top(100, by("instance, gpu_id, workload",
					"container_gpu_utilization_ratio"+sel(chosen, own, `engine=~"sm|cu"`))+" > 1e-9")),
				legend: "Compute", unit: "percentunit",
			}).wide(24).high(9),
	}}
}

func gpuHealth() row {
	s := sel(chosen)
	return row{"Health", []panel{
		timeline("Health", "1: none of the problems that are looked for. A GPU that cannot be asked (lost, stuck) is not healthy; "+
			"one that sleeps is not asked.",
			map[string]string{"0": "not healthy", "1": "healthy"},
			query{expr: "bottomk(20, gpu_health" + s + ")", legend: gpuName}).under(1),
		table("What is wrong", "Problems that GPUs have now. lost: it fell off the bus. stuck: a call into its driver has not "+
			"returned. xid: a critical XID since the "+
			"driver was loaded.", "none", []string{"instance", "gpu_id", "uuid", "problem"},
			query{expr: by("instance, gpu_id, uuid, problem", "gpu_problem"+s+" == 1"), legend: "Has it"}),
		table("XIDs", "Errors that NVIDIA's driver reported while the sensor looks, by code, and when the last was. NVIDIA's XID "+
			"catalog explains them.", "none",
			[]string{"instance", "gpu_id", "uuid", "xid"},
			query{expr: top(50, by("instance, gpu_id, uuid, xid", "gpu_xid_errors_total"+s)), legend: "Times"},
			query{
				expr: top(50, "max by (instance, gpu_id, uuid, xid) (gpu_xid_last_timestamp_seconds"+s+") * 1000"), legend: "Last",
				unit: "dateTimeAsIso",
			}),
		table("Rows and pages out of use", "Rows of memory that were remapped, and pages that were retired, for errors. Some are "+
			"normal; a remap failure is not.", "none",
			[]string{"instance", "gpu_id", "cause"},
			query{expr: top(50, by("instance, gpu_id, cause", "gpu_remapped_rows"+s)+" > 0"), legend: "Remapped rows"},
			query{expr: top(50, by("instance, gpu_id, cause", "gpu_retired_pages"+s)+" > 0"), legend: "Retired pages"}),
	}}
}

func gpuErrors() row {
	volatile := sel(chosen, `scope="volatile"`)
	return row{"Memory errors", []panel{
		gpuGraph("ECC errors since the driver was loaded", "Errors that ECC found, by type: corrected ones cost nothing, uncorrected "+
			"ones cost the process. Sum over all blocks.",
			"none", "max by (instance, gpu_id, type) (gpu_ecc_errors_total"+sel(chosen, `scope="volatile"`, `block="all"`)+" or sum "+
				"without (block) (gpu_ecc_errors_total"+
				sel(chosen, `scope="volatile"`, `block!="all"`)+"))", gpuName+" {{type}}"),
		gpuGraph("New ECC errors by block", "Errors in the last hour, by type and block. More corrected errors than before announce "+
			"worse.", "none",
			by("instance, gpu_id, type, block", "increase(gpu_ecc_errors_total"+volatile+"[1h])"), gpuName+" {{type}} {{block}}"),
	}}
}

func gpuState() row {
	s := sel(chosen)
	return row{"The devices themselves", []panel{
		gpuGraph("Utilization of the device", "Part of the time in which anything ran on the GPU: 100 % may be one small kernel.",
			"percent", "gpu_utilization"+s, gpuName).max(100),
		gpuGraph("Engines of the device", "Part of the time, or of the cycles (*_active), in which engines worked. Those that matter "+
			"for training are sm_active and "+
			"tensor_active, of GPUs with performance monitoring.", "percentunit", "gpu_engine_utilization_ratio"+s+" > 0", gpuName+" "+
			"{{engine}}"),
		gpuGraph("Memory in use", "Part of the memory that is allocated.", "percentunit", "gpu_memory_used_bytes"+s+" / "+
			"(gpu_memory_total_bytes"+s+" > 0)", gpuName).max(1),
		graph("Power", "What GPUs draw; dashed: the limit above which they are slowed down.", "watt",
			query{expr: top(20, "gpu_power_watts"+s), legend: gpuName},
			query{expr: "max(gpu_power_limit_watts" + s + ")", legend: "limit", dashed: true}),
		gpuGraph("Temperature", "Of each sensor.", "celsius", "gpu_temperature_celsius"+s, gpuName+" {{sensor}}"),
		gpuGraph("Slowed down", "Part of the time in which the GPU was slowed down, by reason. Counted by the driver, where it "+
			"counts it.", "percentunit",
			rate("gpu_throttled_seconds_total", s), gpuName+" {{reason}}"),
		gpuGraph("Slowed down now, by reason", "GPUs that are slowed down now, for each reason. idle is one, too, and not shown.", "none",
			"sum by (instance, reason) (gpu_throttled"+sel(chosen, `reason!="idle"`)+")", "{{instance}} {{reason}}"),
		gpuGraph("Clock", "Of the compute units.", "hertz", "gpu_clock_hertz"+sel(chosen, `clock=~"sm|graphics"`), gpuName+" {{clock}}"),
	}}
}

func gpuLinks() row {
	s := sel(chosen)
	both := func(name, unit string) []query {
		of := func(direction string) string {
			return top(15, by("instance, gpu_id", rate("gpu_"+name+"_"+direction+"_bytes_total", s)))
		}
		return []query{
			{expr: of("transmit"), legend: gpuName + " sent", unit: unit},
			{expr: of("receive"), legend: gpuName + " received", unit: unit, below: true},
		}
	}
	return row{"Links", []panel{
		graph("PCIe", "Bytes per second in the last sample of the driver, sent above zero, received below. NVIDIA only.", "Bps",
			query{expr: top(15, "gpu_pcie_transmit_bytes_per_second"+s), legend: gpuName + " sent"},
			query{expr: top(15, "gpu_pcie_receive_bytes_per_second"+s), legend: gpuName + " received", below: true}),
		gpuGraph("PCIe lanes in use", "Part of the lanes that GPU and slot are capable of. Less than 1 is a card that sits badly.",
			"percentunit",
			"gpu_pcie_link_width_lanes"+s+" / (gpu_pcie_link_max_width_lanes"+s+" > 0)", gpuName).max(1),
		graph("NVLink", "Bytes per second of all links of a GPU, sent above zero, received below.", "Bps", both("nvlink", "Bps")...),
		gpuGraph("NVLinks that are down", "Links that are not up. Some are never used: compare with GPUs of the same kind.", "none",
			"count by (instance, gpu_id) (gpu_nvlink_up"+s+" == 0)", gpuName),
		gpuGraph("NVLink errors", "Errors per second, by the driver's name of them.", "suffix:/s",
			by("instance, gpu_id, type", rate("gpu_nvlink_errors_total", s)), gpuName+" {{type}}"),
		graph("XGMI", "Bytes per second of all links of an AMD GPU, sent above zero, received below.", "Bps", both("xgmi", "Bps")...),
	}}
}
