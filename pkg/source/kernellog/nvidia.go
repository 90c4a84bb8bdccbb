// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// The formats of NVIDIA's driver, from krcReportXid (kernel_rc.c), gpu.c, osinit.c, osapi.c and common_nvswitch.h of
// open-gpu-kernel-modules 595. Drivers before 440 report no process, drivers before 310 no "PCI:".
var (
	xidLine = lazily(
		`^NVRM: Xid \((?:PCI:)?([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2})(?:\.[0-7])?` +
			`(?: GPU-I:(\d{1,2})(?: GPU-CI:\d{1,2})?)?\): (\d{1,4}), (.*)`)
	// The severity of an NVLink error follows the name of its unit: "RLW_REMAP Nonfatal XC0 i0 Link 03 (0x…". After the
	// name of a process, only text longer than a process name counts.
	xidSeverity = lazily(
		`^(?:pid='<unknown>', name=<unknown>, )?[A-Z][A-Z0-9_]*\s+((?i:fatal|non-?fatal))\b` +
			`|\s((?i:fatal|non-?fatal))\s+XC\d+\s+i\d+\s+Link\s+-?\d+\s+\(0x`)
	sxidSeverity = lazily(`^((?i:fatal|non-?fatal))\b`)
	xidProcess   = lazily(`^pid='?(\d{1,10}|<unknown>)'?(?:, name=([^,]{0,100}))?`)
	xidRecovered = lazily(
		`GPU recovery action changed from 0x[[:xdigit:]]+ \([^()]*\) to 0x0 \(None\)(?: caused by previous Xid \d+)?$`)
	uuidLine   = lazily(`^NVRM: GPU at PCI:([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2}): (GPU-[[:xdigit:]-]{36})$`)
	offBusLine = lazily(
		`^NVRM: (?:GPU ([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[0-7]): GPU has fallen off the bus\.` +
			`|The NVIDIA GPU ([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[0-7])\b.*fallen off the bus)`)
	initLine = lazily(
		`^NVRM: GPU ([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[0-7]): RmInitAdapter failed! \(`)
	sxidLine = lazily(
		`^nvidia-nvswitch\d{1,3}: SXid \(PCI:([[:xdigit:]]{4,8}:[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[0-7])\): (\d{1,5}), (.*)`)
)

const (
	codeOffBus = "fallen_off_bus"
	codeInit   = "init_failed"
	xidOffBus  = "79"
	// mpsServer is the server of NVIDIA's multi-process service, with the name cut as in the kernel. Under MPS the
	// driver reports the server and not the client.
	mpsServer = "nvidia-cuda-mps"
	nvrm      = "NVRM: "
)

// parseNVIDIA parses a record of NVIDIA's driver. Its text may follow an unfinished line of the driver, which also has
// the flag c. Other records are not searched: their text may contain a name that a program chose.
func parseNVIDIA(r *record) (line, bool) {
	if m := xidLine().FindStringSubmatch(r.text); m != nil {
		return parseXID(m), true
	}
	if m := uuidLine().FindStringSubmatch(r.text); m != nil {
		return line{kind: uuid, key: gpuKey(model.DriverNVIDIA, m[1]+".0", ""), uuid: m[2]}, true
	}
	if m := offBusLine().FindStringSubmatch(r.text); m != nil {
		return line{kind: fault, key: gpuKey(model.DriverNVIDIA, m[1]+m[2], codeOffBus)}, true
	}
	if m := initLine().FindStringSubmatch(r.text); m != nil {
		return line{kind: fault, key: gpuKey(model.DriverNVIDIA, m[1], codeInit)}, true
	}
	if i := strings.LastIndex(r.text, nvrm); r.continued && i > 0 {
		if m := xidLine().FindStringSubmatch(r.text[i:]); m != nil {
			return parseXID(m), true
		}
	}
	return line{}, false
}

func parseXID(m []string) line {
	l := line{kind: fault, key: gpuKey(model.DriverNVIDIA, m[1]+".0", number(m[3]))}
	if m[2] != "" {
		l.key.GPUInstance = number(m[2])
	}
	if p := xidProcess().FindStringSubmatch(m[4]); p != nil {
		l.pid, _ = strconv.Atoi(p[1]) // 0 for <unknown>
		l.process = p[2]
		l.proxy = strings.HasPrefix(l.process, mpsServer)
	}
	if s := xidSeverity().FindStringSubmatch(m[4]); s != nil {
		l.key.Severity = severity(s[1] + s[2])
	}
	if l.key.Code == "154" && xidRecovered().MatchString(m[4]) {
		l.kind = recovery
	}
	return l
}

// parseNVSwitch parses a record of an NVSwitch. The lines after the first line of an error have its severity and data.
func parseNVSwitch(r *record) (line, bool) {
	m := sxidLine().FindStringSubmatch(r.text)
	if m == nil || strings.HasPrefix(m[3], "Severity ") || strings.HasPrefix(m[3], "Data {") {
		return line{}, false
	}
	l := line{kind: fault, key: gpuKey(model.DriverNVSwitch, m[1], number(m[2]))}
	if s := sxidSeverity().FindStringSubmatch(m[3]); s != nil {
		l.key.Severity = severity(s[1])
	}
	return l, true
}

func severity(word string) model.FaultSeverity {
	if strings.EqualFold(word, string(model.FaultFatal)) {
		return model.FaultFatal
	}
	return model.FaultNonfatal
}

func gpuKey(driver model.FaultDriver, address, code string) model.FaultKey {
	return model.FaultKey{Driver: driver, PCIAddress: strings.ToLower(address), Code: code}
}

func number(digits string) string {
	n, _ := strconv.Atoi(digits) // five digits at most
	return strconv.Itoa(n)
}
