// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// names are the counters of PortCounters and PortCountersExtended, in the order that
// they are told in. Where both attributes have one, the 64 bits of the latter count.
var names = []string{
	"PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts",
	"PortUnicastXmitPkts", "PortUnicastRcvPkts", "PortMulticastXmitPkts", "PortMulticastRcvPkts",
	"PortXmitWait", "SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter",
	"PortRcvErrors", "PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors",
	"PortXmitDiscards", "PortXmitConstraintErrors", "PortRcvConstraintErrors",
	"LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "QP1Dropped", "VL15Dropped",
}

var isName = func() map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		set[n] = true
	}
	return set
}()

// figures are counters by name.
type figures map[string]uint64

// list is never nil.
func (f figures) list() []model.Counter {
	list := make([]model.Counter, 0, len(f))
	for _, name := range names {
		if v, ok := f[name]; ok {
			list = append(list, model.Counter{Name: name, Value: v})
		}
	}
	return list
}

// Bits of CapabilityMask in ClassPortInfo.
const (
	hasExtended   = 1<<9 | 1<<10 // PortCountersExtended, the second without unicast and multicast
	hasXmitWait   = 1 << 12
	hasQP1Dropped = 1 << 15
)

// Of perfquery: the port, and what its performance manager has.
var perfHeader = regexp.MustCompile(`^# Port (?:extended )?counters: Lid [0-9]+ port ([0-9]+) \(CapMask: 0x([0-9A-Fa-f]{1,4})`)

// parsePerfquery reads what perfquery prints of each port, and the capability mask.
// Counters that the switch does not have are printed too, as zeros: they are left out.
//
//	# Port counters: Lid 2 port 1 (CapMask: 0x1300)
//	SymbolErrorCounter:..............5
func parsePerfquery(text []byte) (ports map[int]figures, mask uint64) {
	ports = map[int]figures{}
	var at figures
	for line := range lines(text) {
		if m := perfHeader.FindSubmatch(line); m != nil {
			number, _ := strconv.Atoi(string(m[1]))
			mask, _ = strconv.ParseUint(string(m[2]), 16, 16)
			if at = nil; number <= maxPort {
				at = figures{}
				ports[number] = at
			}
			continue
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if at == nil || !ok || !isName[string(name)] {
			continue
		}
		if v, err := strconv.ParseUint(strings.TrimLeft(string(value), "."), 10, 64); err == nil {
			at[string(name)] = v
		}
	}
	for _, f := range ports {
		if mask&hasXmitWait == 0 {
			delete(f, "PortXmitWait")
		}
		if mask&hasQP1Dropped == 0 {
			delete(f, "QP1Dropped")
		}
	}
	return ports, mask
}

// Of ibqueryerrors: a port, not all of them, and a counter with its value, which is
// followed by another unit of it.
var (
	errorLine  = regexp.MustCompile(`^   GUID 0x([0-9a-f]{1,16}) port ([0-9]+):(.*)$`)
	errorEntry = regexp.MustCompile(`\[([A-Za-z0-9]+) == ([0-9]+)(?: \([^)]*\))?\]`)
	failures   = regexp.MustCompile(`(?m)^## +([0-9]+) PMA query failures$`)
	unanswered = regexp.MustCompile(`^ibwarn: .* query failed on .*, Lid ([0-9]+) port [0-9]+$`)
)

// parseErrors reads ibqueryerrors: the counters that are not zero, of ports that have
// errors, the LIDs that did not answer, and how many more questions were not answered,
// where the complaints are cut off. Without a summary it did not get to the end, as
// where it prints nothing. In a complaint a name comes before the LID, never after it.
//
//	GUID 0x100002 port 1: [SymbolErrorCounter == 5] [PortXmitData == 80928 (316.125KB)]
func parseErrors(text []byte) (ports map[end]figures, silent map[uint32]bool, unknown int, complete bool) {
	ports, silent = map[end]figures{}, map[uint32]bool{}
	for line := range lines(text) {
		if m := unanswered.FindSubmatch(line); m != nil {
			lid, _ := strconv.ParseUint(string(m[1]), 10, 32)
			silent[uint32(lid)] = true
			unknown--
		}
		complete = complete || bytes.HasPrefix(line, []byte("## Summary: "))
		m := errorLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		number, err := strconv.Atoi(string(m[2]))
		if err != nil || number > maxPort {
			continue
		}
		f := figures{}
		for _, entry := range errorEntry.FindAllSubmatch(m[3], -1) {
			v, err := strconv.ParseUint(string(entry[2]), 10, 64)
			if err == nil && isName[string(entry[1])] {
				f[string(entry[1])] = v
			}
		}
		ports[end{padded(string(m[1])), number}] = f
	}
	if m := failures.FindSubmatch(text); m != nil {
		failed, _ := strconv.Atoi(string(m[1]))
		unknown += failed
	}
	return ports, silent, max(unknown, 0), complete
}
