// SPDX-License-Identifier: Apache-2.0

package main

// gpus shows the use of the GPUs by workload, allocated GPUs that are idle, and GPUs with problems.
func gpus() dashboard {
	return dashboard{
		uid: "accelscope-gpus", title: "accelscope / GPUs", refresh: "30s", span: "1h",
		description: "Use of GPUs, MIG instances and partitions by workload, GPUs that are allocated but idle, and GPUs with problems.",
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
		stat("GPUs", "GPUs, without counting MIG instances and partitions separately.", "none",
			"count(gpu_info"+sel(chosen, `parent_uuid=""`)+")"),
		stat("Unhealthy", "GPUs that have at least one of the checked problems; see the table Problems.", "none",
			"count(gpu_health"+s+" == 0) or vector(0)").above(0, 1),
		stat("Allocated", "GPUs, MIG instances and partitions that are allocated to a workload: by the kubelet, as a device node, "+
			"or by a request to Docker.", "none",
			"count(count by (instance, uuid) (container_gpu_allocated"+s+")) or vector(0)"),
		stat("Allocated but idle",
			"GPUs that are allocated to a workload without a process on them now. With time-slicing, a GPU counts "+
				"once for each such workload.", "none",
			"count("+idle(chosen, own)+") or vector(0)").above(1, 8),
		stat("Memory in use",
			"Share of the memory of all GPUs that is allocated. The memory of MIG instances is part of that of their "+
				"GPU.", "percentunit",
			"sum(gpu_memory_used_bytes"+s+" and on (instance, uuid) gpu_info"+sel(`parent_uuid=""`)+") / sum(gpu_memory_total_bytes"+s+
				" and on (instance, uuid) gpu_info"+sel(`parent_uuid=""`)+")").max(1),
		stat("XIDs", "XID codes that NVIDIA's driver reported in the selected time range, counted per GPU. Codes that "+
			"applications cause (13, 31, 43) are included.",
			"none",
			"count(gpu_xid_last_timestamp_seconds"+s+" > time() - $__range_s) or vector(0)").above(1, 10),
	}}
}

func gpuUsers() row {
	s := sel(chosen, own)
	return row{"Use by workload", []panel{
		graph("Memory by workload",
			"Memory that the processes of each workload have allocated. (no owner): contexts of the driver, and "+
				"processes of no known workload. MIG instances are counted with the workloads of their GPU.", "bytes",
			shares(15, by("workload", "container_gpu_memory_used_bytes"+s), "{{workload}}")...).stacked().leads(workloadLink),
		graph("Compute in use by workload",
			"Use of the compute units, summed over GPUs: 1 is one GPU used all of the time. Engine sm (NVIDIA) or cu "+
				"(AMD). No driver reports it by process for MIG instances.", "none",
			shares(15, by("workload", "container_gpu_utilization_ratio"+sel(chosen, own, `engine=~"sm|cu"`)),
				"{{workload}}")...).stacked().leads(workloadLink),
		graph("Engines by workload", "Use of each engine by the processes of a workload, in the last --gpu.process-interval.",
			"percentunit", query{
				expr: owner(top(20, by("workload, engine", "container_gpu_utilization_ratio"+s)+" > 0")), legend: "{{workload}} {{engine}}",
			}),
		table("Allocated but idle GPUs",
			"GPUs that are allocated to a workload without a process on them now. Workloads that have just started or "+
				"are about to end are included.", "none",
			[]string{"instance", "namespace", "workload", "gpu_id", "uuid"}, query{expr: top(50, idle(chosen, own)), legend: "Allocated"}),
		table("Processes by GPU and workload",
			"Processes, memory and compute use by GPU and workload, whether or not the GPU is allocated to the "+
				"workload.", "none",
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
		timeline("Health", "healthy: the GPU has none of the checked problems. A GPU that cannot be read (lost, stuck) is not "+
			"healthy; a GPU in runtime suspend, or that waits for a stuck GPU, is not read.",
			map[string]string{"0": "not healthy", "1": "healthy"},
			query{expr: "bottomk(20, gpu_health" + s + ")", legend: gpuName}).under(1),
		table("Problems", "Problems that GPUs have now. lost: the GPU is no longer on the PCIe bus. stuck: a call into its driver "+
			"has not returned. recovery_action: its driver asks for a reset or the like. xid: a critical XID since the driver was loaded.", "none", []string{"instance", "gpu_id", "uuid", "problem"},
			query{expr: by("instance, gpu_id, uuid, problem", "gpu_problem"+s+" == 1"), legend: "Active"}),
		table("XIDs", "XIDs that NVIDIA's driver reported since the sensor started, by code, with the time of the last one. "+
			"NVIDIA's XID catalog explains the codes.", "none",
			[]string{"instance", "gpu_id", "uuid", "xid"},
			query{expr: top(50, by("instance, gpu_id, uuid, xid", "gpu_xid_errors_total"+s)), legend: "Times"},
			query{
				expr: top(50, "max by (instance, gpu_id, uuid, xid) (gpu_xid_last_timestamp_seconds"+s+") * 1000"), legend: "Last",
				unit: "dateTimeAsIso",
			}),
		table("Remapped rows and retired pages",
			"Memory rows that were remapped and memory pages that were retired because of errors. Some are normal; a "+
				"remap failure is not.", "none",
			[]string{"instance", "gpu_id", "cause"},
			query{expr: top(50, by("instance, gpu_id, cause", "gpu_remapped_rows"+s)+" > 0"), legend: "Remapped rows"},
			query{expr: top(50, by("instance, gpu_id, cause", "gpu_retired_pages"+s)+" > 0"), legend: "Retired pages"}),
	}}
}

func gpuErrors() row {
	volatile := sel(chosen, `scope="volatile"`)
	return row{"Memory errors", []panel{
		gpuGraph("ECC errors since the driver was loaded",
			"Errors that ECC detected, by type, summed over all memory blocks. Corrected errors have no effect; "+
				"uncorrected errors end the process.",
			"none", "max by (instance, gpu_id, type) (gpu_ecc_errors_total"+sel(chosen, `scope="volatile"`, `block="all"`)+" or sum "+
				"without (block) (gpu_ecc_errors_total"+
				sel(chosen, `scope="volatile"`, `block!="all"`)+"))", gpuName+" {{type}}"),
		gpuGraph("ECC errors in the last hour by block",
			"ECC errors in the last hour, by type and block. A growing number of corrected errors often precedes "+
				"uncorrected ones.", "none",
			by("instance, gpu_id, type, block", "increase(gpu_ecc_errors_total"+volatile+"[1h])"), gpuName+" {{type}} {{block}}"),
	}}
}

func gpuState() row {
	s := sel(chosen)
	return row{"Device state", []panel{
		gpuGraph("Utilization of the device", "Share of the time in which anything ran on the GPU: one small kernel can cause 100 %.",
			"percent", "gpu_utilization"+s, gpuName).max(100),
		gpuGraph("Engines of the device",
			"Share of the time, or of the cycles (*_active), in which each engine was busy. For training, sm_active "+
				"and tensor_active matter most; only GPUs with performance monitoring report them. Without encoders and decoders.", "percentunit",
			"gpu_engine_utilization_ratio"+sel(chosen, `engine!~"encoder|decoder"`)+" > 0", gpuName+" {{engine}}"),
		gpuGraph("Memory in use", "Share of the GPU's memory that is allocated.", "percentunit", "gpu_memory_used_bytes"+s+" / "+
			"(gpu_memory_total_bytes"+s+" > 0)", gpuName).max(1),
		graph("Power", "Power that each GPU draws. Dashed: the highest power limit of the GPUs, above which a GPU is throttled.", "watt",
			query{expr: top(20, "gpu_power_watts"+s), legend: gpuName},
			query{expr: "max(gpu_power_limit_watts" + s + ")", legend: "limit", dashed: true}),
		gpuGraph("Temperature", "Temperature by sensor of the GPU.", "celsius", "gpu_temperature_celsius"+s, gpuName+" {{sensor}}"),
		gpuGraph("Throttling", "Share of the time in which the GPU was throttled, by reason. Only where the driver counts this time.", "percentunit",
			rate("gpu_throttled_seconds_total", s), gpuName+" {{reason}}"),
		gpuGraph("Clock", "Clock frequency of the compute units.", "hertz", "gpu_clock_hertz"+sel(chosen, `clock="graphics"`), gpuName),
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
		graph("PCIe", "Bytes per second in the last sample of the driver: sent above zero, received below. NVIDIA only.", "Bps",
			query{expr: top(15, "gpu_pcie_transmit_bytes_per_second"+s), legend: gpuName + " sent"},
			query{expr: top(15, "gpu_pcie_receive_bytes_per_second"+s), legend: gpuName + " received", below: true}),
		gpuGraph("PCIe lanes in use",
			"Share of the PCIe lanes supported by GPU and slot that are in use. Below 1, the card may not be seated "+
				"properly.",
			"percentunit",
			"gpu_pcie_link_width_lanes"+s+" / (gpu_pcie_link_max_width_lanes"+s+" > 0)", gpuName).max(1),
		graph("NVLink", "Bytes per second of all links of a GPU: sent above zero, received below.", "Bps", both("nvlink", "Bps")...),
		gpuGraph("NVLinks that went down", "1 while an NVLink of the GPU is down that was up since the driver was loaded. "+
			"With --gpu.detail=full, the sensor exports the state of each link.", "none",
			by("instance, gpu_id", "gpu_problem"+sel(chosen, `problem="link_down"`)), gpuName),
		gpuGraph("NVLink errors", "Errors per second, by the driver's name of the error type.", "suffix:/s",
			by("instance, gpu_id, type", rate("gpu_nvlink_errors_total", s)), gpuName+" {{type}}"),
		graph("XGMI", "Bytes per second of all links of an AMD GPU: sent above zero, received below.", "Bps", both("xgmi", "Bps")...),
	}}
}
