// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// The records are made from the formats in the drivers' sources: open-gpu-kernel-modules 595, and Linux 6.12 for the
// others. They were not recorded on hardware.

// meaning returns the meaning of a record as text, or "".
func meaning(b string) string {
	r, ok := parseRecord([]byte(b))
	if !ok {
		return ""
	}
	l, ok := parse(&r)
	if !ok {
		return ""
	}
	words := []string{[]string{"fault", "recovery", "uuid", "culprit"}[l.kind], string(l.key.Driver), l.key.PCIAddress}
	for name, value := range map[string]string{
		"code": l.key.Code, "slice": l.key.GPUInstance, "uuid": l.uuid, "process": l.process, "severity": string(l.key.Severity),
	} {
		if value != "" {
			words = append(words, name+"="+value)
		}
	}
	if l.pid != 0 {
		words = append(words, fmt.Sprint("pid=", l.pid))
	}
	if l.proxy {
		words = append(words, "proxy")
	}
	if l.awaits {
		words = append(words, "awaits")
	}
	if l.again {
		words = append(words, "again")
	}
	slices.Sort(words[3:])
	return strings.Join(words, " ")
}

// nvidiaRecord is a record as nv_printf makes it: with KERN_CONT.
func nvidiaRecord(text string) string { return "4,100,5000000,c;" + text + "\n" }

// deviceRecord is a record as dev_printk makes it, with the lines that the kernel adds.
func deviceRecord(text, address string) string {
	return "3,100,5000000,-,caller=T77;" + text + "\n SUBSYSTEM=pci\n DEVICE=+pci:" + address + "\n"
}

func TestNVIDIA(t *testing.T) {
	const gpu = "fault nvidia 0000:c1:00.0 "
	for text, want := range map[string]string{
		"NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, name=python, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS": gpu + "code=31 pid=4711 process=python",
		"NVRM: Xid (PCI:0000:C1:00): 79, GPU has fallen off the bus.":                                                   gpu + "code=79",
		"NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 13, pid=7, name=a b, Graphics Exception":                                  gpu + "code=13 pid=7 process=a b slice=5",
		"NVRM: Xid (PCI:0000:c1:00 GPU-I:13 GPU-CI:00): 94, pid=7, name=x, Contained: DRAM (0x1). RST: No, D-RST: No":   gpu + "code=94 pid=7 process=x slice=13",
		"NVRM: Xid (PCI:0000:c1:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception":                   gpu + "code=13 process=<unknown>",
		"NVRM: Xid (PCI:0000:c1:00): 45, pid=12, name=nvidia-cuda-mps, Ch 00000008 caused by previous Xid 31":           gpu + "code=45 pid=12 process=nvidia-cuda-mps proxy",
		"NVRM: Xid (0000:c1:00): 31, Ch 00000010, engmask 00000101, intr 10000000":                                      gpu + "code=31",
		"NVRM: Xid (PCI:0000:c1:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)":         gpu + "code=149 severity=fatal",
		"NVRM: Xid (PCI:0000:c1:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x00000004 0x0 0x0 0x0)":                   gpu + "code=145 severity=nonfatal",
		"NVRM: Xid (PCI:0000:c1:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0)":          gpu + "code=149 severity=fatal",
		"NVRM: Xid (PCI:0000:c1:00): 144, pid='<unknown>', name=<unknown>, SAW_MVB Non-fatal, Link 3":                   gpu + "code=144 process=<unknown> severity=nonfatal",
		"NVRM: Xid (PCI:0000:c1:00): 150, pid=7, name=x, MSE_WATCHDOG Nonfatal XC0 i0 Link -1 (0x00000004 0x0)":         gpu + "code=150 pid=7 process=x severity=nonfatal",
		// A program chooses its name: it is not a severity.
		"NVRM: Xid (PCI:0000:c1:00): 62, pid=7, name=A Nonfatal XC0, 0000":                                         gpu + "code=62 pid=7 process=A Nonfatal XC0",
		"NVRM: Xid (PCI:0000:c1:00): 62, pid=7, name=a, B Nonfatal, 0000":                                          gpu + "code=62 pid=7 process=a",
		"NVRM: Xid (PCI:0000:c1:00): 64, Row Remapper: nonfatal":                                                   gpu + "code=64",
		"NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": gpu + "code=154",
		"NVRM: Xid (PCI:0000:c1:00): 154, pid=1, name=to 0x0 (None), GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": gpu +
			"code=154 pid=1 process=to 0x0 (None)",
		"NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)": "recovery nvidia 0000:c1:00.0 code=154",
		"NVRM: Xid (PCI:10001:c1:00): 31, pid=1, name=x, MMU Fault":                                                "fault nvidia 10001:c1:00.0 code=31 pid=1 process=x",
		"NVRM: GPU at PCI:0000:c1:00: GPU-4ac9d3e2-8e3a-11ee-b9d1-0242ac120002":                                    "uuid nvidia 0000:c1:00.0 uuid=GPU-4ac9d3e2-8e3a-11ee-b9d1-0242ac120002",
		"NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.":                                                      gpu + "code=fallen_off_bus",
		`NVRM: The NVIDIA GPU 0000:c1:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`: gpu +
			"code=fallen_off_bus",
		"NVRM: GPU 0000:c1:00.0: RmInitAdapter failed! (0x62:0x40:1941)": gpu + "code=init_failed",
		"NVRM: GPU 0000:c1:00.0: GPU serial number is 1650521000000.":    "",
		"NVRM: GPU Board Serial Number: 1650521000000":                   "",
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module":                 "",
		// An unfinished line of the driver and the next line are one record.
		"NVRM: nvCheckOkFailedNoLog: NVRM: Xid (PCI:0000:c1:00): 62, pid=9, name=x, 0000": gpu + "code=62 pid=9 process=x",
		// The name of the process is a line of the driver.
		"NVRM: Xid (PCI:0000:c1:00): 31, pid=9, name=NVRM: Xid (PCI:, Ch 00000010":                               gpu + "code=31 pid=9 process=NVRM: Xid (PCI:",
		"nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)":     "fault nvidia-nvswitch 0000:c5:00.0 code=28006 severity=nonfatal",
		"nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 15001, SOE reset":                                            "fault nvidia-nvswitch 0000:c5:00.0 code=15001",
		"nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 09001, Fatal, Link 02 x":                                     "fault nvidia-nvswitch 0000:c5:00.0 code=9001 severity=fatal",
		"nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00": "",
		"nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 28006, Data {0x00140004, 0x00100000}":                        "",
	} {
		if d := cmp.Diff(want, meaning(nvidiaRecord(text))); d != "" {
			t.Errorf("%s:\n%s", text, d)
		}
	}
}

// TestDrivers has each message of drivers that log with dev_printk.
func TestDrivers(t *testing.T) {
	const address = "0000:03:00.0"
	covered := map[string]bool{}
	for text, want := range map[string]string{
		"amdgpu ADDR: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)":                                  "fault amdgpu ADDR awaits code=page_fault",
		"amdgpu ADDR: amdgpu: [mmhub] retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)":                                       "fault amdgpu ADDR awaits code=page_fault",
		"amdgpu ADDR: amdgpu:  for process python pid 4711 thread python pid 4712)":                                                 "culprit amdgpu ADDR pid=4711 process=python",
		"amdgpu ADDR: amdgpu:  in process a b pid 4711 thread c pid 4712":                                                           "culprit amdgpu ADDR pid=4711 process=a b",
		"amdgpu ADDR: amdgpu:   in page starting at address 0x00007f0000000000 from IH client 0x1b (UTCL2)":                         "",
		"amdgpu ADDR: amdgpu: ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12":                                              "fault amdgpu ADDR awaits code=ring_timeout",
		"amdgpu ADDR: amdgpu: ring gfx_0.0.0 timeout, but soft recovered":                                                           "fault amdgpu ADDR code=ring_soft_recovery",
		"amdgpu ADDR: amdgpu: Process information: process Xorg pid 900 thread Xorg:cs0 pid 901":                                    "culprit amdgpu ADDR pid=900 process=Xorg",
		"amdgpu ADDR: amdgpu: GPU reset begin!":                                                                                     "fault amdgpu ADDR code=reset",
		"amdgpu ADDR: amdgpu: GPU reset begin!. Source:  1":                                                                         "fault amdgpu ADDR code=reset",
		"amdgpu ADDR: amdgpu: GPU mode1 reset":                                                                                      "",
		"amdgpu ADDR: amdgpu: GPU reset succeeded, trying to resume":                                                                "",
		"amdgpu ADDR: amdgpu: GPU reset(2) succeeded!":                                                                              "recovery amdgpu ADDR code=reset",
		"amdgpu ADDR: amdgpu: GPU reset end with ret = -110":                                                                        "fault amdgpu ADDR code=reset_failed",
		"amdgpu ADDR: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":                                     "fault amdgpu ADDR code=ras_fatal",
		"amdgpu ADDR: amdgpu: {12}1 new uncorrectable hardware errors detected in umc block":                                        "fault amdgpu ADDR code=ras_uncorrectable",
		"amdgpu ADDR: amdgpu: {12}4 uncorrectable hardware errors detected in total in umc block":                                   "",
		"amdgpu ADDR: amdgpu: 3 correctable hardware errors detected in gfx block":                                                  "fault amdgpu ADDR code=ras_correctable",
		"amdgpu ADDR: amdgpu: 0 correctable hardware errors detected in gfx block":                                                  "",
		"amdgpu ADDR: amdgpu: {9}2 new deferred hardware errors detected in umc block":                                              "fault amdgpu ADDR code=ras_deferred",
		"amdgpu ADDR: amdgpu: GPU reset for gfx RAS poison consumption is issued!":                                                  "fault amdgpu ADDR code=ras_poison",
		"amdgpu ADDR: amdgpu: qcm fence wait loop timeout expired":                                                                  "fault amdgpu ADDR code=queue_preemption_timeout",
		"i915 ADDR: [drm] GPU HANG: ecode 12:1:85dffffb, in glx [1] gears [4711]":                                                   "fault i915 ADDR code=hang pid=4711 process=glx [1] gears",
		"i915 ADDR: [drm] GPU HANG: ecode 9:0:00000000":                                                                             "fault i915 ADDR code=hang",
		"i915 ADDR: [drm] GPU HANG: ecode context reset due to GPU hang":                                                            "", // the first four words are a name
		"i915 ADDR: [drm] Resetting chip for stopped heartbeat on rcs0":                                                             "fault i915 ADDR code=reset",
		"i915 ADDR: [drm] Resetting rcs0 for preemption time out":                                                                   "fault i915 ADDR code=engine_reset",
		"xe ADDR: [drm] *ERROR* GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0 in python [4711]":    "fault xe ADDR code=job_timeout pid=4711 process=python",
		"xe ADDR: [drm] Tile0: GT1: Timedout job: seqno=1, lrc_seqno=1, guc_id=2, flags=0x8 in no process [-1]":                     "fault xe ADDR code=job_timeout process=no process",
		"xe ADDR: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2":                                           "fault xe ADDR code=engine_reset",
		"xe ADDR: [drm] GT0: reset started":                                                                                         "fault xe ADDR code=reset",
		"xe ADDR: [drm] *ERROR* GT0: reset failed (-ETIMEDOUT)":                                                                     "fault xe ADDR code=reset_failed",
		"xe ADDR: [drm] GT0: reset done":                                                                                            "recovery xe ADDR code=reset",
		"xe ADDR: [drm] *ERROR* CRITICAL: Xe has declared device ADDR as wedged.":                                                   "fault xe ADDR code=wedged",
		"mlx5_core ADDR: print_health_info:425:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:":         "fault mlx5_core ADDR code=health",
		"mlx5_core ADDR: poll_health:825:(pid 0): device's health compromised - reached miss count":                                 "fault mlx5_core ADDR code=health_compromised",
		"mlx5_core ADDR: poll_health:800:(pid 0): Fatal error 1 detected":                                                           "fault mlx5_core ADDR code=fatal",
		"mlx5_core ADDR: mlx5_health_try_recover:338:(pid 199): health recovery failed":                                             "fault mlx5_core ADDR code=recovery_failed",
		"mlx5_core ADDR: mlx5_health_try_recover:348:(pid 199): health recovery succeeded":                                          "recovery mlx5_core ADDR code=health",
		"mlx5_core ADDR: wait_func_handle_exec_timeout:1138:(pid 4711): cmd[0]: QUERY_VPORT_COUNTER(0x770) No done completion":      "",
		"mlx5_core ADDR: wait_func:1186:(pid 4711): QUERY_VPORT_COUNTER(0x770) timeout. Will cause a leak of a command resource":    "fault mlx5_core ADDR code=command_timeout",
		"mlx5_core ADDR: temp_warn:190:(pid 5): High temperature on sensors with bit set 0 1":                                       "fault mlx5_core ADDR code=high_temperature",
		"mlx5_core ADDR: mlx5_pcie_event:299:(pid 5): Detected insufficient power on the PCIe slot (75W).":                          "fault mlx5_core ADDR code=slot_power",
		"mlx5_core ADDR: port_module:250:(pid 5): Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)": "fault mlx5_core ADDR code=module_error",
		"mlx5_core ADDR: Port module event: module 0, Cable unplugged":                                                              "fault mlx5_core ADDR code=module_unplugged",
		"mlx5_core ADDR: Port module event: module 0, Cable disabled":                                                               "fault mlx5_core ADDR code=module_disabled",
		"mlx5_core ADDR: Port module event: module 0, Cable plugged":                                                                "recovery mlx5_core ADDR code=module_unplugged",
		"mlx5_core ADDR ens1f0np0: Link up":                                                                                         "",
		"bnxt_en ADDR ens2f0np0: Error (timeout: 500015) msg {0x23 0x4a2} len:0":                                                    "fault bnxt_en ADDR code=firmware_timeout",
		"bnxt_en ADDR ens2f0np0: Detected firmware fatal condition, initiating reset":                                               "fault bnxt_en ADDR code=firmware_fatal",
		"bnxt_en ADDR (unnamed net_device) (uninitialized): Firmware not responding, status: 0x8000":                                "fault bnxt_en ADDR code=firmware_not_responding",
		"bnxt_en ADDR ens2f0np0: Fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 0 ms, max wait 1 ms":                  "fault bnxt_en ADDR code=firmware_reset",
		"bnxt_en ADDR bnxt_re0: FW STALL Detected. cmdq[0x1]=0x2 waited (10001 > 10000) msec active 1":                              "fault bnxt_re ADDR code=firmware_stall",
		"bnxt_en ADDR: QPLIB: Unreponsive rcfw channel detected.!!":                                                                 "fault bnxt_re ADDR code=channel_not_responding",
		"ice ADDR irdma0: abnormal ae_id = 0x50e bool qp=1 qp_id = 7, ae_src=1":                                                     "fault irdma ADDR code=abnormal_event",
		"ice ADDR: Requesting a reset":                                                                                              "fault irdma ADDR code=reset_requested",
		"ice ADDR irdma0: critical PE Error, GLPE_CRITERR=0x00000001":                                                               "fault irdma ADDR code=critical",
		"i40e ADDR: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)":                         "",
		"i40e ADDR eno1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)":                  "",
		"i40e ADDR: Unable to change power state from D3cold to D0, device inaccessible":                                            "",
		"idpf ADDR: can't change power state from D3hot to D0 (config space inaccessible)":                                          "",
		"ice ADDR: Unable to change power state from D3cold to D0, device inaccessible":                                             "fault irdma ADDR code=inaccessible",
		"i40e ADDR irdma0: HMC Error":                                                                                               "fault irdma ADDR code=hmc",
		"efa ADDR: Wait for completion (polling) timeout":                                                                           "fault efa ADDR code=command_timeout",
		"efa ADDR efa_0: Reading register timed out. expected: req id[1] offset[2] actual: req id[3] offset[4]":                     "fault efa ADDR code=register_timeout",
		// Page faults of gfx10 to gfx12, whose driver does not say whether they are retried, and of all before 6.9: the
		// line has the process.
		"amdgpu ADDR: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32771)":                                                                   "fault amdgpu ADDR awaits code=page_fault",
		"amdgpu ADDR: [mmhub] page fault (src_id:0 ring:173 vmid:8 pasid:32791)":                                                                           "fault amdgpu ADDR awaits code=page_fault",
		"amdgpu ADDR: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process a b pid 4711 thread c pid 4712)":                       "fault amdgpu ADDR code=page_fault pid=4711 process=a b",
		"amdgpu ADDR: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process python pid 4711 thread python pid 4712)":     "fault amdgpu ADDR code=page_fault pid=4711 process=python",
		"amdgpu ADDR: amdgpu: [mmhub1] retry page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process  pid 0 thread  pid 0)":                           "fault amdgpu ADDR code=page_fault",
		"amdgpu ADDR: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process x pid 1 thread  pid 4711 thread x pid 4712)":           "fault amdgpu ADDR code=page_fault",
		"amdgpu ADDR: amdgpu: GPU fault detected: 146 0x0000480c for process python pid 4711 thread python pid 4712":                                       "fault amdgpu ADDR code=page_fault pid=4711 process=python",
		"amdgpu ADDR: amdgpu: GPU fault detected: 146 0x0000480c":                                                                                          "fault amdgpu ADDR awaits code=page_fault",
		"amdgpu ADDR: amdgpu:  Process python pid 4711 thread python pid 4712":                                                                             "culprit amdgpu ADDR pid=4711 process=python",
		"amdgpu ADDR: amdgpu:  in process python pid 4711 thread python pid 4712)":                                                                         "culprit amdgpu ADDR pid=4711 process=python",
		"amdgpu ADDR: amdgpu: socket: 0, die: 1 2 uncorrectable hardware errors detected in gfx block":                                                     "fault amdgpu ADDR code=ras_uncorrectable",
		"amdgpu ADDR: amdgpu: {12}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in umc block":                                            "fault amdgpu ADDR code=ras_uncorrectable",
		"amdgpu ADDR: amdgpu: {12}socket: 0, die: 1, 4 uncorrectable hardware errors detected in total in umc block":                                       "",
		"amdgpu ADDR: {12} socket: 0, die: 1, 3 new correctable hardware errors detected in gfx block":                                                     "fault amdgpu ADDR code=ras_correctable",
		"amdgpu ADDR: amdgpu: socket: 1, die: 0 5 correctable hardware errors detected in gfx block, no user action is needed.":                            "fault amdgpu ADDR code=ras_correctable",
		"amdgpu ADDR: amdgpu: {7}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":                                                         "fault amdgpu ADDR code=ras_fatal",
		"amdgpu ADDR: {7} Uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":                                                                "fault amdgpu ADDR code=ras_fatal",
		"amdgpu ADDR: {7} gfx RAS poison consumption is issued!":                                                                                           "fault amdgpu ADDR code=ras_poison",
		"amdgpu ADDR: amdgpu: RAS poison consumption, unmap queue flow succeeded: client id 18":                                                            "fault amdgpu ADDR code=ras_poison",
		"amdgpu ADDR: amdgpu: {7}poison is consumed by client 18, kick off gpu reset flow":                                                                 "fault amdgpu ADDR code=ras_poison",
		"i915 ADDR: [drm] *ERROR* GT0: Failed to reset chip":                                                                                               "fault i915 ADDR code=reset_failed",
		"i915 ADDR: [drm] *ERROR* GuC engine reset request failed on 0:0 (rcs0) because 0x00000000":                                                        "fault i915 ADDR code=reset_failed",
		"i915 ADDR: [drm] *ERROR* GT0: GUC: Engine reset failed on 0:0 (rcs0) because 0x00000000":                                                          "fault i915 ADDR code=reset_failed",
		"xe ADDR: [drm] Timedout job: seqno=4294967169, guc_id=2, flags=0x0":                                                                               "fault xe ADDR code=job_timeout",
		"xe ADDR: [drm] Engine reset: guc_id=2":                                                                                                            "fault xe ADDR code=engine_reset",
		"xe ADDR: [drm] *ERROR* GT0: GuC engine reset request failed on 0:0 because 0x00000000":                                                            "fault xe ADDR code=reset_failed",
		"mlx5_core ADDR: print_health_info:401:(pid 0): synd 0x1: firmware internal error":                                                                 "fault mlx5_core ADDR again code=health",
		"mlx5_core ADDR: print_health_info:425:(pid 0): Health issue observed, High temperature, severity(4) WARNING:":                                     "fault mlx5_core ADDR code=health",
		"mlx5_core ADDR: print_health_info:417:(pid 0): PCI slot is unavailable":                                                                           "fault mlx5_core ADDR code=slot_unavailable",
		"mlx5_core ADDR: wait_func_handle_exec_timeout:1138:(pid 5): cmd[3]: QUERY_HCA_CAP(0x100) Async, timeout. Will cause a leak of a command resource": "fault mlx5_core ADDR code=command_timeout",
		"bnxt_en ADDR ens2f0np0: Firmware non-fatal reset event, data1: 0x1, data2: 0x0, min wait 0 ms, max wait 1 ms":                                     "fault bnxt_en ADDR code=firmware_reset",
		"bnxt_en ADDR ens2f0np0: Non-fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 0 ms, max wait 1 ms":                                     "fault bnxt_en ADDR code=firmware_reset",
		"bnxt_en ADDR ens2f0np0: Abandoning msg {0x23 0x4a2} len: 0 due to firmware status: 0x8000":                                                        "fault bnxt_en ADDR code=firmware_not_responding",
		"bnxt_en ADDR ens2f0np0: Resp cmpl intr abandoning msg: 0x23 due to firmware status: 0x8000":                                                       "fault bnxt_en ADDR code=firmware_not_responding",
		"bnxt_en ADDR: QPLIB: cmdq[0x1a]=0x3 timedout (20000)msec":                                                                                         "fault bnxt_re ADDR code=firmware_stall",
		"bnxt_en ADDR: QPLIB: bnxt_re_is_fw_stalled: FW STALL Detected. cmdq[0x1]=0x2 waited (10001 > 10000) msec active 1":                                "fault bnxt_re ADDR code=firmware_stall",
		"idpf ADDR irdma0: Requesting a reset":                                                                                                             "fault irdma ADDR code=reset_requested",
		"ice ADDR irdma0: AEQ has overflowed":                                                                                                              "fault irdma ADDR code=event_overflow",
		"xe ADDR: [drm] Tile0: GT0: Engine memory CAT error [0]: class=ccs, logical_mask: 0x1, guc_id=2":                                                   "fault xe ADDR code=memory_error",
		// The PCI core's messages, with the name of the device's driver.
		"nvidia ADDR: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)":            "fault nvidia ADDR code=pcie_fatal",
		"nvidia ADDR: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)": "fault nvidia ADDR code=pcie_fatal",
		"mlx5_core ADDR: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Data Link Layer, (Receiver ID)":      "fault mlx5_core ADDR code=pcie_nonfatal",
		"mlx5_core ADDR: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)":                     "",
		"amdgpu ADDR: can't change power state from D3hot to D0 (config space inaccessible)":                           "fault amdgpu ADDR code=inaccessible",
		"nvidia ADDR: Unable to change power state from D3cold to D0, device inaccessible":                             "fault nvidia ADDR code=inaccessible",
		"xe ADDR: Device config space inaccessible; unable to recover":                                                 "fault xe ADDR code=inaccessible",
		"nvme ADDR: Fatal error 1 detected": "",
	} {
		text, want = strings.ReplaceAll(text, "ADDR", address), strings.ReplaceAll(want, "ADDR", address)
		got := meaning(deviceRecord(text, address))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", text, d)
		}
		if words := strings.Fields(got); len(words) > 0 && words[0] != "culprit" {
			_, code, _ := strings.Cut(got, "code=")
			code, _, _ = strings.Cut(code, " ")
			covered[words[0]+words[1]+code] = true
		}
		if without := meaning("3,100,5000000,-;" + text + "\n"); without != "" {
			t.Errorf("%s: without a device: %s", text, without)
		}
	}
	for _, rows := range messages {
		for _, m := range rows {
			kind := []string{"fault", "recovery", "uuid", "culprit"}[m.kind]
			if m.code != "" && !strings.HasPrefix(m.code, "pcie_") && m.code != "inaccessible" && !covered[kind+string(m.driver)+m.code] {
				t.Errorf("%s of %s is not tested", m.code, m.driver)
			}
		}
	}
}

// hostile are records that a container can bring into the kernel log.
func hostile() map[string]string {
	const xid = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus."
	return map[string]string{
		"written by user space":            "12,1,5000000,-;" + xid + "\n",
		"written by user space, continued": "14,1,5000000,c;" + xid + "\n",
		"a program's name":                 "6,1,5000000,-;NVRM: Xid (PCI:[4711]: segfault at 0 ip 0 sp 0 error 4\n",
		"a file's name":                    "6,1,5000000,-;x[4711]: segfault at 0 ip 0 sp 0 error 4 in " + xid + "[1000+1]\n",
		"a program's and a file's name":    "6,1,5000000,-;NVRM: a[4711]: segfault at 0 ip 0 sp 0 error 4 in " + xid + "[1000+1]\n",
		"the rest of an interrupted line":  "6,1,5000000,c; in " + xid + "[1000+1]\n",
		"a line break in a name":           `6,1,5000000,-;overlayfs: failed to resolve 'a\x0a` + xid + "': -2\n",
		"keys in the text":                 `3,1,5000000,-;amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!\x0a DEVICE=+pci:0000:c1:00.0` + "\n",
		"another device":                   deviceRecord("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "0000:c2:00.0"),
		"no address":                       deviceRecord("amdgpu : amdgpu: GPU reset begin!", ""),
		"a number that is too long":        nvidiaRecord("NVRM: Xid (PCI:0000:c1:00): 31415926535, x"),
		"a time that overflows":            "4,1,9223372036854775807,c;" + xid + "\n",
		"no header":                        xid + "\n",
		"nothing":                          "",
	}
}

func TestHostile(t *testing.T) {
	for name, b := range hostile() {
		if got := meaning(b); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestAmbiguousProcess: a process whose name permits two readings has no PID.
func TestAmbiguousProcess(t *testing.T) {
	for text, want := range map[string]int{
		"python pid 4711 thread python pid 4712":       4711,
		"pid 1 thread x pid 4711 thread y pid 4712)":   4711,
		"a pid 4711 thread b pid 1 thread c pid 4712)": 4711, // names have fewer than 19 bytes
		`\x09 pid 1 thread  pid 4711 thread b pid 2`:   0,    // the name is one byte and " pid 1 thread "
		"x pid 1 thread  pid 4711 thread b pid 4712":   0,    // the name is "x pid 1 thread "
		"a pid 4711 thread b pid 4711 thread  pid 1":   4711,
		"a pid x thread b pid 1":                       0,
		"a":                                            0,
		"":                                             0,
		"a pid 99999999999999999999 thread b pid 4712": 0,
	} {
		if _, got := processOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestRecords(t *testing.T) {
	var got []string
	for b := range records([]byte("4,1,2,-;a\n K=v\n L=w\n6,2,3,c;b\n6,3,4,-;end")) {
		got = append(got, string(b))
	}
	if d := cmp.Diff([]string{"4,1,2,-;a\n K=v\n L=w\n", "6,2,3,c;b\n", "6,3,4,-;end"}, got); d != "" {
		t.Error(d)
	}
}

// TestUptime: a record of a later time than a computer runs is not the kernel's. Its microseconds would not fit a time.Duration.
func TestUptime(t *testing.T) {
	for microseconds, want := range map[string]bool{
		"0": true, "-1": false, "3153600000000000": true, "3153600000000001": false, "9300000000000000": false,
	} {
		if r, ok := parseRecord([]byte("4,1," + microseconds + ",-;x")); ok != want || r.sinceBoot < 0 {
			t.Errorf("%s: %t, %v", microseconds, ok, r.sinceBoot)
		}
	}
}

// FuzzRecord: codes and addresses are from a bounded set for any log.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(nvidiaRecord("NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 13, pid=7, name=a b, Graphics Exception")))
	f.Add([]byte(deviceRecord("amdgpu 0000:c1:00.0: amdgpu:  for process a pid 1 thread b pid 2)", "0000:c1:00.0")))
	f.Add([]byte(deviceRecord("xe 0000:c1:00.0: [drm] GT0: Timedout job: seqno=1, lrc_seqno=1, guc_id=2, flags=0x8 in a [1]", "0000:c1:00.0")))
	f.Add([]byte(nvidiaRecord("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 28006, Non-fatal, Link 46")))
	codes := map[string]bool{codeOffBus: true, codeInit: true}
	for _, rows := range messages {
		for _, m := range rows {
			codes[m.code] = true
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newLedger()
		for text := range records(b) {
			r, ok := parseRecord(text)
			if !ok {
				continue
			}
			found, ok := parse(&r)
			if !ok {
				continue
			}
			key := found.key
			if digits := strings.Trim(key.Code, "0123456789"); key.Code == "" && found.kind < uuid ||
				digits != "" && !codes[key.Code] || len(key.Code) > 30 {
				t.Errorf("the code is %q", key.Code)
			}
			address := key.PCIAddress[max(0, strings.Index(key.PCIAddress, ":")-4):] // a domain may have up to eight digits
			if !model.IsPCIAddress(address) || found.pid < 0 {
				t.Errorf("%+v", found)
			}
			if found.kind <= recovery {
				l.add(model.Fault{FaultKey: key, Text: r.text, Process: found.process, PID: found.pid}, &found)
			}
		}
		for _, fact := range l.snapshot().FaultHistory {
			if strings.Trim(fact.Text+fact.Process, printableASCII) != "" || len(fact.Text) > maxText {
				t.Errorf("%q by %q", fact.Text, fact.Process)
			}
		}
	})
}

var printableASCII = func() string {
	var b []byte
	for c := byte(' '); c <= '~'; c++ {
		b = append(b, c)
	}
	return string(b)
}()
