// SPDX-License-Identifier: Apache-2.0

package metrics

// xidTexts describes the XIDs of accelerators, after NVIDIA's catalog (analyzing-xid-catalog, 2025-10) and nverror.h of
// the open kernel modules.
var xidTexts = map[uint64]string{
	0:   "none",
	8:   "channel timed out",
	11:  "invalid push buffer",
	13:  "exception in the graphics or compute engine",
	31:  "memory page fault",
	32:  "damaged push buffer",
	38:  "firmware error",
	43:  "channel stopped after an error of the application",
	44:  "fault during a context switch",
	45:  "channels removed after an error of the application or an earlier XID",
	46:  "GPU stopped working",
	48:  "uncorrectable memory error (double bit)",
	54:  "auxiliary power missing",
	61:  "internal controller: breakpoint",
	62:  "internal controller: halt",
	63:  "page retirement or row remapping recorded",
	64:  "page retirement or row remapping failed",
	68:  "exception in a video decoder",
	69:  "exception in the graphics engine: class error",
	74:  "NVLink error",
	79:  "GPU fell off the bus",
	92:  "many corrected memory errors",
	93:  "limit of writes to the InfoROM exceeded",
	94:  "contained memory error",
	95:  "uncontained memory error",
	109: "context switch timed out",
	110: "security fault",
	119: "GSP firmware: call timed out",
	120: "GSP firmware: error",
	121: "C2C link error",
	136: "NVLink training failed",
	137: "NVLink access without privilege",
	140: "unrecovered memory error",
	143: "GPU initialization failed",
	144: "NVLink 5: SAW",
	145: "NVLink 5: RLW",
	146: "NVLink 5: TLW",
	147: "NVLink 5: TREX",
	148: "NVLink 5: NVLPW_CTRL",
	149: "NVLink 5: NETIR",
	150: "NVLink 5: MSE",
	151: "key rotation failed",
	154: "recovery action changed",
	155: "NVLink: error defined by software",
	156: "resource retired",
	157: "resource retirement failed",
	158: "fatal timeout",
	160: "channel retired",
	161: "channel retirement failed",
	167: "fatal PCIe timeout",
	168: "memory capacity reduced",
	171: "uncorrectable memory error (DRAM)",
	172: "uncorrectable memory error (SRAM)",
	173: "fatal C2C link error",
}

// xidText returns the description of an XID, or "other".
func xidText(code uint64) string {
	if text, ok := xidTexts[code]; ok {
		return text
	}
	return "other"
}
