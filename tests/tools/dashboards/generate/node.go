// SPDX-License-Identifier: Apache-2.0

package main

const (
	nodeName = "{{instance}}"
	// cpuTime grows by the number of CPUs in a second. It has a series for each mode, not for each mode of each CPU.
	cpuTime = "node_cpu_all_seconds_total"
)

// nodes shows the nodes themselves, and what workloads use of them beside GPUs and RDMA.
func nodes() dashboard {
	return dashboard{
		uid: "accelscope-node", title: "accelscope / Nodes", refresh: "1m", span: "6h",
		description: "CPU, memory, disks, network and pressure of nodes; ephemeral storage of pods, virtual functions, steps of Slurm jobs.",
		variables:   []variable{node},
		rows:        []row{nodeNow(), nodeCPU(), nodeDisks(), nodeNetwork(), nodePressure(), nodeStorage(), nodeVFs(), nodeSlurm()},
	}
}

func nodeNow() row {
	s := sel()
	return row{"Now", []panel{
		stat("Nodes", "Nodes with the collector of node metrics.", "none", "count(node_boot_time_seconds"+s+")"),
		stat("CPU in use", "Share of all CPUs that is not idle and does not wait for disks.", "percentunit",
			"1 - sum("+rate(cpuTime, sel(`mode=~"idle|iowait"`))+") / sum("+rate(cpuTime, s)+")").max(1),
		stat("Memory in use", "Share of the memory of all nodes that is not available to programs.", "percentunit",
			"1 - sum(node_memory_MemAvailable_bytes"+s+") / sum(node_memory_MemTotal_bytes"+s+")").max(1),
		stat("Fullest file system", "Used share of the fullest file system.", "percentunit",
			"max(1 - node_filesystem_avail_bytes"+s+" / (node_filesystem_size_bytes"+s+" > 0))").above(0.8, 0.95).max(1),
		stat("Memory pressure", "Share of the time that all tasks of a node waited for memory, of the most affected node.", "percentunit",
			"max("+rate("node_pressure_memory_stalled_seconds_total", s)+")").above(0.01, 0.1).max(1),
		stat("Disk pressure", "Share of the time that all tasks of a node waited for disks, of the most affected node.", "percentunit",
			"max("+rate("node_pressure_io_stalled_seconds_total", s)+")").above(0.1, 0.5).max(1),
	}}
}

func nodeCPU() row {
	s := sel()
	return row{"CPU and memory", []panel{
		graph("CPU in use", "Share of the CPUs of a node that is not idle, the busiest nodes.", "percentunit",
			query{expr: top(20, "1 - sum by (instance) ("+rate(cpuTime, sel(`mode=~"idle|iowait"`))+") / sum by (instance) ("+rate(cpuTime, s)+")"), legend: nodeName}).max(1),
		graph("CPU by mode", "CPUs in use on all selected nodes, by mode. steal: the hypervisor took them.", "none",
			query{expr: "sum by (mode) (" + rate(cpuTime, sel(`mode!="idle"`)) + ")", legend: "{{mode}}"}).stacked(),
		graph("Memory in use", "Share of the memory of a node that is not available to programs, the fullest nodes. Page cache counts as available.",
			"percentunit",
			query{expr: top(20, "1 - node_memory_MemAvailable_bytes"+s+" / node_memory_MemTotal_bytes"+s), legend: nodeName}).max(1),
		graph("Load by CPU", "Runnable and waiting tasks (average of a minute) by CPU, the busiest nodes. Above 1, tasks wait.", "none",
			query{expr: top(20, "node_load1"+s+" / on (instance) sum by (instance) ("+rate(cpuTime, s)+")"), legend: nodeName}),
	}}
}

func nodeDisks() row {
	s := sel()
	const legend = "{{instance}} {{device}}"
	return row{"Disks", []panel{
		graph("Disk throughput", "Bytes per second: read above zero, written below.", "Bps",
			query{expr: top(15, rate("node_disk_read_bytes_total", s)), legend: legend + " read"},
			query{expr: top(15, rate("node_disk_written_bytes_total", s)), legend: legend + " written", below: true}),
		graph("Disks in use", "Share of the time in which requests were in progress. Disks that work in parallel (NVMe) can do more at 100 %.", "percentunit",
			query{expr: top(20, rate("node_disk_io_time_seconds_total", s)), legend: legend}),
		table("File systems", "Used space of file systems (the 100 fullest).", "percentunit", []string{"instance", "mountpoint", "fstype"},
			query{
				expr:   top(100, "max by (instance, mountpoint, fstype) (1 - node_filesystem_avail_bytes"+s+" / (node_filesystem_size_bytes"+s+" > 0))"),
				legend: "Space",
			}).sorted("Space"),
	}}
}

func nodeNetwork() row {
	s := sel()
	const legend = "{{instance}} {{device}}"
	return row{"Network (TCP and other traffic of the kernel; RDMA is in the dashboard HCAs)", []panel{
		graph("Network throughput", "Bytes per second of network interfaces: received above zero, sent below.", "Bps",
			query{expr: top(15, rate("node_network_receive_bytes_total", s)), legend: legend + " received"},
			query{expr: top(15, rate("node_network_transmit_bytes_total", s)), legend: legend + " sent", below: true}),
	}}
}

func nodePressure() row {
	waiting := func(resource, kind string) query {
		return query{
			expr:   top(8, rate("node_pressure_"+resource+"_"+kind+"_seconds_total", sel())),
			legend: nodeName + " " + resource + " " + kind,
		}
	}
	return row{"Pressure (PSI)", []panel{
		graph("Some tasks wait", "Share of the time in which at least one task waited for CPU, memory or disks.", "percentunit",
			waiting("cpu", "waiting"), waiting("memory", "waiting"), waiting("io", "waiting")),
		graph("All tasks wait", "Share of the time in which all tasks waited for memory or disks: the node did nothing else.", "percentunit",
			waiting("memory", "stalled"), waiting("io", "stalled")),
	}}
}

func nodeStorage() row {
	s := sel()
	return row{"Ephemeral storage (Kubernetes)", []panel{
		graph("Ephemeral storage of nodes", "Used share of the file system for ephemeral storage, the fullest nodes. The kubelet evicts pods near its limit.",
			"percentunit", query{
				expr: top(20, "node_ephemeral_storage_usage_bytes"+s+" / (node_ephemeral_storage_capacity_bytes"+s+" > 0)"), legend: nodeName,
			}).max(1).above(0.8, 0.9),
		graph("Ephemeral storage of pods", "Writable layers, logs and emptyDir volumes of pods, the largest.", "bytes",
			query{expr: top(20, "max by (namespace, pod) (pod_ephemeral_storage_usage_bytes"+s+")"), legend: "{{namespace}}/{{pod}}"}),
	}}
}

func nodeVFs() row {
	s := sel()
	const legend = "{{instance}} {{pf_device}} VF {{vf}}"
	// The device of a workload is known by its PCI address.
	owners := "max by (instance, pci_address, workload) (accelscope_workload_device_info" + sel(`pci_address!=""`) + ")"
	return row{"Virtual functions", []panel{
		graph("Throughput of virtual functions", "Bytes per second, RDMA and other traffic: sent above zero, received below.", "Bps",
			query{expr: top(15, rate("infiniband_vf_transmit_bytes_total", s)), legend: legend + " sent"},
			query{expr: top(15, rate("infiniband_vf_receive_bytes_total", s)), legend: legend + " received", below: true}),
		table("Virtual functions", "Virtual functions with the workload that they are assigned to (200 at most).", "none",
			[]string{"instance", "pf_device", "vf", "pci_address", "workload"},
			query{
				expr: top(200, "max by (instance, pf_device, vf, pci_address) (infiniband_vf_info"+sel(`pci_address!=""`)+
					") * on (instance, pci_address) group_right (pf_device, vf) "+owners), legend: "Assigned",
			}),
		table("Unassigned virtual functions", "Number of virtual functions of each physical function that no workload has.", "none",
			[]string{"instance", "pf_device"},
			query{
				expr: "count by (instance, pf_device) (infiniband_vf_info" + s + " unless on (instance, pci_address) " + owners + ")", legend: "Free",
			}),
	}}
}

func nodeSlurm() row {
	steps := "max by (instance, workload, job_id, step, user) (accelscope_slurm_step_info" + sel() + ")"
	of := func(expr string) string {
		return "sum by (instance, workload) (" + expr + ") * on (instance, workload) group_right () " + steps
	}
	return row{"Steps of Slurm jobs", []panel{
		table("Steps", "Steps on the selected nodes (200 at most). A workload is a job: CPU and memory are those of all of its steps on the node.", "none",
			[]string{"instance", "workload", "job_id", "step", "user"},
			query{expr: top(200, steps), legend: "Steps"},
			query{expr: top(200, of(rate("container_cpu_usage_seconds_total", sel()))), legend: "CPUs of the job"},
			query{expr: top(200, of("container_memory_working_set_bytes"+sel())), legend: "Memory of the job", unit: "bytes"}),
		graph("Steps by job", "Number of steps of each job on the selected nodes.", "none",
			query{expr: top(20, "count by (job_id) ("+steps+")"), legend: "{{job_id}}"}),
	}}
}
