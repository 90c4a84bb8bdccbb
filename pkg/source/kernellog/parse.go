// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// line is the meaning of a record.
type line struct {
	kind    kind
	key     model.FaultKey
	pid     int
	process string
	proxy   bool   // the process acts for others: it did not cause the fault
	awaits  bool   // a following record of the device has the process
	again   bool   // the record before may report the same event
	uuid    string // of kind uuid
}

type kind int

const (
	fault    kind = iota
	recovery      // of the device
	uuid          // the UUID of a GPU
	culprit       // the process of the last fault of the device
)

var (
	// drmPrefix is the prefix of DRM drivers, and mlx5Prefix of mlx5_core: function, line and PID of the running task,
	// which is often a kernel worker and never a culprit.
	drmPrefix  = lazily(`^(?:\[drm(?::\w+(?: \[\w+\])?)?\] |\*ERROR\* |Tile\d+: |GT\d+: |GUC: )+`)
	mlx5Prefix = lazily(`^\w+:\d+:\(pid \d+\): `)
)

// parse returns the meaning of a record, or false.
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

// parseDevice parses a record that a driver printed with dev_printk, netdev_printk or ibdev_printk: "DRIVER ADDRESS:
// text" or "DRIVER ADDRESS NAME: text".
func parseDevice(r *record) (line, bool) {
	driver, rest, _ := strings.Cut(r.text, " ")
	rows := ofFunctions[driver]
	if other := otherNames[driver]; other != "" {
		driver = other
	}
	if rows == nil {
		rows = messages[driver]
	}
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
	case "mlx5_core":
		text = text[len(mlx5Prefix().FindString(text)):]
	}
	text = text[len(drmPrefix().FindString(text)):]
	i := slices.IndexFunc(rows, func(m message) bool { return m.text().MatchString(text) })
	if i < 0 {
		return line{}, false
	}
	m := &rows[i]
	l := line{kind: m.kind, awaits: m.awaits, again: m.again, key: gpuKey(m.driver, r.pciAddress, m.code)}
	l.process, l.pid = m.processIn(text)
	return l, true
}

func (m *message) processIn(text string) (name string, pid int) {
	group := m.text().SubexpIndex
	switch {
	case group("task") >= 0:
		return processOf(submatch(m.text(), text, "task"))
	case group("pid") >= 0:
		return submatch(m.text(), text, "process"), max(0, parsePID(submatch(m.text(), text, "pid")))
	}
	return "", 0
}

func submatch(r *regexp.Regexp, text, group string) string {
	return r.FindStringSubmatch(text)[r.SubexpIndex(group)]
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

func parsePID(s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0
	}
	return int(n)
}
