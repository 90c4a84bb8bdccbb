// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
)

// line is the meaning of a record.
type line struct {
	kind    kind
	key     model.FaultKey
	pid     int
	process string
	proxy   bool   // the process acts for others: it has not caused the fault
	awaits  bool   // one of the next records of the device has the process
	uuid    string // of kind uuid
}

type kind int

const (
	fault    kind = iota
	recovery      // of the device
	uuid          // the UUID of a GPU
	culprit       // the process of the last fault of the device
)

// message is a text that a driver logs with dev_printk.
type message struct {
	driver model.FaultDriver
	// text matches the text after the prefixes. A group "process" has the name of the process that caused the fault,
	// "pid" its PID.
	text   func() *regexp.Regexp
	code   string
	kind   kind
	awaits bool
}

// lazily returns a function that compiles a regular expression at its first call: no node has the hardware of all drivers.
func lazily(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

func row(driver model.FaultDriver, code, text string) message {
	return message{driver: driver, code: code, text: lazily(text)}
}

func awaiting(m message) message { m.awaits = true; return m }

func recovers(m message) message { m.kind = recovery; return m }

// messages lists the messages by the name of the driver of the PCI device. The texts are those of Linux 6.12; each error has
// one row, although drivers may print several lines about it.
var messages = map[string][]message{
	"amdgpu": {
		awaiting(row(model.DriverAMDGPU, "page_fault", `^\[\w+\] (?:no-)?retry page fault \(src_id:\d+`)),
		awaiting(row(model.DriverAMDGPU, "ring_timeout", `^ring \S+ timeout, signaled seq=`)),
		row(model.DriverAMDGPU, "ring_soft_recovery", `^ring \S+ timeout, but soft recovered`),
		row(model.DriverAMDGPU, "reset", `^GPU reset begin!`),
		recovers(row(model.DriverAMDGPU, "reset", `^GPU reset\(\d+\) succeeded!`)),
		row(model.DriverAMDGPU, "reset_failed", `^GPU reset end with ret = -\d+`),
		row(model.DriverAMDGPU, "ras_fatal", `^uncorrectable hardware error\(ERREVENT_ATHUB_INTERRUPT\) detected!`),
		row(model.DriverAMDGPU, "ras_uncorrectable", `^(?:\{\d+\})?[1-9]\d* (?:new )?uncorrectable hardware errors detected in \w+ block`),
		row(model.DriverAMDGPU, "ras_correctable", `^(?:\{\d+\})?[1-9]\d* (?:new )?correctable hardware errors detected in \w+ block`),
		row(model.DriverAMDGPU, "ras_deferred", `^(?:\{\d+\})?[1-9]\d* (?:new )?deferred hardware errors detected in \w+ block`),
		row(model.DriverAMDGPU, "ras_poison", `^GPU reset for \w+ RAS poison consumption is issued!`),
		row(model.DriverAMDGPU, "queue_preemption_timeout", `^qcm fence wait loop timeout expired`),
	},
	"i915": {
		row(model.DriverI915, "hang", `^GPU HANG: ecode \d+:[[:xdigit:]]+:[[:xdigit:]]{8}(?:, in (?P<process>.*) \[(?P<pid>\d+)\])?$`),
		row(model.DriverI915, "reset", `^Resetting chip for `),
		row(model.DriverI915, "engine_reset", `^Resetting \w+ for `),
	},
	"xe": {
		row(model.DriverXe, "job_timeout", `^Timedout job: seqno=\d+, lrc_seqno=\d+, guc_id=\d+, flags=0x[[:xdigit:]]+`+
			`(?: in (?P<process>.*) \[(?P<pid>-?\d+)\])?$`),
		row(model.DriverXe, "engine_reset", `^Engine reset: engine_class=`),
		row(model.DriverXe, "reset", `^reset started$`),
		row(model.DriverXe, "reset_failed", `^reset failed \(`),
		recovers(row(model.DriverXe, "reset", `^reset done$`)),
		row(model.DriverXe, "wedged", `^CRITICAL: Xe has declared device `),
	},
	"mlx5_core": {
		row(model.DriverMLX5, "health", `^Health issue observed, `),
		row(model.DriverMLX5, "health_compromised", `^device's health compromised - reached miss count`),
		row(model.DriverMLX5, "fatal", `^Fatal error \d+ detected`),
		row(model.DriverMLX5, "recovery_failed", `^health recovery failed`),
		recovers(row(model.DriverMLX5, "health", `^health recovery succeeded`)),
		row(model.DriverMLX5, "command_timeout", `^\w+\(0x[[:xdigit:]]+\) timeout\. Will cause a leak of a command resource`),
		row(model.DriverMLX5, "high_temperature", `^High temperature on sensors with bit set `),
		row(model.DriverMLX5, "slot_power", `^Detected insufficient power on the PCIe slot`),
		row(model.DriverMLX5, "module_error", `^Port module event\[error\]: module \d+, Cable error`),
		row(model.DriverMLX5, "module_unplugged", `^Port module event: module \d+, Cable unplugged`),
		row(model.DriverMLX5, "module_disabled", `^Port module event: module \d+, Cable disabled`),
		recovers(row(model.DriverMLX5, "module_unplugged", `^Port module event: module \d+, Cable plugged`)),
	},
	"bnxt_en": {
		row(model.DriverBNXT, "firmware_timeout", `^Error \(timeout: \d+\) msg \{`),
		row(model.DriverBNXT, "firmware_fatal", `^Detected firmware fatal condition, initiating reset`),
		row(model.DriverBNXT, "firmware_not_responding", `^Firmware not responding, status: `),
		row(model.DriverBNXT, "firmware_reset", `^(?:Firmware \w+|\w+) firmware reset event, |^Firmware \w+ reset event, `),
		row(model.DriverBNXTRDMA, "firmware_stall", `^(?:QPLIB: )?FW STALL Detected\.`),
		row(model.DriverBNXTRDMA, "channel_not_responding", `^(?:QPLIB: )?Unreponsive rcfw channel detected`), // as the driver spells it
	},
	"ice": {
		row(model.DriverIRDMA, "abnormal_event", `^abnormal ae_id = 0x`),
		row(model.DriverIRDMA, "reset_requested", `^Requesting a reset`),
		row(model.DriverIRDMA, "critical", `^critical PE Error, GLPE_CRITERR=`),
		row(model.DriverIRDMA, "hmc", `^HMC Error`),
	},
	"efa": {
		row(model.DriverEFA, "command_timeout", `^Wait for completion \(polling\) timeout`),
		row(model.DriverEFA, "register_timeout", `^Reading register timed out\.`),
	},
}

// otherNames are other drivers to which the PCI device of a message may be bound, or may seem to be.
var otherNames = map[string]string{"i40e": "ice", "irdma": "ice", "bnxt_re": "bnxt_en"}

var (
	// drmPrefix is what DRM drivers print before their text, and mlx5Prefix what mlx5_core does: function, line and PID of
	// the task that runs, which is often a worker of the kernel and never a culprit.
	drmPrefix  = lazily(`^(?:\[drm(?::\w+(?: \[\w+\])?)?\] |\*ERROR\* |Tile\d+: |GT\d+: )+`)
	mlx5Prefix = lazily(`^\w+:\d+:\(pid \d+\): `)
	// amdgpuProcess begins the text with the process of a page fault or ring timeout.
	amdgpuProcess = lazily(`^ *(?:Process information: process|for process|in process|Process|process) `)
)

// parseDevice parses a record that a driver printed with dev_printk, netdev_printk or ibdev_printk: "DRIVER ADDRESS: text"
// or "DRIVER ADDRESS NAME: text".
func parseDevice(r *record) (line, bool) {
	driver, rest, _ := strings.Cut(r.text, " ")
	if other := otherNames[driver]; other != "" {
		driver = other
	}
	rows := messages[driver]
	rest, ok := strings.CutPrefix(rest, r.pciAddress)
	if !ok || rows == nil || !model.IsPCIAddress(r.pciAddress) {
		return line{}, false
	}
	_, text, ok := strings.Cut(rest, ": ")
	if !ok {
		return line{}, false
	}
	switch driver {
	case "amdgpu":
		text = strings.TrimPrefix(text, "amdgpu: ")
		if start := amdgpuProcess().FindString(text); start != "" {
			l := line{kind: culprit, key: gpuKey(model.DriverAMDGPU, r.pciAddress, "")}
			l.process, l.pid = processOf(text[len(start):])
			return l, true
		}
	case "mlx5_core":
		text = text[len(mlx5Prefix().FindString(text)):]
	}
	text = text[len(drmPrefix().FindString(text)):]
	i := slices.IndexFunc(rows, func(m message) bool { return m.text().MatchString(text) })
	if i < 0 {
		return line{}, false
	}
	m := &rows[i]
	l := line{kind: m.kind, awaits: m.awaits, key: gpuKey(m.driver, r.pciAddress, m.code)}
	if at := m.text().SubexpIndex("pid"); at >= 0 {
		found := m.text().FindStringSubmatch(text)
		l.process = found[m.text().SubexpIndex("process")]
		l.pid = max(0, parsePID(found[at]))
	}
	return l, true
}

// maxName is the length of the longest name of a process: TASK_COMM_LEN is 16.
const maxName = 15

// processOf parses "NAME pid PID thread NAME pid PID", which some versions of amdgpu end with a parenthesis. A process
// chooses its names: if they permit another reading with another PID, the PID is unknown.
func processOf(text string) (name string, pid int) {
	const middle, end = " pid ", " thread "
	for i := 0; ; i++ {
		next := strings.Index(text[i:], middle)
		if next < 0 {
			return name, pid
		}
		i += next
		digits, _, ok := strings.Cut(text[i+len(middle):], end)
		n := parsePID(digits)
		switch {
		case !ok || n <= 0 || i-3*strings.Count(text[:i], `\x`) > maxName: // the kernel escapes a byte as \xNN
		case pid != 0 && n != pid:
			return "", 0
		default:
			name, pid = text[:i], n
		}
	}
}

// parsePID returns 0 for text that is no PID.
func parsePID(s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

// parse returns the meaning of a record, and false if it has none here.
func parse(r *record) (line, bool) {
	switch {
	case strings.HasPrefix(r.text, nvrm):
		return parseNVIDIA(r)
	case strings.HasPrefix(r.text, "nvidia-nvswitch"):
		return parseNVSwitch(r)
	case r.pciAddress != "":
		return parseDevice(r)
	}
	return line{}, false
}
