// SPDX-License-Identifier: Apache-2.0

package kernellog

import "github.com/accelscope/accelscope/pkg/model"

var mlx5Messages = []message{
	row(model.DriverMLX5, "health", "6.1–7.2", `^Health issue observed, `,
		"Health issue observed, firmware internal error, severity(3) ERROR:"),
	again(row(model.DriverMLX5, "health", "5.10–5.15", `^synd 0x[[:xdigit:]]+: `, "synd 0x1: firmware internal error")),
	row(model.DriverMLX5, "slot_unavailable", "6.1–7.2", `^PCI slot is unavailable$`, "PCI slot is unavailable"),
	row(model.DriverMLX5, "health_compromised", "5.10–7.2", `^device's health compromised - reached miss count`,
		"device's health compromised - reached miss count"),
	row(model.DriverMLX5, "fatal", "5.10–7.2", `^Fatal error \d+ detected`, "Fatal error 1 detected"),
	row(model.DriverMLX5, "recovery_failed", "5.10–7.2", `^health recovery failed`, "health recovery failed"),
	recovers(row(model.DriverMLX5, "health", "5.15–7.2", `^health recovery succeeded`, "health recovery succeeded")),
	row(model.DriverMLX5, "command_timeout", "5.10–7.2",
		`^(?:cmd\[\d+\]: )?\w+\(0x[[:xdigit:]]+\) (?:Async, )?timeout\. Will cause a leak of a command resource`,
		"QUERY_VPORT_COUNTER(0x770) timeout. Will cause a leak of a command resource"),
	row(model.DriverMLX5, "high_temperature", "5.10–7.2", `^High temperature on sensors with bit set `,
		"High temperature on sensors with bit set 0x1 0"),
	row(model.DriverMLX5, "slot_power", "5.10–7.2", `^Detected insufficient power on the PCIe slot`,
		"Detected insufficient power on the PCIe slot (75W)."),
	row(model.DriverMLX5, "module_error", "5.10–7.2", `^Port module event\[error\]: module \d+, Cable error`,
		"Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)"),
	row(model.DriverMLX5, "module_unplugged", "5.10–7.2", `^Port module event: module \d+, Cable unplugged`,
		"Port module event: module 0, Cable unplugged"),
	row(model.DriverMLX5, "module_disabled", "5.10–7.2", `^Port module event: module \d+, Cable disabled`,
		"Port module event: module 0, Cable disabled"),
	recovers(row(model.DriverMLX5, "module_unplugged", "5.10–7.2", `^Port module event: module \d+, Cable plugged`,
		"Port module event: module 0, Cable plugged")),
}

var bnxtMessages = []message{
	row(model.DriverBNXT, "firmware_timeout", "5.10–7.2", `^Error \(timeout: \d+\) msg \{`,
		"Error (timeout: 500015) msg {0x23 0x4a2} len:0"),
	row(model.DriverBNXT, "firmware_fatal", "5.10–7.2", `^Detected firmware fatal condition, initiating reset`,
		"Detected firmware fatal condition, initiating reset"),
	row(model.DriverBNXT, "firmware_not_responding", "5.10–7.2", `^Firmware not responding, status: `,
		"Firmware not responding, status: 0x8000"),
	row(model.DriverBNXT, "firmware_not_responding", "6.1–7.2",
		`^(?:Abandoning|Resp cmpl intr abandoning) msg\b.* due to firmware status: `,
		"Abandoning msg {0x23 0x4a2} len: 0 due to firmware status: 0x8000"),
	row(model.DriverBNXT, "firmware_reset", "5.10–5.15", `^Firmware [\w-]+ reset event, `,
		"Firmware non-fatal reset event, data1: 0x1, data2: 0x0, min wait 0 ms, max wait 1 ms"),
	row(model.DriverBNXT, "firmware_reset", "6.1–7.2", `^[\w-]+ firmware reset event, `,
		"Non-fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 0 ms, max wait 1 ms"),
	row(model.DriverBNXTRDMA, "firmware_stall", "5.10–6.1", `^QPLIB: cmdq\[0x[[:xdigit:]]+\]=0x[[:xdigit:]]+ timedout \(\d+\)msec`,
		"QPLIB: cmdq[0x1a]=0x3 timedout (20000)msec"),
	row(model.DriverBNXTRDMA, "firmware_stall", "6.8–7.2", `^(?:QPLIB: )?(?:\w+: )?FW STALL Detected\.`,
		"QPLIB: bnxt_re_is_fw_stalled: FW STALL Detected. cmdq[0x1]=0x2 waited (10001 > 10000) msec active 1"),
	row(model.DriverBNXTRDMA, "channel_not_responding", "6.8–7.2", `^(?:QPLIB: )?Unreponsive rcfw channel detected`, // sic
		"QPLIB: Unreponsive rcfw channel detected.!!"),
}

var irdmaMessages = []message{
	row(model.DriverIRDMA, "abnormal_event", "5.15–7.2", `^abnormal ae_id = 0x`, "abnormal ae_id = 0x50e bool qp=1 qp_id = 7, ae_src=1"),
	row(model.DriverIRDMA, "reset_requested", "5.15–7.2", `^Requesting a reset`, "Requesting a reset"),
	row(model.DriverIRDMA, "critical", "5.15–7.2", `^critical PE Error, GLPE_CRITERR=`, "critical PE Error, GLPE_CRITERR=0x00000001"),
	row(model.DriverIRDMA, "hmc", "5.15–7.2", `^HMC Error`, "HMC Error"),
	row(model.DriverIRDMA, "event_overflow", "7.2", `^AEQ has overflowed`, "AEQ has overflowed"),
}

var efaMessages = []message{
	row(model.DriverEFA, "command_timeout", "5.10–7.2", `^Wait for completion \(polling\) timeout`,
		"Wait for completion (polling) timeout"),
	row(model.DriverEFA, "register_timeout", "5.10–7.2", `^Reading register timed out\.`,
		"Reading register timed out. expected: req id[1] offset[2] actual: req id[3] offset[4]"),
}
