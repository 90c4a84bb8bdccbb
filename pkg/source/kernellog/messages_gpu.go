// SPDX-License-Identifier: Apache-2.0

package kernellog

import "github.com/accelscope/accelscope/pkg/model"

const (
	// amdgpuFault matches a page fault in all versions. Only GPUs with gfx9 and gfx12.1 say whether it is retried.
	amdgpuFault = `^\[\w+\] (?:(?:no-)?retry )?page fault \(src_id:\d+ ring:\d+ vmid:\d+ pasid:\d+`
	// amdgpuRAS is the number of the event and the die that some versions print before an error; amdgpuCount is the
	// number of new errors.
	amdgpuRAS   = `^(?:\{\d+\} ?)?`
	amdgpuCount = amdgpuRAS + `(?:socket: \d+, die: \d+,? )?[1-9]\d* (?:new )?`
	guc         = `guc_id=\d+`
)

var amdgpuMessages = []message{
	row(model.DriverAMDGPU, "page_fault", "5.10–6.8", amdgpuFault+`, for process (?P<task>.*)`,
		"[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process python pid 4711 thread python pid 4712)"),
	row(model.DriverAMDGPU, "page_fault", "5.10–6.8", `^GPU fault detected: \d+ 0x[[:xdigit:]]{8} for process (?P<task>.*)`,
		"GPU fault detected: 146 0x0000480c for process python pid 4711 thread python pid 4712"),
	awaiting(row(model.DriverAMDGPU, "page_fault", "6.1–7.2", amdgpuFault+`\)$`,
		"[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)")),
	awaiting(row(model.DriverAMDGPU, "page_fault", "5.10–7.2", `^GPU fault detected: \d+ 0x[[:xdigit:]]{8}$`,
		"GPU fault detected: 146 0x0000480c")),
	awaiting(row(model.DriverAMDGPU, "ring_timeout", "6.12–7.2", `^ring \S+ timeout, signaled seq=`,
		"ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12")),
	names(row(model.DriverAMDGPU, "", "6.1–6.12", `^ *(?:for|in) process (?P<task>.*)`,
		" in process python pid 4711 thread python pid 4712)")),
	names(row(model.DriverAMDGPU, "", "6.12", `^Process information: process (?P<task>.*)`,
		"Process information: process python pid 4711 thread python pid 4712")),
	names(row(model.DriverAMDGPU, "", "7.2", `^ *(?:Process|process) (?P<task>.*)`, " Process python pid 4711 thread python pid 4712")),
	row(model.DriverAMDGPU, "ring_soft_recovery", "6.12–7.2", `^ring \S+ timeout, but soft recovered`,
		"ring gfx_0.0.0 timeout, but soft recovered"),
	row(model.DriverAMDGPU, "reset", "5.10–7.2", `^GPU reset begin!`, "GPU reset begin!. Source:  1"),
	recovers(row(model.DriverAMDGPU, "reset", "5.10–7.2", `^GPU reset\(\d+\) succeeded!`, "GPU reset(2) succeeded!")),
	row(model.DriverAMDGPU, "reset_failed", "5.10–7.2", `^GPU reset end with ret = -\d+`, "GPU reset end with ret = -110"),
	row(model.DriverAMDGPU, "ras_fatal", "5.10–7.2", amdgpuRAS+`[Uu]ncorrectable hardware error\(ERREVENT_ATHUB_INTERRUPT\) detected!`,
		"{12}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"),
	row(model.DriverAMDGPU, "ras_uncorrectable", "5.10–6.8", amdgpuCount+`uncorrectable hardware errors detected in \w+ block`,
		"socket: 0, die: 1 2 uncorrectable hardware errors detected in gfx block"),
	row(model.DriverAMDGPU, "ras_uncorrectable", "6.12–7.2", amdgpuCount+`uncorrectable hardware errors detected in \w+ block`,
		"{12}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in umc block"),
	row(model.DriverAMDGPU, "ras_correctable", "5.10–7.2", amdgpuCount+`correctable hardware errors detected in \w+ block`,
		"3 correctable hardware errors detected in gfx block, no user action is needed."),
	row(model.DriverAMDGPU, "ras_deferred", "6.12–7.2", amdgpuCount+`deferred hardware errors detected in \w+ block`,
		"{9} socket: 0, die: 0, 2 new deferred hardware errors detected in umc block"),
	row(model.DriverAMDGPU, "ras_poison", "6.1–7.2", amdgpuRAS+`(?:GPU reset for )?\w+ RAS poison consumption is issued!`,
		"GPU reset for gfx RAS poison consumption is issued!"),
	row(model.DriverAMDGPU, "ras_poison", "6.1–6.8",
		`^RAS poison consumption, (?:unmap queue flow succeeded|fall back to gpu reset flow): `,
		"RAS poison consumption, fall back to gpu reset flow: client id 18"),
	row(model.DriverAMDGPU, "ras_poison", "6.12–7.2", amdgpuRAS+`poison is consumed by (?:client|source) \d+, kick off gpu reset flow`,
		"{7}poison is consumed by client 18, kick off gpu reset flow"),
	row(model.DriverAMDGPU, "queue_preemption_timeout", "6.8–7.2", `^qcm fence wait loop timeout expired`,
		"qcm fence wait loop timeout expired"),
}

var i915Messages = []message{
	row(model.DriverI915, "hang", "5.10–7.2",
		`^GPU HANG: ecode \d+:[[:xdigit:]]+:[[:xdigit:]]{8}(?:, in (?P<process>.*) \[(?P<pid>\d+)\])?$`,
		"GPU HANG: ecode 12:1:85dffffb, in python [4711]"),
	row(model.DriverI915, "reset_failed", "5.10–7.2", `^Failed to reset chip$`, "Failed to reset chip"),
	row(model.DriverI915, "reset_failed", "6.1–7.2", `^(?:GuC engine reset request|Engine reset) failed on \d+:\d+ \(`,
		"Engine reset failed on 0:0 (rcs0) because 0x00000000"),
	row(model.DriverI915, "reset", "5.10–7.2", `^Resetting chip for `, "Resetting chip for stopped heartbeat on rcs0"),
	row(model.DriverI915, "engine_reset", "5.10–7.2", `^Resetting \w+ for `, "Resetting rcs0 for preemption time out"),
}

var xeMessages = []message{
	row(model.DriverXe, "job_timeout", "6.8", `^Timedout job: seqno=\d+, `+guc+`, flags=0x[[:xdigit:]]+$`,
		"Timedout job: seqno=4294967169, guc_id=2, flags=0x0"),
	row(model.DriverXe, "job_timeout", "6.12–7.2", `^Timedout job: seqno=\d+, lrc_seqno=\d+, `+guc+`, flags=0x[[:xdigit:]]+`+
		`(?: in (?P<process>.*) \[(?P<pid>-?\d+)\])?$`,
		"Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0 in python [4711]"),
	row(model.DriverXe, "engine_reset", "6.8", `^Engine reset: guc_id=`, "Engine reset: guc_id=2"),
	row(model.DriverXe, "engine_reset", "6.12–7.2", `^Engine reset: engine_class=`,
		"Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2, state=0x3"),
	row(model.DriverXe, "memory_error", "7.2", `^Engine memory CAT error\b`,
		"Engine memory CAT error [0]: class=ccs, logical_mask: 0x1, guc_id=2"),
	row(model.DriverXe, "reset", "6.8–7.2", `^reset started$`, "reset started"),
	row(model.DriverXe, "reset_failed", "6.8–7.2", `^reset failed \(`, "reset failed (-ETIMEDOUT)"),
	row(model.DriverXe, "reset_failed", "6.8–7.2", `^GuC engine reset request failed on \d+:\d+ because `,
		"GuC engine reset request failed on 0:0 because 0x00000000"),
	recovers(row(model.DriverXe, "reset", "6.8–7.2", `^reset done$`, "reset done")),
	row(model.DriverXe, "wedged", "6.12–7.2", `^CRITICAL: Xe has declared device `,
		"CRITICAL: Xe has declared device 0000:03:00.0 as wedged."),
}
