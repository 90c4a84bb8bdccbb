// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

// unanswered are the queries without data in the guest, with the reason: "file: panel: query".
var unanswered = map[string]string{
	"gpus.json: Remapped rows and retired pages: B":                "the fake H100 remaps rows, and retires no pages",
	"gpus.json: XGMI: A":                                           "AMD only",
	"gpus.json: XGMI: B":                                           "AMD only",
	"hca.json: Out of buffer, out of sequence, retransmissions: G": "the HCAs of files have no slow restarts",
	"hca.json: Bytes of kernel users: A":                           noKernelUser,
	"hca.json: Bytes of kernel users: B":                           noKernelUser,
	"hca.json: HCAs of kernel users: A":                            noKernelUser,
	"hca.json: HCAs of kernel users: B":                            noKernelUser,
	"hca.json: Port utilization: C":                                noVF,
	"hca.json: Port utilization: D":                                noVF,
	"hca.json: Errors by type: C":                                  noDriverErrors,
	"hca.json: Errors by type: D":                                  noDriverErrors,
	"hca.json: Errors by type: E":                                  noDriverErrors,

	"sensor.json: Devices that are not ok: A":             "nothing is broken",
	"sensor.json: Data path probes: share of CPU time: B": "there is no budget with --rdma.datapath=always",
	"workloads.json: Jobs of the selected workloads: A":   noJob,
	"workloads.json: OOM kills and restarts: B": "containers that containerd runs without " +
		"Kubernetes are not started again",
}

// unrecorded are the recording rules without series in the guest, with the reason.
var unrecorded = map[string]string{
	"instance_device_port_netdev:rdma_port_raw_bit_errors:ratio_rate5m":                           noLink,
	"instance_device_port_netdev:rdma_port_raw_bit_errors:ratio_usual":                            noLink,
	"device_port:rdma_port_raw_bit_errors:ratio_rail":                                             noLink,
	"instance_device_port_netdev_direction_priority:rdma_port_pause:ratio_rate5m":                 noLink,
	"instance_device_port_netdev_direction_priority:rdma_port_pause:ratio_usual":                  noLink,
	"device_port_direction_priority:rdma_port_pause:ratio_rail":                                   noLink,
	"instance_device_port:rdma_cnp_sent:rate_usual":                                               noPast,
	"device_port:rdma_cnp_sent:rate_rail":                                                         noRail,
	"instance_device:infiniband_port_management:info":                                             noManagement,
	"instance_device:infiniband_port_busy:info":                                                   "no port moves one percent of its rate",
	"instance_device:infiniband_smi:info":                                                         "no HCA of the guest has a second device",
	"instance_device:infiniband_vf_unowned:info":                                                  noVF,
	"instance_device:infiniband_link_shared:info":                                                 noVF,
	"instance_device_port:infiniband_vf_follows_pf:info":                                          noVF,
	"instance_workload_device_opcode:container_rdma_completion_duration_seconds:p99_usual":        noPast,
	"instance_workload_device_opcode:container_rdma_completion_duration_seconds:p99_ratio_usual":  noPast,
	"instance_device:container_rdma_completion_duration_seconds:slower_ratio":                     noPast,
	"instance_device_opcode:container_rdma_completion_duration_seconds:p99_others":                noOthers,
	"instance_workload_device_opcode:container_rdma_completion_duration_seconds:p99_ratio_others": noOthers,
	"instance_workload_communicator:container_rdma_receive_wait_seconds:rate2m":                   noCollective,
	"instance_workload_communicator:container_rdma_receive_wait_seconds:mean2m":                   noCollective,
	"instance_workload:accelscope_workload_info:job":                                              noJob,
	"instance_gpu_job_name:container_gpu_allocated:max":                                           noJob,
	"instance_gpu_job_name:container_gpu_allocated:used":                                          noJob,
	"job_name:container_gpu_allocated:count":                                                      noJob,
	"job_name:container_gpu_allocated:used":                                                       noJob,
	"job_name:container_gpu_allocated:idle":                                                       noJob,
	"job_name:container_gpu_allocated:idle_hours1d":                                               noJob,
	"job_name:container_gpu_energy_joules:rate5m":                                                 noJob,
	"job_name:container_gpu_energy_joules:kwh1d":                                                  noJob,
	"job_name:container_gpu_energy_joules:idle_rate5m":                                            noJob,
	"job_name:container_gpu_energy_joules:idle_kwh1d":                                             noJob,
	"job_name:container_cpu_energy_joules:rate5m":                                                 noJob,
	"job_name:container_cpu_energy_joules:kwh1d":                                                  noJob,
	"namespace:container_cpu_energy_joules:rate5m":                                                noRAPL,
	"namespace:container_cpu_energy_joules:kwh1d":                                                 noRAPL,
	"cluster:electricity_kwh:price":                                                               noPrice,
	"cluster:electricity_kwh:carbon_kg":                                                           noPrice,
	"job_name:container_energy_joules:kwh1d":                                                      noJob,
	"job_name:container_energy_joules:cost1d":                                                     noJob,
	"job_name:container_energy_joules:carbon_kg1d":                                                noJob,
	"job_name_method:container_rdma_transmit_bytes:rate5m":                                        noJob,
	"job_name_method:container_rdma_receive_bytes:rate5m":                                         noJob,
	"job_name:container_rdma_verbs_errors:rate5m":                                                 noJob,
	"job_name:container_rdma_completion_errors:rate5m":                                            noJob,
	"job_name:container_rdma_verbs_duration_seconds:p99_rate5m":                                   noJob,
	"job_name:container_rdma_completion_duration_seconds:p99_rate5m":                              noJob,
	"instance_workload_job_name:container_rdma_completion_duration_seconds:p99_rate5m":            noJob,
	"instance_workload_job_name:container_rdma_completion_duration_seconds:p99_ratio_median":      noJob,
	"job_name:container_rdma_completion_duration_seconds:slowest_ratio_median":                    noJob,
}

const (
	noPast = "the guest is younger than an hour"
	noVF   = "no HCA of the guest has virtual functions"
	// The scenario "kernel users" of TestNode has NFS and NVMe-oF.
	noKernelUser = "the guest of this test has no storage over RDMA"
	// The HCAs of files have the counters of the PMA, and Soft-RoCE has no such errors.
	noDriverErrors = "no driver of the guest counts errors of its own"
	noLink         = "no driver of the guest reports pause or error correction; tests/machines/vm/driver/linktest.c is for that"
	noRail         = "two nodes are no rail"
	noManagement   = "the HCAs of files are equally fast, and Soft-RoCE has no board"
	noOthers       = "no HCA has completions of three workloads"
	noCollective   = "no container of the guest launches collectives"
	// TestJobOverNodes (cmd/accelscope) and the tests of the rules have jobs.
	noRAPL  = "an emulated CPU has no RAPL"
	noPrice = "the user sets it"
	noJob   = "the containers of the guest are in no job"
)

// expected are the alerts that the events in the guest must raise (they would fire if the events continued), with the
// reason.
var expected = map[string]string{
	"RDMAVerbsErrors":      "the verbs of ml/faulty-0 fail",
	"RDMACompletionErrors": "the work requests of ml/faulty-0 get no answer",
	"RDMAPacketErrors":     "an HCA of files receives packets with errors",
	"RDMAOutOfBuffer":      "an HCA of files has no receive buffers",
	"RDMAAllocatedIdle":    "ml/idle-0 has an HCA and no queue pair on it",
	"GPUAllocatedIdle":     "ml/idle-0 has a GPU and no process on it",
	"GPUXidCritical":       "GPU 2 reports XID 48",
	"GPUXidNoncritical":    "GPU 0 reports XID 13",
	"GPURecoveryAction":    "the driver asks for a reset of GPU 1",
	"FabricLinkDegraded":   "a link of the fabric has 4 of 12 lanes",
	"FabricLinkErrors":     "a link of the fabric recovers again and again",
}

// tolerated are alerts, some limited to a source or problem, that a slow emulator may raise.
var tolerated = map[string]string{
	"RDMAVerbsSlow":               "verbs take as long as an emulated CPU lets them",
	"FabricSwitchNotAnswering":    "a tool may be too slow for its deadline",
	"AccelscopeSourceStuck":       "a read may take longer than the 2 s after which its source is stuck",
	"AccelscopeSourceLost fabric": "the tools may be too slow for the interval",
	"AccelscopeSourceLost nvidia": "the child may answer later than its deadline",
	"GPULost stuck":               "a call of the library may take longer than the 2 s after which its GPU is stuck",
}
