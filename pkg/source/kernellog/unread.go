// SPDX-License-Identifier: Apache-2.0

package kernellog

// unread is a text of a driver about an error that is not counted.
type unread struct{ driver, kernels, text, why string }

const (
	noDevice = "the text names no device"
	noBridge = "the device is a bridge: `*_pcie_aer_errors_total` has the errors of the link to the GPU or HCA"
	another  = "another record about the same error is counted"
	// byFirmware applies to pci_print_aer: APEI reports what the firmware has handled.
	byFirmware = "the firmware of the node handles PCIe errors (GHES); the severity is only in the bits of several lines"
)

var unreadTexts = []unread{
	{
		"amdgpu", "5.10–6.8",
		"[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12",
		noDevice + "; a reset that follows is counted",
	},
	{
		"amdgpu", "5.10–6.8",
		"[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process python pid 4711 thread python pid 4712", noDevice,
	},
	{
		"amdgpu", "5.10–6.1",
		"amdgpu: qcm fence wait loop timeout expired", noDevice + "; a reset that follows is counted",
	},
	{
		"amdgpu", "5.10–7.2",
		"amdgpu: cp queue pipe 0 queue 1 preemption failed", noDevice,
	},
	{
		"amdgpu", "6.1–6.8",
		"[drm:mes_v11_0_submit_pkt_and_poll_completion [amdgpu]] *ERROR* MES failed to response msg=3", noDevice,
	},
	{
		"amdgpu", "6.12–7.2",
		"amdgpu 0000:03:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE", "a reset that follows is counted",
	},
	{
		"amdgpu", "6.8–7.2",
		"amdgpu 0000:03:00.0: amdgpu: 1 uncorrectable hardware errors detected in GFX, instance: 0, memory block: TCP", another,
	},
	{
		"amdgpu", "7.2",
		"amdgpu 0000:03:00.0: Ring gfx_0.0.0 reset succeeded", another,
	},
	{
		"i915", "5.10–7.2",
		"i915 0000:03:00.0: [drm] python[4711] context reset due to GPU hang", "the text begins with a name that a program chose",
	},
	{
		"xe", "7.2",
		"xe 0000:03:00.0: [drm] [RAS]: counter threshold crossed, 1 new errors", "the text has no severity",
	},
	{
		"nvidia", "drivers before 310",
		"NVRM: Xid (0002:00): 31, Ch 00000010, engmask 00000101, intr 10000000", "the address has no PCI domain",
	},
	{
		"nvidia", "drivers before 440",
		"NVRM: RmInitAdapter failed! (0x26:0xffff:1096)", noDevice,
	},
	{
		"mlx5_core", "5.10–7.2",
		"mlx5_core 0000:03:00.0: mlx5_health_try_recover:334:(pid 199): health recovery flow aborted, PCI reads still not working", another,
	},
	{
		"mlx5_core", "5.10–7.2",
		"mlx5_core 0000:03:00.0: cmd_work_handler:957:(pid 5): QUERY_HCA_CAP(0x100) canceled on out of queue timeout.",
		"no error of the device",
	},
	{
		"i40iw", "5.10",
		"i40iw: i40iw_process_aeq: abnormal ae_id = 0x50e", noDevice,
	},
	{
		"irdma", "7.2",
		"idpf 0000:03:00.0 irdma0: Virtual channel Req <-> Resp completion timeout", "its meaning for the device is not known",
	},
	{
		"any", "5.10–7.2",
		"mlx5_core 0000:03:00.0: AER: aer_status: 0x00004000, aer_mask: 0x00000000", byFirmware,
	},
	{
		"any", "5.10–7.2",
		"mlx5_core 0000:03:00.0: AER:    [14] CmpltTO                (First)", byFirmware,
	},
	{
		"any", "5.10–7.2",
		"mlx5_core 0000:03:00.0: AER: aer_layer=Transaction Layer, aer_agent=Requester ID", byFirmware,
	},
	{
		"any", "5.10–7.2",
		"mlx5_core 0000:03:00.0: AER: aer_uncor_severity: 0x00462030", byFirmware,
	},
	{
		"i40e, idpf", "5.10–7.2",
		"i40e 0000:03:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)",
		"an ordinary NIC, with few exceptions",
	},
	{
		"pcieport", "5.10–7.2",
		"pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from 0000:03:00.0", noBridge,
	},
	{
		"pcieport", "5.10–7.2",
		"pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000", noBridge,
	},
	{
		"pcieport", "5.10–7.2",
		"pcieport 0000:00:01.0: pciehp: Slot(1): Link Down", noBridge,
	},
	{
		"pcieport", "5.10–7.2",
		"pcieport 0000:00:01.0: AER: device recovery failed", noBridge,
	},
	{
		"vfio-pci", "5.10–7.2",
		"vfio-pci 0000:03:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)",
		"the device belongs to a virtual machine",
	},
}
